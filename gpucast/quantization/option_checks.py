# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several functions share: gradients, a Hadamard transform, random rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.packed import host_only
from gpucast.core import fuse
from gpucast.core.checks import integer
from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.quantization.exact_hadamard import negative_signs
from gpucast.quantization.formats import LENGTHS, Format, Hadamard


def resolve_hadamard(length: Any, signs: Any, seed: Any, name: str) -> Hadamard:
    """The transform that a call asks for; `name`: the call and its parameter. TypeError or ValueError for anything
    else."""
    n, caller = integer(length, name), name.partition(":")[0]
    if n not in LENGTHS:
        raise ValueError(f"{name}={n} must be one of {', '.join(map(str, LENGTHS))}")
    if signs is None:
        return Hadamard(n, 0 if seed is None else _of_seed(seed, caller) & (1 << n) - 1)
    return Hadamard(n, _given(signs, n, caller))


def check_one_source(signs: Any, seed: Any, caller: str) -> None:
    """ValueError where both signs and a seed of signs are given."""
    if signs is not None and seed is not None:
        raise ValueError(f"{caller}: signs= and seed={seed!r} both give the signs; expected one of them")


def check_constant(x: Any, caller: str) -> None:
    """ValueError for an array through whose parts its library would record no gradient, though one is asked for."""
    library = libraries.find(x)
    if library is not None:
        instead = (
            "codes with scales pass no gradient on; pass x.detach(), or work within torch.no_grad(), and write the "
            "backward pass in a torch.autograd.Function"
        )
        library.check_constant(x, caller, instead)


def check_runs(hadamard: Hadamard, shape: tuple[int, ...], axis: int, caller: str) -> None:
    """ValueError for an axis that does not consist of whole runs."""
    if not shape or shape[axis] % hadamard.length:
        raise ValueError(
            f"{caller}: axis {axis} of shape {shape} is no multiple of {hadamard.length}, the length of a transform"
        )


def check_format(format: Format, caller: str) -> None:
    """ValueError for a format whose numbers cannot be transformed."""
    if format.block == "axis":
        raise ValueError(
            f"{caller}: hadamard= mixes the numbers along the axis, of which {format} has a scale for each; expected a "
            "format with blocks, or one scale for the tensor"
        )
    if format.steps is not None:
        raise ValueError(
            f"{caller}: hadamard= is not for recipes, such as {format}: their bits were compared without a transform; "
            "expected a format"
        )


def resolve_random(format: Format | None, rounding: Any, seed: Any, offset: Any, caller: str) -> Random | None:
    """The random words of a call that rounds to a format's elements (None: to a type); None for no such call.

    TypeError or ValueError for anything that is not random rounding of floats.
    """
    random = fuse.resolve_random(rounding, seed, offset, caller)
    if rounding is not None and not (isinstance(rounding, str) and rounding == STOCHASTIC):
        raise ValueError(f"{caller}: rounding={rounding!r} must be None or {STOCHASTIC!r}")
    if random is not None and format is not None and format.element.family != "float":
        raise ValueError(
            f"{caller}: rounding={STOCHASTIC!r} is for elements that are floats; {format} has {format.element}"
        )
    return random


def _of_seed(seed: Any, caller: str) -> int:
    number = integer(seed, f"{caller}: seed", "an integer from 0 to 2^64 - 1")
    if not 0 <= number < 2**64:
        raise ValueError(f"{caller}: seed={seed!r} is out of range; expected 0 to 2^64 - 1")
    return negative_signs(number)


def _given(signs: Any, n: int, caller: str) -> int:
    host_only(signs, f"{caller}: signs= is on a device; expected {n} numbers on the host")
    given = np.asarray(signs)
    if given.dtype.kind not in "fiu" or given.shape != (n,):
        raise ValueError(f"{caller}: signs= has dtype {given.dtype} and shape {given.shape}; expected {n} numbers")
    if not ((given == 1) | (given == -1)).all():
        raise ValueError(f"{caller}: signs= must be +1 and -1")
    return sum(1 << int(i) for i in np.flatnonzero(given < 0))
