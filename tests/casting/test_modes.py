# SPDX-License-Identifier: Apache-2.0
"""Public calls in threads that flush subnormals, round otherwise, or raise NumPy's errors: the reference's bits."""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import gpucast
import processor_modes
from codes import assert_same, random_codes
from gpucast import reference
from gpucast.core.dtypes import DType
from gpucast.core.formats import FORMATS
from gpucast.parity.cases import NUMERIC, cases
from gpucast.reference import exact_quantize
from hard_codes import hard_codes
from processor_modes import SOME, Modes, in_thread, under

Array = np.ndarray[Any, Any]

pytestmark = processor_modes.needed
MODES = pytest.mark.parametrize("modes", SOME, ids=str)
SHORT, LONG = 5, 20_000


@functools.cache
def elements(src: DType, size: int) -> Array:
    """Subnormals, points where rounding changes, and any others."""
    rng = np.random.default_rng(src.bits)
    near = (gpucast.dtype(name) for name in ("FLOAT", "FLOAT8E8M0", "FLOAT16", "FLOAT8E5M2"))
    every = np.concatenate([random_codes(src, 300, 1), *(hard_codes(src, dst, 80) for dst in near)])
    if size < every.size:
        tiny = np.array([1, 2], src.code_numpy) & src.code_numpy.type(1 if src.family == "bool" else src.code_mask)
        return np.concatenate([tiny, rng.choice(every, size - 2)]).view(src.numpy)
    return rng.permutation(np.resize(every, size)).view(src.numpy)


#: Each pair's rules and results, computed once under the default modes; long arrays by the default rule alone.
WANTED: dict[Any, Array] = {}


def wanted(src: DType, size: int, case: Any) -> Array:
    key = src, size, case
    if key not in WANTED:
        WANTED[key] = reference.cast(elements(src, size), case.rule.dst, **dict(case.attributes))
    return WANTED[key]


@pytest.mark.parametrize("size", [SHORT, LONG])
@MODES
def test_casts_of_all_pairs(modes: Modes, size: int) -> None:
    tried = [
        (src, case)
        for src, dst in itertools.product(NUMERIC, NUMERIC)
        for case in cases(src, dst)[: None if size == SHORT else 1]
    ]
    expected = [wanted(src, size, case) for src, case in tried]

    def work() -> list[Array]:
        return [gpucast.cast(elements(src, size), case.rule.dst, **dict(case.attributes)) for src, case in tried]

    with under(modes):
        found = work()
    wrong = [
        case for (_, case), got, right in zip(tried, found, expected, strict=True) if got.tobytes() != right.tobytes()
    ]
    assert not wrong, [*map(str, wrong)]
    # What was kept on the way is right, too; and in a new thread all of it is found again.
    for got, right in zip(work(), expected, strict=True):
        assert got.tobytes() == right.tobytes()
    for got, right in zip(in_thread(work, modes), expected, strict=True):
        assert got.tobytes() == right.tobytes()


@pytest.mark.parametrize("size", [SHORT, LONG])
def test_quantizing(size: int) -> None:
    for format, name in itertools.product(
        FORMATS.values(), ("FLOAT", "BFLOAT16", "DOUBLE") if size == SHORT else ("FLOAT",)
    ):
        x = elements(gpucast.dtype(name), size).reshape(-1, 5 if size == SHORT else 200)
        x = np.where(np.isfinite(reference.cast(x, "DOUBLE")), x, np.zeros_like(x))
        right = exact_quantize.quantize(x, format, axis=0 if format.block == "axis" else 1)
        back = exact_quantize.dequantize(right, format, "FLOAT", axis=0 if format.block == "axis" else 1)

        def both(x: Array = x, format: Any = format) -> Any:
            q = gpucast.quantize(x, format, axis=0 if format.block == "axis" else 1)
            return q, q.dequantize("FLOAT"), gpucast.dequantize(q, "BFLOAT16")

        for modes in SOME:
            with under(modes):
                q, found, _ = both()
            for key, part in q.parts().items():
                part = part.get() if isinstance(part, gpucast.PackedArray) else part
                assert part.tobytes() == np.asarray(getattr(right, key)).tobytes(), (str(format), key, modes)
            assert found.tobytes() == back.tobytes(), (str(format), modes)
            assert in_thread(both, modes)[1].tobytes() == back.tobytes(), (str(format), modes)


def test_numpy_may_raise_and_warnings_may_be_errors() -> None:
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for src, dst in itertools.product(NUMERIC, (*NUMERIC, gpucast.dtype("STRING"))):
            gpucast.cast_report(elements(src, SHORT), dst)
            if src.is_float:
                gpucast.cast(elements(src, SHORT), "STRING")


# ---- threads of others ----


def test_the_threads_of_jax() -> None:
    """XLA's threads flush subnormals; what is computed there is right, and poisons nothing."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        pairs = itertools.permutations((gpucast.dtype(n) for n in ("FLOAT", "BFLOAT16", "DOUBLE")), 2)
        for (src, dst), size in itertools.product(pairs, (SHORT, 2_000)):
            x = elements(src, LONG)[:size].copy()
            x[: min(size, 7)] = np.arange(1, 1 + min(size, 7)).astype(src.code_numpy).view(src.numpy)
            got = np.asarray(jax.jit(lambda x, dst=dst: gpucast.cast(x, dst))(x))
            assert_same(got, reference.cast(x, dst))
    finally:
        jax.config.update("jax_enable_x64", before)
    for format in ("mxfp8e4m3", "mxfp4", "nvfp4"):
        zeros = gpucast.quantize(np.zeros((4, 64), np.float32), format).dequantize()
        assert not zeros.any() and not np.isnan(zeros).any()


@pytest.mark.peers
def test_what_torch_sets() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, tensor = elements(gpucast.dtype("FLOAT"), LONG), None
    right = {to: reference.cast(x, to) for to in ("DOUBLE", "BFLOAT16", "FLOAT16")}
    tensor = torch.from_numpy(x.copy())
    try:
        assert torch.set_flush_denormal(True)
        found = {to: gpucast.cast(x, to) for to in right}
        tensors = {to: gpucast.cast(tensor, to) for to in right}
    finally:
        torch.set_flush_denormal(False)
    for to, wanted_one in right.items():
        assert_same(found[to], wanted_one)
        assert tensors[to].view(torch.uint8).numpy().tobytes() == wanted_one.tobytes()


@MODES
def test_scales_that_processors_flush(modes: Modes) -> None:
    x = np.array([np.inf, 1.0, -3e38, np.nan], np.float32)
    for scale, to in itertools.product((2.0**-1074, 1e-310, 2.0**-149, 1e-40), ("FLOAT", "DOUBLE", "FLOAT16")):

        def call(scale: float = scale, to: str = to) -> list[Array]:
            # The second cast is one by a plan.
            return [*(gpucast.cast(x, to, scale=scale) for _ in range(2)), *gpucast.cast_many([x, x], to, scale=scale)]

        with np.errstate(all="ignore"):
            want = reference.cast(reference.cast(x, "DOUBLE") * scale, to)
        for y in in_thread(call, modes):
            assert_same(y, want)
