# SPDX-License-Identifier: Apache-2.0
"""float32 and float64 to integers: truncate toward zero and keep the low bits.

The result of converting NaN, or a float out of the integer's range, depends on the processor and the compiler. Most
give the integer's minimum, which is tested once per process; otherwise such numbers are found by comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.cpu.encode import low_bits

Array = npt.NDArray[Any]
Lane = Callable[[Array, Array], None]


def float_to_int(compute_dtype: np.dtype[Any], dst: DType, chunk: int) -> Lane:
    """The lane from `compute_dtype`, float32 or float64, to codes of `dst`."""
    last_place = 23 if compute_dtype == np.float32 else 52

    def exact(bits: int) -> bool:
        # A float of 2^(bits-1) or more is a multiple of its ULP. If that is a multiple of 2^dst.bits, the low bits of
        # the result are 0, and so are those of the integer's minimum, to which such floats, NaN and infinities convert.
        return invalid_gives_minimum(compute_dtype) and dst.bits <= bits - 1 - last_place

    int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
    if exact(32):
        return _through(int32, dst, chunk)
    if exact(64) and dst.bits < 16:
        return _through(int64, dst, chunk)
    if exact(64):
        in_range = np.dtype(np.uint32) if dst.bits == 32 and not dst.signed else int32
        return _with_fallback(_if_in_range(in_range, dst, chunk), _through(int64, dst, chunk))
    quick = dst.bits == 16 or (dst.bits == 32 and dst.signed)
    return _with_fix_up(int32 if quick else int64, compute_dtype, dst, chunk)


def _through(integer: np.dtype[Any], dst: DType, chunk: int, fix_up: Lane | None = None) -> Lane:
    """Convert to a wider integer, apply `fix_up`, and keep the low bits.

    The wider integer is written straight into the result if that has the same size.
    """
    direct = dst.code_numpy.itemsize == integer.itemsize
    scratch = np.empty(0 if direct else chunk, integer)

    def lane(x: Array, out: Array) -> None:
        integers = out.view(integer) if direct else scratch[: x.size]
        np.copyto(integers, x, casting="unsafe")
        if fix_up is not None:
            fix_up(x, integers)
        if not direct:
            np.copyto(out, integers, casting="unsafe")
        if dst.packed:
            np.bitwise_and(out, dst.code_mask, out=out)

    return lane


def _with_fix_up(integer: np.dtype[Any], compute_dtype: np.dtype[Any], dst: DType, chunk: int) -> Lane:
    on_minimum = invalid_gives_minimum(compute_dtype)
    minimum, top = integer.type(np.iinfo(integer).min), 2.0 ** (8 * integer.itemsize - 1)
    mask = np.empty(chunk, bool)
    expected = False

    def fix_up(x: Array, integers: Array) -> None:
        nonlocal expected
        # Looking for the minimum is quicker than looking for its positions, unless the minimum occurs, which is
        # expected if it occurred in the previous chunk.
        if on_minimum and not expected and np.minimum.reduce(integers) != minimum:
            return
        bad = np.equal(integers, minimum, out=mask[: x.size]) if on_minimum else ~(np.abs(x) < top)
        where = np.flatnonzero(bad)
        expected = where.size > 0
        if expected:
            chosen = slice(None) if where.size * 8 > x.size else where
            integers[chosen] = low_bits(x[chosen].astype(np.float64)).astype(integer)

    return _through(integer, dst, chunk, fix_up)


def _if_in_range(integer: np.dtype[Any], dst: DType, chunk: int) -> Callable[[Array, Array], bool]:
    """A lane that returns False where a number is out of the integer's range; what it wrote is then meaningless."""
    direct = dst.code_numpy.itemsize == integer.itemsize
    scratch = np.empty(0 if direct else chunk, integer)
    minimum, top = np.iinfo(integer).min, float(np.iinfo(integer).max + 1)

    def lane(x: Array, out: Array) -> bool:
        # An unsigned result has no code that would reveal an overflow. Both comparisons are false for NaN.
        if integer.kind == "u" and not (x.min() > -1 and x.max() < top):
            return False
        integers = out.view(integer) if direct else scratch[: x.size]
        np.copyto(integers, x, casting="unsafe")
        # The minimum can also be the correct result.
        if (
            integer.kind == "i"
            and np.minimum.reduce(integers) == minimum
            and not (x.min() >= minimum and x.max() < top)
        ):
            return False
        if not direct:
            np.copyto(out, integers, casting="unsafe")
        return True

    return lane


def _with_fallback(quick: Callable[[Array, Array], bool], sure: Lane) -> Lane:
    """The quick lane; where it fails, the sure one, for this chunk and the next 15 without trying again."""
    rest = 0

    def lane(x: Array, out: Array) -> None:
        nonlocal rest
        if not rest:
            if quick(x, out):
                return
            rest = 16
        rest -= 1
        sure(x, out)

    return lane


@lru_cache(maxsize=4)
def invalid_gives_minimum(compute_dtype: np.dtype[Any]) -> bool:
    """True where NaN and floats out of a signed integer's range convert to its minimum, as on x86.

    Tried on a long array and on single elements, because those are not converted by vector instructions.
    """
    bad = np.array([np.nan, np.inf, -np.inf, 2.0**80, -(2.0**80)] * 13).astype(compute_dtype)
    with np.errstate(all="ignore"):
        got = [
            part.astype(integer) == np.iinfo(integer).min
            for integer in (np.int32, np.int64)
            for part in (bad, *bad[:5, None])
        ]
    return all(bool(part.all()) for part in got)
