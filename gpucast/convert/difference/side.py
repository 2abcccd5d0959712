# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: the tensors of a checkpoint by the names of the weights that they stand for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gpucast.casting.cast import cast
from gpucast.convert.planning import sources
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.convert.streaming.pieces import Cut, shaped
from gpucast.core.dtypes import dtype
from gpucast.files import FileError, Tensor, onnx_graph
from gpucast.files.onnx_model import Model
from gpucast.files.tensor import CHUNK_BYTES, Linear, NDArray


@dataclass
class Side:
    """Tensors by name, codes with scales as `Dequantized`; its files are open."""

    path: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    #: Why some tensors cannot be read as numbers, by name.
    problems: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Side]:
    """The tensors of a file, an index or a folder. FileError if it cannot be read as tensors."""
    with sources.opened(path) as (catalogue, models):
        side = Side(path)
        for _, model in models:
            _add_model(side, model)
        every = list(catalogue.detect())
        for one in every:
            if one.stored is None:
                side.problems[one.base] = one.problem
            else:
                _add(side, Dequantized.of(one, catalogue.files[one.paths[one.name]].file), one.base)
        for _, tensor in catalogue.beside(every):
            _add(side, tensor, tensor.name)
        yield side


@dataclass(frozen=True)
class _Linear(Tensor):
    """The products of codes and scales that DequantizeLinear rounds to its type in a model, exact as DOUBLE."""

    linear: Linear
    codes: Tensor
    scales: Tensor
    zero_points: Tensor | None

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[NDArray]:
        columns, start = math.prod(self.shape[1:]), 0
        rows = self.shape[0] if self.shape else 1
        given = (self.scales, self.zero_points)
        scales, zero = (None if one is None else np.asarray(cast(one.read(), "DOUBLE")) for one in given)
        assert scales is not None
        for codes in shaped(self.codes.chunks(), Cut.of(1, rows, columns, limit // self.itemsize)):
            x = np.asarray(cast(codes, "DOUBLE")).reshape(-1, *self.shape[1:])
            x = x if zero is None else x - self._wide(zero, start, x)
            yield (x * self._wide(scales, start, x)).reshape(-1)
            start += len(x)

    def _wide(self, given: NDArray, start: int, x: NDArray) -> NDArray:
        """What belongs to blocks, for the elements of x, whose first row is row `start`."""
        axis, block = self.linear.axis, self.linear.block_size or 1
        if axis is None:
            return given.reshape(-1)[0]  # type: ignore[no-any-return]
        rows = np.arange(start, start + len(x))
        if self.linear.block_size:
            wide = given[rows // block] if axis == 0 else np.repeat(given[rows], block, axis)
            return wide.take(range(x.shape[axis]), axis)
        return (given[rows] if axis == 0 else given).reshape([-1 if one == axis else 1 for one in range(x.ndim)])

    @property
    def itemsize(self) -> int:
        return 8

    def read(self) -> NDArray:
        return np.concatenate([*self.chunks(), np.empty(0)]).reshape(self.shape)


def _add_model(side: Side, model: Model) -> None:
    """The initializers of a model by the names of the values that they stand for, which a conversion leaves."""
    held = {tensor.name: tensor for tensor in model.tensors}
    names, linear = onnx_graph.known_as(model.proto.graph), onnx_graph.linear_in(model.proto.graph)
    parts = {name for one in linear.values() for name in (one.scales, one.zero_points)}
    for name, tensor in held.items():
        if name in linear and tensor.dtype is not None:
            one = linear[name]
            zero = None if one.zero_points is None else held[one.zero_points]
            fields = tensor.shape, f"{tensor.kind}, scaled", tensor.nbytes
            of = names[one.of]
            _add(side, _Linear(of, dtype("DOUBLE"), *fields, one, tensor, held[one.scales], zero), of)
        elif name not in parts:
            _add(side, tensor, names[name])


def _add(side: Side, tensor: Tensor, name: str) -> None:
    if name in side.tensors:
        raise FileError(f"{side.path}: tensor {name!r} is in several files")
    if tensor.dtype is None or tensor.dtype.family == "string":
        side.problems[name] = f"tensor {name!r} of {tensor.kind} has no numbers to compare"
        return
    side.tensors[name] = tensor
