# SPDX-License-Identifier: Apache-2.0
"""The checked inputs of a fused cast, which does more than a cast in one pass over memory. The random bits of a
stochastic cast, chosen by `seed` and `offset`.

Element i, in row-major order, takes word (offset + i) % 4 of block (offset + i) // 4 of Philox4x32-10 (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011) with the key `seed`. So equal seeds give equal bits everywhere,
and after an array of n elements the next cast goes on with ``offset + n``.
"""

from __future__ import annotations

import struct
from typing import Any, Literal, NamedTuple

from gpucast.core.checks import integer
from gpucast.core.dtypes import dtype
from gpucast.core.rounding import STOCHASTIC

_LIMIT = 2**64
#: The number that values are multiplied with: "none", one that FLOAT holds ("narrow"), or any DOUBLE ("wide").
Scaling = Literal["none", "narrow", "wide"]
_FLOAT = dtype("FLOAT")


class Random(NamedTuple):
    """The key, and the number of the first element's word. Both are from 0 to 2^64 - 1."""

    seed: int
    offset: int = 0


#: What stands for those of a call without any.
NO_WORDS = Random(0, 0)


def resolve_random(rounding: Any, seed: Any, offset: Any, caller: str = "cast") -> Random | None:
    """Check the keywords `seed` and `offset` of a cast. Returns None unless `rounding` is "stochastic".

    TypeError for anything but integers. ValueError outside 0 to 2^64 - 1, for stochastic rounding without a seed, and
    for either keyword with another rounding.
    """
    stochastic = isinstance(rounding, str) and rounding == STOCHASTIC
    if seed is None and not stochastic and type(offset) is int and not offset:
        # As most calls have it.
        return None
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


class Fuse(NamedTuple):
    """All else that a cast does in its pass, checked: a plain cast has `EMPTY`. Its arrays are where the cast runs."""

    #: The number that every value is multiplied with: itself, or a CuPy array of one FLOAT or DOUBLE.
    scale: Any = None
    #: An array of one FLOAT that becomes the largest magnitude of the source if that is larger.
    amax: Any = None
    #: An array of one byte (or bool) that becomes 0 if a source value is infinite or NaN.
    finite: Any = None
    random: Random | None = None

    @property
    def scaling(self) -> Scaling:
        """The kind of `scale`."""
        return scaling_of(self.scale)

    @property
    def arrays(self) -> dict[str, Any]:
        """Its arrays by name."""
        named = {"scale": self.scale, "amax": self.amax, "finite": self.finite}
        return {name: x for name, x in named.items() if not (x is None or isinstance(x, float))}


#: Of a plain cast, and of no other: `fuse_of` gives it where nothing is fused.
EMPTY = Fuse()


def fuse_of(scale: Any = None, amax: Any = None, finite: Any = None, random: Random | None = None) -> Fuse:
    """The `Fuse` of these."""
    return EMPTY if scale is amax is finite is random is None else Fuse(scale, amax, finite, random)


def scaling_of(scale: Any) -> Scaling:
    """The kind of a `Fuse.scale`."""
    if scale is None:
        return "none"
    if isinstance(scale, float):
        return "narrow" if _is_float(scale) else "wide"
    return "narrow" if scale.dtype == _FLOAT.numpy else "wide"


def _is_float(number: float) -> bool:
    """Whether a number is a FLOAT, apart from subnormals, for which "wide" serves as well. It looks at bits, because a
    processor may flush numbers in comparisons and roundings.
    """
    code: int = struct.unpack("<Q", struct.pack("<d", number))[0]
    exponent = code >> 52 & 0x7FF
    return not code & (1 << 29) - 1 and (897 <= exponent <= 1150 or code << 1 & (1 << 64) - 1 == 0)
