# SPDX-License-Identifier: Apache-2.0
"""onnxruntime: tensors of all its types, from and to the arrays of gpucast.

`ortvalue` makes an OrtValue of a host array, `from_ortvalue` an array of an OrtValue, `bind_input` and `bind_output`
bind arrays of the host or of a CUDA device to an IOBinding. onnxruntime's own functions refuse ml_dtypes arrays and
most of the types that NumPy lacks; these functions pass addresses and ONNX type numbers instead.

    value = ort.ortvalue(gpucast.cast(x, "FLOAT8E4M3FN"))
    (y,) = session.run_with_ort_values(["y"], {"x": value})
    ort.from_ortvalue(y)

They take all types except FLOAT6E2M3, FLOAT6E3M2 and FLOAT8UE5M3, which onnxruntime 1.32 does not know, and STRING,
which it takes only in ``session.run``, as object arrays. For which operators support a type see docs/onnx.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.bitpacking import address_of, is_writable
from gpucast.arrays.packed import PackedArray, as_array, device_index, host_only
from gpucast.casting import engines
from gpucast.casting.creation import from_bytes
from gpucast.core.dtypes import DType, dtype

try:
    import onnxruntime
except ImportError as error:
    raise ImportError(f"gpucast.interop.ort needs onnxruntime ({error}): pip install onnxruntime") from error

__all__ = ["bind_input", "bind_output", "from_ortvalue", "ortvalue"]


def ortvalue(x: Any) -> onnxruntime.OrtValue:
    """An OrtValue with the type, shape and elements of a host array.

    NumPy and ml_dtypes arrays that are contiguous and native share their memory with it. Others are copied, as are
    types below one byte and PackedArrays. TypeError for types that onnxruntime does not know, and for an array on a
    device (see `bind_input`).
    """
    x = as_array(x, "ortvalue")
    kind = _known_dtype(x, "ortvalue")
    host_only(x, "ortvalue: x is on a device; bind it with bind_input, or cast it to device='cpu'")
    if not kind.packed:
        plain = np.ascontiguousarray(x, kind.numpy).reshape(x.shape).view(kind.code_numpy)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, kind.number)
    packed = x if isinstance(x, PackedArray) else PackedArray.pack(x)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(x.shape), kind.number)
    _memory(value)[...] = packed.data
    return value


def from_ortvalue(value: onnxruntime.OrtValue) -> Any:
    """An array over the memory of an OrtValue on the host, which it keeps alive.

    It is a NumPy array, with an ml_dtypes dtype for types that NumPy lacks, or a PackedArray for types below one byte.
    For STRING it is a copy. TypeError for a value that is no tensor or not on the host.
    """
    if not isinstance(value, onnxruntime.OrtValue) or not value.is_tensor():
        raise TypeError(f"from_ortvalue: value is {_named(value)}; expected an OrtValue that holds a tensor")
    if value.device_name() != "cpu":
        raise TypeError(f"from_ortvalue: value is on {value.device_name()}; expected one on cpu (see bind_output)")
    kind = dtype(value.element_type(), caller="from_ortvalue: element_type=")
    if kind.family == "string":
        return value.numpy()
    return from_bytes(_memory(value), kind, tuple(value.shape()))


def bind_input(binding: onnxruntime.IOBinding, name: str, x: Any) -> None:
    """Bind a contiguous array of the host or of a CUDA device as an input, without a copy.

    Types below one byte must be PackedArrays. Keep the array alive until the run is over. onnxruntime uses a stream of
    its own, so wait for the work that fills x first (``stream.synchronize()``).
    TypeError for types that onnxruntime does not know; ValueError for arrays that are not contiguous and native.
    """
    _bind(binding, name, x, "bind_input")


def bind_output(binding: onnxruntime.IOBinding, name: str, out: Any) -> None:
    """As `bind_input`, for an output: the run writes into `out` (see `gpucast.empty`)."""
    _bind(binding, name, out, "bind_output")


def _bind(binding: onnxruntime.IOBinding, name: str, x: Any, caller: str) -> None:
    if not hasattr(binding, caller):
        raise TypeError(f"{caller}: binding is {_named(binding)}; expected an onnxruntime.IOBinding")
    if not isinstance(x, PackedArray):
        array = as_array(x, caller)
        if array is not x:
            raise TypeError(f"{caller}: x is a {type(x).__name__}; expected a NumPy or CuPy array or a PackedArray")
    kind, device = _known_dtype(x, caller), device_index(x)
    if kind.packed and not isinstance(x, PackedArray):
        raise TypeError(
            f"{caller}: x holds {kind.name} one element per byte; expected a PackedArray (PackedArray.pack(x))"
        )
    data = x.data if isinstance(x, PackedArray) else x
    if not (data.flags.c_contiguous and data.dtype.isnative):
        raise ValueError(f"{caller}: x of shape {x.shape} is not contiguous and native; expected such memory")
    if caller == "bind_output" and not is_writable(data):
        raise ValueError(f"{caller}: out is read-only")
    place = engines.of(device).pick(("cpu", 0), ("cuda", device))
    getattr(binding, caller)(name, *place, kind.number, list(x.shape), address_of(data))


def _known_dtype(x: Any, caller: str) -> DType:
    kind = dtype(x.dtype, caller=f"{caller}: x.dtype=")
    if kind.family == "string":
        raise TypeError(f"{caller}: x is STRING; onnxruntime takes it in session.run alone, as an object array of str")
    if not _is_known(kind):
        raise TypeError(f"{caller}: onnxruntime {onnxruntime.__version__} does not know {kind.name}")
    return kind


@lru_cache
def _is_known(kind: DType) -> bool:
    if kind.number is None:
        return False
    try:
        onnxruntime.OrtValue.ortvalue_from_shape_and_type([0], kind.number)
    except Exception:  # onnxruntime has exceptions of its own for this
        return False
    return True


def _memory(value: onnxruntime.OrtValue) -> npt.NDArray[np.uint8]:
    """The bytes of an OrtValue on the host."""
    size = value.tensor_size_in_bytes()
    memory: npt.NDArray[np.uint8] = engines.HOST.view(value.data_ptr(), (size,), None, dtype("UINT8"), value)
    return memory


def _named(value: Any) -> str:
    return "an OrtValue without a tensor" if isinstance(value, onnxruntime.OrtValue) else f"a {type(value).__name__}"
