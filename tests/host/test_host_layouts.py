# SPDX-License-Identifier: Apache-2.0
"""Casts of the host beside the reference: layouts, sizes, threads and memory. (Every code of the narrow types, and the
hard values of the wide ones, are in tests/parity/test_matrix.py.)"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from codes import assert_codes, codes_of
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.rule import CastRule, resolve
from gpucast.host import cast_on_host
from gpucast.parity.cases import NUMERIC, WIDE, rules
from gpucast.reference import exact_cast
from hard_codes import hard_codes

ROWS = {row.name: row for row in DTYPES}
#: Elements that walks bring together at a time, as kernels/host/walk.hpp has them, times 4.
BLOCK = 1 << 13
#: One pair at least for every kind of loop.
PAIRS = [
    ("FLOAT", "FLOAT"), ("INT4", "INT4"), ("BOOL", "BOOL"), ("UINT8", "INT8"), ("INT64", "INT16"), ("INT8", "INT4"),
    ("FLOAT", "BOOL"), ("FLOAT16", "BOOL"), ("FLOAT8E8M0", "BOOL"), ("FLOAT8E4M3FNUZ", "BOOL"), ("INT2", "BOOL"),
    ("FLOAT8E4M3FN", "INT8"), ("FLOAT8E5M2", "BFLOAT16"), ("FLOAT6E2M3", "FLOAT"), ("FLOAT4E2M1", "DOUBLE"),
    ("FLOAT16", "FLOAT"), ("FLOAT16", "UINT64"), ("INT16", "FLOAT8E5M2"), ("BFLOAT16", "FLOAT16"), ("BOOL", "FLOAT16"),
    ("INT4", "INT8"), ("INT2", "INT4"), ("BOOL", "INT32"), ("BOOL", "UINT2"), ("UINT4", "BFLOAT16"), ("INT16", "UINT4"),
    ("UINT16", "BFLOAT16"), ("BFLOAT16", "INT8"), ("BFLOAT16", "FLOAT"), ("FLOAT", "DOUBLE"), ("DOUBLE", "FLOAT"),
    ("FLOAT", "INT8"), ("FLOAT", "INT16"), ("FLOAT", "INT32"), ("FLOAT", "UINT32"), ("FLOAT", "UINT64"),
    ("DOUBLE", "INT2"), ("DOUBLE", "INT16"), ("DOUBLE", "UINT64"), ("FLOAT", "FLOAT16"), ("FLOAT", "BFLOAT16"),
    ("FLOAT", "FLOAT8E4M3FN"), ("FLOAT", "FLOAT8E8M0"), ("DOUBLE", "FLOAT16"), ("DOUBLE", "BFLOAT16"),
    ("DOUBLE", "FLOAT4E2M1"), ("INT32", "FLOAT16"), ("INT32", "BFLOAT16"), ("INT64", "FLOAT8E5M2FNUZ"),
    ("UINT64", "BFLOAT16"), ("INT64", "FLOAT8E8M0"),
]  # fmt: skip


def sample(rule: CastRule, size: int) -> np.ndarray:
    """Hard codes; those of packed types have upper bits at random, and BOOL bytes other than 0 and 1 are none rarer."""
    rng = np.random.default_rng([rule.src.number or 0, size])
    codes = np.resize(hard_codes(rule.src, rule.dst, 1000), size)
    if rule.src.bits < 8:
        codes |= rng.integers(0, 256, size, np.uint8) << np.uint8(rule.src.bits)
    return codes.view(rule.src.numpy)


def check(x: np.ndarray, rule: CastRule, out: np.ndarray | None = None) -> None:
    if out is None:
        out = np.empty(x.shape, rule.dst.numpy)
    before = x.tobytes()
    cast_on_host.into(x, rule, out)
    assert x.tobytes() == before
    # `out` may be of swapped bytes.
    got = np.array(out).astype(rule.dst.numpy, copy=False)
    assert_codes(codes_of(got, rule.dst), codes_of(exact_cast.apply(x, rule), rule.dst), rule)


@pytest.fixture(params=PAIRS, ids="-".join)
def rule(request: pytest.FixtureRequest) -> CastRule:
    src, dst = request.param
    return resolve(ROWS[src], ROWS[dst])


def in_two_dimensions(x: np.ndarray) -> np.ndarray:
    return x[: x.size // 6 * 6].reshape(-1, 6)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "every third": lambda x: x[::3],
    "reversed": lambda x: x[::-1],
    "columns": lambda x: in_two_dimensions(x)[:, 1:3],
    "transposed": lambda x: in_two_dimensions(x).T,
    "fortran": lambda x: np.asfortranarray(in_two_dimensions(x)),
    "permuted": lambda x: x[: x.size // 30 * 30].reshape(-1, 5, 6).transpose(1, 2, 0),
    "both reversed": lambda x: in_two_dimensions(x)[::-2, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:7], (5, 7)),
    "broadcast column": lambda x: np.broadcast_to(x[:7, None], (7, 5)),
    "0-d": lambda x: x[3],
    "one": lambda x: x[:1],
    "empty": lambda x: x[:0],
    "empty 3-d": lambda x: x[:0].reshape(4, 0, 3),
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "big-endian columns": lambda x: in_two_dimensions(x.astype(x.dtype.newbyteorder(">")))[:, ::2],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype),
    "unaligned": lambda x: np.frombuffer(b"1" + x.tobytes(), np.uint8)[1:].view(x.dtype),
}


def test_source_layouts(rule: CastRule) -> None:
    for make in LAYOUTS.values():
        x = np.asarray(make(sample(rule, 1001)))
        check(x, rule)
        check(x, rule, np.empty_like(x, dtype=rule.dst.numpy))


def test_out_layouts(rule: CastRule) -> None:
    for layout in ("every third", "columns", "transposed", "both reversed", "reversed"):
        whole = np.zeros(1001, rule.dst.numpy)
        out = LAYOUTS[layout](whole)
        assert out.flags.writeable
        check(sample(rule, out.size).reshape(out.shape), rule, out)
        if out.base is whole:
            written = np.zeros(1001, np.uint8)
            LAYOUTS[layout](written)[...] = 1
            assert not whole.view(rule.dst.code_numpy)[written == 0].any()


@pytest.mark.parametrize("rows, columns", [(23, 41), (150, 70), (9, 600), (600, 9)])
def test_transposed(rule: CastRule, rows: int, columns: int) -> None:
    """Squares of a vector's lanes, tiles of them, and what is left beside both."""
    x = np.resize(sample(rule, 1009).view(rule.src.code_numpy), rows * columns).view(rule.src.numpy)
    x = x.reshape(rows, columns)
    check(x.T, rule)
    check(x[:, 1:].T, rule)
    check(x[::-1].T, rule)
    check(x[:, ::-1], rule, np.empty((columns, rows), rule.dst.numpy).T)


def test_unaligned_out(rule: CastRule) -> None:
    out = np.zeros(1 + 500 * rule.dst.numpy.itemsize, np.uint8)[1:].view(rule.dst.numpy)
    check(sample(rule, 500), rule, out)


def test_chunk_boundaries(rule: CastRule) -> None:
    # The same codes at every place of a chunk; those of the whole array come from one chunk's.
    part = sample(rule, BLOCK // 4)
    wanted = exact_cast.apply(part, rule).view(rule.dst.code_numpy)
    for size in (1, 15, 17, *(blocks * BLOCK + extra for blocks in (1, 4) for extra in (-1, 0, 1))):
        x = np.resize(part.view(rule.src.code_numpy), size).view(rule.src.numpy)
        for source in (x, np.repeat(x, 2)[::2]):
            out = np.empty(size, rule.dst.numpy)
            cast_on_host.into(source, rule, out)
            assert np.array_equal(out.view(rule.dst.code_numpy), np.resize(wanted, size))


@pytest.mark.parametrize("dst", NUMERIC, ids=str)
@pytest.mark.parametrize("src", WIDE, ids=str)
def test_wide_sources_in_whole_chunks(src: DType, dst: DType, exhaustive: bool) -> None:
    """Long enough for tables, and mixed: chunks of hard values, of ordinary ones, and of few hard among ordinary."""
    codes = hard_codes(src, dst, (1 << 20) if exhaustive else 3000)
    ordinary = exact_cast.cast(np.random.default_rng(3).standard_normal(2048) * 100, src.name).view(src.code_numpy)
    few = np.resize(ordinary, 20 * min(codes.size, 2000))
    few[::20] = codes[: few.size // 20]
    x = np.concatenate([codes, np.resize(ordinary, BLOCK), few]).view(src.numpy)
    for rule in rules(src, dst, [28]):
        check(x, rule)


def test_extra_memory_is_bounded(rule: CastRule) -> None:
    x = np.resize(sample(rule, 5000).view(rule.src.code_numpy), 1 << 20).view(rule.src.numpy)
    out = np.empty(x.shape, rule.dst.numpy)
    for source, result in ((x, out), (x[::-1], out)):
        cast_on_host.into(source, rule, result)
        tracemalloc.start()
        try:
            cast_on_host.into(source, rule, result)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1 << 16, peak
