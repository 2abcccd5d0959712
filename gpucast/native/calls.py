# SPDX-License-Identifier: Apache-2.0
"""How compiled code gets NumPy's arrays, and tensors by DLPack: as objects that it reads itself
(``kernels/host/calls.hpp``), because ctypes and ``x.ctypes`` take longer than small casts."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.codegen.host import batch_unit
from gpucast.core.dtypes import DTYPES
from gpucast.core.rule import CastRule
from gpucast.native import library as host_native
from gpucast.native import threads

Array = npt.NDArray[Any]

#: The bytes of an object of CPython before its own fields.
_HEADER = object.__basicsize__
#: The version of NumPy's binary interface that is known, and places in its table of functions (__multiarray_api.h).
_ABI, _VERSION, _NEW_ARRAY = 0x02000000, 0, 94
#: The dtypes that NumPy has one object of each, in an order.
_DTYPES = tuple(kind.numpy for kind in DTYPES if kind.family != "string")

_at = ctypes.c_void_p.from_address
_bound = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
_describe = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_ssize_t)
_addresses = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_void_p)
_describe_tensors = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_addresses_of_tensors = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
_new_arrays = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)


class _Array(ctypes.Structure):
    """An array's own fields, as NumPy's headers have them."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("dimensions", ctypes.c_int), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("base", ctypes.c_void_p), ("dtype", ctypes.c_void_p), ("flags", ctypes.c_int),
    )  # fmt: skip

    @staticmethod
    def are_known() -> bool:
        probe = np.empty((2, 3), np.int16)
        if sys.implementation.name != "cpython" or np.ndarray.__basicsize__ < _HEADER + ctypes.sizeof(_Array):
            return False
        found = _Array.from_address(id(probe) + _HEADER)
        return (found.data, found.dimensions, found.dtype, found.flags) == (
            probe.ctypes.data, 2, id(probe.dtype), probe.flags.num,
        )  # fmt: skip


#: The functions of `_Python` that are CPython's.
_FUNCTIONS = (
    "Py_IncRef", "Py_DecRef", "PyTuple_GetItem", "PyList_Size", "PyList_New", "PyList_GetItem", "PyList_SetItem",
    "PyBytes_FromStringAndSize", "PyBytes_AsString", "PyCFunction_NewEx", "PyObject_CallFunctionObjArgs",
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_Clear",
)  # fmt: skip


class _Python(ctypes.Structure):
    """``Python`` of ``kernels/host/calls.hpp``."""

    _fields_ = (
        ("header", ctypes.c_uint64), ("none", ctypes.py_object), ("ndarray", ctypes.py_object),
        *((name, ctypes.c_void_p) for name in _FUNCTIONS), ("new_array", ctypes.c_void_p),
    )  # fmt: skip


class _Call(ctypes.Structure):
    """``Call`` of ``kernels/host/calls.hpp``."""

    _fields_ = (
        ("cast", ctypes.c_void_p), ("src_bytes", ctypes.c_uint64), ("dst_bytes", ctypes.c_uint64),
        ("large", ctypes.c_uint64),
    )  # fmt: skip

    @staticmethod
    def of(cast: Any, rule: CastRule) -> _Call:
        itemsizes = rule.src.code_numpy.itemsize, rule.dst.code_numpy.itemsize
        return _Call(ctypes.cast(cast, ctypes.c_void_p), *itemsizes, threads.least())


class _TensorCall(ctypes.Structure):
    """``TensorCall`` of ``kernels/host/calls.hpp``."""

    _fields_ = (("call", _Call), ("view", ctypes.c_void_p))


def _in_object(x: Array) -> ctypes.c_void_p:
    return _at(id(x) + _HEADER)


def _by_ctypes(x: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


#: The address of an array's first element, to be used only while the array lives: it may be a part of that object.
pointer = _in_object if _Array.are_known() else _by_ctypes


@lru_cache(maxsize=1)
def _python() -> _Python | None:
    """What compiled code needs to take objects; None where that is not known to be right."""
    if pointer is not _in_object or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        api = ctypes.pythonapi
        content = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
        table = content(sys.modules["numpy._core._multiarray_umath"]._ARRAY_API, None)
        functions = [ctypes.cast(getattr(api, name), ctypes.c_void_p) for name in _FUNCTIONS]
    except (AttributeError, KeyError, ValueError):
        return None
    entries = (ctypes.c_void_p * (_NEW_ARRAY + 1)).from_address(table)
    if ctypes.CFUNCTYPE(ctypes.c_uint)(entries[_VERSION] or 0)() != _ABI:
        return None
    return _Python(_HEADER, None, np.ndarray, *functions, entries[_NEW_ARRAY])


@lru_cache(maxsize=256)
def _is_started(library: ctypes.CDLL) -> bool:
    """Whether a library's functions take objects."""
    python = _python()
    if python is not None:
        library.start(ctypes.byref(python))
    return python is not None


def of_arrays(
    library: ctypes.CDLL, cast: Any, rule: CastRule, checked: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """``run(x, out)`` of a cast that `library` has: what `checked` is for any objects, but quicker for most arrays."""
    if not _is_started(library):
        return checked
    call = bytes(_Call.of(cast, rule))
    run: Callable[[Any, Any], Any] = _bound(("bind", library))((call, rule.src.numpy, rule.dst.numpy, checked))
    return run


def of_tensors(
    library: ctypes.CDLL, cast: Any, rule: CastRule, view: int, empty_like: Callable[[Any], Any]
) -> Callable[[Any], Any] | None:
    """As `compiled.CompiledCast.of_tensors`, of a cast that `library` has."""
    if not _is_started(library):
        return None
    call = bytes(_TensorCall(_Call.of(cast, rule), view))
    run: Callable[[Any], Any] = _bound(("bind_tensors", library))((call, empty_like))
    return run


class Lists:
    """What the compiled code tells of lists of NumPy's arrays, and makes of them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._describe = _describe(("describe", library))
        self._addresses = _addresses(("addresses_of", library))
        self._new = _new_arrays(("new_arrays", library))

    def describe(self, arrays: Sequence[Any]) -> bytes:
        """Equal for arrays that are alike in dtypes and shapes, and in whether they can be written.

        TypeError for other objects, and for arrays that are not row-major, aligned and native.
        """
        found: bytes | None = self._describe(arrays, _DTYPES, len(_DTYPES))
        if found is None:
            raise TypeError("an array of another kind")
        return found

    def addresses(self, arrays: Sequence[Any]) -> npt.NDArray[np.uint64]:
        """Those of the first elements of arrays that have been described."""
        found = np.empty(len(arrays), np.uint64)
        self._addresses(arrays, pointer(found))
        return found

    def new(self, arrays: Sequence[Any], dtype: np.dtype[Any]) -> list[Any]:
        """New arrays of a dtype, of the shapes of arrays that have been described."""
        made: list[Any] = self._new(arrays, dtype)
        return made


class TensorLists:
    """The same of tensors of another library; `view` as for `of_tensors`."""

    def __init__(self, library: ctypes.CDLL, view: int) -> None:
        self._describe = _describe_tensors(("describe_tensors", library))
        self._addresses = _addresses_of_tensors(("addresses_of_tensors", library))
        self._view = view

    def describe(self, arrays: Sequence[Any]) -> bytes | None:
        """Equal for tensors that are alike in class, dtypes and shapes; None for those that are not of one class,
        row-major and on the host."""
        found: bytes | None = self._describe(arrays, self._view)
        return found

    def addresses(self, arrays: Sequence[Any]) -> npt.NDArray[np.uint64]:
        """Those of the first elements; 0 for tensors that have no memory."""
        found = np.empty(len(arrays), np.uint64)
        self._addresses(arrays, self._view, pointer(found))
        return found


def lists(nbytes: int = 0) -> Lists | None:
    """None where the library has none of this, or is not compiled; `nbytes`: bytes of arrays about to be cast."""
    library = _started(nbytes)
    return None if library is None else Lists(library)


def tensor_lists(view: int) -> TensorLists | None:
    """As `lists`, of tensors."""
    library = _started(0)
    return None if library is None else _tensor_lists(library, view)


_tensor_lists = lru_cache(maxsize=8)(TensorLists)


def _started(nbytes: int) -> ctypes.CDLL | None:
    library = host_native.library(batch_unit, nbytes=nbytes)
    return library if library is not None and _is_started(library) else None
