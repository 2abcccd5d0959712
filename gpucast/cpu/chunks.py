# SPDX-License-Identifier: Apache-2.0
"""Walks host arrays chunk by chunk, so that each chunk stays in the cache while it is worked on.

Callers get flat, contiguous, aligned chunks in native byte order, whatever the strides and byte orders of the arrays.
The extra memory is one or two chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType

Array = npt.NDArray[Any]

#: Elements of a chunk: few enough that a few scratch arrays of 4 or 8 bytes per element fit the second-level cache, so
#: many that the cost of a NumPy call does not matter. A multiple of 8, so that packed chunks are whole bytes.
CHUNK = 1 << 16


def spans(size: int, chunk: int = CHUNK) -> Iterator[slice]:
    """The slices that cut `size` flat elements into chunks."""
    for start in range(0, size, chunk):
        yield slice(start, min(start + chunk, size))


def codes_of(x: Array, dtype: DType) -> Array:
    """A view of an array of that dtype as its codes, in the array's own byte order."""
    kind = dtype.code_numpy
    return x.view(kind if x.dtype.isnative else kind.newbyteorder(x.dtype.byteorder))


def flat(x: Array, out: Array, *, row_major: bool = False) -> tuple[Array, Array] | None:
    """Flat views of two arrays of codes of equal shape, both in the same element order; None where they have none.

    They have such views if both are native, aligned, and contiguous in some common order of the dimensions; with
    `row_major` only C order counts.
    """
    of_x, of_out = x.flags, out.flags
    if not (of_x.c_contiguous and of_out.c_contiguous):
        if row_major:
            return None
        order = sorted(range(x.ndim), key=x.strides.__getitem__, reverse=True)
        x, out = x.transpose(order), out.transpose(order)
        of_x, of_out = x.flags, out.flags
        if not (of_x.c_contiguous and of_out.c_contiguous):
            return None
    if not (of_x.aligned and of_out.aligned and x.dtype.isnative and out.dtype.isnative):
        return None
    return (x, out) if x.ndim == 1 else (x.reshape(-1), out.reshape(-1))


def pairs(x: Array, out: Array, chunk: int = CHUNK, *, row_major: bool = False) -> Iterator[tuple[Array, Array]]:
    """Chunks of two arrays of codes of equal shape: codes to read, and a chunk to write as many results to.

    The results have reached `out` when the next pair is requested. `row_major`: the chunks follow C order.
    """
    views = flat(x, out, row_major=row_major)
    if views is None:
        yield from gathered(x, out, min(chunk, CHUNK), row_major=row_major)
        return
    codes, results = views
    for start in range(0, codes.size, chunk):
        yield codes[start : start + chunk], results[start : start + chunk]


def gathered(x: Array, out: Array, chunk: int = CHUNK, *, row_major: bool = False) -> Iterator[tuple[Array, Array]]:
    """As `pairs`, for arrays without `flat` views: chunks that are not contiguous, aligned and native are copied."""
    chunks = np.nditer(  # type: ignore[call-overload]  # NumPy's stub misspells "contig".
        [x, out],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly", "contig", "aligned"], ["writeonly", "contig", "aligned"]],
        op_dtypes=[array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=") for array in (x, out)],
        order="C" if row_major else "K",
        casting="equiv",
        buffersize=chunk,
    )
    with chunks:
        for codes, results in chunks:
            if codes.size:
                yield codes, results


def packed_pairs(x: PackedArray, dst: DType, out: Any) -> Iterator[tuple[Array, Array]]:
    """As `pairs`, for a PackedArray over NumPy memory: unpacked elements, and a chunk to write their casts to `dst` to.

    `out` is a PackedArray if `dst` is packed, else an array. It may be `x` itself if the layouts are equal, because
    each chunk is unpacked before it is written.
    """
    src = x.dtype
    flat_out = out.data if dst.packed else out.reshape(-1) if out.flags.c_contiguous else np.empty(x.size, dst.numpy)
    for start in range(0, x.size, CHUNK):
        count, first = min(CHUNK, x.size - start), src.nbytes(start)
        codes = unpack_codes(x.data[first : first + src.nbytes(count)], src.bits, count).view(src.numpy)
        if dst.packed:
            results = np.empty(count, dst.numpy)
            yield codes, results
            first = dst.nbytes(start)
            flat_out[first : first + dst.nbytes(count)] = pack_codes(results.view(np.uint8), dst.bits)
        else:
            yield codes, flat_out[start : start + count]
    if not dst.packed and not out.flags.c_contiguous:
        out[...] = flat_out.reshape(out.shape)


def elements(x: Array, chunk: int = CHUNK) -> Iterator[Array]:
    """The elements of one array in memory order. A chunk is valid only until the next one is requested."""
    flags: Any = ["external_loop", "buffered", "zerosize_ok"]
    with np.nditer(x, flags=flags, order="K", buffersize=chunk) as chunks:
        for part in chunks:
            chunk_of: Any = part
            if chunk_of.size:
                yield chunk_of
