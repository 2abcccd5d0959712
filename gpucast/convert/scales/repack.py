# SPDX-License-Identifier: Apache-2.0
"""Stores codes with scales in another layout and keeps every value: the codes stay, the scales are repeated.

That can be where the codes are of one type, the new blocks lie within the old ones, and the new type of the scales
holds the old ones. Every value is compared while it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gpucast.casting.cast import cast
from gpucast.casting.loss_counts import CastReport
from gpucast.convert.losses.statistics import runs_of_piece
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.convert.scales.scaling import Observe, Scaled, Write
from gpucast.convert.scales.stored import Stored
from gpucast.convert.streaming.pieces import axis, dequantized, lengths, matrices, regroup, shaped, sliced
from gpucast.convert.streaming.prefetch import Prefetcher
from gpucast.core.dtypes import dtype
from gpucast.files import Tensor
from gpucast.files.tensor import FileError, NDArray
from gpucast.quantization import lossless
from gpucast.quantization.formats import Parts

_FLOAT, _E8M0 = dtype("FLOAT"), dtype("FLOAT8E8M0")
#: At most this many scales are looked at to find out whether they are powers of two.
_SCALES = 1 << 24
#: Numbers that are compared at a time.
_COMPARED = 1 << 20


def keeps_values(tensor: Tensor, stored: Stored) -> bool:
    """Whether a quantized tensor can be stored so with every value kept."""
    if not isinstance(tensor, Dequantized):
        return False
    old, new = tensor.stored, stored
    if old.transposed or old.shape != new.shape or old.format.element is not new.format.element:
        return False
    if old.format.zero_points or new.format.zero_points or old.divides != new.divides:
        return False
    if old.format.global_scale != new.format.global_scale:
        return False
    pairs = zip(lengths(old.format, old.shape), lengths(new.format, new.shape), old.shape, strict=True)
    if not all(outer >= size or outer % inner == 0 for outer, inner, size in pairs):
        return False
    if old.format.scale is new.format.scale or (old.format.scale is _E8M0 and new.format.scale is _FLOAT):
        return True
    return old.format.scale is _FLOAT and new.format.scale is _E8M0 and _are_powers(tensor)


def _are_powers(tensor: Dequantized) -> bool:
    """Whether all scales are powers of two that FLOAT8E8M0 holds."""
    if tensor.stored.specs["scales"].size > _SCALES:
        return False
    scales = tensor.all_scales().scales
    return bool((cast(cast(scales, _E8M0), _FLOAT) == scales).all())


@dataclass(frozen=True)
class Repacked(Scaled):
    """A quantized tensor whose values are all kept."""

    def write(self, write: Write, observe: Observe, prefetcher: Prefetcher) -> None:
        stored, parts = self.stored, self._found()

        def pieces() -> Iterator[NDArray]:
            for codes, start, values in self._kept(parts):
                chosen = runs_of_piece(self.tensor.size, start, values.size)
                statistics = self._statistics(CastReport(values.size, int(np.count_nonzero(values))), values)
                for run in chosen:
                    statistics.examine(values[run], values[run], 0.0)
                observe(values.size, statistics)
                # A piece may be 128 long rows: the next one comes when this one is gone.
                del values
                yield stored.pack(codes)

        write(stored.specs["data"], stored.in_groups(pieces()))
        self._write_scales(write, parts)

    def _kept(self, parts: Parts) -> Iterator[tuple[NDArray, int, NDArray]]:
        """Each piece of codes, the index of its first element, and its values, flat."""
        assert isinstance(self.tensor, Dequantized)
        # In a stream of their own: the numbers to compare with are read from the same tensors.
        return self._compared(shaped(self.tensor.codes(), self.stored.cut), parts, "while it is written")

    def verify(
        self,
        written: Mapping[str, Tensor],
        everything: bool,
        caller: str,
        prefetcher: Prefetcher,
        advance: Callable[[int], object],
    ) -> int:
        stored = self.stored
        tensors = {part: written[spec.name] for part, spec in stored.specs.items()}
        parts = stored.loaded_parts(tensors)
        compared = 0
        for codes, _, values in self._compared(stored.codes(tensors["data"]), parts, caller):
            compared += codes.size
            advance(codes.size)
            del values
        return compared

    def _found(self) -> Parts:
        """The scales of the tensor in its new layout."""
        assert isinstance(self.tensor, Dequantized)
        old, source = self.tensor.all_scales(), self.tensor.stored
        shape, format = self.stored.shape, self.stored.format
        along = axis(format, len(shape))
        outer, inner = lengths(source.format, shape), lengths(format, shape)
        grid = format.grid(shape, along)
        places = [np.arange(count) * length // wide for count, length, wide in zip(grid, inner, outer, strict=True)]
        scales = old.scales.reshape(source.format.grid(shape, axis(source.format, len(shape))))[np.ix_(*places)]
        converted = scales if source.format.scale is format.scale else cast(scales, format.scale)
        return Parts(None, converted.reshape(format.scales_shape(shape, along)), None, old.global_scale)

    def _compared(self, pieces: Iterator[NDArray], parts: Parts, when: str) -> Iterator[tuple[NDArray, int, NDArray]]:
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
    `gpucast.quantization.repack`. It is read three or four times, in pieces."""

    def _kept(self, parts: Parts) -> Iterator[tuple[NDArray, int, NDArray]]:
        start = 0
        for codes, changed, values in self._recoded(parts):
            if changed:
                raise FileError(f"tensor {self.tensor.name!r} has changed while it was read")
            yield codes, start, values.reshape(-1)
            start += values.size

    def _found(self) -> Parts:
        try:
            return self._without_change()
        except (TypeError, ValueError) as error:
            raise FileError(f"tensor {self.tensor.name!r}: {error}") from None

    def _without_change(self) -> Parts:
        """The new scales. ValueError where numbers would change."""
        tensor, format, cut = self.tensor, self.stored.format, self.stored.cut
        assert isinstance(tensor, Dequantized)
        lossless.check_formats(tensor.stored.format, format)
        old = tensor.all_scales()
        own = None if old.global_scale is None else float(old.global_scale)
        if format.global_scale and own is not None and own != float(np.float32(own)):
            raise ValueError("numbers are divided by its global scale, and no FLOAT multiplies so")
        if own is not None and self.stored.global_scale_read_back(own) != own:
            # A power of two is found instead.
            own = None
        pairs = zip(matrices(tensor, cut), shaped(tensor.scale_pieces(), cut), strict=True)
        parts = [lossless.examined(x, scale, format, axis(format)) for x, scale in pairs]
        blocks = lossless.joined(parts, format)

        def changed(scales: NDArray, g: float) -> int:
            return sum(count for _, count, _ in self._recoded(self._parts_of(scales, g)))

        given = self._global()
        scales, g = lossless.chosen(blocks, format, own if given is None else given, changed, tensor.size, tensor.kind)
        return self._parts_of(scales, g)

    def _parts_of(self, scales: NDArray, g: float) -> Parts:
        format, shape = self.stored.format, self.stored.shape
        made = scales.reshape(format.scales_shape(shape, axis(format, len(shape))))
        return Parts(None, made, None, np.float32(g) if format.global_scale else None)

    def _recoded(self, parts: Parts) -> Iterator[tuple[NDArray, int, NDArray]]:
        """Each piece of codes, how many numbers they change when they are read back, and these."""
        format, cut = self.stored.format, self.stored.cut
        g = 1.0 if parts.global_scale is None else self.stored.global_scale_read_back(float(parts.global_scale))
        for x, some in zip(matrices(self.tensor, cut), sliced(format, cut, parts), strict=True):
            yield *lossless.recoded(x, some.scales, g, format, axis(format)), x

    def _global(self) -> float | None:
        """A power of two for all weights that share a global scale. A block's largest code is 3 or more, if its scale
        is the rule's: no scale is then above 2^8, the largest power of two that FLOAT8E4M3FN holds."""
        if self.group is None or not self.stored.format.global_scale:
            return None
        top = float(np.abs(self.group.extremes()).max())
        return math.ldexp(1.0, max(-126, math.ceil(math.log2(top / (3 * 256))))) if top else None
