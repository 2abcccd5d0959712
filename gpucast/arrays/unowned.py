# SPDX-License-Identifier: Apache-2.0
"""NumPy and CuPy arrays over memory that others own."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.core.dtypes import DType


def view_at(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    row: DType,
    device: int | None,
    owner: object,
    readonly: bool = False,
) -> Any:
    """A NumPy array (`device` None) or CuPy array over memory that `owner` keeps alive.

    `strides` are in bytes, None for C order. Types below one byte have an element per byte.
    """
    plain = row.code_numpy
    if device is None:
        if 0 in shape:
            return np.empty(shape, row.numpy)
        return np.asarray(_Memory(address, shape, strides, plain, owner, readonly)).view(row.numpy)
    import cupy

    if strides is None:
        strides = _c_strides(shape, plain.itemsize)
    nbytes = sum(stride * (length - 1) for stride, length in zip(strides, shape, strict=True) if stride > 0)
    memory = cupy.cuda.UnownedMemory(address, nbytes + plain.itemsize, owner, device)
    return cupy.ndarray(shape, plain, cupy.cuda.MemoryPointer(memory, 0), strides).view(row.numpy)


class _Memory:
    """The object that NumPy makes an array of. The array keeps it alive, and it keeps the owner alive."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        kind: np.dtype[Any],
        owner: object,
        readonly: bool,
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": kind.str,
            "shape": shape,
            "strides": strides,
            "data": (address, readonly),
        }


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for length in reversed(shape):
        strides.append(itemsize)
        itemsize *= length
    return tuple(reversed(strides))
