# SPDX-License-Identifier: Apache-2.0
"""Objects of several arrays, such as codes with scales: how files hold them. Extensions have the classes.

A file holds the arrays of one as tensors, whose names begin with its own, and an entry of its metadata that describes
it. Like `gpucast.arrays.libraries`, this module names no class: `gpucast/__init__.py` registers them.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Composite(ABC):
    """Takes objects of one class apart, and makes them of their arrays."""

    @abstractmethod
    def split(self, x: Any) -> tuple[dict[str, Any], str]:
        """The arrays, by what follows the object's name in theirs (the first: ""), and the text of the entry."""

    @abstractmethod
    def endings(self, text: str, caller: str) -> tuple[str, ...]:
        """The keys that `split` gave, from the text of an entry. ValueError for other text."""

    @abstractmethod
    def join(self, parts: Mapping[str, Any], text: str, library: str | None, caller: str) -> Any:
        """The object of such arrays, those of NumPy or CuPy, with its parts in a library. TypeError or ValueError for
        arrays that do not fit the text."""


class Kind(NamedTuple):
    """A class of such objects."""

    #: The keys of the entries are this and the object's name.
    prefix: str
    #: Its module, and its name there.
    module: str
    name: str
    #: Gives the composite.
    load: Callable[[], Composite]


_KINDS: list[Kind] = []


def register(*kinds: Kind) -> None:
    """Add classes."""
    _KINDS.extend(kinds)


def find(x: Any) -> tuple[str, Composite] | None:
    """The prefix of the entry of an object, and its composite; None for all other objects."""
    for kind in _KINDS:
        # Without the module there is no such object.
        if isinstance(x, getattr(sys.modules.get(kind.module), kind.name, ())):
            return kind.prefix, kind.load()
    return None


def described(metadata: Mapping[str, str]) -> dict[str, tuple[str, Composite]]:
    """The text of the entry of each object that a file holds, by the object's name, and its composite."""
    return {
        key.removeprefix(kind.prefix): (text, kind.load())
        for kind in _KINDS
        for key, text in metadata.items()
        if key.startswith(kind.prefix)
    }
