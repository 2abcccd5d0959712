# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries, for the tests: made of NumPy's, and back, without help of the code under test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpucast import PackedArray
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.libraries import dlpack

NUMERIC = [row for row in DTYPES if row.family != "string"]
#: JAX has no types of 6 bits, and none that ml_dtypes lacks.
HELD_BY_JAX = [row for row in NUMERIC if row.bits != 6 and not row.numpy.names]
#: What torch has in pairs.
PAIRED = dtype("FLOAT4E2M1")


class Interface:
    """An array of a library like Numba: "device" memory that is host memory here, and nothing but the interface."""

    def __init__(self, x: np.ndarray, **fields: Any) -> None:
        self.x = x
        self.__cuda_array_interface__ = {
            "shape": x.shape,
            "typestr": x.dtype.str,
            "data": (x.ctypes.data, False),
            "strides": x.strides,
            "version": 3,
        } | fields


class Speaker:
    """An array of a library that speaks DLPack, and nothing else."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack__(self, **keywords: Any) -> Any:
        return dlpack.Export(self.x).__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return 1, 0


class Namespaced(Speaker):
    """One of a library that takes arrays back."""

    @staticmethod
    def from_dlpack(exported: Any) -> Namespaced:
        return Namespaced(dlpack.take(exported, "test"))

    def __array_namespace__(self) -> Any:
        return Namespaced


@pytest.fixture
def wide() -> Iterator[None]:
    """JAX with its types of 64 bits."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def from_jax(y: Any, row: DType) -> np.ndarray:
    if row.bits == 6:
        assert isinstance(y, PackedArray)
        return y.get()
    # What JAX lacks stays an array of NumPy.
    assert isinstance(y, np.ndarray) == bool(row.numpy.names) and y.dtype == row.numpy
    # JAX fills the upper bits of packed types with the sign.
    found = np.asarray(y)
    return (found.view(np.uint8) & row.code_mask).view(row.numpy) if row.packed else found


def tensor(x: np.ndarray) -> Any:
    """The tensor that holds the same codes, one element each; float4 in pairs."""
    import torch

    row = dtype(x.dtype)
    if row is PAIRED:
        return torch.from_numpy(PackedArray.pack(x).data.reshape(*x.shape[:-1], -1)).view(torch.float4_e2m1fn_x2)
    return torch.from_numpy(x.view(row.code_numpy)).view(getattr(torch, row.numpy_name))


def from_torch(y: Any, row: DType) -> np.ndarray:
    import torch

    if isinstance(y, PackedArray):
        assert y.dtype is row
        return y.get()
    y = y.detach().cpu()
    if row is PAIRED:
        assert y.dtype is torch.float4_e2m1fn_x2
        shape = (*y.shape[:-1], 2 * y.shape[-1])
        return PackedArray(y.view(torch.uint8).contiguous().numpy().reshape(-1), row, shape).get()
    assert y.dtype is getattr(torch, row.numpy_name)
    return np.asarray(y.view(getattr(torch, row.code_numpy.name)).numpy().view(row.numpy))
