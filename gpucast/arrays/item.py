# SPDX-License-Identifier: Apache-2.0
"""One array of many that are cast by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpucast.arrays.adapters import ArrayAdapter
from gpucast.core.fused_ops import Fusion
from gpucast.core.rule import Rule


class Names(NamedTuple):
    """What errors call the arrays of a call."""

    #: The caller's parameter: "arrays".
    parameter: str
    #: Where in it the leaves are, such as "['encoder'][3]".
    paths: Callable[[], Sequence[str]]


@dataclass(slots=True)
class Leaf:
    """One array of a call of `gpucast.cast_many`."""

    #: What errors call it: "cast_many: arrays['encoder'][3]".
    who: str
    #: As it was given, its adapter (None: it is ours), and the same as an array of ours.
    given: Any
    adapter: ArrayAdapter | None
    array: Any
    #: The index of the device that holds it; None for the host.
    home: int | None
    #: What the caller gets, and the same as an array of ours; None until there is one.
    result: Any
    target: Any = None
    rule: Rule = field(init=False)
    #: What is done beside; None: nothing.
    fusion: Fusion | None = None
    #: Elements of the leaves before it.
    start: int = 0

    @property
    def is_alone(self) -> bool:
        """Whether it is of a library whose arrays share no launches with ours."""
        return self.adapter is not None and not self.adapter.shares_launches
