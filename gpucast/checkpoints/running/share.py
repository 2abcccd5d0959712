# SPDX-License-Identifier: Apache-2.0
"""The share of a conversion that one of several processes does."""

from __future__ import annotations

import heapq
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Where torchrun and Slurm tell a process its number, and how many there are.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


@dataclass(frozen=True)
class Share:
    """Process `number` (from 0) of `count`."""

    number: int
    count: int

    def of(self, sizes: Sequence[int]) -> set[int]:
        """The indexes of the files that this process converts: the largest file first, each to who has least to do.

        Every process comes to the same division, whatever the others do.
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
