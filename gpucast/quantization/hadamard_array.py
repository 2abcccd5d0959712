# SPDX-License-Identifier: Apache-2.0
"""The Hadamard transform as a function; `gpucast.quantize` has it as an option."""

from __future__ import annotations

from typing import Any

from gpucast.arrays import libraries
from gpucast.arrays.array import Array
from gpucast.arrays.overlap import Place, check_disjoint
from gpucast.arrays.packed import PackedArray, as_array
from gpucast.casting import calls, engines
from gpucast.core.arithmetic import exact
from gpucast.core.checks import integer
from gpucast.core.dtypes import DType
from gpucast.core.rule import resolve
from gpucast.kernel import streams
from gpucast.quantization import engine, plans
from gpucast.quantization.option_checks import check_runs, resolve_hadamard
from gpucast.quantization.quantized import source_dtype

_CALLER = "hadamard"


def hadamard(
    x: Any,
    length: int,
    *,
    axis: int = -1,
    signs: Any = None,
    seed: int | None = None,
    inverse: bool = False,
    to: Any = "FLOAT",
    out: Any = None,
) -> Any:
    """Transform runs of numbers along an axis by a (random) Hadamard matrix, with the same bits on every machine.

    The transform spreads a few large numbers over their run. Two operands of a product that are transformed alike along
    the axis over which the product sums have the same product as before, but for rounding.
    `gpucast.quantization.exact_hadamard` defines every step.

    Parameters
    ----------
    x
        An array of FLOAT, FLOAT16, BFLOAT16 or DOUBLE, as `gpucast.quantize` takes it.
    length
        The length of a run: 16, 32, 64 or 128. It divides the axis.
    axis
        The axis of the runs.
    signs
        The factors of the numbers in each run, before the transform: `length` numbers that are +1 or -1, on the host.
        None: the signs of the seed, or no signs.
    seed
        The seed of random signs, from 0 to 2^64 - 1; equal seeds give equal signs.
    inverse
        True: transform back.
    to
        The type of the result. The transform itself is in FLOAT.
    out
        An array of x's shape and the type `to` where x is, which is written and returned.

    Returns
    -------
    An array of x's shape and library, where x is. Gradients of PyTorch pass through, also in `torch.compile`.

    Raises
    ------
    TypeError
        For a type that cannot be quantized.
    ValueError
        For another length, an axis that is no multiple of it, other signs, or an `out` that does not fit.
    """
    with_gradient = libraries.function_of(x, "hadamard")
    y = None if with_gradient is None else with_gradient(x, length, axis, (signs, seed), inverse, to, out)
    return transformed(x, length, axis, (signs, seed), inverse, to, out) if y is None else y


def transformed(x: Any, length: Any, axis: Any, signs: tuple[Any, Any], inverse: Any, to: Any, out: Any) -> Any:
    """The transform without a gradient. `signs`: the arguments `signs` and `seed` of `hadamard`."""
    return plans.HADAMARD.call(_checked, x, length, (axis, *signs, inverse, to, out))


@exact()
def _checked(x: Any, length: Any, axis: Any, signs: Any, seed: Any, inverse: Any, to: Any, out: Any) -> Any:
    with streams.visit(x, out):
        array = as_array(x, _CALLER)
        if isinstance(array, PackedArray):
            raise TypeError(f"{_CALLER}: x is a PackedArray of {array.dtype.name}, which is no type to transform")
        source_dtype(array.dtype, f"{_CALLER}: x.dtype=")
        kind = source_dtype(to, f"{_CALLER}: to=")
        if not isinstance(inverse, bool):
            raise TypeError(f"{_CALLER}: inverse={inverse!r} must be True or False")
        how = resolve_hadamard(length, signs, seed, _CALLER)
        place = checked_axis(axis, array.shape)
        check_runs(how, array.shape, place, _CALLER)
        target = None if out is None else _checked_out(array, kind, out)
        result = engine.of(array).transform(array, how, place, kind, inverse=inverse, out=target)
        if out is not None:
            return out
        library = libraries.library_of(x)
        return result if library is None else libraries.of_library(library).from_array(result)


def checked_axis(axis: Any, shape: tuple[int, ...]) -> int:
    """The axis of the runs, counted from the front. TypeError or ValueError for one that the shape does not have."""
    place = integer(axis, f"{_CALLER}: axis")
    if not -len(shape) <= place < len(shape):
        raise ValueError(f"{_CALLER}: axis={axis} is out of bounds for shape {shape}")
    return place % len(shape)


def _checked_out(x: Any, to: DType, out: Any) -> Any:
    """The native array over an `out` that can take the result of `x`."""
    source = Array.of(x)
    array = calls.target_of(source, resolve(source.dtype, to), out, engines.of(source.device), _CALLER).array
    check_disjoint([Place("out", array)], [Place("x", x)], _CALLER)
    return array
