# SPDX-License-Identifier: Apache-2.0
"""The speed of memory: the system's copy and our own copy kernel, measured in the same run as the casts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.timing.machine import ALIGNMENT, Machine, rotation
from bench.timing.times import Times, Work, measure

MEMCPY = "memcpy"
#: Seconds of copies before all measurements, because an idle GPU's clocks are low and rise slowly; bytes of each copy.
CLOCK_WARM_UP, _WARM_UP_BYTES = 0.5, 1 << 26


@dataclass(frozen=True)
class Ceiling:
    """A copy that moves `bytes` bytes, counting both read and written ones."""

    name: str
    bytes: int
    times: Times

    @property
    def speed(self) -> float:
        """Bytes per second."""
        return self.bytes / self.times.median


def measure_ceilings(
    machine: Machine, sizes: Iterable[int], *, samples: int = 100, limit: float = math.inf
) -> list[Ceiling]:
    """Every copy at every size that fits; a size is the sum of the bytes read and written, a multiple of 32."""
    measured: list[Ceiling] = []
    copies = _working(machine)
    for size in sizes:
        count = rotation(machine, size)
        half, step = size // 2, -(-size // 2 // ALIGNMENT) * ALIGNMENT
        if 2 * step * count > machine.free_bytes() * 0.8:
            continue
        arena = machine.empty(2 * step * count)
        # Not zeros, which may be quicker to move.
        machine.fill(arena, 0x5A)
        sides = [(arena[2 * i * step :][:half], arena[(2 * i + 1) * step :][:half]) for i in range(count)]
        works = [Work(name, _run(copy, sides), count) for name, copy in copies.items()]
        times = measure(machine, works, samples=samples, limit=limit)
        measured += [Ceiling(work.name, size, taken) for work, taken in zip(works, times, strict=True)]
    return measured


def warm_clocks(machine: Machine) -> None:
    """Keep the machine busy for CLOCK_WARM_UP seconds."""
    half = min(_WARM_UP_BYTES, machine.free_bytes() // 8) // (2 * ALIGNMENT) * ALIGNMENT
    arena = machine.empty(2 * half)
    end = machine.now() + CLOCK_WARM_UP
    while machine.now() < end:
        for _ in range(10):
            machine.copy(arena[half:], arena[:half])
        machine.synchronize()


def _working(machine: Machine) -> dict[str, Callable[[Any, Any], object]]:
    """The copies by name, without those that fail, which are reported on stderr."""
    some = machine.empty(2 * ALIGNMENT)
    measured: dict[str, Callable[[Any, Any], object]] = {}
    for name, copy in {MEMCPY: machine.copy, **machine.copy_kernels()}.items():
        try:
            copy(some[:ALIGNMENT], some[ALIGNMENT:])
            measured[name] = copy
        except Exception as error:  # noqa: PERF203 (a handful; all the rest can be measured without it)
            print(f"bench: {name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return measured


def _run(copy: Callable[[Any, Any], object], sides: list[tuple[Any, Any]]) -> Callable[[int], object]:
    return lambda i: copy(sides[i][1], sides[i][0])


def nearest(ceilings: Iterable[Ceiling], moved: float, memcpy: bool | None = None) -> float:
    """The best speed, in bytes per second, at the size nearest to `moved` bytes; 0 where none was measured.

    `memcpy`: only the system's copy (True), or only our own kernels (False).
    """
    chosen = [one for one in ceilings if memcpy is None or memcpy == (one.name == MEMCPY)]
    if not chosen:
        return 0.0
    # Of two equally near sizes the larger one, on which the cost of a launch has less effect.
    size = min({one.bytes for one in chosen}, key=lambda size: (round(abs(math.log2(size / moved)), 9), -size))
    return max(one.speed for one in chosen if one.bytes == size)
