# SPDX-License-Identifier: Apache-2.0
"""Calls on devices that the module serves alone: their launches and results are those of the checked path, to which it
leaves what is not as before."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import gpucast
from bench import idle_cuda
from bench.entered import functions
from gpucast import PackedArray
from gpucast.casting import plans
from gpucast.core.extension import MODULE
from gpucast.kernel.driver import CupyDriver
from gpucast.kernel.kernel import Kernel

pytestmark = pytest.mark.skipif(MODULE is None, reason="the extension module is missing")

FORMATS = (
    "nvfp4",
    "float8e4m3fn_tensor",
    "mxfp8e4m3",
    "mxfp8e5m2",
    "mxfp4",
    "int4_128",
    "int8_zp_32",
    "float8e4m3fn_128x128",
)


#: Of these, those whose blocks share a scale.
MEETING = FORMATS[:2]


@dataclass
class Device:
    """A device that keeps the launches, and gives the same memory to each call."""

    kernels: dict[int, Kernel] = field(default_factory=dict)
    launches: list[tuple[str, int, bytes]] = field(default_factory=list)
    #: By bytes, and how many of so many were given before in a call: plans may ask in another order.
    rooms: dict[tuple[int, int], Any] = field(default_factory=dict)
    used: Counter[int] = field(default_factory=Counter)
    current: int = 0
    is_captured: bool = False

    def launch(self, function: int, blocks: int, threads: int, stream: int, address: int) -> int:
        kernel = self.kernels[function]
        offsets = [*kernel.arguments.offsets.values(), kernel.arguments.nbytes]
        places = (ctypes.c_void_p * len(offsets)).from_address(address)
        given = b"".join(ctypes.string_at(places[i] or 0, offsets[i + 1] - offsets[i]) for i in range(len(offsets) - 1))
        self.launches.append((kernel.name, blocks, given))
        return 0

    def allocate(self, nbytes: int) -> Any:
        assert not self.is_captured
        self.used[nbytes] += 1
        key = nbytes, self.used[nbytes]
        if key not in self.rooms:
            self.rooms[key] = idle_cuda.fresh(nbytes)
        return self.rooms[key]

    def done(self, call: Callable[[], Any]) -> tuple[list[Any], Any]:
        """What a call launches and gives."""
        self.launches.clear()
        self.used.clear()
        result = shown(call())
        return list(self.launches), result


def shown(found: Any) -> Any:
    if isinstance(found, gpucast.Quantized):
        attributes = found.format, found.dtype, found.axis, found.scale_layout, found.library
        return type(found), attributes, [shown(part) for part in vars(found).values() if hasattr(part, "shape")]
    if isinstance(found, PackedArray):
        return type(found), found.dtype, found.shape, shown(found.data)
    return type(found), found.dtype, found.shape, found.strides, found.data.ptr


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    found, own, numbers = Device(), CupyDriver._function, iter(range(1, 1000))

    def function(self: CupyDriver, kernel: Kernel, index: int) -> int:
        number = own(self, kernel, index)
        found.kernels[number] = kernel
        return number

    monkeypatch.setattr(CupyDriver, "_function", function)
    monkeypatch.setattr(CupyDriver, "_switched", lambda self, index: contextlib.nullcontext())
    with idle_cuda.idle(
        launch_kernel=found.launch,
        current=lambda: found.current,
        capturing=lambda stream: found.is_captured,
        allocate=found.allocate,
        module_function=lambda module, name: next(numbers),
    ):
        plans.forget()
        yield found
    plans.forget()


def calls(name: str) -> dict[str, Callable[[], Any]]:
    x, y = idle_cuda.array((256, 256), np.float32), idle_cuda.array((256, 256), np.float32)
    into = gpucast.quantize(idle_cuda.array((256, 256), np.float32), name)
    # As a call of its own makes it, in memory that no other call gets.
    parts = {part: _own(one) for part, one in into.parts().items()}
    q = gpucast.Quantized(**parts, format=name, axis=1)
    return {
        "quantize": lambda: gpucast.quantize(x, name),
        "quantize, out=": lambda: gpucast.quantize(x, name, out=q),
        "dequantize": lambda: gpucast.dequantize(q, "FLOAT16"),
        "dequantize, out=": lambda: gpucast.dequantize(q, out=y),
    }


def _own(part: Any) -> Any:
    if isinstance(part, PackedArray):
        return PackedArray(idle_cuda.array(part.data.shape, np.uint8), part.dtype, part.shape)
    return idle_cuda.array(part.shape, part.dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_plans_launch_and_give_what_the_checked_path_does(name: str, device: Device) -> None:
    for what, call in calls(name).items():
        plans.forget()
        first = device.done(call)
        assert first[0], what
        assert device.done(call) == first == device.done(call), what
        # The module alone: beside the public function the driver is asked whether a graph is captured, and for the cell
        # in which blocks meet, or an `out` for that which it keeps.
        entered = functions(call)
        assert len(entered) <= (8 if name in MEETING else 2), (what, entered)


def test_numbers_and_signs_have_launches_of_their_own(device: Device) -> None:
    x, one = idle_cuda.array((256, 256), np.float32), idle_cuda.array((), np.float32)
    other, signs = idle_cuda.array((), np.float32), [1, -1] * 8
    rows: list[tuple[str, dict[str, Any]]] = [
        *(("nvfp4", {name: value}) for name in ("scale", "amax") for value in (2.0, 2, one, other)),
        ("nvfp4", {}),
        *(
            ("mxfp8e4m3", {"hadamard": 16, **own})
            for own in ({}, {"signs": signs}, {"signs": [1] * 16}, {"seed": 1}, {"seed": 2})
        ),
        *(("mxfp8e4m3", {"scale_layout": layout}) for layout in ("128x4", "8x4")),
    ]
    calls = []
    for name, own in rows:
        out = gpucast.quantize(x, name, **own)
        calls += [(own, lambda name=name, own=own: gpucast.quantize(x, name, **own))]
        calls += [(own, lambda name=name, own=own, out=out: gpucast.quantize(x, name, out=out, **own))]
        back = {key: value for key, value in own.items() if key in ("hadamard", "signs", "seed")}
        calls += [(own, lambda back=back, out=out: gpucast.dequantize(out, **back))]
    expected = []
    for _, call in calls:
        plans.forget()
        call()
        plans.forget()
        expected.append(device.done(call))
    plans.forget()
    for _ in range(3):
        for (own, call), wanted in zip(calls, expected, strict=True):
            assert device.done(call) == wanted, own
    # All that quantize are calls of the module.
    for i, (own, call) in enumerate(calls):
        call()
        assert i % 3 == 2 or len(functions(call)) <= 15, own


def test_a_list_knows_its_arrays_again(device: Device) -> None:
    """It asks the latest ones for their shapes alone."""

    def arrays(kind: Any, shape: tuple[int, ...] = (4, 6)) -> list[Any]:
        return [idle_cuda.array(shape, kind) for _ in range(20)]

    def cast() -> Any:
        return gpucast.cast_many(given, "FLOAT16", out=outs)

    def launched() -> list[Any]:
        device.launches.clear()
        assert cast() is outs
        return list(device.launches)

    for shape in ((24,), (4, 6), (2, 3, 4)):
        given, outs = arrays(np.float32, shape), arrays(np.float16, shape)
        plans.forget()
        first = launched()
        assert first and first == launched() == launched()
        assert len(functions(cast)) < 10
        before, given[7] = given[7], idle_cuda.array(shape, np.float32)
        plans.forget()
        other = launched()
        assert other != first
        given[7] = before
        assert launched() == first == launched()
        given[7] = idle_cuda.array(shape, np.float32)
        # The array that was there may be gone, and another one in its place.
        del before
        second = launched()
        assert second != first and launched() == second
        given[3].shape = (3, 2, 2, 2)
        for _ in range(2):
            device.launches.clear()
            with pytest.raises(ValueError, match="cast_many"):
                cast()
            assert not device.launches
        given[3].shape = shape
        assert launched() == second
        given[3], given[4] = given[4], given[3]
        third = launched()
        assert third != second and launched() == third
        outs[3] = outs[4]
        with pytest.raises(ValueError, match="memory"):
            cast()


def test_another_shape_and_place_of_memory_have_launches_of_their_own(device: Device) -> None:
    whole = idle_cuda.array((257, 256), np.float32)
    arrays = [
        whole[:256],
        whole.reshape(-1)[16 : 16 + 65536].reshape(256, 256),
        whole.reshape(-1)[3:65539].reshape(256, 256),
    ]
    arrays += [whole[:128], whole[:256, :128], whole[:256].T]
    expected = []
    for x in arrays:
        plans.forget()
        expected.append(device.done(lambda x=x: gpucast.quantize(x, "mxfp8e4m3")))
    plans.forget()
    for _ in range(3):
        for x, wanted in zip(arrays, expected, strict=True):
            assert device.done(lambda x=x: gpucast.quantize(x, "mxfp8e4m3")) == wanted


def test_what_cannot_be_written_is_refused_as_before(device: Device) -> None:
    x, y = idle_cuda.array((256, 256), np.float32), idle_cuda.array((256, 256), np.float32)
    q = gpucast.quantize(x, "mxfp8e4m3")
    for _ in range(3):
        gpucast.quantize(x, "mxfp8e4m3", out=q)
        gpucast.dequantize(q, out=y)
        gpucast.quantize(x, "mxfp8e4m3")
    over = gpucast.Quantized(x.reshape(-1)[:16384].view(q.data.dtype).reshape(256, 256), q.scales, "mxfp8e4m3")
    for wrong in (over, gpucast.quantize(x, "mxfp8e5m2"), gpucast.quantize(x[:128], "mxfp8e4m3")):
        with pytest.raises(ValueError, match="quantize: out"):
            gpucast.quantize(x, "mxfp8e4m3", out=wrong)
    for wrong in (idle_cuda.array((256, 256), np.float64), y[:128], x.reshape(-1)):
        with pytest.raises((TypeError, ValueError), match="dequantize: out"):
            gpucast.dequantize(q, out=wrong)
    device.is_captured = True
    assert gpucast.quantize(x, "mxfp8e4m3", out=q) is q
    assert gpucast.dequantize(q, out=y) is y
    with pytest.raises(RuntimeError, match="captured"):
        gpucast.quantize(x, "mxfp8e4m3")
    with pytest.raises(RuntimeError, match="captured"):
        gpucast.dequantize(q)


def test_a_number_that_a_graph_reads_stays(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    own, made = CupyDriver.to_device, []

    def to_device(self: CupyDriver, x: Any) -> Any:
        y = own(self, x)
        made.append(weakref.ref(y.data.mem._owner))
        return y

    monkeypatch.setattr(CupyDriver, "to_device", to_device)
    x = idle_cuda.array((256, 256), np.float32)
    q = gpucast.quantize(x, "nvfp4")
    made.clear()
    for captured in (False, True):
        device.is_captured = captured
        gpucast.quantize(x, "nvfp4", scale=2.0, out=q)
    device.is_captured = False
    for i in range(600):
        gpucast.quantize(x, "nvfp4", scale=3.0 + i, out=q)
    # The number is no longer used by calls, and one that no graph reads is gone.
    assert len(made) > 600
    assert made[0]() is not None
    assert made[1]() is None


def test_lists_of_each_device_are_cast_there(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[int] = []

    @contextlib.contextmanager
    def switched(self: CupyDriver, index: int) -> Iterator[None]:
        before, device.current = device.current, index
        yield
        device.current = before

    def launch(*launched: Any) -> int:
        there.append(device.current)
        return 0

    monkeypatch.setattr(CupyDriver, "_switched", switched)
    numbers = itertools.count(1)
    with idle_cuda.idle(
        launch_kernel=launch,
        current=lambda: device.current,
        allocate=lambda nbytes: idle_cuda.array((nbytes,), np.uint8, device.current).data,
        module_function=lambda module, name: next(numbers),
    ):
        for index in (0, 1, 0, 1):
            arrays = [idle_cuda.array((64, 64), np.float32, index) for _ in range(2)]
            for _ in range(3):
                there.clear()
                results = gpucast.cast_many(arrays, "FLOAT16")
                assert there == [index]
                assert [y.data.device_id for y in results] == [index, index]
    assert device.current == 0


def test_another_current_device_is_left_to_the_checked_path(device: Device) -> None:
    x = idle_cuda.array((256, 256), np.float32)
    q = gpucast.quantize(x, "mxfp8e4m3")
    call = lambda: gpucast.quantize(x, "mxfp8e4m3", out=q)  # noqa: E731 (it is counted)
    call()
    assert len(functions(call)) == 1
    device.current = 1
    assert len(functions(call)) > 5
