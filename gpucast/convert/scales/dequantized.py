# SPDX-License-Identifier: Apache-2.0
"""Reads a tensor of codes and scales as numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpucast.arrays.bitpacking import unpack_codes
from gpucast.convert.scales.stored import Stored
from gpucast.convert.streaming.pieces import dequantized, regroup, sliced
from gpucast.core.dtypes import dtype
from gpucast.files import FileError, TensorFile
from gpucast.files.tensor import CHUNK_BYTES, NDArray, Tensor
from gpucast.quantization.formats import Parts

_DOUBLE, _FLOAT = dtype("DOUBLE"), dtype("FLOAT")
#: Elements of a matrix that are transposed at a time, about.
_PIECE = 1 << 20


@dataclass(frozen=True)
class DetectedTensor:
    """A quantized tensor of a checkpoint, whose parts may be in several files."""

    #: The name of the tensor of codes, and that of the tensor that was quantized.
    name: str
    base: str
    style: str
    #: The file that holds each tensor, by name: codes and scales first, then companions such as activation scales.
    paths: Mapping[str, str]
    nbytes: int
    #: How the tensor is stored; None if it cannot be read as numbers.
    stored: Stored | None
    #: Why it cannot be read as numbers.
    problem: str = ""

    @property
    def kind(self) -> str:
        if self.stored is None:
            return "scaled"
        format = self.stored.format
        rest = {"tensor": "the tensor", "axis": "a row"}.get(format.block_text, f"{format.block_text} elements")
        more = ", and one for all" * format.global_scale + ", with zero points" * format.zero_points
        return f"{format.element.name}, one {format.scale.name} scale for {rest}{more}"


@dataclass(frozen=True)
class Dequantized(Tensor):
    """The numbers of a quantized tensor, as DOUBLE, which holds a code times a FLOAT exactly."""

    detected: DetectedTensor = field(repr=False)
    #: The open file of its codes; None where nothing will be read.
    file: TensorFile | None = field(repr=False)

    @staticmethod
    def of(detected: DetectedTensor, file: TensorFile | None = None) -> Dequantized:
        assert detected.stored is not None
        stored = detected.stored
        shape = stored.model_shape
        return Dequantized(stored.name, _DOUBLE, shape, detected.kind, detected.nbytes, detected, file)

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[NDArray]:
        step = max(4, limit // self.itemsize // 4 * 4)
        return regroup(self._pieces(), (min(step, self.size - start) for start in range(0, self.size, step)))

    @property
    def stored(self) -> Stored:
        """How it is stored."""
        assert self.detected.stored is not None
        return self.detected.stored

    @property
    def itemsize(self) -> int:
        return 8

    def read(self) -> NDArray:
        return np.concatenate([*self._pieces(), np.empty(0)]).reshape(self.shape)

    def check_scales(self) -> None:
        """FileError for FLOAT scales that are infinite or NaN. (gpucast itself gives integers such a scale for a block
        without meaning, as FLOAT8E8M0 does by its specification.)
        """
        format, parts = self.stored.format, self.all_scales()
        of_blocks = parts.scales if format.scale is _FLOAT else None
        for part, scales in (("scales", of_blocks), ("global_scale", parts.global_scale)):
            if scales is None:
                continue
            is_own = part == "scales" and self.detected.style == "gpucast" and format.nan_in_scale
            found = np.isinf(scales) if is_own else ~np.isfinite(scales)
            if part == "global_scale" and self.stored.divides:
                # The reciprocal of an infinite one, and of no other.
                found = found | (scales == 0)
            wrong = int(np.count_nonzero(found))
            if wrong:
                name = self.stored.specs[part].name
                raise FileError(
                    f"{self.detected.paths[name]}: {wrong:,} of the {np.size(scales):,} scales {name!r} are infinite "
                    f"or NaN; leave {self.name!r} as it is with --exclude"
                )

    def all_scales(self) -> Parts:
        """Scales, zero points and global scale, without codes."""
        with contextlib.ExitStack() as stack:
            return self.stored.loaded_parts(self._tensors(stack, but="data"))

    def codes(self) -> Iterator[NDArray]:
        """The codes, flat, read in a stream of their own."""
        stored = self.stored
        with contextlib.ExitStack() as stack:
            for codes in stored.codes(self._tensors(stack)["data"]):
                yield codes.reshape(-1)

    def scale_pieces(self) -> Iterator[NDArray]:
        """The scale of each number, times the global one: flat, in the order of the numbers. DOUBLE."""
        stored, parts = self.stored, self.all_scales()
        one = stored.format.element.numpy.type(1)
        if stored.transposed:
            code = int(np.asarray(one).view(np.uint8))
            *lead, rows, columns = stored.shape
            ones = np.full(rows * columns // 2, code << 4 | code, np.uint8)
            yield from _transposed(stored, (ones for _ in range(math.prod(lead))), parts.scales)
            return
        for shape, some in zip(stored.cut.shapes(), sliced(stored.format, stored.cut, parts), strict=True):
            yield dequantized(replace(some, data=np.full(shape, one), zero_points=None), stored.format).reshape(-1)

    def _pieces(self) -> Iterator[NDArray]:
        stored = self.stored
        with contextlib.ExitStack() as stack:
            tensors = self._tensors(stack)
            loaded = stored.loaded_parts(tensors)
            if stored.transposed:
                yield from _transposed(stored, tensors["data"].chunks(), loaded.scales)
                return
            pieces = sliced(stored.format, stored.cut, loaded)
            for codes, scales in zip(stored.codes(tensors["data"]), pieces, strict=True):
                yield dequantized(replace(scales, data=codes), stored.format).reshape(-1)

    def _tensors(self, stack: contextlib.ExitStack, but: str = "") -> dict[str, Tensor]:
        """Its parts, each in a stream of its own."""
        return {part: self._own(spec.name, stack) for part, spec in self.stored.specs.items() if part != but}

    def _own(self, name: str, stack: contextlib.ExitStack) -> Tensor:
        """By an open file where that has streams for many readers: to read its header for each tensor takes minutes."""
        path = self.detected.paths[name]
        assert self.file is not None
        tensor = _found(self.file.beside(path), name)
        flat = tensor.part(0, tensor.size)
        if flat is None:
            return _found(stack.enter_context(TensorFile(path)), name)
        return replace(flat, shape=tensor.shape)


def _found(file: TensorFile, name: str) -> Tensor:
    if name not in file.by_name:
        raise FileError(f"{file.path}: tensor {name!r} is gone since the file was first looked at")
    return file.by_name[name]


def _transposed(stored: Stored, data: Iterable[NDArray], scales: NDArray) -> Iterator[NDArray]:
    """The numbers of matrices that are stored with their columns as rows: some columns of a matrix at a time.

    The codes of one matrix are in memory, two to a byte.
    """
    assert stored.packing == "bytes" and isinstance(stored.format.block, tuple)
    (block,) = stored.format.block
    *_, rows, columns = stored.shape
    groups = columns // block
    step = max(1, _PIECE // (rows * block))
    matrices = regroup(data, (rows * columns // 2 for _ in range(math.prod(stored.shape[:-2]))))
    for packed, scale in zip(matrices, scales.reshape(-1, rows, groups), strict=True):
        codes = packed.view(np.uint8).reshape(rows, groups, block // 2)
        for first in range(0, groups, step):
            some = np.ascontiguousarray(codes[:, first : first + step])
            unpacked = np.asarray(unpack_codes(some.reshape(-1), 4, some.size * 2)).reshape(rows, -1)
            parts = Parts(unpacked.view(stored.format.element.numpy), scale[:, first : first + step])
            yield np.ascontiguousarray(dequantized(parts, stored.format).T).reshape(-1)
