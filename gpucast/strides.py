# SPDX-License-Identifier: Apache-2.0
"""Strided arrays as the kernels take them: few dimensions, long ones, and the bytes of one argument."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gpucast.source import MAX_DIMS


@dataclass(frozen=True)
class Dims:
    """The dimensions of a cast in row-major order: lengths, and bytes from one element to the next on both sides."""

    lengths: tuple[int, ...]
    src: tuple[int, ...]
    dst: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """``struct Dims`` of kernels/layout.cuh."""
        count = len(self.lengths)
        if count > MAX_DIMS:
            raise ValueError(f"strides: {count} dimensions longer than one; at most {MAX_DIMS} fit in a kernel")
        unused = (0,) * (MAX_DIMS - count)
        fields = self.lengths + unused + self.src + unused + self.dst + unused
        return struct.pack(f"<I4x{MAX_DIMS}Q{MAX_DIMS}q{MAX_DIMS}q", count, *fields)


def collapse(shape: Sequence[int], src: Sequence[int], dst: Sequence[int]) -> Dims:
    """Drop dimensions of length one, and join neighbours that lie on both sides as one dimension would.

    The order of the elements stays. Strides are in bytes, of any sign; a side without strides (packed) counts as
    contiguous with any element size.
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
