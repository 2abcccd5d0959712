# SPDX-License-Identifier: Apache-2.0
"""The products of the host path: (code - zero point) * s * g, of which the destination takes some bits.

FLOAT multiplies more quickly than DOUBLE, in which the rule is stated. Codes less zero points have at most 8 bits, and
scales that go with a global one at most 4, so that the last factor alone rounds: that is the whole cast to FLOAT. What
goes on to FLOAT16 or BFLOAT16 is rounded twice, which shows only where the first rounding gave a midpoint of two
numbers of that type. Such products are found, and multiplied again as DOUBLE (see
`gpucast.quantization.cpu.quotient`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import Format
from gpucast.core.rule import resolve
from gpucast.cpu import lanes
from gpucast.quantization.cpu.block_cast import TileCast
from gpucast.quantization.cpu.block_grid import ELEMENTS, Tile, spread
from gpucast.quantization.cpu.quotient import round_to_odd

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE, _BFLOAT16 = dtype("FLOAT"), dtype("DOUBLE"), dtype("BFLOAT16")
_E8M0 = dtype("FLOAT8E8M0")
#: Up to so many numbers of a tile are quickly looked at one by one.
_FEW = 1024


class Product:
    """Multiplies the codes of tiles with their blocks' scales (DOUBLE), and stores the products as numbers of `to`."""

    def __init__(
        self, data: Array, format: Format, to: DType, s: Array, g: np.float64 | None, zero: Array | None
    ) -> None:
        compute_dtype = _DOUBLE if to is _DOUBLE else _FLOAT
        # NumPy and ml_dtypes convert integers, those of fewer than 8 bits too, as they are.
        integers = format.element.family == "int"
        self._load = None if integers else TileCast(resolve(format.element, compute_dtype), data.size)
        self._store = None if to is compute_dtype else TileCast(resolve(compute_dtype, to), data.size)
        self._factor, self._last = s.astype(compute_dtype.numpy), None if g is None else compute_dtype.numpy.type(g)
        self._zero = None if zero is None else zero.astype(compute_dtype.numpy)
        self._d = s if g is None else s * g
        self._lost, self._infinite, self._nothing = np.isnan(self._d), np.isinf(self._d), self._d == 0
        self._any_lost = bool(self._lost.any())
        self._any_extreme = bool((self._infinite | self._nothing).any())
        #: Of which blocks products may be rounded twice.
        self._rounds = np.zeros(s.shape, bool)
        if to is not compute_dtype and format.scale is not _E8M0:
            self._rounds[...] = _rounds(self._factor if g is None else np.asarray(self._last))
        self._needs_fix_up = bool(self._rounds.any())
        self._to, self._decode = to, resolve(format.element, _DOUBLE)
        # Where a product is a subnormal number of the destination, unlike FLOAT's, its midpoints have other bits.
        smallest = float(format.element.value(1)) * np.fmin.reduce(np.abs(self._d), axis=None, initial=np.inf)
        self._small = to.bias != _FLOAT.bias and not smallest >= 2.0 ** (1 - to.bias)
        elements = min(data.size, ELEMENTS)
        self._value = np.empty(elements, compute_dtype.numpy)
        self._bits = np.empty(elements if self._needs_fix_up else 0, np.uint32)
        self._low = np.empty(elements if self._needs_fix_up and to is _BFLOAT16 else 0, np.uint16)

    def __call__(self, codes: Array, tile: Tile, out: Array) -> None:
        """Write all of `out`, a tile of the result."""
        direct = self._store is None and out.flags.c_contiguous
        value = out if direct else self._value[: codes.size].reshape(codes.shape)
        if self._load is None:
            np.copyto(value, codes, casting="unsafe")
        else:
            self._load(codes, value)
        blocks = value.reshape(tile.split)
        if self._zero is not None:
            np.subtract(blocks, spread(self._zero, tile), out=blocks)
        nan = spread(self._lost, tile) if self._any_lost else None
        if self._any_extreme:
            # Processors differ in the sign of the NaN that comes of infinity times zero.
            nan = spread(self._lost, tile) | (spread(self._infinite, tile) & (blocks == 0))
            nan |= spread(self._nothing, tile) & np.isinf(blocks)
        np.multiply(blocks, spread(self._factor, tile), out=blocks)
        if self._last is not None:
            np.multiply(value, self._last, out=value)
        midpoints = self._fix_up(codes, value, tile) if self._needs_fix_up else None
        if nan is not None:
            np.copyto(blocks, np.nan, where=nan)
        if self._store is None:
            if not direct:
                np.copyto(out, value)
        elif midpoints is not None and self._to is _BFLOAT16 and midpoints.size <= _FEW and out.flags.c_contiguous:
            if nan is not None:
                self._half_a_step_up(value.reshape(-1))
            self._store_bfloat16(value.reshape(-1), out.reshape(-1), midpoints)
        else:
            self._store(value, out)

    def _half_a_step_up(self, value: Array) -> Array:
        """The bits of numbers half a step of BFLOAT16 further from zero; they stay in `_bits`."""
        bits: Array = np.add(value.view(np.uint32), np.uint32(1 << 15), out=self._bits[: value.size])
        return bits

    def _store_bfloat16(self, value: Array, out: Array, midpoints: Array) -> None:
        """Of numbers that are half a step up. In a third of the time of NumPy's conversion: but for midpoints that is
        to nearest."""
        bits = self._bits[: value.size]
        np.right_shift(bits, np.uint32(16), out=bits)
        np.copyto(out.view(np.uint16), bits, casting="unsafe")
        out[midpoints] = value[midpoints]

    def _fix_up(self, codes: Array, value: Array, tile: Tile) -> Array:
        """Round to odd where FLOAT gave a midpoint of the destination; the places of all of these."""
        find = self._midpoints_of_bfloat16 if self._to is _BFLOAT16 else self._midpoints
        found = find(value.reshape(-1))
        if found is None:
            return np.empty(0, np.intp)
        midpoints = indices = np.flatnonzero(found)
        if indices.size > _FEW:
            # Most of them are exact, where scales are short.
            indices = np.flatnonzero(found.reshape(tile.split) & spread(self._rounds, tile))
        block = np.unravel_index(indices, tile.split)[::2]
        if self._rounds[tile.blocks][block].any():
            exact = np.empty(indices.size)
            lanes.apply(codes.reshape(-1)[indices], self._decode, exact)
            if self._zero is not None:
                exact -= self._zero[tile.blocks][block]
            exact *= self._d[tile.blocks][block]
            value.reshape(-1)[indices] = round_to_odd(exact)
        return midpoints

    def _midpoints_of_bfloat16(self, value: Array) -> Array | None:
        """As `_midpoints`, with what the store goes on from."""
        low = self._low[: value.size]
        np.copyto(low, self._half_a_step_up(value), casting="unsafe")
        return low == 0 if low.min() == 0 else None

    def _midpoints(self, value: Array) -> Array | None:
        """Which are midpoints of the destination, or perhaps some other numbers, but not zero; None for no one."""
        bits, scratch = value.view(np.uint32), self._bits[: value.size]
        dropped = _FLOAT.mantissa_bits - self._to.mantissa_bits
        np.add(bits, np.uint32(1 << (dropped - 1)), out=scratch)
        np.left_shift(scratch, np.uint32(32 - dropped), out=scratch)
        found = scratch == 0 if scratch.min() == 0 else None
        if self._small:
            # Twice the bits are those of the magnitude; 1 less, zero is the largest of them.
            np.left_shift(bits, np.uint32(1), out=scratch)
            np.subtract(scratch, np.uint32(1), out=scratch)
            smallest_normal = (_FLOAT.bias + 1 - self._to.bias) << (_FLOAT.mantissa_bits + 1)
            if scratch.min() < smallest_normal - 1:
                below = (np.left_shift(bits, np.uint32(33 - dropped)) == 0) & (scratch < smallest_normal - 1)
                found = below if found is None else found | below
        return found


def _rounds(factor: Array) -> Array:
    """Where a product with a factor may be no FLOAT. What it multiplies has 12 bits at most; where the factor has no
    more than 12 and is not tiny, or is a normal power of two, that leaves nothing to round."""
    bits = factor.view(np.uint32)
    few = (bits & np.uint32((1 << 12) - 1)) == 0
    power = (bits & np.uint32((1 << 23) - 1)) == 0
    rounds: Array = ~(power | (few & ~(np.abs(factor) < 2.0**-100)))
    return rounds
