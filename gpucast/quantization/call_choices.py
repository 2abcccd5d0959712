# SPDX-License-Identifier: Apache-2.0
"""The choices that each call of a plan may make anew: random words, and the signs of a transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC

_LIMIT = 1 << 64
#: The source of the signs of a transform: numbers, or a seed.
Signs = tuple[tuple[int, ...] | None, int | None]
NO_SIGNS: Signs = (None, None)


def words(seed: Any, offset: Any) -> Random | None:
    """The random words of a call; None for others than there are."""
    known = type(seed) is int and type(offset) is int and 0 <= seed < _LIMIT and 0 <= offset < _LIMIT
    return Random(seed, offset) if known else None


def by_numbers(
    read: list[Any], scale: Any, rounding: Any, seed: Any, offset: Any
) -> tuple[list[Any], Any, Random | None] | None:
    """The arrays that a call reads, with a scale that is one; a key for a scale that is a number; and the random words.
    None for a call that only the checked path takes, or refuses."""
    random = None
    if rounding == STOCHASTIC:
        random = words(seed, offset)
        if random is None:
            return None
    elif seed is not None or type(offset) is not int or offset:
        return None
    if type(scale) in (int, float):
        return read, (type(scale), scale), random
    return read if scale is None else [*read, scale], None, random


def signs_of(signs: Any, seed: Any) -> Signs | None:
    """The source of the signs of a transform; None for signs that only the checked path takes, or refuses."""
    if signs is not None:
        if seed is not None or type(signs) not in (list, tuple) or any(type(sign) is not int for sign in signs):
            return None
        return tuple(signs), None
    return (None, seed) if seed is None or type(seed) is int else None


def choices(hadamard: Any) -> Callable[[Any, Any, Any, Any], tuple[Random | None, Signs] | None]:
    """``choose(rounding, seed, offset, signs)`` of calls with this `hadamard`: their random words and signs; None for
    calls that only the checked path takes, or refuses."""
    transforms = hadamard is not None and hadamard != (None, None)

    def choose(rounding: Any, seed: Any, offset: Any, signs: Any) -> tuple[Random | None, Signs] | None:
        random, found = None, NO_SIGNS
        if rounding is not None:
            random = words(seed, offset)
            if random is None:
                return None
        elif type(offset) is not int or offset or (seed is not None and (signs is not None or not transforms)):
            return None
        if transforms:
            known = signs_of(signs, seed if signs is None else None)
            return None if known is None else (random, known)
        return None if signs is not None else (random, found)

    return choose
