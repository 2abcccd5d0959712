# SPDX-License-Identifier: Apache-2.0
"""Plans what to measure, the most important first, and how much of it fits into the available time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from bench.report.results import Key
from bench.cases.buffers import CONTIGUOUS, LAYOUTS, MEMORY_SHARE, Layout, moved_bytes
from bench.cases.contenders import COPY, OURS
from bench.cases.pairs import COMMON, Via
from bench.timing.times import BATCH, LEAST
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
#: Sizes besides LARGE at which rivals that compile are measured: a call, and arrays beyond the cache.
COMPILED = (1 << 10, 1 << 24)
#: The elements of the layouts that are not contiguous.
LAYOUT_SIZE = 1 << 26

#: The contenders measured for all pairs: ours, a copy of as many bytes, and the rival of all whole-byte pairs.
FIRST = (OURS, COPY, "CuPy copyto")
#: The rivals that represent their libraries if not all can be timed: those that write to a given array.
MAIN = (*FIRST, "torch copy_")

#: Seconds that each measurement takes besides its batches, and each contender: arrays are filled, results compared. The
#: reference is no part of it: the samples of all 625 pairs take one core 0.6 s.
_SETUP, _CHECK = 0.03, 0.02
#: Seconds that a contender takes when it first meets a pair, and once for all, as guessed: CuPy's kernels are compiled
#: with its whole headers, inductor starts a process for each core and runs Triton, XLA compiles.
_COMPILE = {"CuPy copyto": 0.4, "CuPy astype": 0.4, "CuPy ElementwiseKernel": 0.5}
_HEAVY, _START = 2.0, {"torch.compile": 20.0, "jax.jit": 5.0}
_WARM_UPS = 12
#: Guesses of the share of the memory's speed, for the estimate alone.
_SHARES = {OURS: 0.8, f"{OURS} allocating": 0.8, COPY: 0.9, "torch.compile": 0.7, "jax.jit": 0.6}
_SHARE = 0.3


@dataclass(frozen=True)
class MeasurementTask:
    """One measurement. `only`: names of contenders; None means all, `compiled` ones only where that is said."""

    stage: str
    src: DType
    dst: DType
    n: int
    layout: Layout = CONTIGUOUS
    via: Via = "calls"
    only: tuple[str, ...] | None = None
    compiled: bool = False
    #: Batches of each contender, and the seconds that they may take.
    samples: int = 100
    limit: float = 0.3

    @property
    def key(self) -> Key:
        return self.src.name, self.dst.name, self.n, self.layout.name, self.via

    def names(self, has: Collection[str], heavy: Collection[str]) -> list[str]:
        """Those contenders of `has` that are measured; `heavy` are the contenders that compile."""
        if self.only is not None:
            return [name for name in has if name in self.only]
        return [name for name in has if self.compiled or name not in heavy]

    @property
    def name(self) -> str:
        """The name for messages and logs."""
        more = "".join(f", {part}" for part in (self.layout.name, self.via) if part not in (CONTIGUOUS.name, "calls"))
        return f"{self.stage}: {self.src} to {self.dst}, {self.n:,}{more}"

    def scaled(self, factor: float) -> MeasurementTask:
        """The same task with fewer samples, but at least LEAST."""
        return replace(self, samples=max(LEAST, round(self.samples * factor)), limit=self.limit * factor)


def plan(has: Callable[[DType, DType], Collection[str]], free_bytes: int) -> list[MeasurementTask]:
    """Every task whose arrays fit. `has` returns the names of the contenders that support a pair.

    A case may be measured twice, the second time with more contenders, so that all their figures come from the same
    measurement.
    """
    tasks: dict[tuple[Key, tuple[str, ...] | None, bool], MeasurementTask] = {}
    for task in _all(has):
        if 2 * task.layout.held(task.n) * (task.src.bits + task.dst.bits) / 8 <= free_bytes * MEMORY_SHARE:
            tasks.setdefault((task.key, task.only, task.compiled), task)
    return list(tasks.values())


def _all(has: Callable[[DType, DType], Collection[str]]) -> Iterator[MeasurementTask]:
    for src in NUMERIC:
        for dst in NUMERIC:
            yield MeasurementTask("all pairs", src, dst, LARGE, only=FIRST, samples=40, limit=0.06)
    for n in (LARGE, *reversed(SIZES)):
        for src, dst in COMMON:
            yield MeasurementTask("common pairs", src, dst, n, samples=60, limit=0.1)
    for src, dst in COMMON:
        for n in GRAPH_SIZES:
            yield MeasurementTask("graphs", src, dst, n, via="graph", only=MAIN, samples=40, limit=0.05)
    for src, dst in COMMON:
        for layout in LAYOUTS.values():
            if layout.applies(src, LAYOUT_SIZE):
                yield MeasurementTask("layouts", src, dst, LAYOUT_SIZE, layout, only=MAIN, samples=40, limit=0.05)
    for src, dst in COMMON:
        for n in ODD:
            yield MeasurementTask("odd lengths", src, dst, n, only=MAIN, samples=40, limit=0.05)
    for src, dst in COMMON:
        yield MeasurementTask("huge", src, dst, HUGE, only=MAIN, samples=40, limit=0.2)
    common = set(COMMON)
    for n in SHARED:
        for src in NUMERIC:
            for dst in NUMERIC:
                # Common pairs have more rivals at these sizes already.
                if len(set(MAIN) & set(has(src, dst)) - {COPY}) > 1 and not ((src, dst) in common and n in SIZES):
                    yield MeasurementTask("shared pairs", src, dst, n, only=MAIN, samples=LEAST, limit=0.03)
    for n in (LARGE, *COMPILED):
        for src, dst in COMMON:
            yield MeasurementTask("rivals that compile", src, dst, n, compiled=True, samples=60, limit=0.1)


class Estimator:
    """Estimates the seconds of each task of a plan. Compilation counts in the first task that needs it."""

    def __init__(
        self,
        tasks: Iterable[MeasurementTask],
        speed: float,
        heavy: Collection[str],
        has: Callable[[DType, DType], Collection[str]],
    ) -> None:
        #: Of the memory, bytes per second.
        self.speed = speed
        self._heavy, self._has = frozenset(heavy), has
        #: By task (its stage and key): the seconds that do not depend on the number of samples.
        self._fixed: dict[tuple[str, Key], float] = {}
        met: set[object] = set()
        for task in tasks:
            self._fixed[task.stage, task.key] = self._first(task, met)

    def _first(self, task: MeasurementTask, met: set[object]) -> float:
        """The seconds of what is done only once: starting compilers, and compiling."""
        seconds = 0.0
        for name in self._names(task):
            for key, cost in (
                (name, _START.get(name, 0.0)),
                ((name, task.src, task.dst), _COMPILE.get(name, 0.0)),
            ):
                seconds += 0.0 if key in met else cost
                met.add(key)
            # These compile for each measurement.
            seconds += _HEAVY if name in self._heavy else 0.0
        return seconds

    def _names(self, task: MeasurementTask) -> list[str]:
        return task.names(self._has(task.src, task.dst), self._heavy)

    def seconds(self, task: MeasurementTask) -> float:
        """Of a task of the plan, scaled or not."""
        fixed = self._fixed.get((task.stage, task.key), 0.0)
        return _SETUP + fixed + sum(self._batches(task, name) for name in self._names(task))

    def _batches(self, task: MeasurementTask, name: str) -> float:
        one = moved_bytes(task.src, task.dst, task.n) / (self.speed * _SHARES.get(name, _SHARE)) + 5e-6
        batch = max(one, BATCH)
        batches = min(task.samples, max(LEAST, task.limit / batch))
        return _CHECK + batches * batch + min(_WARM_UPS * batch, 0.1)


class Budget:
    """Yields tasks for so many seconds, with fewer samples if time is short. `now` is a clock."""

    def __init__(
        self,
        tasks: Iterable[MeasurementTask],
        seconds: float,
        estimate: Callable[[MeasurementTask], float],
        now: Callable[[], float],
    ) -> None:
        self.left = list(tasks)
        self._estimate, self._now = estimate, now
        self._end = now() + seconds
        #: The seconds of the tasks that are left, with the fewest samples and with all.
        self._least = sum(estimate(task.scaled(0.0)) for task in self.left)
        self._all = sum(map(estimate, self.left))
        #: The ratio of elapsed to estimated seconds of the tasks so far.
        self._pace = 1.0

    @property
    def factor(self) -> float:
        """The share of the samples for which there is time."""
        seconds = (self._end - self._now()) / self._pace
        return min(1.0, max(0.0, (seconds - self._least) / max(self._all - self._least, 1e-9)))

    def __iter__(self) -> Iterator[MeasurementTask]:
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
