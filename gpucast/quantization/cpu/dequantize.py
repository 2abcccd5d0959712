# SPDX-License-Identifier: Apache-2.0
"""The products of the host path: (code - zero point) * s * g, rounded to the destination.

The rule is stated in DOUBLE, but FLOAT arithmetic is quicker. Codes minus zero points have at most 8 bits, and scales
that are used with a global one at most 4, so only the last multiplication rounds: the product is correctly rounded to
FLOAT. On to FLOAT16 or BFLOAT16 it is rounded twice, which matters only where the first rounding gave a midpoint of two
numbers of that type. Such products are detected and computed again as DOUBLE (see
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
#: The number of a tile's elements up to which indexing them individually is quick.
_FEW = 1024


class Product:
    """Multiplies the codes of tiles with the scales of their blocks (DOUBLE), and stores the products as type `to`."""

    def __init__(
        self, data: Array, format: Format, to: DType, s: Array, g: np.float64 | None, zero: Array | None
    ) -> None:
        compute_dtype = _DOUBLE if to is _DOUBLE else _FLOAT
        # NumPy and ml_dtypes convert all integers exactly, also those of fewer than 8 bits.
        integers = format.element.family == "int"
        self._load = None if integers else TileCast(resolve(format.element, compute_dtype), data.size)
        self._store = None if to is compute_dtype else TileCast(resolve(compute_dtype, to), data.size)
        self._factor, self._last = s.astype(compute_dtype.numpy), None if g is None else compute_dtype.numpy.type(g)
        self._zero = None if zero is None else zero.astype(compute_dtype.numpy)
        self._d = s if g is None else s * g
        self._lost, self._infinite, self._nothing = np.isnan(self._d), np.isinf(self._d), self._d == 0
        self._any_lost = bool(self._lost.any())
        self._any_extreme = bool((self._infinite | self._nothing).any())
        #: The blocks whose products may be rounded twice.
        self._rounds = np.zeros(s.shape, bool)
        if to is not compute_dtype and format.scale is not _E8M0:
            self._rounds[...] = _rounds(self._factor if g is None else np.asarray(self._last))
        self._needs_fix_up = bool(self._rounds.any())
        self._to, self._decode = to, resolve(format.element, _DOUBLE)
        # Where products are subnormal in the destination but not in FLOAT, midpoints have other bits.
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
            # The sign of the NaN of infinity times zero depends on the processor.
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
        """The bits of numbers moved half an ULP of BFLOAT16 away from zero; they remain in `_bits`."""
        bits: Array = np.add(value.view(np.uint32), np.uint32(1 << 15), out=self._bits[: value.size])
        return bits

    def _store_bfloat16(self, value: Array, out: Array, midpoints: Array) -> None:
        """Store the numbers whose bits plus half an ULP are in `_bits`. Truncating these rounds to nearest, except at
        midpoints, which are cast separately; it takes a third of the time of NumPy's conversion."""
        bits = self._bits[: value.size]
        np.right_shift(bits, np.uint32(16), out=bits)
        np.copyto(out.view(np.uint16), bits, casting="unsafe")
        out[midpoints] = value[midpoints]

    def _fix_up(self, codes: Array, value: Array, tile: Tile) -> Array:
        """Round to odd where the FLOAT product is a midpoint of the destination; the indices of all midpoints."""
        find = self._midpoints_of_bfloat16 if self._to is _BFLOAT16 else self._midpoints
        is_midpoint = find(value.reshape(-1))
        if is_midpoint is None:
            return np.empty(0, np.intp)
        midpoints = indices = np.flatnonzero(is_midpoint)
        if indices.size > _FEW:
            # If scales have few bits, most of these midpoints are exact products.
            indices = np.flatnonzero(is_midpoint.reshape(tile.split) & spread(self._rounds, tile))
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
        """As `_midpoints`; leaves in `_bits` what `_store_bfloat16` needs."""
        low = self._low[: value.size]
        np.copyto(low, self._half_a_step_up(value), casting="unsafe")
        return low == 0 if low.min() == 0 else None

    def _midpoints(self, value: Array) -> Array | None:
        """Which products are midpoints of the destination; a few others may be marked too, but not zero. None: no
        product."""
        bits, scratch = value.view(np.uint32), self._bits[: value.size]
        dropped = _FLOAT.mantissa_bits - self._to.mantissa_bits
        np.add(bits, np.uint32(1 << (dropped - 1)), out=scratch)
        np.left_shift(scratch, np.uint32(32 - dropped), out=scratch)
        is_midpoint = scratch == 0 if scratch.min() == 0 else None
        if self._small:
            # Doubling drops the sign; subtracting 1 makes zero the largest.
            np.left_shift(bits, np.uint32(1), out=scratch)
            np.subtract(scratch, np.uint32(1), out=scratch)
            smallest_normal = (_FLOAT.bias + 1 - self._to.bias) << (_FLOAT.mantissa_bits + 1)
            if scratch.min() < smallest_normal - 1:
                below = (np.left_shift(bits, np.uint32(33 - dropped)) == 0) & (scratch < smallest_normal - 1)
                is_midpoint = below if is_midpoint is None else is_midpoint | below
        return is_midpoint


def _rounds(factor: Array) -> Array:
    """For which factors the product with a code may be inexact in FLOAT.

    The other operand has at most 12 bits. If the factor has at most 12 too and is not tiny, or if it is a power of two,
    the product is exact.
    """
    bits = factor.view(np.uint32)
    few = (bits & np.uint32((1 << 12) - 1)) == 0
    power = (bits & np.uint32((1 << 23) - 1)) == 0
    rounds: Array = ~(power | (few & ~(np.abs(factor) < 2.0**-100)))
    return rounds
