# SPDX-License-Identifier: Apache-2.0
"""The rounding modes: one row of data each.

A row has the word of the keyword `rounding` and the name of IEEE 754-2019 (4.3; rounding to odd: Boldo and Melquiond,
2008). Users meet the words. A `gpucast.core.rule.CastRule`, and the enumeration `Rounding` of ``kernels/number.cuh``,
have the names, each of which means one thing for integers and floats alike. The reference computes a mode in
`gpucast.reference.rounding`, the kernels in `rounded` and `without_ties`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from gpucast.core.dtypes import DType

#: The words of the keyword `rounding`, and the names of the modes.
Rounding = Literal["nearest_even", "nearest_away", "toward_zero", "truncate", "upward", "downward", "odd", "stochastic"]
RoundingName = Literal[
    "ties_to_even", "ties_to_away", "toward_zero", "toward_positive", "toward_negative", "to_odd", "stochastic"
]


class RoundingMode(NamedTuple):
    """One rounding mode, as one word of the keyword says it."""

    word: Rounding
    name: RoundingName
    #: Whether integers take it, and the widest floats that do, in bits. (FLOAT8E8M0 takes none: it has `round_mode`.)
    integers: bool
    floats: int
    #: Midway between two values: to the even code, or away from zero. None for modes that do not ask for the nearest.
    ties: Literal["even", "away"] | None
    #: What becomes of a number that is not exact, for the pages and the help of commands.
    text: str

    def takes_upper(self, odd: Any) -> Any:
        """Whether a number midway between two codes goes to the upper one, by whether the lower code is odd."""
        return {"even": odd, "away": True}[self.ties or ""]


#: The only list of them. Of two words for one mode the first stands in names of kernels.
ROUNDING_MODES = (
    RoundingMode("nearest_even", "ties_to_even", True, 64, "even", "to the nearest value, ties to the even one"),
    RoundingMode("nearest_away", "ties_to_away", True, 64, "away", "to the nearest value, ties away from zero"),
    RoundingMode("toward_zero", "toward_zero", True, 64, None, "to the value that is nearer to zero"),
    RoundingMode("truncate", "toward_zero", True, 0, None, "the same, by the word that fits integers"),
    RoundingMode("upward", "toward_positive", False, 64, None, "to the greater value"),
    RoundingMode("downward", "toward_negative", False, 64, None, "to the lesser value"),
    RoundingMode("odd", "to_odd", False, 64, None, "to the value whose last bit is 1"),
    RoundingMode("stochastic", "stochastic", False, 16, None, "up or down at random, with the right mean"),
)  # fmt: skip

#: How floats and integers are rounded unless a call says otherwise.
OF_FLOATS: RoundingName = "ties_to_even"
OF_INTEGERS: RoundingName = "toward_zero"
STOCHASTIC: Literal["stochastic"] = "stochastic"


def _names(takes: Callable[[RoundingMode], object]) -> tuple[RoundingName, ...]:
    """The names of some modes, each once."""
    return tuple(dict.fromkeys(mode.name for mode in ROUNDING_MODES if takes(mode)))


#: The modes of floats, and those of integers, that fast paths do not know, so that the rule itself rounds.
BY_RULE: dict[str, tuple[RoundingName, ...]] = {
    "float": _names(lambda mode: mode.floats and mode.name not in (OF_FLOATS, STOCHASTIC)),
    "int": _names(lambda mode: mode.integers and mode.name not in (OF_FLOATS, OF_INTEGERS)),
}

_NAMES = {mode.word: mode.name for mode in ROUNDING_MODES}
_MODES = {mode.name: mode for mode in reversed(ROUNDING_MODES)}


def name_of(word: Rounding) -> RoundingName:
    """The mode that a word of the keyword asks for."""
    return _NAMES[word]


def mode_of(name: RoundingName) -> RoundingMode:
    """A mode's row."""
    return _MODES[name]


def word_of(name: RoundingName) -> Rounding:
    """The first word for a mode: it stands in the names of kernels."""
    return _MODES[name].word


def words_of(dst: DType) -> tuple[Rounding, ...]:
    """The words that a destination takes, of numbers."""
    if dst.family == "int":
        return tuple(mode.word for mode in ROUNDING_MODES if mode.integers)
    if dst.family == "float":
        return tuple(mode.word for mode in ROUNDING_MODES if dst.bits <= mode.floats)
    return ()
