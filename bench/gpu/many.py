# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --many``: casts the 300 parameters of a transformer in one call, beside other ways.

The yardstick is one cast of a single array with the same bytes in the same run, which is the best possible speed.
Results are compared bit by bit. All arrays are in one buffer, far larger than the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpucast
from bench.cases.contenders import TorchTo, available
from bench.gpu.calls import Call, Line, measure_calls
from bench.timing.machine import Machine
from gpucast.core.dtypes import DType, dtype

#: 25 layers of GPT-2's kind: 12 tensors each, 315 million elements.
LAYERS, WIDTH = 25, 1024
#: The name of the yardstick.
ONE = "gpucast.cast, one array of the same bytes"
#: The number of random elements; the memory is filled with copies of them.
_DRAWN = 1 << 20


@dataclass(frozen=True)
class BatchCase:
    """`unscaled`: multiplied with a scale on the device and checked to be finite, as gradients are."""

    src: str
    dst: str
    unscaled: bool = False

    def __str__(self) -> str:
        return f"{12 * LAYERS} tensors, {self.src} to {self.dst}" + (", unscaled and checked" if self.unscaled else "")


CASES = (
    BatchCase("FLOAT", "BFLOAT16"),
    BatchCase("FLOAT", "FLOAT8E4M3FN"),
    BatchCase("BFLOAT16", "FLOAT"),
    BatchCase("FLOAT16", "FLOAT", unscaled=True),
)


def shapes(layers: int, width: int) -> list[tuple[int, ...]]:
    """Two layer norms, the attention and the feed-forward network of each layer: weights and biases."""
    d = width
    layer: list[tuple[int, ...]] = [(d,), (d,), (d, 3 * d), (3 * d,), (d, d), (d,)]
    layer += [(d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return layer * layers


class Arrays:
    """Arrays of these shapes, consecutive in one buffer."""

    def __init__(self, machine: Machine, kind: DType, of: Sequence[tuple[int, ...]]) -> None:
        self.row, self.shapes = kind, of
        ends = np.cumsum([math.prod(shape) for shape in of]).tolist()
        self.places = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        self.size = ends[-1]
        self.data = machine.empty(kind.nbytes(self.size))
        self.flat = self.data.view(kind.numpy)
        self.arrays = self.split(self.flat)

    def split(self, flat: Any) -> list[Any]:
        """The arrays, as views of a flat one of any library."""
        return [flat[place].reshape(shape) for place, shape in zip(self.places, self.shapes, strict=True)]

    def fill(self, machine: Machine) -> None:
        drawn = np.random.default_rng(0).standard_normal(_DRAWN, np.float32)
        codes = gpucast.cast(drawn, self.row)
        for begin in range(0, self.size, _DRAWN):
            part = self.flat[begin : begin + _DRAWN]
            machine.upload(part.view(np.uint8), codes[: part.size])


class Foreach(TorchTo):
    """PyTorch's function that copies many tensors into tensors of another type in one call."""

    name = "torch._foreach_copy_"

    def prepare_many(self, case: BatchCase, src: Arrays, out: Arrays) -> Callable[[], object]:
        torch, (xs, ys) = self.torch, self.both(src, out)
        if not case.unscaled:
            return lambda: torch._foreach_copy_(ys, xs)
        found, number = torch.zeros(1, device="cuda"), torch.full((1,), 0.5, device="cuda")

        def run() -> None:
            torch._foreach_copy_(ys, xs)
            torch._amp_foreach_non_finite_check_and_unscale_(ys, found, number)

        return run

    def both(self, src: Arrays, out: Arrays) -> tuple[list[Any], list[Any]]:
        xs, ys = (arrays.split(self.flat(arrays.data, arrays.row)) for arrays in (src, out))
        return xs, ys


class Loop(Foreach):
    """PyTorch's copies one by one."""

    name = "torch copy_, a loop"

    def prepare_many(self, case: BatchCase, src: Arrays, out: Arrays) -> Callable[[], object]:
        if case.unscaled:
            raise NotImplementedError("no one call unscales and checks")
        xs, ys = self.both(src, out)

        def run() -> None:
            for x, y in zip(xs, ys, strict=True):
                y.copy_(x)

        return run


class Apex(Foreach):
    """Apex's kernel for many tensors, which also multiplies and checks for finiteness."""

    name = "apex multi_tensor_scale"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        import amp_C
        from apex.multi_tensor_apply import multi_tensor_applier

        self.applier, self.kernel = multi_tensor_applier, amp_C.multi_tensor_scale

    def prepare_many(self, case: BatchCase, src: Arrays, out: Arrays) -> Callable[[], object]:
        xs, ys = self.both(src, out)
        flag = self.torch.zeros(1, dtype=self.torch.int32, device="cuda")
        return lambda: self.applier(self.kernel, flag, [xs, ys], 0.5 if case.unscaled else 1.0)


def rivals(machine: Machine) -> Sequence[Any]:
    return available([Foreach, Loop, Apex], machine)


def measure_case(
    machine: Machine, case: BatchCase, rivals: Sequence[Any], layers: int = LAYERS, width: int = WIDTH
) -> list[Line]:
    of = shapes(layers, width)
    src, out, wanted = (Arrays(machine, dtype(name), of) for name in (case.src, case.dst, case.dst))
    src.fill(machine)
    keywords, extra = dict[str, Any](), dict[str, Any]()
    if case.unscaled:
        number, finite = machine.empty(4).view(np.float32), machine.empty(1)
        machine.upload(number.view(np.uint8), np.array([0.5], np.float32))
        machine.fill(finite, 1)
        keywords, extra = {"scale": number}, {"finite": finite}
    gpucast.cast(src.flat, case.dst, out=wanted.flat, **keywords)
    codes = machine.download(wanted.data)

    def check(result: object) -> str:
        wrong = np.flatnonzero(machine.download(out.data) != codes)
        # So that no result of the next call is right by chance.
        machine.fill(out.data, 0xA5)
        return f"{wrong.size:,} bytes differ, the first at {wrong[0]:,}" if wrong.size else ""

    def loop() -> None:
        for x, y in zip(src.arrays, out.arrays, strict=True):
            gpucast.cast(x, case.dst, out=y, **keywords)

    machine.fill(out.data, 0xA5)
    ours: dict[str, Callable[[], object]] = {
        "gpucast.cast_many": lambda: gpucast.cast_many(src.arrays, case.dst, out=out.arrays, **keywords, **extra),
        ONE: lambda: gpucast.cast(src.flat, case.dst, out=out.flat, **keywords),
        "gpucast.cast, a loop": loop,
    }
    calls: dict[str, Call | Callable[[], Call]] = {name: Call(run, check, graph=True) for name, run in ours.items()}
    for rival in rivals:
        calls[rival.name] = lambda rival=rival: Call(rival.prepare_many(case, src, out), check, graph=True)  # type: ignore[misc]
    return measure_calls(machine, str(case), calls, src.data.nbytes + out.data.nbytes, [ONE], samples=100, limit=2.0)
