# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries: which of the doors an object goes through, and arrays over memory that others own.

PyTorch tensors, JAX arrays, then anything with ``__dlpack__`` or ``__cuda_array_interface__``. A library is looked for
among the modules that the process has loaded; none is imported here, for an array of it cannot exist before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType, dtype
from gpucast.core.options import Call

#: What `numpy.asarray` takes without asking the object. The types themselves: a subclass may speak a protocol.
_PLAIN = frozenset({np.ndarray, list, tuple, int, float, bool, str, bytes, type(None)})


#: ``inner(x, to, call)``: the cast of an array of ours.
Inner = Callable[[Any, Any, Call], Any]


class Door(Protocol):
    """How the arrays of one library come in and go back: what `gpucast.interop.torch` and its neighbours are."""

    def take(self, x: Any, who: str, writing: bool = False) -> Any:
        """`x` as a NumPy or CuPy array or a PackedArray over the same memory; `writing` where it is to be changed."""

    def cast(self, inner: Inner, x: Any, to: Any, call: Call) -> Any:
        """The cast of `x` as an array of its library; `inner` casts arrays of ours."""


def door(x: Any) -> Door | None:
    """The door that `x` goes through; None for what is no array of another library."""
    if type(x) in _PLAIN or isinstance(x, (np.ndarray, np.generic, PackedArray)):
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, getattr(torch, "Tensor", ())):
        from gpucast.interop import torch as through_torch

        return through_torch
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, getattr(jax, "Array", ())):
        from gpucast.interop import jax as through_jax

        return through_jax
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return None
    if _speaks(x, "__dlpack__") and _speaks(x, "__dlpack_device__"):
        from gpucast.interop import dlpack as through_dlpack

        if through_dlpack.preferred(x):
            return through_dlpack
    if _speaks(x, "__cuda_array_interface__"):
        from gpucast.interop import cuda_array

        return cuda_array
    return None


def take(x: Any, who: str) -> Any:
    """Anything but an array of ours as one: over the same memory where a protocol gives it, else as NumPy takes it."""
    way = door(x)
    if way is not None:
        return way.take(x, who)
    # asarray, because subclasses such as np.matrix change what indexing and reshaping mean.
    array = np.asarray(x)
    if array.dtype == object and array.ndim == 0 and not isinstance(x, (str, np.ndarray, np.generic, type(None))):
        raise TypeError(
            f"{who}: x is of type {type(x).__name__}; expected an array, a number, a text, or an object with "
            "__dlpack__, __cuda_array_interface__ or __array__"
        )
    return array


def destination(to: Any, who: str) -> DType:
    """The row of `to`, for the caller of `gpucast.cast` or, `to` being the dtype of `like`, of `cast_like`."""
    return dtype(to, who="cast: to=" if who == "cast" else f"{who}: like.dtype=")


def _speaks(x: Any, protocol: str) -> bool:
    """Whether an instance has the attribute: some have it on their class, and raise for memory that is not theirs."""
    try:
        return getattr(x, protocol, None) is not None
    except Exception:
        return False


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
    """What NumPy makes an array of; the array keeps it, and it keeps the owner."""

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
