# SPDX-License-Identifier: Apache-2.0
"""What is measured, in the order of its worth, and how much of it fits into a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from bench.gpu_results import Key
from gpucast.benchmark.buffers import CONTIGUOUS, LAYOUTS, MEMORY_SHARE, Layout, moved_bytes
from gpucast.benchmark.pairs import COMMON, Via
from gpucast.benchmark.timing import BATCH, LEAST
from gpucast.core.dtypes import DType
from gpucast.parity.cases import NUMERIC

LARGE, HUGE = 1 << 28, 1 << 30
#: Sizes of the common pairs besides LARGE: in the cache, around it, and beyond.
SIZES = (1, 1 << 10, 1 << 16, 1 << 20, 1 << 24)
#: Lengths that are no multiple of a tile.
ODD = (LARGE - 1, LARGE + 13)
#: Sizes at which every pair that a rival has is compared with it.
SHARED = (1 << 17, 1 << 20, 1 << 24)
GRAPH_SIZES = (1 << 10, 1 << 16, 1 << 20)
#: The elements of the layouts that are not contiguous.
LAYOUT_SIZE = 1 << 26

#: The rivals that stand for their libraries where not all can be timed: those that write to a given array.
MAIN = ("gpucast", "CuPy copyto", "torch copy_")
LIGHT = (*MAIN, "gpucast allocating", "CuPy astype", "CuPy ElementwiseKernel", "torch .to")

#: Seconds that each measurement takes besides its batches, and each contender; a heavy one compiles.
_SETUP, _CHECK, _HEAVY = 0.03, 0.02, 2.0
_WARM_UPS = 12
#: Guesses of the share of the memory's speed, for the estimate alone.
_SHARES = {"gpucast": 0.8, "gpucast allocating": 0.8, "torch.compile": 0.7, "jax.jit": 0.6}
_SHARE = 0.3


@dataclass(frozen=True)
class Task:
    """One measurement. `only`: names of contenders; None means all."""

    stage: str
    src: DType
    dst: DType
    n: int
    layout: Layout = CONTIGUOUS
    via: Via = "calls"
    only: tuple[str, ...] | None = None
    #: Batches of each contender, and the seconds that they may take.
    samples: int = 100
    limit: float = 0.3

    @property
    def key(self) -> Key:
        return self.src.name, self.dst.name, self.n, self.layout.name, self.via

    def scaled(self, factor: float) -> Task:
        """With fewer samples, but LEAST at least."""
        return replace(self, samples=max(LEAST, round(self.samples * factor)), limit=self.limit * factor)


def plan(has: Callable[[DType, DType], Collection[str]], free_bytes: int) -> list[Task]:
    """Every task whose arrays fit. `has` gives the names of the contenders that have a pair."""
    tasks: dict[Key, Task] = {}
    for task in _all(has):
        if 2 * task.layout.held(task.n) * (task.src.bits + task.dst.bits) / 8 <= free_bytes * MEMORY_SHARE:
            tasks.setdefault(task.key, task)
    return list(tasks.values())


def _all(has: Callable[[DType, DType], Collection[str]]) -> Iterator[Task]:
    for src, dst in COMMON:
        yield Task("common pairs", src, dst, LARGE)
    for src in NUMERIC:
        for dst in NUMERIC:
            yield Task("all pairs", src, dst, LARGE, only=MAIN, samples=40, limit=0.06)
    for src, dst in COMMON:
        for n in SIZES:
            yield Task("sizes", src, dst, n, only=LIGHT, samples=40, limit=0.05)
        for n in GRAPH_SIZES:
            yield Task("sizes", src, dst, n, via="graph", only=MAIN, samples=40, limit=0.05)
    for src, dst in COMMON:
        for n in ODD:
            yield Task("odd lengths", src, dst, n, only=MAIN, samples=40, limit=0.05)
    for src, dst in COMMON:
        for layout in LAYOUTS.values():
            if layout.applies(src, LAYOUT_SIZE):
                yield Task("layouts", src, dst, LAYOUT_SIZE, layout, only=MAIN, samples=40, limit=0.05)
    for src, dst in COMMON:
        yield Task("huge", src, dst, HUGE, only=MAIN, samples=40, limit=0.2)
    for n in SHARED:
        for src in NUMERIC:
            for dst in NUMERIC:
                if len(set(MAIN) & set(has(src, dst))) > 1:
                    yield Task("shared pairs", src, dst, n, only=MAIN, samples=LEAST, limit=0.03)


@dataclass(frozen=True)
class Estimator:
    """Seconds of a task."""

    #: Of the memory, bytes per second.
    speed: float
    #: By name: whether it is heavy.
    contenders: dict[str, bool]
    has: Callable[[DType, DType], Collection[str]]

    def seconds(self, task: Task) -> float:
        names = set(self.has(task.src, task.dst))
        names &= names if task.only is None else set(task.only)
        return _SETUP + sum(self._contender(task, name) for name in names)

    def _contender(self, task: Task, name: str) -> float:
        one = moved_bytes(task.src, task.dst, task.n) / (self.speed * _SHARES.get(name, _SHARE)) + 5e-6
        batch = max(one, BATCH)
        batches = min(task.samples, max(LEAST, task.limit / batch))
        return (_HEAVY if self.contenders[name] else _CHECK) + batches * batch + min(_WARM_UPS * batch, 0.1)


class Budget:
    """Hands out tasks for so many seconds, with fewer samples where the time is short. `now` is a clock."""

    def __init__(
        self, tasks: Iterable[Task], seconds: float, estimate: Callable[[Task], float], now: Callable[[], float]
    ) -> None:
        self.left = list(tasks)
        self._estimate, self._now = estimate, now
        self._end = now() + seconds
        #: Seconds of the tasks that are left: with the fewest samples, and with all.
        self._least = sum(estimate(task.scaled(0.0)) for task in self.left)
        self._all = sum(map(estimate, self.left))
        #: Seconds that passed over seconds that were estimated, of the tasks so far.
        self._pace = 1.0

    @property
    def factor(self) -> float:
        """The share of the samples that there is time for."""
        seconds = (self._end - self._now()) / self._pace
        return min(1.0, max(0.0, (seconds - self._least) / max(self._all - self._least, 1e-9)))

    def __iter__(self) -> Iterator[Task]:
        spent = expected = 0.0
        while self.left and self._now() < self._end:
            task = self.left[0].scaled(self.factor)
            begin = self._now()
            yield task
            whole = self.left.pop(0)
            self._least -= self._estimate(whole.scaled(0.0))
            self._all -= self._estimate(whole)
            spent, expected = spent + self._now() - begin, expected + self._estimate(task)
            # A few tasks say little about the others.
            self._pace = (spent + 5.0) / (expected + 5.0)
