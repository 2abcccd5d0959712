# SPDX-License-Identifier: Apache-2.0
"""Float carriers to integers: truncate toward zero and keep the low bits.

What a conversion gives for NaN and for floats out of the integer's range is the processor's and the compiler's choice.
Most choose alike, which is found out once per process; where they do not, such numbers are found by comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

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
    """The lane from float32 or float64 values to codes of `dst`."""
    last_place = 23 if carrier == np.float32 else 52
    on_minimum = invalid_gives_minimum()
    for integer in (np.dtype(np.int32), np.dtype(np.uint32)):
        bits = 32 if integer.kind == "i" else 64
        # A float of 2^(bits-1) and more is a multiple of its last place there. Where that is a multiple of 2^dst.bits,
        # the low bits are 0, as are those of the minimum that NaN, infinities and all such floats become.
        if dst.bits <= bits - 1 - last_place and (on_minimum if bits == 32 else uint32_is_low_half(carrier)):
            return _by_way_of(integer, dst, chunk, lambda x, whole: None)
    # int32 is the quicker way, int64 the one with less to mend.
    integer = np.dtype(np.int32 if dst.bits == 16 or (dst.bits == 32 and dst.signed) else np.int64)
    minimum, top = integer.type(np.iinfo(integer).min), 2.0 ** (8 * integer.itemsize - 1)
    mask = np.empty(chunk, bool)

    def mend(x: Array, whole: Array) -> None:
        if on_minimum:
            bad = np.equal(whole, minimum, out=mask[: x.size])
        else:
            bad = ~(np.abs(x) < top)
        if bad.any():
            where = places(bad)
            whole[where] = low_bits(x[where].astype(np.float64)).astype(integer)

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


@lru_cache(maxsize=1)
def invalid_gives_minimum() -> bool:
    """True where NaN and floats out of a signed integer's range convert to its minimum, as on x86."""
    bad = np.array([np.nan, np.inf, -np.inf, 2.0**80, -(2.0**80)] * 13)
    floats, integers = (np.float32, np.float64), (np.int32, np.int64)
    with np.errstate(all="ignore"):
        got = [bad.astype(one).astype(other) == np.iinfo(other).min for one in floats for other in integers]
    return bool(np.all(got))


@lru_cache(maxsize=2)
def uint32_is_low_half(carrier: np.dtype[Any]) -> bool:
    """True where floats convert to uint32 by way of int64, whose minimum stands for NaN and what is out of its range:
    x86 without AVX-512. Tried in every binade, in a long array and in short ones, where code for vectors is not used.
    """
    mantissas, exponents = np.meshgrid([1.0, 1.25, 4 / 3, 2 - 2.0**-23], np.arange(-150, 128))
    positive = np.ldexp(mantissas, exponents).reshape(-1).astype(carrier)
    values = np.concatenate([positive, -positive, np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf], carrier)])
    wanted = np.where(np.abs(values) < 2.0**63, low_bits(values.astype(np.float64)), 0).astype(np.uint32)
    with np.errstate(all="ignore"):
        if not np.array_equal(values.astype(np.uint32), wanted):
            return False
        return all(np.array_equal(values[i : i + 3].astype(np.uint32), wanted[i : i + 3]) for i in range(0, values.size, 3))
