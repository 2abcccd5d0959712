# SPDX-License-Identifier: Apache-2.0
"""One array of many that are cast by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from gpucast.arrays.adapters import Door
from gpucast.core.dtypes import DType
from gpucast.core.fused_ops import Fusion
from gpucast.core.rule import Rule


class Names(NamedTuple):
    """What errors call the arrays of a call."""

    #: The caller's parameter: "arrays".
    parameter: str
    #: Where in it the leaves are, such as "['encoder'][3]".
    paths: Callable[[], Sequence[str]]


class Library(Door, Protocol):
    """The door of a library whose arrays share launches with ours: `gpucast.interop.torch`."""

    def room(self, x: Any, dst: DType, who: str) -> tuple[Any, Any]:
        """Memory for the cast of x: what the caller gets, and the same as an array of ours."""

    def stream(self, device: int) -> int:
        """The library's current stream of a device."""

    def check_into(self, x: Any, who: str) -> None:
        """ValueError for an x that is not to be cast into an `out`."""

    def check_scale(self, scale: Any, who: str) -> None:
        """ValueError for a scale of the library that its arrays are not to be multiplied with."""

    def attach(self, sources: list[Any], results: list[Any], scale: Any) -> list[Any]:
        """The results, as what the library differentiates through."""


@dataclass(slots=True)
class Leaf:
    """One array of a call of `gpucast.cast_many`."""

    #: What errors call it: "cast_many: arrays['encoder'][3]".
    who: str
    #: As it was given, the door that it came through (None: it is ours), and the same as an array of ours.
    given: Any
    way: Door | None
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
    def library(self) -> Library | None:
        """The door, if arrays of its library share launches with ours."""
        return cast(Library, self.way) if hasattr(self.way, "room") else None
