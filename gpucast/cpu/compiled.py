# SPDX-License-Identifier: Apache-2.0
"""Where the NumPy path finds compiled casts, if there are any.

That path and the kernels are evidence for one another, so neither imports the other. The library made of the kernels'
text (`gpucast.native`) therefore announces itself here, and without it NumPy does all the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy.typing as npt

from gpucast.core.fused_ops import FusedInputs
from gpucast.core.random import Random
from gpucast.core.rule import CastRule

Array = npt.NDArray[Any]

#: ``run(x, out)`` of a `gpucast.casting.plan_cache.Plan`.
Run = Callable[[Any, Any], Any]


class CompiledCast(Protocol):
    """Casts elements into all of a second array, which does not overlap the first. Both are native, aligned and
    row-major, of their own dtypes or seen as codes. Threads may share it."""

    def __call__(self, x: Array, out: Array) -> None: ...

    def at(self, src: int, dst: int, size: int) -> None:
        """The same for elements that begin at these addresses."""

    def quicker(self, run: Run) -> Run:
        """What gives the same as `run`, the cast of a plan, and takes less time for most arrays."""

    def of_tensors(self, view: int, empty_like: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
        """Gives the cast of a tensor of another library, or None, nothing done, where that is not row-major or for
        another reason not like most. None where there is no such function.

        `view`: the address of DLPack's ``dltensor_from_py_object_no_sync`` for the tensor's class; ``empty_like(x)``: a
        new tensor for the result."""


#: The same with random rounding: the first element takes the word at the offset.
StochasticCast = Callable[[Array, Array, Random], Any]

#: ``cast(x, out, fused)``, which returns the largest magnitude as the code of a FLOAT, 0 without `amax`, and whether
#: all is finite, True without `finite`. It writes to neither.
FusedCast = Callable[[Array, Array, FusedInputs], tuple[int, bool]]

#: The compiled casts that have been found, but for those with random rounding.
READY: dict[CastRule, CompiledCast] = {}
#: Called with the rule of each cast that has become ready.
ON_READY: list[Callable[[CastRule], None]] = []
#: Who is asked for the compiled cast of a rule, a `StochasticCast` if it rounds at random, given the bytes of sources
#: that are about to be cast.
FINDERS: list[Callable[[CastRule, int], Any]] = []
#: The same for fused casts; the third argument says whether there is a scale.
FUSED_FINDERS: list[Callable[[CastRule, int, bool], FusedCast | None]] = []


def find(rule: CastRule, nbytes: int) -> Any:
    """The compiled cast of a rule, or None; `nbytes`: bytes of sources about to be cast."""
    return READY.get(rule) or next((cast for finder in FINDERS if (cast := finder(rule, nbytes)) is not None), None)


def keep(rule: CastRule, cast: CompiledCast) -> None:
    """Have a cast ready from now on."""
    if READY.get(rule) is not cast:
        READY[rule] = cast
        for tell in ON_READY:
            tell(rule)


def find_fused(rule: CastRule, nbytes: int, is_scaled: bool) -> FusedCast | None:
    """As `find`, for a fused cast; with a scale the rule is that of products, but for its source."""
    return next((cast for find in FUSED_FINDERS if (cast := find(rule, nbytes, is_scaled)) is not None), None)
