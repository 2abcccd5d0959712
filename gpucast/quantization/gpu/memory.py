# SPDX-License-Identifier: Apache-2.0
"""Arrays on a device as kernels need them: dense, copied, and by their addresses."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays.operand import operand
from gpucast.arrays.packed import PackedArray, device_index
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.gpu import cast_on_gpu
from gpucast.gpu.workspace import Workspace


def given(scale: Any, device: int, target: Any, workspace: Workspace) -> Any:
    """The caller's scales as a FLOAT array on the device: in `target`, or else in a new array."""
    if device_index(scale) != device:
        # From the host: of a graph the copy would read what is there when it runs.
        workspace.check_capture()
        scale = cast_on_gpu.to_host(scale) if device_index(scale) is not None else scale
        scale = np.ascontiguousarray(np.broadcast_to(np.asarray(scale, np.float32), target.shape))
        return cast_on_gpu.to_device(scale, device).reshape(target.shape)
    import cupy

    copy(cupy.broadcast_to(scale, target.shape), target)
    return target


def is_dense(x: Any, alignment: int = 0) -> bool:
    """Whether an array is in C order, and aligned to its element size, or to so many bytes."""
    return isinstance(x, PackedArray) or bool(x.flags.c_contiguous and address(x) % (alignment or x.itemsize) == 0)


def dense(x: Any, workspace: Workspace, name: str) -> Any:
    """The array, or a dense copy of it."""
    if is_dense(x):
        return x
    made = workspace.array(name, x.shape, dtype(x.dtype))
    copy(x, made)
    return made


def copy(x: Any, target: Any) -> None:
    """Copy an array's elements to another one of its shape."""
    source, to = operand(x), operand(target)
    cast_on_gpu.apply(source, resolve(source.dtype, to.dtype), to)


def address(x: Any) -> int:
    """The address of an array's first byte; 0 for None."""
    if x is None:
        return 0
    return int((x.data if isinstance(x, PackedArray) else x).data.ptr)
