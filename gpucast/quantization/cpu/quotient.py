# SPDX-License-Identifier: Apache-2.0
"""The quotients of the host path: x / d, rounded to the element's type.

The rule divides as DOUBLE. FLOAT division is quicker, and gives the same code unless rounding makes the quotient a
midpoint of two codes (or, where d was rounded too, a neighbour of one). Such quotients are detected, divided again as
DOUBLE, and rounded to odd: to the FLOAT next to the true quotient whose last bit is odd, which is on the correct side
of every midpoint (Boldo and Melquiond, "When double rounding is odd", 2005).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import Format
from gpucast.core.rule import resolve
from gpucast.quantization.cpu.block_cast import TileWidening
from gpucast.quantization.cpu.block_grid import ELEMENTS, Tile, spread

Array = npt.NDArray[Any]

#: How many ULPs a quotient can be off where `d` had to be rounded to FLOAT too, plus one.
_ULPS = 3


class Quotient:
    """Divides the elements of tiles by their blocks' `d` (DOUBLE); for integer formats rounds to integers, ties to
    even.

    The result is scratch memory, valid until the next call. Its type, `compute_dtype`, is DOUBLE for DOUBLE elements,
    if `wide` is true, and, with a global scale, for integers and for tiny `d`; otherwise FLOAT.
    """

    def __init__(self, source: Array, format: Format, d: Array, *, wide: bool = False) -> None:
        self._format, self._d = format, d
        self._integers = format.element.family == "int"
        wide = wide or source.dtype == np.float64
        if format.global_scale:
            # A product of two scales that is subnormal in FLOAT would be off by more ULPs than are checked.
            wide = wide or self._integers or bool(d.min(initial=1.0) < np.finfo(np.float32).tiny)
        self.compute_dtype: DType = dtype("DOUBLE" if wide else "FLOAT")
        # The reciprocals of powers of two from 2^-127 to 2^127 are exact in FLOAT.
        self._powers = not wide and format.scale is dtype("FLOAT8E8M0")
        self._factor = (1 / d if self._powers else d).astype(self.compute_dtype.numpy)
        self._needs_fix_up = not wide and not self._powers
        self._widened = TileWidening(resolve(dtype(source.dtype), self.compute_dtype), source.size)
        elements = min(source.size, ELEMENTS)
        self._q, self._scratch = (
            np.empty(elements, self.compute_dtype.numpy),
            np.empty(elements, self.compute_dtype.numpy),
        )

    def __call__(self, x: Array, tile: Tile) -> Array:
        x = self._widened(x)
        q = self._q[: x.size].reshape(x.shape)
        operation = np.multiply if self._powers else np.divide
        operation(x.reshape(tile.split), spread(self._factor, tile), out=q.reshape(tile.split))
        if not self._integers:
            if self._needs_fix_up:
                self._fix_up(x, q, self._near_midpoints(q), tile)
            return q
        integers = np.rint(q, out=self._scratch[: q.size].reshape(q.shape))
        if self._needs_fix_up:
            np.subtract(q, integers, out=q)
            if not (q.max() < 0.5 and q.min() > -0.5):  # NaN counts as a midpoint here.
                self._fix_up(x, integers, np.flatnonzero(np.abs(q, out=q) == 0.5), tile)
        return integers

    def _near_midpoints(self, q: Array) -> Array:
        """The indices of quotients that may be on the wrong side of a midpoint of two elements, or on it."""
        ulps = np.uint32(_ULPS if self._format.global_scale else 0)
        # A midpoint has two significant bits more than the mantissa; the rest of FLOAT's 24 are zeros.
        zeros = np.uint32((1 << (22 - self._format.element.mantissa_bits)) - 1)
        low = self._scratch[: q.size].view(np.uint32)
        bits = q.reshape(-1).view(np.uint32)
        np.bitwise_and(np.add(bits, ulps, out=low) if ulps else bits, zeros, out=low)
        if low.min() > 2 * ulps:
            return np.empty(0, np.intp)
        near = np.flatnonzero(low <= 2 * ulps)
        # Skip zeros and the largest element, which occurs in most blocks: neither is a midpoint.
        magnitude = np.abs(q.reshape(-1)[near])
        kept: Array = near[(magnitude != 0) & (magnitude != self._format.divisor)]
        return kept

    def _fix_up(self, x: Array, q: Array, indices: Array, tile: Tile) -> None:
        """Replace quotients by the true ones, rounded to odd or to integers."""
        if indices.size:
            block = np.unravel_index(indices, tile.split)
            d = self._d[tile.blocks][block[0], block[2], block[4]]
            true = x.reshape(-1)[indices].astype(np.float64) / d
            q.reshape(-1)[indices] = np.rint(true) if self._integers else round_to_odd(true)


def round_to_odd(x: Array) -> Array:
    """DOUBLE to FLOAT, rounded to odd."""
    y = x.astype(np.float32)
    even = (y.view(np.uint32) & 1) == 0
    other = np.nextafter(y, np.where(x > y, np.float32(np.inf), np.float32(-np.inf)))
    return np.where(even & (x != y), other, y)
