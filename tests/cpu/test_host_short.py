# SPDX-License-Identifier: Apache-2.0
"""Short arrays on the host: lanes that are kept and lent, and change with what has come."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gpucast
from codes import assert_same, random_codes
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import resolve
from gpucast.cpu import lanes
from gpucast.parity.cases import NUMERIC


def values(row: DType, n: int, seed: int) -> np.ndarray:
    return random_codes(row, n, seed).view(row.numpy)


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_short_arrays_are_cast_as_long_ones_are(src: DType) -> None:
    """However often, and in whatever order lengths come: lanes and tables change on the way."""
    random = np.random.default_rng(src.bits)
    for dst in NUMERIC:
        rule = resolve(src, dst)
        lanes._short_lanes.cache_clear()
        for n in (1, 3, lanes.SHORT, 2, 500, 1, lanes.SHORT, 7):
            x = values(src, n, int(random.integers(1 << 30)))
            out = np.empty(n, dst.numpy)
            lanes.apply(x, rule, out)
            assert_same(out, gpucast.reference.cast(x, dst))


def test_short_arrays_in_many_threads() -> None:
    row = dtype("FLOAT")
    rules = [resolve(row, dtype(to)) for to in ("FLOAT8E4M3FN", "FLOAT16", "INT8", "BOOL")]
    sources = [values(row, n, n) for n in (1, 2, 77, 500, lanes.SHORT)]
    cases = [(x, rule, gpucast.reference.cast(x, rule.dst)) for x in sources for rule in rules]
    lanes._short_lanes.cache_clear()
    wrong: list[str] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        start.wait()
        for i in np.random.default_rng(seed).integers(0, len(cases), 500):
            x, rule, wanted = cases[i]
            out = np.empty(x.shape, rule.dst.numpy)
            lanes.apply(x, rule, out)
            if out.tobytes() != wanted.tobytes():
                wrong.append(f"{rule.dst.name} {x.size}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_short_casts_warn_of_nothing_and_leave_error_handling_as_it_is() -> None:
    x = np.array([1e30, np.nan, -np.inf, 1e-30], np.float32)
    with np.errstate(all="raise"):
        before = np.geterr()
        for _ in range(3):
            for to in ("FLOAT16", "INT8", "FLOAT8E5M2", "BFLOAT16", "BOOL"):
                gpucast.cast(x, to)
        assert np.geterr() == before


@pytest.mark.parametrize("kind", NUMERIC, ids=str)
def test_casts_of_a_type_to_itself_are_copies_of_the_bits(kind: DType) -> None:
    """Signalling NaN among them; codes of BOOL and of types below one byte lose what is no code."""
    for shape in ((4, 70), (40, 70)):
        x = random_codes(kind, shape, 3).view(kind.numpy)
        for given in (x, x.T, x[::2, ::3], x[:0]):
            out = np.zeros(given.shape, kind.numpy)
            # The second call has a plan.
            for _ in range(2):
                y = gpucast.cast(given, kind)
                assert_same(y, gpucast.reference.cast(given, kind))
                assert y.dtype == kind.numpy and not np.shares_memory(y, given)
                assert y.strides == np.empty_like(given).strides
                assert gpucast.cast(given, kind, out=out) is out
                assert out.tobytes() == y.tobytes()
