# SPDX-License-Identifier: Apache-2.0
"""Arrays on a device as kernels need them: dense, copied, and by their addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpucast.arrays.array import Array
from gpucast.arrays.packed import device_index
from gpucast.casting import cuda, engines
from gpucast.casting.cuda import Workspace
from gpucast.casting.engine import Call
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import resolve
from gpucast.kernel.cast_kernel import VECTOR
from gpucast.quantization.formats import Parts


def given(scale: Any, device: int, target: Any, workspace: Workspace) -> Any:
    """The caller's scales as a FLOAT array on the device: in `target`, or else in a new array."""
    if device_index(scale) != device:
        if np.size(scale) > 1 or device_index(scale) is not None:
            # From the host: of a graph the copy would read what is there when it runs.
            workspace.check_capture()
        scale = np.asarray(cuda.to_host(scale) if device_index(scale) is not None else scale, np.float32)
        if scale.size > 1:
            scale = np.ascontiguousarray(np.broadcast_to(scale, target.shape))
            return cuda.to_device(scale, device).reshape(target.shape)
        scale = workspace.number(float(scale.reshape(())))
    import cupy

    copy(cupy.broadcast_to(scale, target.shape), target)
    return target


def is_dense(x: Any, alignment: int = 0) -> bool:
    """Whether an array is in C order, and `cuda.is_aligned`."""
    return cuda.is_contiguous(x) and cuda.is_aligned(x, alignment)


def dense(x: Any, workspace: Workspace, name: str) -> Any:
    """The array, or a dense copy of it."""
    if is_dense(x):
        return x
    made = workspace.array(name, x.shape, dtype(x.dtype))
    copy(x, made)
    return made


def targets(parts: Parts, workspace: Workspace, name: str) -> Parts:
    """The parts of a result that is to be written, all in C order; in place of those at addresses that kernels do not
    take, memory of the workspace: `hand_over` copies what is written there."""
    given = {of: part for of, part in vars(parts).items() if part is not None}
    made = {
        of: workspace.array(f"{name}: {of}", part.shape, dtype(part.dtype))
        for of, part in given.items()
        if not cuda.is_aligned(part, VECTOR if of == "data" else 0)
    }
    return replace(parts, **made) if made else parts


def result(out: Any, shape: tuple[int, ...], kind: DType, workspace: Workspace, name: str) -> Any:
    """Memory in C order for a result: new, `out` itself, or of the workspace, from where `hand_over` copies it.

    RuntimeError in the capture of a CUDA graph if it would have to be allocated."""
    if out is None:
        workspace.check_capture()
        return cuda.new(shape, kind)
    return out if cuda.is_contiguous(out) else workspace.array(name, shape, kind)


def hand_over(written: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Copy the parts of a result that were written elsewhere."""
    for name, target in wanted.items():
        if target is not None and target is not written[name]:
            copy(written[name], target)


def copy(x: Any, target: Any) -> None:
    """Copy an array's elements to another one of its shape."""
    source, to = Array.of(x), Array.of(target)
    engines.of(source.device).run((Call("copy", source, resolve(source.dtype, to.dtype), target=to),))


def address(x: Any) -> int:
    """The address of an array's first byte; 0 for None."""
    return 0 if x is None else cuda.address(x)
