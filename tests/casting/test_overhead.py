# SPDX-License-Identifier: Apache-2.0
"""Plans: a call that looks like an earlier one does next to nothing, and still refuses all that the first one would.

The device path is the real `CupyDriver` on CuPy arrays over host memory; only CUDA's own functions are replaced.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from bench import idle_cuda
from bench.host import overhead
from codes import assert_same, random_codes
from fake_cuda import Cuda, arrays
from gpucast import PackedArray
from gpucast.casting import plans
from gpucast.codegen.cast_kernel import kernel_source
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import Options, resolve
from gpucast.gpu import driver
from gpucast.host.extension import MODULE
from gpucast.reference import exact_cast


@pytest.fixture
def cuda() -> Iterator[Cuda]:
    with Cuda().in_use() as fake:
        yield fake


@pytest.fixture(autouse=True)
def no_plans() -> None:
    plans.forget()


def values(row: DType, n: int, seed: int = 0) -> np.ndarray:
    return random_codes(row, n, seed).view(row.numpy)


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
    source = kernel_source(resolve(dtype("FLOAT"), dtype("FLOAT16")))
    assert (launched.blocks, launched.threads) == (source.blocks(100), source.threads)
    gpucast.cast(x, "FLOAT16")
    assert cuda.calls[1:] == ["streamIsCapturing", "alloc", "launchKernel"]


def test_a_warm_call_can_be_captured_and_an_allocating_one_not(cuda: Cuda) -> None:
    x, out = arrays()
    for _ in range(2):
        gpucast.cast(x, "FLOAT16", out=out)
        gpucast.cast(x, "FLOAT16")
    cuda.capture = True
    assert gpucast.cast(x, "FLOAT16", out=out) is out
    for _ in range(2):
        with pytest.raises(RuntimeError, match="memory cannot be allocated then; pass out="):
            gpucast.cast(x, "FLOAT16")
    cuda.capture = False
    assert gpucast.cast(x, "FLOAT16").shape == x.shape


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


@pytest.mark.parametrize("on_device", [True, False], ids=["device", "host"])
def test_every_attribute_has_its_own_plan(on_device: bool, cuda: Cuda) -> None:
    x = idle_cuda.array((5,), np.float32) if on_device else np.zeros(5, np.float32)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("INT8", {}),
        ("INT8", {"rounding": "nearest_even"}),
        ("INT8", {"overflow": "saturate"}),
        ("FLOAT8E4M3FN", {}),
        ("FLOAT8E4M3FN", {"saturate": False}),
        ("FLOAT8E4M3FNUZ", {}),
        ("FLOAT8E4M3FNUZ", {"opset": 19}),
        ("FLOAT8E8M0", {"round_mode": "down"}),
        ("FLOAT8E8M0", {"round_mode": "nearest"}),
    ]
    for _ in range(2):
        for to, keywords in calls:
            gpucast.cast(x, to, **keywords)
    assert plans.count() == len(calls)
    for to, keywords in calls:
        rule = resolve(dtype("FLOAT"), dtype(to), Options(**keywords))
        found = gpucast.cast(np.array([300.7, np.inf, 3.0], np.float32), to, **keywords)
        assert_same(found, exact_cast.apply(np.array([300.7, np.inf, 3.0], np.float32), rule))


def test_cast_and_cast_like_keep_their_versions_apart(cuda: Cuda) -> None:
    x, like = np.zeros(3, np.float32), np.zeros(1, ml_dtypes.float6_e2m3fn)
    for _ in range(2):
        assert gpucast.cast_like(x, like).dtype == like.dtype
        assert gpucast.cast(x, like.dtype, opset=28).dtype == like.dtype
        with pytest.raises(TypeError, match=r"cast_like: to=FLOAT6E2M3 entered at opset 28"):
            gpucast.cast_like(x, like, opset=28)


class Own(np.ndarray):
    """A subclass that may mean anything by indexing."""


def test_kinds_of_arrays_have_their_own_plans(cuda: Cuda) -> None:
    """One dtype and one destination, but each array another kind."""
    codes = values(dtype("INT4"), 9)
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


def test_rows_that_may_go_have_no_plans() -> None:
    row = DType("FLOAT12", None, "float", 12, 1, 5, 6, 15, "ieee", None, "float16", None)
    assert row not in gpucast.DTYPES
    plans.keep(np.zeros(3, np.float32), "FLOAT12", Options(), resolve(dtype("FLOAT"), row), lambda x, out: None)
    assert not plans.count()


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


def test_another_driver_has_no_plans(cuda: Cuda) -> None:
    x, out = arrays()
    gpucast.cast(x, "FLOAT16", out=out)
    assert plans.count()
    driver.use(driver.driver())
    assert not plans.count()


# ---- the benchmark ----


def test_the_benchmark_runs_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(overhead, "CALLS", 3)
    monkeypatch.setattr(overhead, "ROUNDS", 2)
    monkeypatch.setattr(overhead, "COMPILED", 2)
    figures = overhead.run(SimpleNamespace())
    assert {row["where"] for row in figures["rows"]} == {"host", "device, our own part", "NVRTC"}
    assert all(spent >= 0 for row in figures["rows"] for spent in row["microseconds"].values())
    printed = capsys.readouterr().out
    assert "device, our own part: FLOAT to FLOAT16, out=: gpucast" in printed
