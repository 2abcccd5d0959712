# SPDX-License-Identifier: Apache-2.0
"""Shapes and strides as the kernels take them: collapsed to few long dimensions, and packed into one argument."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gpucast.kernel.fields import Fields

#: A result of 2^38 bytes, more than any GPU has, holds at most 2^40 elements. With every length at least 2 that is 40
#: dimensions.
MAX_DIMS = 40
#: The most elements of a dimension that a tile of a transposed cast has to have, of a quarter of its own.
_LEAST = 16

#: Lengths, and the bytes from one element to the next, of a row-major array of `count` dimensions, at least one.
#: `inverse` is (2^64 - 1) / length: a division takes many times as long, to compile as well.
DIMS = Fields(
    "Dims",
    (
        ("count", "u32"),
        ("length", "u64", "MaxDims"),
        ("inverse", "u64", "MaxDims"),
        ("src", "i64", "MaxDims"),
        ("dst", "i64", "MaxDims"),
    ),
    "MaxDims",
)


@dataclass(frozen=True)
class Dims:
    """The dimensions of a cast in row-major order: lengths, and the strides in bytes of source and destination."""

    lengths: tuple[int, ...]
    src: tuple[int, ...]
    dst: tuple[int, ...]

    @cached_property
    def packed(self) -> bytes:
        """The bytes of `DIMS`."""
        return DIMS.of(MAX_DIMS).pack(*self.values(MAX_DIMS))

    def values(self, limit: int) -> tuple[int, ...]:
        """The values of `DIMS` for at most so many dimensions. ValueError if there are more."""
        # A kernel asks for a dimension, also where there is one element.
        lengths, src, dst = (self.lengths, self.src, self.dst) if self.lengths else ((1,), (0,), (0,))
        count = len(lengths)
        if count > limit:
            raise ValueError(f"strides: {count} dimensions longer than one; at most {limit} fit in a kernel")
        unused = (0,) * (limit - count)
        inverses = tuple((2**64 - 1) // max(length, 1) for length in lengths)
        return (count, *lengths, *unused, *inverses, *unused, *src, *unused, *dst, *unused)


def collapse(shape: Sequence[int], src: Sequence[int], dst: Sequence[int]) -> Dims:
    """Drop dimensions of length one, and merge neighbouring dimensions that can be walked as one on both sides.

    The order of the elements stays. Strides are in bytes, of any sign. For a packed side, which has no strides, pass
    those of a contiguous array with any element size.
    """
    joined: list[tuple[int, int, int]] = []
    for length, of_src, of_dst in zip(shape, src, dst, strict=True):
        if length == 1:
            continue
        if joined and joined[-1][1] == length * of_src and joined[-1][2] == length * of_dst:
            length *= joined.pop()[0]
        joined.append((length, of_src, of_dst))
    lengths, sources, destinations = zip(*joined, strict=True) if joined else ((), (), ())
    return Dims(lengths, sources, destinations)


@lru_cache(maxsize=1024)
def squares(dims: Dims, src_size: int, dst_size: int, sides: tuple[int, int]) -> tuple[Dims, int] | None:
    """The dimensions of a transposed cast and the elements of all its tiles, ragged ones counted in full.

    None where the cast is not a transposition, that is, unless the destination is contiguous along its last dimension
    and the source along another one, which is then moved to the last place but one. The sizes are those of elements, in
    bytes; `sides` those of a tile along these two dimensions.
    """
    rows, columns = sides
    least = min(rows // 4, _LEAST), min(columns // 4, _LEAST)
    last = len(dims.lengths) - 1
    if last < 1 or dims.dst[last] != dst_size or abs(dims.src[last]) == src_size or dims.lengths[last] < least[1]:
        return None
    for axis in range(last):
        if dims.src[axis] == src_size and dims.lengths[axis] >= least[0]:
            break
    else:
        return None
    order = [*(other for other in range(last) if other != axis), axis, last]
    lengths, src, dst = (tuple(values[i] for i in order) for values in (dims.lengths, dims.src, dims.dst))
    count = math.prod(lengths[:-2]) * -(-lengths[-2] // rows) * -(-lengths[-1] // columns)
    return Dims(lengths, src, dst), count * rows * columns
