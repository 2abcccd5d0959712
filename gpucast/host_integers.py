# SPDX-License-Identifier: Apache-2.0
"""Float carriers to integers: truncate toward zero and keep the low bits.

What a conversion gives for NaN and for floats out of the integer's range is the processor's and the compiler's choice.
Most choose alike, which is found out once per process; where they do not, such numbers are found by comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gpucast.dtypes import DType
from gpucast.host_codes import low_bits

Array = npt.NDArray[Any]


def places(mask: Array) -> Any:
    """What to index with to reach at least the true places of a mask: everything where there are many."""
    where = np.flatnonzero(mask)
    return slice(None) if where.size * 8 > mask.size else where


def float_to_int(carrier: np.dtype[Any], dst: DType, chunk: int) -> Callable[[Array, Array], None]:
    """The lane from floats of dtype `carrier` (BFLOAT16, FLOAT or DOUBLE) to codes of `dst`."""
    on_minimum = invalid_gives_minimum(carrier)
    last_place = int(ml_dtypes.finfo(carrier).nmant)

    def exact(bits: int) -> bool:
        # A float of 2^(bits-1) and more is a multiple of its last place there. Where that is a multiple of 2^dst.bits,
        # the low bits are 0, as are those of the minimum that NaN, infinities and all such floats became.
        return on_minimum and dst.bits <= bits - 1 - last_place

    # int32 is the quicker way, int64 the one with less to mend: nothing at all from float32 to 32 bits or fewer.
    quick = (dst.bits == 32 and dst.signed) or (carrier == np.float64 and dst.bits == 16)
    integer = np.dtype(np.int32 if quick or exact(32) else np.int64)
    if exact(8 * integer.itemsize):
        return _by_way_of(integer, dst, chunk, lambda x, whole: None)
    minimum, top = integer.type(np.iinfo(integer).min), 2.0 ** (8 * integer.itemsize - 1)
    mask = np.empty(chunk, bool)

    def mend(x: Array, whole: Array) -> None:
        if on_minimum:
            bad = np.equal(whole, minimum, out=mask[: x.size])
        else:
            bad = ~(np.abs(x) < top)
        if bad.any():
            where = places(bad)
            right = x[where].astype(np.int64) if exact(64) else low_bits(x[where].astype(np.float64))
            whole[where] = right.astype(integer)

    return _by_way_of(integer, dst, chunk, mend)


def _by_way_of(
    integer: np.dtype[Any], dst: DType, chunk: int, mend: Callable[[Array, Array], None]
) -> Callable[[Array, Array], None]:
    """Convert to a wider integer (in place of the result where that has its size), mend, and cut off."""
    direct = dst.code_numpy.itemsize == integer.itemsize
    scratch = np.empty(0 if direct else chunk, integer)

    def lane(x: Array, out: Array) -> None:
        whole = out.view(integer) if direct else scratch[: x.size]
        np.copyto(whole, x, casting="unsafe")
        mend(x, whole)
        if not direct:
            np.copyto(out, whole, casting="unsafe")
        if dst.packed:
            np.bitwise_and(out, dst.code_mask, out=out)

    return lane


@lru_cache(maxsize=4)
def invalid_gives_minimum(carrier: np.dtype[Any]) -> bool:
    """True where NaN and floats out of a signed integer's range convert to its minimum, as on x86: tried in long arrays
    and alone, where code for vectors is not used."""
    bad = np.array([np.nan, np.inf, -np.inf, 2.0**80, -(2.0**80)] * 13).astype(carrier)
    with np.errstate(all="ignore"):
        got = [
            part.astype(integer) == np.iinfo(integer).min
            for integer in (np.int32, np.int64)
            for part in (bad, *bad[:5, None])
        ]
    return all(bool(part.all()) for part in got)
