# SPDX-License-Identifier: Apache-2.0
"""Plans: a call that looks like an earlier one does next to nothing, and still refuses all that the first one would.

The device path is the real `CupyDriver` on CuPy arrays over host memory; only CUDA's own functions are replaced.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from bench import idle_cuda
from bench.entered import measured
from codes import assert_same, values
from fake_cuda import Cuda, arrays
from gpucast import PackedArray
from gpucast.casting import plans
from gpucast.core.dtypes import dtype
from gpucast.core.extension import MODULE
from gpucast.core.rule import resolve
from gpucast.kernel.fused_kernel import FUSED, cast_kernel

pytestmark = pytest.mark.usefixtures("no_plans")


# ---- the fast path does little, and all that it must ----


def test_a_warm_call_into_out_is_a_bare_launch(cuda: Cuda) -> None:
    x, out = arrays()
    gpucast.cast(x, "FLOAT16", out=out)
    cuda.calls.clear()
    cuda.launches.clear()
    assert gpucast.cast(x, "FLOAT16", out=out) is out
    assert cuda.calls == ["launchKernel"]
    (launched,) = cuda.launches
    assert (launched.src, launched.src_bit, launched.dst, launched.n) == (x.data.ptr, 0, out.data.ptr, 100)
    source = cast_kernel(resolve(dtype("FLOAT"), dtype("FLOAT16")))
    assert (launched.blocks, launched.threads) == (source.blocks(100), source.threads)
    gpucast.cast(x, "FLOAT16")
    assert cuda.calls[1:] == ["streamIsCapturing", "alloc", "launchKernel"]


def test_a_warm_fused_call_gives_the_arguments_of_the_first() -> None:
    """The module packs the last argument of a fused kernel; the first call packs it by its table."""
    given: list[tuple[Any, ...]] = []

    def launch(function: int, blocks: int, threads: int, stream: int, address: int) -> int:
        last = (ctypes.c_void_p * 5).from_address(address)[4]
        given.append((function, blocks, threads, FUSED.layout.unpack(ctypes.string_at(last, FUSED.nbytes))))
        return 0

    numbers = iter(range(1, 100))
    with idle_cuda.idle(launch_kernel=launch, module_function=lambda module, name: next(numbers)):
        x, out = arrays()
        scale, amax = idle_cuda.array((), np.float32), idle_cuda.array((), np.float32)
        for keywords in (
            {"scale": 2.0},
            {"scale": 3},
            {"scale": 0.1},
            {"scale": scale, "amax": amax},
            {"scale": idle_cuda.array((1,), np.float64)},
            {"amax": amax},
            {"rounding": "stochastic", "seed": 2**64 - 1, "offset": 5},
            {"rounding": "stochastic", "seed": 7, "scale": 2.0, "amax": amax},
        ):
            given.clear()
            for _ in range(2):
                gpucast.cast(x, "FLOAT16", **keywords, out=out)
            assert len(given) == 2 and given[0] == given[1], keywords
            # Of these, those of the functions above.
            assert events(lambda keywords=keywords: gpucast.cast(x, "FLOAT16", **keywords, out=out))["call"] <= 6


def test_a_plan_that_is_cold_on_a_device_does_not_load_while_captured(cuda: Cuda) -> None:
    x, out = arrays()
    gpucast.cast(x, "FLOAT16", out=out)
    there, result = idle_cuda.array((9,), np.float32, 1), idle_cuda.array((9,), np.float16, 1)
    cuda.device, cuda.capture = 1, True
    with pytest.raises(RuntimeError, match="not loaded yet"):
        gpucast.cast(there, "FLOAT16", out=result)
    cuda.capture = False
    assert gpucast.cast(there, "FLOAT16", out=result) is result


def events(call: Callable[[], object]) -> Counter[str]:
    """Calls of Python functions, and of built-in ones, that a call makes."""
    counted: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            counted[event] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    counted["c_call"] -= 1  # setprofile itself
    counted["call"] -= 1  # the lambda
    return counted


def test_how_much_python_a_warm_call_is() -> None:
    """Time is noisy, these counts are not. They may fall, and must not rise unnoticed."""
    with idle_cuda.idle():
        x, out = arrays()
        scale, amax = idle_cuda.array((), np.float32), idle_cuda.array((), np.float32)
        for call, python, builtin in (
            (lambda: gpucast.cast(x, "FLOAT16", out=out), 6, 3),
            (lambda: gpucast.cast(x, "FLOAT16"), 10, 4),
            (lambda: gpucast.cast(x, "FLOAT16", scale=2.0, out=out), 22, 20),
            (lambda: gpucast.cast(x, "FLOAT16", scale=scale, amax=amax, out=out), 23, 20),
            (lambda: gpucast.cast(x, "FLOAT16", rounding="stochastic", seed=1), 29, 23),
        ):
            counted = min((events(call) for _ in range(100)), key=Counter.total)
            assert counted["call"] <= python and counted["c_call"] <= builtin, counted


#: The most functions of gpucast that a call enters, and files that they are in: so much a reader has to follow.
ENTERED = {
    "NumPy, again": (1, 1),
    "NumPy, first": (27, 8),
    "CuPy, first": (45, 10),
    "quantize, again": (9, 4),
    "quantize on a device, again": (32, 6),
    "cast_many, again": (1, 1),
    "cast_many on a device, again": (9, 3),
    "torch, again": (1, 1),
    "torch, first": (37, 11),
}


@pytest.mark.skipif(MODULE is None, reason="the extension module is missing")
def test_a_call_enters_few_functions_and_files() -> None:
    with measured() as calls:
        for name, call in calls.items():
            found = call()
            functions, files = ENTERED[name]
            assert len(found) <= functions and len({file for file, _ in found}) <= files, (name, found)


@pytest.mark.skipif(MODULE is None, reason="the extension module is missing")
def test_a_warm_call_of_the_host_is_one_call_of_the_module() -> None:
    x, out, amax = np.ones(1, np.float32), np.zeros(1, np.float16), np.zeros((), np.float32)
    for keywords in (
        {},
        {"out": out},
        {"scale": 2.0},
        {"scale": 2, "out": out},
        {"scale": np.ones(1), "amax": amax},
        {"scale": np.ones((), np.float32), "amax": amax, "out": out},
        {"amax": amax},
        {"rounding": "stochastic", "seed": 1},
        {"rounding": "stochastic", "seed": 2**64 - 1, "offset": 7, "scale": 0.3, "amax": amax},
    ):
        gpucast.cast(x, "FLOAT16", **keywords)
        assert events(lambda keywords=keywords: gpucast.cast(x, "FLOAT16", **keywords)) == {"call": 1, "c_call": 1}


# ---- what is not the same call ----


@pytest.mark.parametrize("on_device", [True, False], ids=["device", "host"])
def test_equal_values_of_other_types_are_refused_after_a_good_call(on_device: bool, cuda: Cuda) -> None:
    x = idle_cuda.array((5,), np.float32) if on_device else np.zeros(5, np.float32)
    for _ in range(2):
        gpucast.cast(x, 1)
        gpucast.cast(x, "FLOAT8E4M3FN", saturate=True)
        gpucast.cast(x, "FLOAT8E4M3FN", saturate=1)
        gpucast.cast(x, "FLOAT8E4M3FN", saturate=np.True_)
        gpucast.cast(x, "INT8", opset=np.int64(13))
        gpucast.cast(x, "INT8", opset=13)
        gpucast.cast(x, "INT8", opset=1)
        gpucast.cast(x, "INT8", opset=np.array(13))
    for to, keywords in (
        (True, {}),
        (1.0, {}),
        ([], {}),
        (np.array("INT8"), {}),
        ("FLOAT8E4M3FN", {"saturate": 1.0}),
        ("FLOAT8E4M3FN", {"saturate": []}),
        ("INT8", {"opset": 13.0}),
        ("INT8", {"opset": True}),
        ("INT8", {"copy": 1}),
        ("INT8", {"device": 0}),
    ):
        with pytest.raises(TypeError, match="cast: "):
            gpucast.cast(x, to, **keywords)
    for keywords in ({"round_mode": ["up"]}, {"rounding": {}}, {"overflow": "infinity"}, {"opset": 0}):
        with pytest.raises(ValueError, match="cast: "):
            gpucast.cast(x, "INT8", **keywords)


class Own(np.ndarray):
    """A subclass that may mean anything by indexing."""


def test_kinds_of_arrays_have_their_own_plans(cuda: Cuda) -> None:
    """One dtype and one destination, but each array another kind."""
    codes = values("INT4", 9)
    packed = PackedArray.pack(codes)
    on_device = PackedArray(idle_cuda.array((5,), np.uint8), "INT4", (9,))
    tagged = idle_cuda.array((9,), np.uint8).view(ml_dtypes.int4)
    for _ in range(3):
        assert isinstance(gpucast.cast(codes, "INT8"), np.ndarray)
        assert isinstance(gpucast.cast(packed, "INT8"), np.ndarray)
        assert type(gpucast.cast(on_device, "INT8")) is type(tagged) is type(gpucast.cast(tagged, "INT8"))
        assert isinstance(gpucast.cast(packed, "UINT4").data, np.ndarray)
        assert type(gpucast.cast(on_device, "UINT4").data) is type(tagged)
        with pytest.raises(TypeError, match="masked array"):
            gpucast.cast(np.ma.masked_array(codes), "INT8")
        assert type(gpucast.cast(codes.view(Own), "INT8")) is np.ndarray
    foreign = np.zeros(3, ">f4")
    for _ in range(2):
        assert_same(gpucast.cast(foreign, "FLOAT16"), np.zeros(3, np.float16))


def test_plans_do_not_grow_without_end() -> None:
    x = np.zeros(3, np.float32)
    names = [
        "".join(letter.upper() if mask >> i & 1 else letter for i, letter in enumerate("bfloat16"))
        for mask in range(256)
    ]
    for opset in range(13, 29):
        for name in set(names):
            gpucast.cast(x, name, opset=opset)
            assert 0 < plans.count() <= 2048
