# SPDX-License-Identifier: Apache-2.0
"""How a quantized tensor is stored in a file: the tensors that hold its parts, their names, types and shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.convert.streaming.pieces import Cut, axis, grouped, shaped
from gpucast.core.dtypes import DType, dtype
from gpucast.files.tensor import NDArray, Spec, Tensor
from gpucast.quantization import swizzle
from gpucast.quantization.formats import Format, Parts
from gpucast.reference import cast

#: "plain": one code per element; "bytes": two 4-bit codes per UINT8, the first in the low half; "swapped bytes": in the
#: high half; "words": codes packed into INT32 from the low bits up, as offsets from the lowest code, each row of the
#: last dimension separately.
Packing = Literal["plain", "bytes", "swapped bytes", "words"]

_FLOAT = dtype("FLOAT")
_BYTES = ("bytes", "swapped bytes")
_WORD = 32
#: Packed elements read at a time.
_STORED = 1 << 18


@dataclass(frozen=True)
class Stored:
    """The tensors that store a quantized one: data and scales; if needed zero_points, global_scale, shape and layer."""

    #: The name of the tensor that was quantized.
    name: str
    shape: tuple[int, ...]
    format: Format
    #: The stored tensors, by part.
    specs: Mapping[str, Spec]
    packing: Packing = "plain"
    #: Whether numbers are divided by the stored global scale, not multiplied.
    divides: bool = False
    #: Entries for the metadata of the file.
    metadata: tuple[tuple[str, str], ...] = ()
    #: The layer's description for ComfyUI, as JSON.
    layer: bytes = b""
    #: Whether the scales are in the order that cuBLAS reads (`gpucast.quantization.swizzle`).
    swizzled: bool = False
    #: Whether the weight of the model has the last two dimensions the other way round.
    transposed: bool = False

    @property
    def model_shape(self) -> tuple[int, ...]:
        """The shape of the weight of the model."""
        return (*self.shape[:-2], self.shape[-1], self.shape[-2]) if self.transposed else self.shape

    @property
    def cut(self) -> Cut:
        return Cut.make(self.format, self.shape)

    # ---- data ----

    def pack(self, codes: NDArray) -> NDArray:
        """A piece of codes (a matrix) as flat stored elements."""
        if self.packing == "plain":
            return codes.reshape(-1)
        bits = self.format.element.bits
        raw = codes.view(np.uint8)
        if self.packing in _BYTES:
            packed = np.asarray(pack_codes(raw.reshape(-1), bits))
            return packed if self.packing == "bytes" else _swapped(packed)
        return _words((raw ^ self._offset).astype(np.uint8), bits).reshape(-1)

    def in_groups(self, pieces: Iterator[NDArray]) -> Iterator[NDArray]:
        """The packed pieces, regrouped as writers need them: packed types in whole groups of elements."""
        return grouped(pieces) if self.packing == "plain" and self.format.element.packed else pieces

    def codes(self, data: Tensor) -> Iterator[NDArray]:
        """The codes in the tensor `data`, as matrices: the pieces of `cut`."""
        flat = data.chunks() if self.packing == "plain" else self._unpacked(data)
        for codes in shaped(flat, self.cut):
            yield codes.view(self.format.element.numpy)

    def _unpacked(self, data: Tensor) -> Iterator[NDArray]:
        """The codes in packed elements, flat."""
        bits, columns = self.format.element.bits, self.shape[-1]
        if self.packing in _BYTES:
            for stored in data.chunks(_STORED // bits * bits):
                packed = stored.view(np.uint8)
                packed = packed if self.packing == "bytes" else _swapped(packed)
                yield np.asarray(unpack_codes(packed, bits, stored.size * 8 // bits))
            return
        # Padding in the last word of a row is cut off.
        left = columns
        for stored in shaped(data.chunks(), Cut.of(1, math.prod(data.shape[:-1]), data.shape[-1], _STORED, width=1)):
            codes = _codes(stored, bits)[:, :left]
            left = left - codes.shape[1] or columns
            yield (codes ^ self._offset).astype(np.uint8).reshape(-1)

    @property
    def _offset(self) -> int:
        """XOR with this turns two's complement codes into offsets from the lowest code, and back."""
        return self.format.element.sign_code if self.format.element.signed else 0

    # ---- scales ----

    def stored_parts(self, parts: Parts) -> dict[str, NDArray]:
        """The arrays to store besides the data, by part."""
        given = {"scales": parts.scales, "zero_points": parts.zero_points, "global_scale": parts.global_scale}
        arrays = {part: array for part, array in given.items() if array is not None and part in self.specs}
        if self.swizzled and "scales" in arrays:
            arrays["scales"] = swizzle.swizzle(arrays["scales"])
        if "global_scale" in arrays:
            arrays["global_scale"] = self._stored_global_scale(arrays["global_scale"])
        if "scales" in arrays and self.specs["scales"].dtype is _FLOAT:
            arrays["scales"] = _as(arrays["scales"], _FLOAT)
        if self.packing == "words" and "zero_points" in arrays:
            # Packed along the first dimension, which has one zero point per row.
            columns = arrays["zero_points"].reshape(self.shape[0], -1).view(np.uint8).T
            arrays["zero_points"] = _words(np.ascontiguousarray(columns), self.format.element.bits).T
        if "shape" in self.specs:
            arrays["shape"] = np.array(self.shape, np.int64)
        if "layer" in self.specs:
            arrays["layer"] = np.frombuffer(self.layer, np.uint8)
        return {
            part: np.ascontiguousarray(array).reshape(-1).view(self.specs[part].dtype.numpy)  # type: ignore[union-attr]
            for part, array in arrays.items()
        }

    def loaded_parts(self, tensors: Mapping[str, Tensor]) -> Parts:
        """The inverse of `stored_parts`: scales and zero points from the stored tensors, by part."""
        format = self.format
        shape = format.scales_shape(self.shape, axis(format, len(self.shape)))
        scales = _as(tensors["scales"].read(), format.scale)
        if self.swizzled:
            scales = swizzle.unswizzle(scales.reshape(-1), shape)
        elif scales.size == math.prod(shape):
            scales = scales.reshape(shape)
        else:
            # One for each column, whatever the rows.
            scales = np.ascontiguousarray(np.broadcast_to(scales.reshape(*shape[:-2], 1, shape[-1]), shape))
        zero_points, global_scale = None, None
        if "zero_points" in tensors:
            points = tensors["zero_points"].read()
            if self.packing == "words":
                codes = _codes(np.ascontiguousarray(points.T), format.element.bits)
                points = np.ascontiguousarray(codes[:, : self.shape[0]].T)
            assert format.zero_point is not None
            zero_points = points.view(format.zero_point.numpy).reshape(shape)
        if "global_scale" in tensors:
            global_scale = self._loaded_global_scale(_as(tensors["global_scale"].read(), _FLOAT).reshape(()))
        return Parts(None, scales, zero_points, global_scale)

    def global_scale_read_back(self, number: float) -> float:
        """What a global scale is when it is read again: where its reciprocal is stored, as a FLOAT, only powers of two
        are what they were."""
        with np.errstate(divide="ignore", over="ignore"):
            return float(self._loaded_global_scale(self._stored_global_scale(number)))

    def _stored_global_scale(self, number: Any) -> Any:
        # In DOUBLE, as a recipe's may be: the quotient then becomes the FLOAT that FLOATs give.
        number = np.float64(number)
        return np.float32(1 / number if self.divides else number)

    def _loaded_global_scale(self, stored: Any) -> Any:
        if not self.divides:
            return stored
        with np.errstate(divide="ignore"):
            return np.float64(1) / stored.astype(np.float64)


def _swapped(packed: NDArray) -> NDArray:
    """Bytes with their halves the other way round."""
    return packed >> 4 | packed << 4


def words(count: int, bits: int) -> int:
    """The number of INT32 elements that hold `count` codes."""
    return -(-count * bits // _WORD)


def _words(codes: NDArray, bits: int) -> NDArray:
    rows, count = codes.shape
    padded = np.zeros((rows, words(count, bits) * _WORD // bits), np.uint8)
    padded[:, :count] = codes
    packed = padded if bits == 8 else np.asarray(pack_codes(padded.reshape(-1), bits))
    return packed.reshape(-1).view("<i4").astype(np.int32, copy=False).reshape(rows, -1)


def _codes(stored: NDArray, bits: int) -> NDArray:
    raw = np.ascontiguousarray(stored, "<i4").view(np.uint8).reshape(-1)
    count = stored.size * _WORD // bits
    codes = raw if bits == 8 else np.asarray(unpack_codes(raw, bits, count))
    return codes.reshape(stored.shape[0], -1) if stored.shape[0] else codes.reshape(0, 0)


def _as(array: NDArray, scale: DType) -> NDArray:
    """Stored scales as the type of the format: bytes are FLOAT8E8M0 codes, narrow floats become FLOAT (exactly)."""
    if scale.name == "FLOAT8E8M0" and array.dtype.itemsize == 1:
        return array.view(scale.numpy)
    return array if array.dtype == scale.numpy else np.asarray(cast(array, scale))
