# SPDX-License-Identifier: Apache-2.0
"""Stores codes with scales in another layout and keeps every value: the codes stay, the scales are repeated.

That can be where the codes are of one type, the new blocks lie within the old ones, and the new type of the scales
holds the old ones. Every value is compared while it is written.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpucast.arrays.packed import PackedArray
from gpucast.casting.cast import cast
from gpucast.casting.loss_counts import CastReport
from gpucast.checkpoints.losses.statistics import runs_of_piece
from gpucast.checkpoints.scales.dequantized import Dequantized
from gpucast.checkpoints.scales.scaling import Observe, Scaled, Write
from gpucast.checkpoints.scales.stored import Stored
from gpucast.checkpoints.streaming.pieces import dequantized, regroup, shaped, sliced
from gpucast.checkpoints.streaming.prefetch import Prefetcher
from gpucast.core.dtypes import dtype
from gpucast.core.formats import Format, Parts
from gpucast.files import Tensor
from gpucast.files.tensor import Array, FileError
from gpucast.quantization import Quantized, lossless

_FLOAT, _E8M0 = dtype("FLOAT"), dtype("FLOAT8E8M0")
#: At most this many scales are looked at to find out whether they are powers of two.
_SCALES = 1 << 24
#: Numbers that are compared at a time.
_COMPARED = 1 << 20


def keeps_values(tensor: Tensor, stored: Stored) -> bool:
    """Whether a quantized tensor can be stored so with every value kept."""
    if not isinstance(tensor, Dequantized) or tensor.detected.stored is None:
        return False
    old, new = tensor.detected.stored, stored
    if old.transposed or old.shape != new.shape or old.format.element is not new.format.element:
        return False
    if old.format.zero_points or new.format.zero_points or old.divides or new.divides:
        return False
    if old.format.global_scale != new.format.global_scale:
        return False
    pairs = zip(_lengths(old.format, old.shape), _lengths(new.format, new.shape), old.shape, strict=True)
    if not all(outer >= size or outer % inner == 0 for outer, inner, size in pairs):
        return False
    if old.format.scale is new.format.scale or (old.format.scale is _E8M0 and new.format.scale is _FLOAT):
        return True
    return old.format.scale is _FLOAT and new.format.scale is _E8M0 and _are_powers(tensor)


def _are_powers(tensor: Dequantized) -> bool:
    """Whether all scales are powers of two that FLOAT8E8M0 holds."""
    assert tensor.detected.stored is not None
    if tensor.detected.stored.specs["scales"].size > _SCALES:
        return False
    scales = tensor.scales()
    narrow = cast(cast(scales, _E8M0), _FLOAT)
    return bool((narrow == scales).all())


def _axis(format: Format, shape: tuple[int, ...]) -> int:
    return 0 if format.block == "axis" else len(shape) - 1


def _lengths(format: Format, shape: tuple[int, ...]) -> tuple[int, ...]:
    return format.lengths(shape, _axis(format, shape))


@dataclass(frozen=True)
class Repacked(Scaled):
    """A quantized tensor whose values are all kept."""

    def write(self, write: Write, observe: Observe, prefetcher: Prefetcher, device: str | None, detailed: bool) -> None:
        stored = self.stored
        assert isinstance(self.tensor, Dequantized)
        with contextlib.ExitStack() as stack:
            # In streams of their own: the numbers to compare with are read from the same tensors.
            old, tensors = self.tensor.opened(stack)
            parts = self._parts(old.loaded_parts(tensors), old)
            flat = (codes.reshape(-1) for codes in old.codes(tensors["data"]))

            def pieces() -> Iterator[Array]:
                for codes, start, values in self._compared(shaped(flat, stored.cut), parts, "while it is written"):
                    chosen = runs_of_piece(self.tensor.size, start, values.size) if detailed else []
                    report = CastReport(values.size, int(np.count_nonzero(values)))
                    observe(report, [(values[run], values[run], 0.0) for run in chosen])
                    # A piece may be 128 long rows: the next one comes when this one is gone.
                    del values
                    yield stored.pack(codes)

            write(stored.specs["data"], stored.in_groups(pieces()))
        self._write_scales(write, parts)

    def verify(self, written: Mapping[str, Tensor], everything: bool, caller: str) -> int:
        stored = self.stored
        tensors = {part: written[spec.name] for part, spec in stored.specs.items()}
        parts = stored.loaded_parts(tensors)
        compared = 0
        for codes, _, values in self._compared(stored.codes(tensors["data"]), parts, caller):
            compared += codes.size
            del values
        return compared

    def _parts(self, old: Parts, source: Stored) -> Parts:
        """The scales of the tensor in its new layout."""
        shape, format = self.stored.shape, self.stored.format
        axis = _axis(format, shape)
        outer, inner = _lengths(source.format, shape), _lengths(format, shape)
        grid = format.grid(shape, axis)
        places = [np.arange(count) * length // wide for count, length, wide in zip(grid, inner, outer, strict=True)]
        scales = old.scales.reshape(source.format.grid(shape, _axis(source.format, shape)))[np.ix_(*places)]
        converted = scales if source.format.scale is format.scale else cast(scales, format.scale)
        return Parts(None, converted.reshape(format.scales_shape(shape, axis)), None, old.global_scale)

    def _compared(self, pieces: Iterator[Array], parts: Parts, when: str) -> Iterator[tuple[Array, int, Array]]:
        """Each piece of codes, the index of its first element, and its values, flat. FileError where one is not the
        old."""
        format, start = self.stored.format, 0
        shapes = [rows * columns for rows, columns in self.stored.cut.shapes()]
        some = (min(_COMPARED, size - first) for size in shapes for first in range(0, size, _COMPARED))
        old = regroup(self.tensor.chunks(), some)
        for codes, one in zip(pieces, sliced(format, self.stored.cut, parts), strict=True):
            values = dequantized(Parts(codes, one.scales, None, one.global_scale), format).reshape(-1)
            for first in range(0, values.size, _COMPARED):
                now = values[first : first + _COMPARED]
                if not np.array_equal(now.view(np.uint64), next(old).view(np.uint64)):
                    raise FileError(f"{when}: tensor {self.tensor.name!r} does not keep the values that it had")
            yield codes, start, values
            start += values.size
            del now, values


@dataclass(frozen=True)
class Rescaled(Repacked):
    """A quantized tensor in another format, with every value kept: codes become others by the ratios of scales, as in
    `gpucast.quantization.repack`. It is in memory as DOUBLE."""

    def write(self, write: Write, observe: Observe, prefetcher: Prefetcher, device: str | None, detailed: bool) -> None:
        stored = self.stored
        try:
            axis = _axis(stored.format, stored.shape)
            new = lossless.repack(self._quantized(), stored.format, axis=axis, global_scale=self._global())
        except (TypeError, ValueError) as error:
            raise FileError(f"tensor {self.tensor.name!r}: {error}") from None
        # The same numbers, which need not be read again.
        values = np.asarray(new.dequantize("DOUBLE")).reshape(-1)
        chosen = runs_of_piece(values.size, 0, values.size) if detailed else []
        examined = [(values[run], values[run], 0.0) for run in chosen]
        observe(CastReport(values.size, int(np.count_nonzero(values))), examined)
        codes = new.data.get() if isinstance(new.data, PackedArray) else new.data
        pieces = map(stored.pack, shaped(iter([codes.reshape(-1)]), stored.cut))
        write(stored.specs["data"], stored.in_groups(pieces))
        self._write_scales(write, Parts(None, new.scales, None, new.global_scale))

    def _quantized(self) -> Quantized:
        """The codes and scales of the tensor, in the shape of the model's weight."""
        assert isinstance(self.tensor, Dequantized)
        with contextlib.ExitStack() as stack:
            old, tensors = self.tensor.opened(stack)
            parts = old.loaded_parts(tensors)
            flat = np.concatenate([codes.reshape(-1) for codes in old.codes(tensors["data"])])
        codes, scales, axis = flat.reshape(old.shape), parts.scales, _axis(old.format, old.shape)
        if old.transposed:
            codes, scales, axis = codes.swapaxes(-1, -2), scales.swapaxes(-1, -2), axis - 1
        codes = np.ascontiguousarray(codes)
        one = None if parts.global_scale is None else np.asarray(parts.global_scale, np.float32)
        if one is not None and float(one) != float(parts.global_scale):
            raise ValueError("numbers are divided by its global scale, and no FLOAT multiplies so")
        data = PackedArray.pack(codes) if old.format.element.packed else codes
        format = replace(old.format, name=self.tensor.kind)
        return Quantized(data, np.ascontiguousarray(scales), format, parts.zero_points, one, axis=axis)

    def _global(self) -> float | None:
        """A power of two for all weights that share a global scale. A block's largest code is 3 or more, if its scale
        is the rule's: no scale is then above 2^8, the largest power of two that FLOAT8E4M3FN holds."""
        if self.group is None or not self.stored.format.global_scale:
            return None
        top = float(np.abs(self.group.extremes()).max())
        return math.ldexp(1.0, max(-126, math.ceil(math.log2(top / (3 * 256))))) if top else None
