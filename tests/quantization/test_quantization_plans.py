# SPDX-License-Identifier: Apache-2.0
"""Repeated calls that quantize run by their plans: they enter few Python functions, on the host and on devices; and
what gives no plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
import processor_modes
from bench import idle_cuda
from bench.entered import functions
from gpucast.casting import plans
from gpucast.core.extension import MODULE
from gpucast.mixed import fake_cast
from gpucast.quantization import host_plans

pytestmark = pytest.mark.skipif(MODULE is None, reason="the extension module is missing")

#: A function, its arguments and keywords, and the most functions of gpucast that a repeated call enters.
Row = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], int]


def host_rows() -> dict[str, Row]:
    x, back = np.ones((32, 64), np.float32), gpucast.quantize(np.ones((32, 64), np.float32), "mxfp8e4m3")
    quantize, one, ends = gpucast.quantize, np.ones((), np.float32), np.array([5, 32], np.int32)
    packed = gpucast.PackedArray.pack(gpucast.cast(x, "INT4"))
    groups, cast_groups = gpucast.quantize_grouped, gpucast.cast_grouped
    return {
        "cast of packed elements": (gpucast.cast, (packed, "FLOAT16"), {}, 1),
        "cast to packed elements": (gpucast.cast, (packed, "UINT4"), {"scale": 2.0, "amax": one}, 1),
        "grouped": (groups, (x, ends, "mxfp8e4m3"), {}, 5),
        "grouped, out=": (groups, (x, ends, "mxfp8e4m3"), {"out": groups(x, ends, "mxfp8e4m3")}, 10),
        "grouped, stochastic": (groups, (x, ends, "mxfp8e4m3"), {"rounding": "stochastic", "seed": 1}, 6),
        "grouped, scale=": (groups, (x, ends, "nvfp4"), {"scale": one}, 8),
        "grouped, layout": (groups, (x, ends, "mxfp8e4m3"), {"scale_layout": "128x4"}, 16),
        "cast_grouped": (cast_groups, (x, ends, "FLOAT8E4M3FN"), {"scale": 2.0}, 12),
        "plain": (quantize, (x, "mxfp8e4m3"), {}, 1),
        "out=": (quantize, (x, "mxfp8e4m3"), {"out": quantize(x, "mxfp8e4m3")}, 1),
        "packed": (quantize, (x, "nvfp4"), {}, 1),
        "stochastic": (quantize, (x, "mxfp8e4m3"), {"rounding": "stochastic", "seed": 1}, 10),
        "scale=": (quantize, (x, "nvfp4"), {"scale": 0.5}, 1),
        "amax=": (quantize, (x, "nvfp4"), {"amax": 3.0}, 1),
        "scales=": (quantize, (x, "int8_32"), {"scale": np.ones((32, 2), np.float32)}, 1),
        "4over6": (quantize, (x, "nvfp4_4over6"), {}, 1),
        "transpose=True": (quantize, (x, "mxfp8e4m3"), {"transpose": True}, 1),
        "transpose='both'": (quantize, (x, "mxfp8e4m3"), {"transpose": "both"}, 12),
        "hadamard=": (quantize, (x, "mxfp8e4m3"), {"hadamard": 32}, 1),
        "signs=": (quantize, (x, "mxfp8e4m3"), {"hadamard": 32, "signs": [1] * 32}, 1),
        "layout": (quantize, (x, "mxfp8e4m3"), {"scale_layout": "128x4"}, 1),
        "dequantize": (gpucast.dequantize, (back,), {}, 2),
        "dequantize, hadamard=": (gpucast.dequantize, (back,), {"hadamard": 32, "seed": 3}, 1),
        "dequantize, layout": (gpucast.dequantize, (quantize(x, "mxfp8e4m3", scale_layout="8x4"),), {}, 1),
        "hadamard": (gpucast.hadamard, (x, 32), {}, 9),
        "fake_cast, blocks": (fake_cast, (x, "mxfp8e4m3"), {}, 8),
        "fake_cast": (fake_cast, (x, "FLOAT8E4M3FN"), {}, 7),
        "fake_cast, scale=": (fake_cast, (x, "FLOAT8E4M3FN"), {"scale": 0.5}, 7),
        "fake_cast, stochastic": (fake_cast, (x, "FLOAT8E4M3FN"), {"rounding": "stochastic", "seed": 1}, 7),
    }


def device_rows() -> dict[str, Row]:
    def array(*shape: int, dtype: Any = np.float32) -> Any:
        return idle_cuda.array(shape, dtype)

    x, one, ends = array(128, 256), array(), array(2, dtype=np.int32)
    quantize = gpucast.quantize
    back = quantize(x, "mxfp8e4m3")
    return {
        "plain": (quantize, (x, "mxfp8e4m3"), {}, 2),
        "out=": (quantize, (x, "mxfp8e4m3"), {"out": quantize(x, "mxfp8e4m3")}, 1),
        "packed": (quantize, (x, "nvfp4"), {}, 8),
        "packed, out=": (quantize, (x, "nvfp4"), {"out": quantize(x, "nvfp4")}, 8),
        "stochastic": (quantize, (x, "mxfp8e4m3"), {"rounding": "stochastic", "seed": 1}, 30),
        "scale=": (quantize, (x, "nvfp4"), {"scale": one}, 10),
        "a number as scale=": (quantize, (x, "nvfp4"), {"scale": 0.5}, 16),
        "a number as amax=": (quantize, (x, "nvfp4"), {"amax": 3}, 16),
        "amax=": (quantize, (x, "nvfp4"), {"amax": one}, 10),
        "transpose=True": (quantize, (x, "mxfp8e4m3"), {"transpose": True}, 29),
        "transpose='both'": (quantize, (x, "mxfp8e4m3"), {"transpose": "both"}, 45),
        "hadamard=": (quantize, (x, "mxfp8e4m3"), {"hadamard": 32}, 8),
        "signs=": (quantize, (x, "mxfp8e4m3"), {"hadamard": 32, "signs": [1] * 32}, 8),
        "layout": (quantize, (x, "mxfp8e4m3"), {"scale_layout": "128x4"}, 8),
        "dequantize": (gpucast.dequantize, (back,), {}, 2),
        "hadamard": (gpucast.hadamard, (x, 32), {}, 25),
        "grouped": (gpucast.quantize_grouped, (x, ends, "mxfp8e4m3"), {}, 33),
        "grouped, stochastic": (
            gpucast.quantize_grouped, (x, ends, "mxfp8e4m3"), {"rounding": "stochastic", "seed": 1}, 34,
        ),
        "cast_grouped": (gpucast.cast_grouped, (x, ends, "FLOAT8E4M3FN"), {"scale": one}, 32),
        "fake_cast": (fake_cast, (x, "FLOAT8E4M3FN"), {}, 27),
        "fake_cast, scale=": (fake_cast, (x, "FLOAT8E4M3FN"), {"scale": one}, 28),
        "fake_cast, blocks": (fake_cast, (x, "mxfp8e4m3"), {}, 29),
    }  # fmt: skip


def check(rows: dict[str, Row]) -> None:
    plans.forget()
    for name, (function, arguments, keywords, most) in rows.items():

        def call(function: Any = function, arguments: Any = arguments, keywords: Any = keywords) -> Any:
            return function(*arguments, **keywords)

        call()
        call()
        repeated = functions(call)
        assert len(repeated) <= most, (name, repeated)
        # So that the bound tells one from the other.
        plans.forget()
        assert len(functions(call)) > 2 * most, name


def test_on_the_host() -> None:
    check(host_rows())


def test_on_a_device() -> None:
    with idle_cuda.idle(allocate=idle_cuda.fresh):
        check(device_rows())


def test_numbers_that_are_not_finite_are_tried_once() -> None:
    """The module's plan alone finds them: its function of Python would read the array again."""
    x = np.ones((32, 64), np.float32)
    gpucast.quantize(x, "mxfp8e4m3")
    x[3, 3] = np.nan
    entered = functions(lambda: gpucast.quantize(x, "mxfp8e4m3"))
    assert ("quantization/host_plans.py", "run") not in entered
    assert ("quantization/quantize_on_host.py", "quantize") in entered


@pytest.mark.peers
def test_of_tensors() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, ends = torch.ones(32, 64), torch.tensor([5, 32], dtype=torch.int32)
    quantize, groups = gpucast.quantize, gpucast.quantize_grouped
    check({
        "grouped": (groups, (x, ends, "mxfp8e4m3"), {}, 9),
        "grouped, out=": (groups, (x, ends, "mxfp8e4m3"), {"out": groups(x, ends, "mxfp8e4m3")}, 15),
        "hadamard": (gpucast.hadamard, (x, 32), {}, 14),
        "hadamard=": (quantize, (x, "mxfp8e4m3"), {"hadamard": 32}, 14),
        "layout": (quantize, (x, "mxfp8e4m3"), {"scale_layout": "128x4"}, 30),
    })  # fmt: skip


@pytest.mark.peers
def test_of_tensors_so_large_that_others_run_meanwhile() -> None:
    """The library is told of the result where Python's lock is held again."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.arange(2.0**15).reshape(128, 256)
    first = gpucast.hadamard(x, 32)
    for _ in range(3):
        out = torch.zeros_like(first)
        assert torch.equal(gpucast.hadamard(x, 32), first)
        assert torch.equal(gpucast.hadamard(x, 32, out=out), first)


def test_a_result_of_the_callers_own_class_is_no_pattern() -> None:
    class Mine(gpucast.Quantized):
        pass

    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64)
    parts = gpucast.quantize(x, "mxfp8e5m2").parts()
    gpucast.quantize(x, "mxfp8e5m2", out=Mine(**parts, format="mxfp8e5m2"))
    assert type(gpucast.quantize(x, "mxfp8e5m2")) is gpucast.Quantized


def test_a_list_of_outs_is_no_pattern() -> None:
    x = np.ones((64, 96), np.float32)
    given = list(gpucast.quantize(x, "mxfp8e4m3", transpose="both"))
    for _ in range(2):
        assert gpucast.quantize(x, "mxfp8e4m3", transpose="both", out=given) is given
        assert type(gpucast.quantize(x, "mxfp8e4m3", transpose="both")) is tuple


def test_a_packed_out_of_cast_groups_is_no_pattern() -> None:
    """The loop of casts writes whole bytes: it would write behind packed ones."""
    x, ends = np.linspace(-6, 6, 32 * 256, dtype=np.float32).reshape(32, 256), np.array([7, 7, 20, 29])
    whole = gpucast.cast_grouped(x, ends, "FLOAT4E2M1", scale=1.0)
    packed = gpucast.PackedArray.pack(whole.data)
    # Behind the elements of `out` lies memory that no call may touch.
    memory = np.full(2 * packed.data.size, 0x5A, np.uint8)
    out = whole._replace(data=gpucast.PackedArray(memory[: packed.data.size], packed.dtype, packed.shape))
    plans.forget()
    for _ in range(3):
        gpucast.cast_grouped(x, ends, "FLOAT4E2M1", scale=1.0, out=out)
        assert memory[: packed.data.size].tobytes() == packed.data.tobytes()
        assert (memory[packed.data.size :] == 0x5A).all()
        assert gpucast.cast_grouped(x, ends, "FLOAT4E2M1", scale=1.0).data.tobytes() == whole.data.tobytes()


def test_an_array_reshaped_meanwhile_is_no_pattern() -> None:
    """Another thread may do so between the call and its plan."""
    x, format = np.ones((48, 96), np.float32), "mxfp8e5m2"
    result = gpucast.quantize(x, format)
    plans.forget()
    nothing = (-1, "linear", False, None, None, 0, None, None, None, None, None, None)
    assert host_plans.quantized(x, format, nothing, result) is not None
    assert host_plans.quantized(x.reshape(96, 48), format, nothing, result) is None


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_zp_32", "nvfp4_4over6"])
def test_threads_of_little_stack_quantize(name: str) -> None:
    x = np.ones((64, 1024), np.float32)
    assert in_little_stack(lambda: gpucast.dequantize(gpucast.quantize(x, name)).size) == [x.size] * 3


def test_threads_of_little_stack_quantize_groups() -> None:
    x, ends = np.ones((64, 1024), np.float32), np.array([8, 64])

    def quantize() -> int:
        return int(gpucast.quantize_grouped(x, ends, "int8_32").valid)

    # Its first call goes through Python, which needs more.
    assert quantize() == 2
    assert in_little_stack(quantize) == [2] * 3


def in_little_stack(function: Callable[[], int]) -> list[int]:
    """The results of three calls in a thread of 64 KiB."""
    said: list[int] = []
    before = threading.stack_size(64 << 10)
    try:
        thread = threading.Thread(target=lambda: said.extend(function() for _ in range(3)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    return said


class _Strict(np.ndarray):
    """Takes no function of NumPy."""

    def __array_function__(self, *call: Any) -> Any:
        raise TypeError("no implementation found")


def test_arrays_of_other_classes_are_asked_by_no_function_of_numpy() -> None:
    x = np.ones((2, 32), np.float32).view(_Strict)
    assert gpucast.hadamard(x, 16).shape == gpucast.quantize(x, "nvfp4").shape == (2, 32)


@processor_modes.needed
@pytest.mark.parametrize("modes", processor_modes.ALL, ids=str)
def test_a_plan_made_under_foreign_modes_keeps_nothing_of_them(modes: processor_modes.Modes) -> None:
    """The factor of a transform is a power, which C computes by the modes."""
    x = np.random.default_rng(0).standard_normal((6, 32)).astype(np.float32)
    calls = {
        "hadamard": lambda: gpucast.hadamard(x, 16),
        "quantize": lambda: gpucast.quantize(x, "mxfp8e4m3", hadamard=32).dequantize(),
    }
    for name, call in calls.items():
        wanted = call().tobytes()
        plans.forget()
        with processor_modes.under(modes):
            call()
            found = call()
        assert found.tobytes() == wanted == call().tobytes(), name
    plans.forget()


@processor_modes.needed
def test_a_small_magnitude_in_an_array_is_read_under_no_foreign_modes() -> None:
    """This recipe tells it from zero."""
    x, usual, small = (np.float32(one) for one in (np.linspace(-3, 3, 64), 3.0, 1e-40))
    wanted = gpucast.quantize(x, "te-nvfp4", amax=np.array(small))
    gpucast.quantize(x, "te-nvfp4", amax=np.array(usual))
    with processor_modes.under(processor_modes.Modes(ftz=True, daz=True)):
        found = gpucast.quantize(x, "te-nvfp4", amax=np.array(small))
    assert found.global_scale.tobytes() == wanted.global_scale.tobytes()
    assert found.scales.tobytes() == wanted.scales.tobytes()
