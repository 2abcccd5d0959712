# SPDX-License-Identifier: Apache-2.0
"""What one pass over 8-bit states computes. To quantize or to dequantize a state is a step, too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from gpucast.core.expression import Expression, parse


@dataclass(frozen=True)
class Step:
    """Lines, each of which gives a name a FLOAT for every element, and the codebooks of the names that are states."""

    function: str
    lines: tuple[tuple[str, Expression], ...]
    books: tuple[tuple[str, str], ...]

    @cached_property
    def written(self) -> dict[str, None]:
        """The names with a new value."""
        return dict.fromkeys(target for target, _ in self.lines)

    @cached_property
    def read(self) -> dict[str, None]:
        """The names that an expression has before a line gives them a value."""
        found, known = dict[str, None](), set[str]()
        for target, expression in self.lines:
            found |= dict.fromkeys(name for name in expression.names if name not in known)
            known.add(target)
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.written, *self.read)))


@lru_cache
def quantizing(book: str) -> Step:
    """The state `y` of the numbers `x`."""
    return Step("quantize_state", (("y", parse("x", "")),), (("y", book),))


@lru_cache
def dequantizing(book: str) -> Step:
    """The numbers `y` of the state `x`."""
    return Step("dequantize_state", (("y", parse("x", "")),), (("x", book),))
