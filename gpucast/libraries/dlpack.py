# SPDX-License-Identifier: Apache-2.0
"""DLPack: exchanges arrays with any library that supports it, also of types that NumPy and CuPy lack.

NumPy's and CuPy's own import and export are limited to their own types and bfloat16. So this module reads capsules
field by field, and makes them by letting NumPy or CuPy export the codes and then writing the true type into the
capsule. It supports both kinds of capsules, and prefers the versioned one.

Source: dlpack.h 1.3; the Python specification of DLPack (``__dlpack__``, ``from_dlpack``).
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.bitpacking import codes_of, namespace
from gpucast.arrays.libraries import Lent, Library
from gpucast.arrays.packed import PackedArray, as_array
from gpucast.casting import engines
from gpucast.casting.engine import Engine
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.kernel import devices, streams

# DLDeviceType.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_ON_HOST, _ON_DEVICE = (_CPU, _CUDA_HOST), (_CUDA, _CUDA_MANAGED)
#: The newest DLPack version that is supported.
_VERSION = (1, 3)
_READ_ONLY, _PADDED = 1 << 0, 1 << 2

# DLDataTypeCode. Integer types share a code, and so do IEEE floats; their bits distinguish them.
_INT, _UINT, _FLOAT = 0, 1, 2
_CODES = {
    "bfloat16": 4,
    "bool": 6,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
    "float6_e2m3fn": 15,
    "float6_e3m2fn": 16,
    "float4_e2m1fn": 17,
}


def from_dlpack(x: Any) -> Any:
    """An array of NumPy (from the host) or CuPy (from a device) over the memory of another library's array.

    All types are taken: float8, bfloat16 and FLOAT8E8M0 as arrays with the ml_dtypes dtype, which CuPy's own
    ``from_dlpack`` refuses; types below one byte as a PackedArray if the library packs them. `x` is a tensor, a JAX
    array, or any object with ``__dlpack__``. It is used after the work that its library has queued on the device.

    TypeError for an object without memory to lend, and for a type that Cast does not take.
    """
    if libraries.find(x) is None and not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: {type(x).__name__} has no __dlpack__; expected an array of a library")
    with libraries.visit(None, x):
        return as_array(x, "from_dlpack")


def to_dlpack(x: Any) -> Export:
    """An object with ``__dlpack__`` over an array of NumPy or CuPy of any whole-byte type, or FLOAT4E2M1 as a
    PackedArray: ``torch.from_dlpack(gpucast.to_dlpack(y))``, ``jax.dlpack.from_dlpack(gpucast.to_dlpack(y))``.

    TypeError for anything else; BufferError for a type that DLPack does not have, or that libraries do not take, and
    for an array whose byte order is not this machine's.
    """
    if not isinstance(x, PackedArray) and namespace(x) is None:
        raise TypeError(f"to_dlpack: {type(x).__name__} is no array of NumPy or CuPy, and no PackedArray")
    return Export(x)


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("view", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


#: By the name of an unused capsule: its structure, and its name once it is used.
_CAPSULES = {b"dltensor": (_Managed, b"used_dltensor"), b"dltensor_versioned": (_Versioned, b"used_dltensor_versioned")}

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes, _set_name.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def functions(kind: type) -> tuple[int, int]:
    """The addresses of ``dltensor_from_py_object_no_sync`` and ``current_work_stream`` for instances of a class; 0
    where it offers none."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or not _is_valid(capsule, b"dlpack_exchange_api"):
        return 0, 0
    exchange: Any = _Exchange.from_address(_pointer(capsule, b"dlpack_exchange_api"))
    return (exchange.view or 0, exchange.stream or 0) if exchange.major == _VERSION[0] else (0, 0)


def code_of(kind: DType) -> int | None:
    """The DLDataTypeCode of a type; None if DLPack has none."""
    if kind.family == "int":
        return _INT if kind.signed else _UINT
    return _FLOAT if kind.numpy_name == f"float{kind.bits}" else _CODES.get(kind.numpy_name)


def take(x: Any, caller: str, writing: bool = False) -> Any:
    """An array over the memory of an object that supports DLPack: NumPy for the host, CuPy for a device.

    The producer gets CuPy's current stream, and makes it wait for its own work. Types below one byte give a PackedArray
    if the producer packs them.
    """
    try:
        device_type, device_id = (int(number) for number in x.__dlpack_device__())
    except Exception as error:
        raise TypeError(f"{caller}: {type(x).__name__} does not say through DLPack where it is: {error}") from error
    there = engines.of(_index(device_type, device_id, caller))
    there.require(caller)
    stream = there.stream(None)
    with there.using(stream):
        # 1 is DLPack's name of CUDA's default stream, whose handle is 0.
        return _import(x, there, caller, writing, {} if stream is None else {"stream": stream or 1})


def _index(device_type: int, device_id: int, caller: str) -> int | None:
    """The index of a CUDA device; None for the host. ValueError for other devices."""
    if device_type in _ON_HOST:
        return None
    if device_type in _ON_DEVICE:
        return device_id
    raise ValueError(f"{caller}: x is on a device of DLPack type {device_type}; expected the host (1) or CUDA (2)")


def lent(x: Any) -> Lent | None:
    """The CUDA device of an object that supports DLPack; its owner orders the work when it lends the memory."""
    try:
        device_type, device_id = (int(number) for number in x.__dlpack_device__())
    except Exception:
        return None
    return Lent(device_id, None) if device_type in _ON_DEVICE else None


def _import(x: Any, there: Engine, caller: str, writing: bool, keywords: dict[str, Any]) -> Any:
    try:
        try:
            capsule = x.__dlpack__(**keywords, max_version=_VERSION)
        except TypeError:
            # A library that predates versioned capsules.
            capsule = x.__dlpack__(**keywords)
    except Exception as error:
        raise TypeError(f"{caller}: {type(x).__name__} does not lend its memory through DLPack: {error}") from error
    return _read(capsule, there, caller, writing)


def _read(capsule: Any, there: Engine, caller: str, writing: bool) -> Any:
    name = next((name for name in _CAPSULES if _is_valid(capsule, name)), None)
    if name is None:
        raise TypeError(f"{caller}: __dlpack__ gave {capsule!r}; expected a capsule that nobody has taken")
    structure, used = _CAPSULES[name]
    managed: Any = structure.from_address(_pointer(capsule, name))
    _set_name(capsule, used)
    # From here on this object has to release the memory.
    owner = _Loan(managed)
    flags = 0
    if isinstance(managed, _Versioned):
        if managed.major != _VERSION[0]:
            raise ValueError(
                f"{caller}: __dlpack__ gave version {managed.major}.{managed.minor}; expected {_VERSION[0]}.x"
            )
        flags = managed.flags
    if writing and flags & _READ_ONLY:
        raise ValueError(f"{caller}: out is read-only")
    _check(managed.tensor, there, caller)
    return _array(managed.tensor, flags, there, owner, caller)


def _check(tensor: _Tensor, there: Engine, caller: str) -> None:
    """ValueError for fields that contradict each other or `__dlpack_device__`: other memory would be read."""
    if tensor.ndim < 0 or (tensor.ndim and not tensor.shape):
        shape = "no shape" if tensor.ndim >= 0 else "a shape"
        raise ValueError(f"{caller}: __dlpack__ gave {tensor.ndim} dimensions and {shape}; expected a length for each")
    if _index(tensor.device_type, tensor.device_id, caller) != there.device:
        raise ValueError(
            f"{caller}: __dlpack__ gave memory on device {tensor.device_id} of DLPack type {tensor.device_type}; "
            f"__dlpack_device__ said {devices.name(there.device)}"
        )
    lengths = tensor.shape[: tensor.ndim]
    if any(length < 0 for length in lengths):
        raise ValueError(f"{caller}: __dlpack__ gave the shape {tuple(lengths)}; expected lengths of 0 or more")
    if not tensor.data and 0 not in lengths:
        raise ValueError(f"{caller}: __dlpack__ gave no memory for the shape {tuple(lengths)}; expected an address")


class _Loan:
    """Memory of another library, released when the last array over it is gone."""

    def __init__(self, managed: Any) -> None:
        if managed.deleter:
            give_back = weakref.finalize(self, _DELETER(managed.deleter), ctypes.addressof(managed))
            # Not at exit: arrays may outlive the atexit calls, and the end of the process frees all memory anyway.
            give_back.atexit = False


def _array(tensor: _Tensor, flags: int, there: Engine, owner: object, caller: str) -> Any:
    kind = _dtype_of(tensor, caller)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    readonly = bool(flags & _READ_ONLY)
    if not kind.packed or flags & _PADDED:
        byte_strides = None if strides is None else tuple(stride * kind.numpy.itemsize for stride in strides)
        return there.view(address, shape, byte_strides, kind, owner, readonly)
    if tensor.lanes > 1:
        shape = (*shape[:-1], shape[-1] * tensor.lanes) if shape else (tensor.lanes,)
    size = int(np.prod(shape, dtype=np.int64))
    if strides is not None and size and not _is_compact(tuple(tensor.shape[: tensor.ndim]), strides):
        raise ValueError(f"{caller}: x has strides; expected {kind.name}, which lies packed, in row-major order")
    data = there.view(address, (kind.nbytes(size),), None, dtype("UINT8"), owner, readonly)
    return PackedArray(data, kind, shape)


def _dtype_of(tensor: _Tensor, caller: str) -> DType:
    for kind in DTYPES:
        if kind.family == "string" or (code_of(kind), kind.bits) != (tensor.code, tensor.bits):
            continue
        if tensor.lanes == 1 or (kind.packed and tensor.lanes * kind.bits == 8):
            return kind
    if tensor.code == 5:
        raise TypeError(f"{caller}: x.dtype='complex{tensor.bits}' is complex; Cast takes no complex type")
    raise TypeError(
        f"{caller}: x has the DLPack type code={tensor.code}, bits={tensor.bits}, lanes={tensor.lanes}, which "
        "is no type that Cast takes"
    )


def _is_compact(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def give_back(y: Any, like: Any, caller: str) -> Any:
    """The array converted by `from_dlpack` of the library of `like`; the array itself if that library has none."""
    from_dlpack = _from_dlpack_of(like)
    if from_dlpack is None or isinstance(y, PackedArray) or y.dtype == object:
        return y
    try:
        return from_dlpack(Export(y))
    except Exception as error:
        raise TypeError(
            f"{caller}: {type(like).__module__} does not take {y.dtype} back through DLPack ({error}); "
            "pass an array of NumPy or CuPy"
        ) from error


def _from_dlpack_of(x: Any) -> Any:
    """`from_dlpack` of the library that an object belongs to, or None."""
    namespace = getattr(x, "__array_namespace__", None)
    try:
        module = sys.modules.get(type(x).__module__.partition(".")[0]) if namespace is None else namespace()
    except Exception:
        return None
    return getattr(module, "from_dlpack", None)


class Export:
    """Exports a NumPy or CuPy array of any whole-byte type, or the pairs of a PackedArray, through DLPack."""

    def __init__(self, array: Any, library: str | None = None) -> None:
        self._library = library
        self._dtype = array.dtype if isinstance(array, PackedArray) else dtype(array.dtype)
        self._code = code_of(self._dtype)
        self._lanes = 1
        if isinstance(array, PackedArray):
            if array.dtype.numpy_name != "float4_e2m1fn":
                raise BufferError(
                    f"PackedArray: no library takes {self._dtype.name} through DLPack; exchange x.data, the packed "
                    "bytes, and say the type beside it"
                )
            if not array.shape or array.shape[-1] % 2:
                raise BufferError(
                    f"PackedArray: DLPack has pairs of {self._dtype.name}; the last axis of {array.shape} is not even"
                )
            self._lanes = 2
            self._codes = array.data.reshape(*array.shape[:-1], array.shape[-1] // 2)
        else:
            if self._code is None or self._dtype.packed:
                raise BufferError(f"dlpack: {self._dtype.name} cannot be exported")
            if not array.dtype.isnative and array.dtype.itemsize > 1:
                raise BufferError(
                    f"dlpack: x.dtype={array.dtype.str!r} has a byte order that DLPack cannot tell; expected this "
                    "machine's: x.astype(x.dtype.newbyteorder('='))"
                )
            self._codes = codes_of(array, self._dtype.code_numpy)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._codes.__dlpack_device__()
        return int(kind), int(index)

    def __dlpack__(self, **keywords: Any) -> Any:
        # CuPy lets the consumer wait for its own current stream.
        with streams.visit(streams.Owned(self._codes, self._library)):
            capsule = self._codes.__dlpack__(**keywords)
        name = next(name for name in _CAPSULES if _is_valid(capsule, name))
        managed: Any = _CAPSULES[name][0].from_address(_pointer(capsule, name))
        managed.tensor.code, managed.tensor.bits, managed.tensor.lanes = self._code, self._dtype.bits, self._lanes
        return capsule


class DlpackLibrary(Library):
    """Objects with ``__dlpack__`` and ``__dlpack_device__``. Results come from `from_dlpack` of the object's
    library.
    """

    settles = True
    take = staticmethod(take)
    lent = staticmethod(lent)
    give_back = staticmethod(give_back)

    def accepts(self, x: Any) -> bool:
        """Whether it is on a device, or NumPy cannot take it, or its library can take the result back."""
        try:
            kind = int(x.__dlpack_device__()[0])
        except Exception:
            return not hasattr(x, "__array__")
        return kind not in _ON_HOST or not hasattr(x, "__array__") or _from_dlpack_of(x) is not None

    def export(self, x: Any, library: str | None = None) -> Export:
        return Export(x, library)


LIBRARY = DlpackLibrary()
