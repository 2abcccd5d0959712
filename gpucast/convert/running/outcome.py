# SPDX-License-Identifier: Apache-2.0
"""How a plan is carried out, and its result."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpucast.convert.losses.statistics import Statistics
from gpucast.convert.planning.plan import ConversionPlan, FilePlan
from gpucast.convert.planning.tensor_plan import TensorPlan

#: Where torchrun and Slurm tell a process its number, and how many there are.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
#: Takes bytes of the source that are done; 0 where `Outcome.stage` has changed.
Advance = Callable[[int], object]


@dataclass(frozen=True)
class Share:
    """Process `number` (from 0) of `count`."""

    number: int
    count: int

    def of(self, sizes: Sequence[int]) -> set[int]:
        """The indexes of the files that this process converts. Files go by size, each to the process with the least
        work so far.

        Every process finds the same division by itself.
        """
        # More processes than files have nothing to do.
        loads = [(0, number) for number in range(min(self.count, len(sizes)))]
        mine = set()
        for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
            load, number = heapq.heappop(loads)
            # Empty files are work, too.
            heapq.heappush(loads, (load + sizes[index] + 1, number))
            if number == self.number:
                mine.add(index)
        return mine


def parse(text: str, environment: Mapping[str, str] = os.environ) -> Share:
    """ "0/4", or "auto": from the variables of torchrun or Slurm. ValueError for anything else."""
    if text == "auto":
        for number, count in _VARIABLES:
            if number in environment and count in environment:
                return _share(environment[number], environment[count], f"{number} and {count}")
        names = " nor ".join(f"{number} and {count}" for number, count in _VARIABLES)
        raise ValueError(f"'auto' finds neither {names} in the environment; give I/N")
    number, _, count = text.partition("/")
    return _share(number, count, repr(text))


def _share(number: str, count: str, said: str) -> Share:
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise ValueError(f"{said} is no share of the work; expected I/N with I from 0 to N - 1")
    return Share(int(number), int(count))


@dataclass(frozen=True)
class Options:
    """How a plan is carried out. The result does not depend on these options."""

    device: str | None = None
    allow_loss: bool = False
    #: None, "sampled" or "all": compare what was written with the reference.
    verify: str | None = None
    share: Share | None = None
    #: Discard unfinished work of an earlier run.
    restart: bool = False

    def files_of(self, plan: ConversionPlan) -> list[FilePlan]:
        """The files that this process does."""
        mine = set(range(len(plan.files)))
        if self.share is not None:
            mine = self.share.of([file.bytes_in for file in plan.files])
        return [plan.files[index] for index in sorted(mine)]

    def work_of(self, plan: ConversionPlan) -> int:
        """The bytes that `Advance` takes in all: those of the source, and once more those that are verified."""
        return sum(file.bytes_in * (1 + self.verifies(file)) for file in self.files_of(plan))

    def verifies(self, file: FilePlan) -> bool:
        return self.verify is not None and file.tensors is not None


@dataclass
class Result:
    """The result for one tensor that was cast."""

    file: FilePlan
    plan: TensorPlan
    bytes_out: int
    statistics: Statistics


@dataclass
class Outcome:
    """The outcome of a run. `results` are those of this process, or of all processes once the target is written.
    `waiting` lists files that other processes must finish before that.
    """

    plan: ConversionPlan
    results: list[Result] = field(default_factory=list)
    waiting: int = 0
    verified: int = 0
    #: The present stage, for a progress bar.
    stage: str = ""
    #: Bytes of the source that an earlier run had finished.
    resumed: int = 0
    #: Where finished work is kept after an error.
    kept: str | None = None
    #: After an error when the target was written, which is whole: why unfinished work was not removed; "": it was.
    left: str | None = None

    @property
    def was_written(self) -> bool:
        """Whether another run has written the target already, so that nothing else is known about the tensors."""
        return not self.results and not self.waiting
