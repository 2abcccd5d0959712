# SPDX-License-Identifier: Apache-2.0
"""Where the elements of NumPy's arrays begin, without the objects that ``x.ctypes`` makes, which take longer than small
casts."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.codegen.host import batch_unit
from gpucast.native import library as host_native

Array = npt.NDArray[Any]

#: Where an array holds the address: behind what all objects of CPython have, as NumPy's headers say.
_DATA = object.__basicsize__
_at = ctypes.c_void_p.from_address


def _by_ctypes(x: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def _in_object(x: Array) -> ctypes.c_void_p:
    return _at(id(x) + _DATA)


def _is_in_object() -> bool:
    probe = np.empty(1)
    return sys.implementation.name == "cpython" and _in_object(probe).value == probe.ctypes.data


#: The address of an array's first element, to be used only while the array lives: it may be a part of that object.
pointer = _in_object if _is_in_object() else _by_ctypes


def addresses(arrays: Sequence[Array]) -> npt.NDArray[np.uint64]:
    """The addresses of the first elements of arrays, all of them of NumPy's own class."""
    batch = host_native.library(batch_unit) if pointer is _in_object else None
    if batch is None:
        return np.array([pointer(x).value or 0 for x in arrays], np.uint64)
    objects, found = np.fromiter(map(id, arrays), np.uint64, len(arrays)), np.empty(len(arrays), np.uint64)
    batch.addresses_in(pointer(objects), ctypes.c_uint64(_DATA), pointer(found), ctypes.c_uint64(found.size))
    return found
