# SPDX-License-Identifier: Apache-2.0
"""Operand: what engines are told of an array."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bench import idle_cuda
from gpucast import PackedArray
from gpucast.arrays.operand import operand
from gpucast.core.dtypes import dtype


def test_arrays_of_the_host() -> None:
    x = np.zeros((3, 4), ">f4").T
    found = operand(x)
    assert found.array is found.data is found.plain is x
    assert (found.dtype, found.shape, found.size, found.strides) == (dtype("FLOAT"), (4, 3), 12, (4, 16))
    assert (found.device, found.packed, found.contiguous, found.itemsize) == (None, False, False, 4)
    assert found.address == x.__array_interface__["data"][0]
    with pytest.raises(TypeError, match="complex"):
        operand(np.zeros(2, complex))


def test_a_subclass_is_given_back_and_not_worked_on() -> None:
    x = np.zeros((2, 2), np.float32).view(np.matrix)
    found = operand(x)
    assert found.array is x
    assert type(found.data) is type(found.plain) is np.ndarray
    assert np.shares_memory(found.data, x)


@pytest.mark.parametrize("device", [None, 1])
def test_packed_arrays(device: int | None) -> None:
    data = np.zeros(5, np.uint8) if device is None else idle_cuda.array((5,), np.uint8, device)
    x = PackedArray(data, "INT4", (3, 3))
    found = operand(x)
    assert found.array is found.plain is x
    assert found.data is data
    assert (found.dtype, found.shape, found.size, found.strides) == (dtype("INT4"), (3, 3), 9, None)
    assert (found.device, found.packed, found.contiguous, found.itemsize) == (device, True, True, 1)


def test_arrays_on_a_device() -> None:
    x = idle_cuda.array((3, 4), np.uint8, 1).view(ml_dtypes.float8_e4m3fn)[:, ::2]
    found = operand(x)
    assert found.array is found.data is x
    assert (found.dtype, found.size, found.strides) == (dtype("FLOAT8E4M3FN"), 6, (4, 2))
    assert (found.device, found.packed, found.contiguous, found.itemsize) == (1, False, False, 1)
    assert found.address == x.data.ptr
