# SPDX-License-Identifier: Apache-2.0
"""The first pass of the host path: the lowest and largest numbers of all blocks.

NumPy compares short rows of integers more quickly than of floats, and the bits of a float's magnitude are ordered as
the magnitudes are. NaN lies above infinity there, so one comparison finds both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import host
from gpucast.dtypes import dtype
from gpucast.quantization.boxes import ELEMENTS, WITHIN, Box, Plan
from gpucast.quantization.formats import Format
from gpucast.rule import resolve

Array = npt.NDArray[Any]

#: Blocks up to this length are reduced in pairs: NumPy reduces short rows slowly.
_SHORT = 64


def extremes(source: Array, plan: Plan, format: Format) -> tuple[Array, Array, Array]:
    """For each block, over its finite numbers: the lowest one or 0 and the largest one or 0 (formats with zero points)
    or the largest magnitude; and whether the block is lost to a NaN or an infinity."""
    low, high = np.zeros(plan.grid), np.zeros(plan.grid)
    lost = np.zeros(plan.grid, bool)
    kind = np.dtype(np.float64 if source.dtype == np.float64 else np.float32)
    scratch, bits = np.empty(ELEMENTS, kind), np.empty(ELEMENTS, f"i{kind.itemsize}")
    for box in plan.boxes():
        x = widened(source[box.elements], scratch)
        top, bottom = _box_extremes(x, box, format.zero_points, bits)
        bad = ~(np.isfinite(top) & np.isfinite(bottom))
        if bad.any():
            lost[box.blocks] |= bad & format.nan_in_scale
            top, bottom = _box_extremes(np.where(np.isfinite(x), x, 0), box, format.zero_points, bits)
        np.maximum(high[box.blocks], top, out=high[box.blocks])
        np.minimum(low[box.blocks], bottom, out=low[box.blocks])
    return low, high, lost


def widened(x: Array, scratch: Array) -> Array:
    """The numbers of a box, contiguous, in the type of `scratch`: as they are, or copied there."""
    if x.dtype == scratch.dtype and x.flags.c_contiguous:
        return x
    out = scratch[: x.size].reshape(x.shape)
    if x.dtype == out.dtype:
        np.copyto(out, x)
    else:
        host.apply(x, resolve(dtype(x.dtype), dtype(out.dtype)), out)
    return out


def _box_extremes(x: Array, box: Box, signed: bool, scratch: Array) -> tuple[Array, Array]:
    """The largest and the lowest number of each block, at least and at most 0; or the largest magnitude and 0."""
    bits = x.view(scratch.dtype)
    if not signed:
        magnitudes = np.bitwise_and(bits, np.iinfo(bits.dtype).max, out=scratch[: x.size].reshape(x.shape))
        return _largest(magnitudes, box).view(x.dtype), np.zeros((), x.dtype)
    # As integers all negative numbers are below 0; as unsigned ones they are above the others, by their magnitude.
    top = _largest(bits, box)
    bottom = _largest(bits.view(f"u{bits.itemsize}"), box).view(bits.dtype)
    return np.maximum(top, 0).view(x.dtype), np.where(bottom < 0, bottom, 0).view(x.dtype)


def _largest(bits: Array, box: Box) -> Array:
    """The largest integer of each block."""
    length = box.split[5]
    if 1 < length <= _SHORT and box.split[1] == box.split[3] == 1:
        bits = bits.reshape(-1)
        while length % 2 == 0:
            bits, length = np.maximum(bits[::2], bits[1::2]), length // 2
    largest: Array = bits.reshape(*box.split[:5], length).max(axis=WITHIN)
    return largest
