# SPDX-License-Identifier: Apache-2.0
"""How the work of a plan is done, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpucast.checkpoints.losses.statistics import Statistics
from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.planning.tensor_plan import TensorPlan
from gpucast.checkpoints.running.share import Share

#: Takes bytes of the source that are done; 0 where `Outcome.stage` has changed.
Advance = Callable[[int], object]


@dataclass(frozen=True)
class Options:
    """How the work is done; what comes of it does not depend on these."""

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

    def bytes_of(self, plan: ConversionPlan) -> int:
        return sum(file.bytes_in for file in self.files_of(plan))


@dataclass
class Result:
    """What became of one tensor that was cast."""

    file: FilePlan
    plan: TensorPlan
    bytes_out: int
    statistics: Statistics


@dataclass
class Outcome:
    """`results` of this process; once the target is written, of all. `waiting`: files that other processes have yet
    to finish before the target is written."""

    plan: ConversionPlan
    results: list[Result] = field(default_factory=list)
    waiting: int = 0
    verified: int = 0
    #: What is done at this moment, for a progress bar.
    stage: str = ""
    #: Bytes of the source that an earlier run had finished.
    resumed: int = 0
    #: Where finished work is kept after an error.
    kept: str | None = None
    #: After an error when the target was written, which is whole: why unfinished work was not removed; "": it was.
    left: str | None = None

    @property
    def was_written(self) -> bool:
        """Whether another run has written all and told of it, so that nothing is known here but that."""
        return not self.results and not self.waiting
