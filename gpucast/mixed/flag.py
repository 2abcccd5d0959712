# SPDX-License-Identifier: Apache-2.0
"""The flag that tells whether all gradients are finite: one byte, on the host or on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays.packed import as_array
from gpucast.arrays.tree import dtype_of
from gpucast.casting import engines
from gpucast.core.dtypes import dtype

_ROWS = (dtype("BOOL"), dtype("UINT8"))


def checked_flag(finite: Any, caller: str) -> Any:
    """`finite`, a bool or an array of any library with one BOOL or UINT8 element, as a NumPy or CuPy array."""
    if isinstance(finite, (bool, np.bool_)):
        return np.asarray(finite)
    kind = dtype_of(finite)
    if kind not in _ROWS:
        got = type(finite).__name__ if kind is None else kind.name
        raise TypeError(f"{caller}: finite is {got}; expected a bool, or an array of one BOOL or UINT8 element")
    flag = as_array(finite, caller)
    if flag.size != 1:
        raise ValueError(f"{caller}: finite has shape {tuple(flag.shape)}; expected one element")
    return flag


def new_flag(device: int | None) -> Any:
    """A new BOOL array of shape () that is true, on the host (None) or on a device, without waiting for the device."""
    return engines.of(device).take(np.asarray(True))
