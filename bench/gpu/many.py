# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --many``: casts the 300 parameters of a transformer in one call, and compares alternatives.

The yardstick is one cast of a single array with the same bytes in the same run, which is the best possible speed.
Results are compared bit by bit before any measurement. All arrays are in one buffer, far larger than the cache.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import gpucast
from bench import gpu_cases
from bench.cases.contenders import OURS, TorchTo
from bench.timing.machine import Machine
from bench.timing.times import Work, measure
from gpucast.core.dtypes import DType, dtype

#: 25 layers of GPT-2's kind: 12 tensors each, 315 million elements.
LAYERS, WIDTH = 25, 1024
#: The name of the yardstick.
ONE = "gpucast.cast, one array of the same bytes"
MANY = "gpucast.cast_many"
_IN_GRAPH = ", in a graph"
#: The number of random elements; the memory is filled with copies of them.
_DRAWN = 1 << 20
_SAMPLES, _LIMIT = 100, 2.0
#: Calls whose cost on the host is measured one by one.
_CALLS = 20


@dataclass(frozen=True)
class BatchCase:
    """`unscaled`: multiplied with a scale on the device and checked to be finite, as gradients are."""

    src: str
    dst: str
    unscaled: bool = False

    def __str__(self) -> str:
        return f"{self.src} to {self.dst}" + (", unscaled and checked" if self.unscaled else "")


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


class Rival(TorchTo):
    """PyTorch's function that copies many tensors into tensors of another type in one call."""

    name = "torch._foreach_copy_"

    def has(self, case: BatchCase) -> bool:
        return True

    def prepare_many(self, case: BatchCase, src: Arrays, out: Arrays) -> Callable[[], object]:
        torch = self.torch
        xs, ys = (arrays.split(self.flat(arrays.data, arrays.row)) for arrays in (src, out))
        if not case.unscaled:
            return lambda: torch._foreach_copy_(ys, xs)
        found, number = torch.zeros(1, device="cuda"), torch.full((1,), 0.5, device="cuda")

        def run() -> None:
            torch._foreach_copy_(ys, xs)
            torch._amp_foreach_non_finite_check_and_unscale_(ys, found, number)

        return run


class Loop(Rival):
    """PyTorch's copies one by one."""

    name = "torch copy_, a loop"

    def prepare_many(self, case: BatchCase, src: Arrays, out: Arrays) -> Callable[[], object]:
        if case.unscaled:
            raise NotImplementedError("no one call unscales and checks")
        xs, ys = (arrays.split(self.flat(arrays.data, arrays.row)) for arrays in (src, out))

        def run() -> None:
            for x, y in zip(xs, ys, strict=True):
                y.copy_(x)

        return run


class Apex(Rival):
    """Apex's kernel for many tensors, which also multiplies and checks for finiteness."""

    name = "apex multi_tensor_scale"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        import amp_C
        from apex.multi_tensor_apply import multi_tensor_applier

        self.applier, self.kernel = multi_tensor_applier, amp_C.multi_tensor_scale

    def prepare_many(self, case: BatchCase, src: Arrays, out: Arrays) -> Callable[[], object]:
        xs, ys = (arrays.split(self.flat(arrays.data, arrays.row)) for arrays in (src, out))
        flag = self.torch.zeros(1, dtype=self.torch.int32, device="cuda")
        return lambda: self.applier(self.kernel, flag, [xs, ys], 0.5 if case.unscaled else 1.0)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases on the GPU."""
    return gpu_cases.run(CASES, [Rival, Loop, Apex], measure_case, report, arguments.lines)


def measure_case(
    machine: Machine, case: BatchCase, rivals: Sequence[Any], layers: int = LAYERS, width: int = WIDTH
) -> list[dict[str, Any]]:
    """A result line for every alternative.

    `problem`: wrong results of ours; `differs`: results of a rival with other rules; `left_out`: why one was not
    measured.
    """
    of = shapes(layers, width)
    src, out, wanted = (Arrays(machine, dtype(name), of) for name in (case.src, case.dst, case.dst))
    src.fill(machine)
    keywords: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    if case.unscaled:
        number, finite = machine.empty(4).view(np.float32), machine.empty(1)
        machine.upload(number.view(np.uint8), np.array([0.5], np.float32))
        machine.fill(finite, 1)
        keywords, extra = {"scale": number}, {"finite": finite}
    gpucast.cast(src.flat, case.dst, out=wanted.flat, **keywords)
    codes = machine.download(wanted.data)

    def loop() -> None:
        for x, y in zip(src.arrays, out.arrays, strict=True):
            gpucast.cast(x, case.dst, out=y, **keywords)

    calls: dict[str, Callable[[], object]] = {
        MANY: lambda: gpucast.cast_many(src.arrays, case.dst, out=out.arrays, **keywords, **extra),
        ONE: lambda: gpucast.cast(src.flat, case.dst, out=out.flat, **keywords),
        "gpucast.cast, a loop": loop,
    }
    for rival in rivals:
        calls[rival.name] = _PreparedRival(rival, case, src, out)
    lines: dict[str, dict[str, Any]] = {}
    works: list[Work] = []
    for name, call in calls.items():
        line = lines[name] = {"case": str(case), "name": name}
        machine.fill(out.data, 0xA5)
        try:
            call()
        except Exception as error:
            if name.startswith(OURS):
                raise
            line["left_out"] = f"{type(error).__name__}: {error}"
            continue
        wrong = _difference(machine.download(out.data), codes)
        if wrong:
            line["problem" if name.startswith(OURS) else "differs"] = wrong
        line["host_us"] = 1e6 * _host_seconds(machine, call)
        works.append(_work(name, call))
        graph = _graph(machine, call)
        if graph is not None:
            lines[name + _IN_GRAPH] = {"case": str(case), "name": name + _IN_GRAPH}
            works.append(_work(name + _IN_GRAPH, graph))
    times = measure(machine, works, samples=_SAMPLES, limit=_LIMIT)
    found = dict(zip((work.name for work in works), times, strict=True))
    moved = src.data.nbytes + out.data.nbytes
    for name, one in found.items():
        lines[name] |= {
            **asdict(one),
            "bytes": moved,
            "gb_per_s": moved / one.median / 1e9,
            "share_of_one": found[ONE].median / one.median,
        }
    machine.release()
    return list(lines.values())


class _PreparedRival:
    """A rival's call, prepared when it is first made."""

    def __init__(self, rival: Any, case: BatchCase, src: Arrays, out: Arrays) -> None:
        self._rival, self._arguments = rival, (case, src, out)
        self._call: Callable[[], object] | None = None

    def __call__(self) -> None:
        if self._call is None:
            self._call = self._rival.prepare_many(*self._arguments)
        assert self._call is not None
        self._call()


def _graph(machine: Machine, call: Callable[[], object]) -> Callable[[], object] | None:
    try:
        return machine.capture(call)
    except Exception as error:
        print(f"bench: no graph: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _work(name: str, call: Callable[[], object]) -> Work:
    return Work(name, lambda i: call(), 1)


def _host_seconds(machine: Machine, call: Callable[[], object]) -> float:
    """The cost of one call on the host: the median of some calls, each with an empty queue."""
    found = []
    for _ in range(_CALLS):
        machine.synchronize()
        begin = machine.now()
        call()
        found.append(machine.now() - begin)
    machine.synchronize()
    return float(np.median(found))


def _difference(got: Any, wanted: Any) -> str:
    wrong = np.flatnonzero(got != wanted)
    return f"{wrong.size:,} bytes differ, the first at {wrong[0]:,}" if wrong.size else ""


def report(lines: Sequence[dict[str, Any]]) -> None:
    """A table of all lines."""
    for case in dict.fromkeys(line["case"] for line in lines):
        print(f"\n{case}: {LAYERS * 12} tensors")
        for line in lines:
            if line["case"] != case:
                continue
            if "median" not in line:
                print(f"  {line['name']:50} {line.get('problem') or line.get('left_out')}", file=sys.stderr)
                continue
            host = f"{line['host_us']:9.0f} us on the host" if "host_us" in line else ""
            note = f"  ({line['differs']})" if line.get("differs") else ""
            print(
                f"  {line['name']:50} {1e6 * line['median']:9.1f} us {line['gb_per_s']:8.0f} GB/s "
                f"{line['share_of_one']:6.1%} of one cast {host}{note}"
            )
