# SPDX-License-Identifier: Apache-2.0
"""The random bits of a stochastic cast, chosen by its `seed` and `offset`.

Element i, in row-major order, takes word (offset + i) % 4 of block (offset + i) // 4 of Philox4x32-10 (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011) with the key `seed`. So equal seeds give equal bits everywhere,
and after an array of n elements the next cast goes on with ``offset + n``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpucast.core.checks import integer
from gpucast.core.rule import STOCHASTIC

_LIMIT = 2**64


class Random(NamedTuple):
    """The key, and the number of the first element's word. Both are from 0 to 2^64 - 1."""

    seed: int
    offset: int = 0


def resolve_random(rounding: Any, seed: Any, offset: Any, caller: str = "cast") -> Random | None:
    """Check the keywords `seed` and `offset` of a cast. Returns None unless `rounding` is "stochastic".

    TypeError for anything but integers. ValueError outside 0 to 2^64 - 1, for stochastic rounding without a seed, and
    for either keyword with another rounding.
    """
    stochastic = isinstance(rounding, str) and rounding == STOCHASTIC
    if seed is None and stochastic:
        raise ValueError(f"{caller}: rounding={STOCHASTIC!r} needs seed=, an integer from 0 to 2^64 - 1")
    values = [
        _integer(name, value, caller) for name, value in (("seed", seed), ("offset", offset)) if value is not None
    ]
    if stochastic:
        return Random(*values)
    if seed is not None or (offset is not None and values[-1] != 0):
        name, value = ("offset", offset) if seed is None else ("seed", seed)
        raise ValueError(f"{caller}: {name}={value!r} does not apply to rounding={rounding!r}; expected {STOCHASTIC!r}")
    return None


def _integer(name: str, value: Any, caller: str) -> int:
    number = integer(value, f"{caller}: {name}", "an integer from 0 to 2^64 - 1")
    if not 0 <= number < _LIMIT:
        raise ValueError(f"{caller}: {name}={value!r} is out of range; expected 0 to 2^64 - 1")
    return number
