# SPDX-License-Identifier: Apache-2.0
"""Casts of the 300 parameters of a transformer in one call, beside other ways.

The yardstick is one cast of a single array with the same bytes in the same run, which is the best possible speed.
Results are compared bit by bit. All arrays are in one buffer, far larger than the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import gpucast
from bench.cases.buffers import repeat
from bench.cases.case import Call, Case
from bench.cases.check import Check
from bench.cases.contenders import TorchTo
from bench.timing.machine import Machine
from gpucast.core.dtypes import DType, dtype

#: 25 layers of GPT-2's kind: 12 tensors each, 315 million elements.
LAYERS, WIDTH = 25, 1024
#: The name of the yardstick.
ONE = "gpucast.cast, one array of the same bytes"
#: Source, destination, and whether it is multiplied with a scale on the device and checked to be finite, as gradients
#: are.
PAIRS = (
    ("FLOAT", "BFLOAT16", False),
    ("FLOAT", "FLOAT8E4M3FN", False),
    ("BFLOAT16", "FLOAT", False),
    ("FLOAT16", "FLOAT", True),
)
#: The number of random elements; the memory is filled with copies of them.
_DRAWN = 1 << 20


def shapes(layers: int, width: int) -> list[tuple[int, ...]]:
    """Two layer norms, the attention and the feed-forward network of each layer: weights and biases."""
    d = width
    layer: list[tuple[int, ...]] = [(d,), (d,), (d, 3 * d), (3 * d,), (d, d), (d,)]
    layer += [(d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return layer * layers


class Arrays:
    """Arrays of these shapes, consecutive in one buffer."""

    def __init__(self, machine: Machine, kind: DType, of: Sequence[tuple[int, ...]]) -> None:
        self.shapes = of
        ends = np.cumsum([math.prod(shape) for shape in of]).tolist()
        self.places = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        self.data = machine.empty(kind.nbytes(ends[-1]))
        self.flat = self.data.view(kind.numpy)

    def split(self, flat: Any) -> list[Any]:
        """The arrays, as views of a flat one of any library."""
        return [flat[place].reshape(shape) for place, shape in zip(self.places, self.shapes, strict=True)]


def cases(layers: int = LAYERS, width: int = WIDTH) -> Iterator[Case]:
    of = shapes(layers, width)
    for src, dst, unscaled in PAIRS:
        name = f"many: {len(of)} tensors, {src} to {dst}{', unscaled and checked' if unscaled else ''}"
        yield Case("many", name, _ways(of, dtype(src), dtype(dst), unscaled), (ONE,), 100, 2.0)


def _ways(
    of: Sequence[tuple[int, ...]], src: DType, dst: DType, unscaled: bool
) -> Callable[[Machine], tuple[float, Mapping[str, Callable[[], Call]]]]:
    def ways(machine: Machine) -> tuple[float, Mapping[str, Callable[[], Call]]]:
        x, y, wanted = (Arrays(machine, kind, of) for kind in (src, dst, dst))
        drawn = np.random.default_rng(0).standard_normal(_DRAWN, np.float32)
        repeat(machine, x.data, np.asarray(gpucast.cast(drawn, src)).view(np.uint8))
        keywords, extra = dict[str, Any](), dict[str, Any]()
        if unscaled:
            number, finite = machine.empty(4).view(np.float32), machine.empty(1)
            machine.upload(number.view(np.uint8), np.array([0.5], np.float32))
            machine.fill(finite, 1)
            keywords, extra = {"scale": number}, {"finite": finite}
        gpucast.cast(x.flat, dst, out=wanted.flat, **keywords)
        codes = machine.download(wanted.data)
        xs, ys = x.split(x.flat), y.split(y.flat)

        def check(result: object) -> Check:
            wrong = np.flatnonzero(machine.download(y.data) != codes)
            # So that no result of the next call is right by chance.
            machine.fill(y.data, 0xA5)
            return Check(codes.size, wrong.size, f"the first byte that differs is {wrong[0]:,}" if wrong.size else "")

        def loop(i: int) -> None:
            for one, other in zip(xs, ys, strict=True):
                gpucast.cast(one, dst, out=other, **keywords)

        machine.fill(y.data, 0xA5)
        ours: dict[str, Callable[[int], object]] = {
            "gpucast.cast_many": lambda i: gpucast.cast_many(xs, dst, out=ys, **keywords, **extra),
            ONE: lambda i: gpucast.cast(x.flat, dst, out=y.flat, **keywords),
            "gpucast.cast, a loop": loop,
        }

        def of_torch() -> Call:
            return Call(_foreach(machine, x, y, src, dst, unscaled), check=check)

        calls = {name: lambda run=run: Call(run, check=check) for name, run in ours.items()}
        return x.data.nbytes + y.data.nbytes, {**calls, "torch._foreach_copy_": of_torch}

    return ways


def _foreach(
    machine: Machine, src: Arrays, out: Arrays, kind: DType, to: DType, unscaled: bool
) -> Callable[[int], object]:
    """PyTorch's function that copies many tensors into tensors of another type in one call."""
    of = TorchTo(machine)
    torch, xs, ys = of.torch, src.split(of.flat(src.data, kind)), out.split(of.flat(out.data, to))
    found, number = torch.zeros(1, device="cuda"), torch.full((1,), 0.5, device="cuda")

    def run(i: int) -> None:
        torch._foreach_copy_(ys, xs)
        if unscaled:
            torch._amp_foreach_non_finite_check_and_unscale_(ys, found, number)

    return run
