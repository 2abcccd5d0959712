# SPDX-License-Identifier: Apache-2.0
"""Quantizes and dequantizes tensors piece by piece, so that no tensor is in memory as a whole.

Pieces consist of whole blocks. The bits of stochastic rounding depend only on the user's seed, the name of the tensor
and the index of the element there, so that the result does not depend on how a tensor is cut, on the order of the work
or on the machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpucast.casting.cast import cast
from gpucast.casting.engine import Engine
from gpucast.core.dtypes import dtype
from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.files.tensor import CHUNK_BYTES, NDArray, Tensor
from gpucast.kernel import devices
from gpucast.quantization import exact_quantize, quantize_array, quantize_on_host
from gpucast.quantization.formats import SOURCES, Format, Parts

#: Called as `gpucast.quantization.quantize_on_host.quantize`: (x, format, *, axis, scale, random).
Quantize = Callable[..., Parts]
#: Elements of a piece, about. With half as many a conversion takes a tenth longer: every piece has a fixed cost.
_PIECE = 1 << 20
#: This many elements of any packed type end on a byte boundary.
_GROUP = 4
#: This many codes of any type fill whole words.
_WORD = 32


def tensor_seed(seed: int, name: str) -> int:
    """The seed of one tensor: the first 8 bytes of SHA-256 over seed (8 bytes) and name (UTF-8), all little-endian.

    With it ``gpucast.cast(x, to, rounding="stochastic", seed=...)`` gives the bits that `gpucast convert` writes.
    """
    digest = hashlib.sha256(seed.to_bytes(8, "little") + name.encode())
    return int.from_bytes(digest.digest()[:8], "little")


def placed(pieces: Iterable[NDArray]) -> Iterator[tuple[int, NDArray]]:
    """Each piece of a tensor, with the index of its first element."""
    start = 0
    for piece in pieces:
        yield start, piece
        start += piece.size


def moved(random: Random | None, start: int) -> Random | None:
    """The random bits for the elements from index `start` on."""
    return None if random is None else random._replace(offset=random.offset + start)


def keywords(random: Random | None) -> dict[str, Any]:
    """The keywords of `gpucast.cast` and `gpucast.quantize` that select these random bits."""
    return {} if random is None else {"rounding": STOCHASTIC, **random._asdict()}


@dataclass(frozen=True)
class Cut:
    """How a tensor is cut into pieces.

    The tensor is seen as `lead` matrices of `rows` x `columns`. A piece is `step` rows of a matrix, or `width` columns
    of a single row. A block lies within one piece, or is the whole tensor; the scales of the pieces, one after the
    other, are those of the tensor. In a piece the axis of the blocks is 0 for formats with one scale per index of an
    axis (the first of the tensor), otherwise the last axis, as in the tensor.
    """

    lead: int
    rows: int
    columns: int
    step: int
    width: int

    @staticmethod
    def make(format: Format, shape: tuple[int, ...]) -> Cut:
        size, last = math.prod(shape), shape[-1] if shape else 1
        if format.block == "tensor":
            return Cut.of(1, size, 1, _PIECE)
        if format.block == "axis":
            return Cut.of(1, shape[0], size // max(1, shape[0]), _PIECE)
        assert isinstance(format.block, tuple)
        if format.min_ndim == 2:
            return Cut.of(math.prod(shape[:-2]), shape[-2], last, _PIECE, format.block[0])
        n = format.block[-1]
        columns = n if last % n == 0 else last
        return Cut.of(1, size // max(1, columns), columns, _PIECE, width=math.lcm(n, _WORD))

    @staticmethod
    def of(lead: int, rows: int, columns: int, most: int, unit: int = 1, width: int | None = None) -> Cut:
        """Pieces of about `most` elements, in multiples of `unit` rows. Longer rows are cut at multiples of `width`."""
        if width is not None and columns > max(most, width):
            return Cut(lead, rows, columns, 1, max(1, most // width) * width)
        step = max(1, most // max(1, columns) // unit) * unit
        # Files are read in groups of elements: pieces of whole groups need no copy.
        return Cut(lead, rows, columns, step // _GROUP * _GROUP if step >= _GROUP and unit == 1 else step, columns)

    def shapes(self) -> Iterator[tuple[int, int]]:
        """The rows and columns of each piece."""
        for _ in range(self.lead):
            for start in range(0, self.rows, self.step):
                # A tensor without columns still has rows.
                for column in range(0, max(1, self.columns), max(1, self.width)):
                    yield min(self.step, self.rows - start), min(self.width, self.columns - column)


def regroup(chunks: Iterable[NDArray], sizes: Iterable[int]) -> Iterator[NDArray]:
    """The elements of flat chunks, as flat arrays of the given sizes."""
    source = iter(chunks)
    held = np.empty(0, np.uint8)
    for size in sizes:
        parts, missing = [], size
        while missing:
            if not held.size:
                held = next(source)
            parts.append(held[:missing])
            missing -= parts[-1].size
            held = held[parts[-1].size :]
        yield parts[0] if len(parts) == 1 else np.concatenate(parts)


def shaped(chunks: Iterable[NDArray], cut: Cut) -> Iterator[NDArray]:
    """The pieces of a tensor as matrices, made from its elements in flat chunks."""
    flat = regroup(chunks, (rows * columns for rows, columns in cut.shapes()))
    return (piece.reshape(shape) for piece, shape in zip(flat, cut.shapes(), strict=True))


def matrices(tensor: Tensor, cut: Cut) -> Iterator[NDArray]:
    """The pieces of a tensor as matrices, of values that can be quantized."""
    size = min(CHUNK_BYTES // tensor.itemsize, cut.step * cut.width) // _GROUP * _GROUP
    return (quantizable(x) for x in shaped(tensor.pieces(max(_GROUP, size)), cut))


def quantizable(x: NDArray) -> NDArray:
    """The same values in a type that can be quantized: narrow floats become FLOAT, which holds them exactly."""
    return x if dtype(x.dtype) in SOURCES else cast(x, "FLOAT")


def grouped(chunks: Iterable[NDArray]) -> Iterator[NDArray]:
    """The elements of flat chunks, as flat arrays of whole groups of elements except for the last one."""
    rest = np.empty(0, np.uint8)
    for chunk in chunks:
        joined = np.concatenate([rest, chunk]) if rest.size else chunk
        rest = joined[joined.size // _GROUP * _GROUP :]
        yield joined[: joined.size - rest.size]
    if rest.size:
        yield rest


def axis(format: Format, ndim: int = 2) -> int:
    """The axis of the blocks of a tensor with so many dimensions, as those of a piece are."""
    return 0 if format.block == "axis" else ndim - 1


def lengths(format: Format, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths of the blocks of a tensor, or of a piece."""
    return format.lengths(shape, axis(format, len(shape)))


class Quantizer:
    """Quantizes a tensor in pieces, with the result of the whole tensor.

    A first pass computes the data that all blocks share (extremes, the global scale).
    """

    def __init__(
        self,
        tensor: Tensor,
        format: Format,
        quantize: Quantize = quantize_on_host.quantize,
        random: Random | None = None,
        among: Callable[[], NDArray] | None = None,
    ) -> None:
        """`among`: the extremes for the global scale, if it covers more than this tensor."""
        self.format, self._quantize, self.random = format, quantize, random
        #: The extremes of a tensor that has one scale, and the global scale of others.
        self.shared: NDArray | None = None
        self.scale: Any = None
        if format.block == "tensor":
            self.shared = extremes(tensor, format.nan_in_scale)
        elif format.global_scale:
            largest = extremes(tensor, False) if among is None else among()
            if format.steps is None:
                self.scale = quantize(largest, format, axis=-1, scale=None).global_scale
            elif amax := float(np.abs(largest).max()):
                kind = tensor.dtype if tensor.dtype in SOURCES else dtype("FLOAT")
                self.scale = quantize_on_host.global_scale(amax, format, kind)

    def __call__(self, x: NDArray, start: int) -> Parts:
        """Quantize the piece whose first element is element `start` of the tensor."""
        random = moved(self.random, start)
        if self.shared is None:
            parts = self._quantize(x, self.format, axis=axis(self.format), scale=self.scale, random=random)
            steps = self.format.steps
            if steps is None or steps.global_scale != "1/u" or self.scale is None:
                return parts
            # Styles that divide store the u of such a recipe, which is no reciprocal of the rounded one.
            return replace(parts, global_scale=1 / np.float64(self.scale))
        # The extremes of the tensor are appended, so that each piece gets the scale of the tensor.
        shared = cast(self.shared, x.dtype)
        extended = np.concatenate([x.reshape(-1), shared])
        parts = self._quantize(extended, self.format, axis=0, scale=None, random=random)
        return Parts(parts.data[: x.size].reshape(x.shape), parts.scales, parts.zero_points)


def extremes(tensor: Tensor, nan: bool) -> NDArray:
    """The lowest and the largest finite value, 0 included. With `nan`, also a NaN if any value is not finite."""
    low = high = 0.0
    lost = False
    for chunk in tensor.chunks(_PIECE * tensor.itemsize):
        # The cast is exact, and NumPy can compare the result.
        x = chunk if chunk.dtype == np.float64 else cast(chunk, "FLOAT")
        finite = np.isfinite(x)
        if not finite.all():
            lost, x = True, x[finite]
        low, high = min(low, float(x.min(initial=0))), max(high, float(x.max(initial=0)))
    return np.array([low, high] + [np.nan] * (lost and nan))


def quantizing(engine: Engine) -> Quantize:
    """Quantizes arrays of the host by an engine of casts; returns arrays of the host."""

    def on_device(x: NDArray, format: Format, *, axis: int, scale: Any, random: Random | None = None) -> Parts:
        q = quantize_array.quantize(x, format, axis=axis, scale=scale, device=place, **keywords(random)).get()
        data = q.data.get() if format.element.packed else q.data
        return Parts(data, q.scales, q.zero_points, q.global_scale)

    place = devices.place(engine.device)
    return engine.pick(quantize_on_host.quantize, on_device)


def by_reference(x: NDArray, format: Format, *, axis: int, scale: Any, random: Random | None = None) -> Parts:
    """The engine that uses the reference, which is slow."""
    return exact_quantize.quantize(x, format, axis=axis, scale=scale, **keywords(random))


def joined(format: Format, shape: tuple[int, ...], parts: list[Parts]) -> Parts:
    """The scales of the tensor, joined from its pieces; no data."""
    scales_shape = format.scales_shape(shape, axis(format, len(shape)))

    def join(arrays: list[Any]) -> NDArray:
        needed = arrays[:1] if format.block == "tensor" else arrays
        return np.concatenate([array.reshape(-1) for array in needed]).reshape(scales_shape)

    zero_points = join([part.zero_points for part in parts]) if format.zero_points else None
    return Parts(None, join([part.scales for part in parts]), zero_points, parts[0].global_scale)


def sliced(format: Format, cut: Cut, parts: Parts) -> Iterator[Parts]:
    """The scales of each piece, cut from the tensor's; no data."""
    if format.block == "tensor":
        for _ in cut.shapes():
            yield parts
        return
    start = 0
    for rows, columns in cut.shapes():
        shape = format.scales_shape((rows, columns), axis(format))
        part = slice(start, start + math.prod(shape))
        start = part.stop
        zero_points = None if parts.zero_points is None else parts.zero_points.reshape(-1)[part].reshape(shape)
        yield Parts(None, parts.scales.reshape(-1)[part].reshape(shape), zero_points, parts.global_scale)


def dequantized(parts: Parts, format: Format) -> NDArray:
    """The values of a piece, as DOUBLE."""
    return quantize_on_host.dequantize(parts, format, dtype("DOUBLE"), axis=axis(format))
