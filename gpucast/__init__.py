# SPDX-License-Identifier: Apache-2.0
"""Casts and quantization in 27 number types, with the same bits on NVIDIA GPUs and on the CPU."""

from __future__ import annotations

from gpucast.core import interruption as interruption  # isort: split

import importlib
from typing import TYPE_CHECKING, Any

from gpucast.core.arithmetic import exact

# What modules compute as they are imported, and the constants that Python keeps of their texts, stay for all threads.
with exact():
    from gpucast import device as device
    from gpucast import dtypes as dtypes
    from gpucast import reference
    from gpucast.arrays import composites, libraries
    from gpucast.arrays.packed import PackedArray
    from gpucast.casting.cast import cast, cast_like
    from gpucast.casting.cast_many import cast_many
    from gpucast.casting.creation import empty, empty_like, from_bytes
    from gpucast.core import packages
    from gpucast.core.dtypes import DTYPES, DType, dtype, finfo, iinfo
    from gpucast.core.errors import DeviceUnavailable
    from gpucast.core.rule import DEFAULT_OPSET
    from gpucast.core.version import __version__ as __version__
    from gpucast.warmup.compile_ahead import warmup

if TYPE_CHECKING:
    from gpucast import layers, mixed, quantization
    from gpucast.casting.cast_report import cast_report
    from gpucast.casting.loss_counts import CastReport
    from gpucast.files.named_arrays import load, save
    from gpucast.libraries.dlpack import from_dlpack, to_dlpack
    from gpucast.quantization import Quantized, cast_grouped, dequantize, hadamard, quantize, quantize_grouped
    from gpucast.user_kernels.device_functions import device_function, device_functions
    from gpucast.user_kernels.ufunc import ufunc

__all__ = [
    "DEFAULT_OPSET",
    "DTYPES",
    "CastReport",
    "DType",
    "DeviceUnavailable",
    "PackedArray",
    "Quantized",
    "cast",
    "cast_grouped",
    "cast_like",
    "cast_many",
    "cast_report",
    "dequantize",
    "device_function",
    "device_functions",
    "dtype",
    "empty",
    "empty_like",
    "finfo",
    "from_bytes",
    "from_dlpack",
    "hadamard",
    "iinfo",
    "layers",
    "load",
    "mixed",
    "quantization",
    "quantize",
    "quantize_grouped",
    "reference",
    "save",
    "to_dlpack",
    "ufunc",
    "warmup",
]

packages.publish(globals())


def _torch() -> libraries.Library:
    from gpucast.libraries.torch import LIBRARY

    return LIBRARY


def _jax() -> libraries.Library:
    from gpucast.libraries.jax import LIBRARY

    return LIBRARY


def _dask() -> libraries.Library:
    from gpucast.libraries.dask import LIBRARY

    return LIBRARY


def _dlpack() -> libraries.Library:
    from gpucast.libraries.dlpack import LIBRARY

    return LIBRARY


def _cuda_array() -> libraries.Library:
    from gpucast.libraries.cuda_array import LIBRARY

    return LIBRARY


#: torch.compile does not trace a function without operations on tensors, but it does trace the functions that it calls.
#: Then no tracing is active, but a callback for frames is.
_TORCH_COMPILES = (("compiler", "is_compiling"), ("_C", "_dynamo", "eval_frame", "get_eval_frame_callback"))

# The libraries, beside NumPy and CuPy, whose arrays gpucast takes. These entries import none of them.
libraries.register(
    libraries.LibraryEntry("torch", "Tensor", _torch, dtype="torch.dtype", is_compiling=_TORCH_COMPILES),
    libraries.LibraryEntry("jax", "Array", _jax),
    libraries.LibraryEntry("dask.array", "Array", _dask, has_arrays=False),
    libraries.Protocol(("__dlpack__", "__dlpack_device__"), _dlpack),
    libraries.Protocol(("__cuda_array_interface__",), _cuda_array),
)


def _quantized() -> composites.Composite:
    from gpucast.quantization.quantized_files import COMPOSITE

    return COMPOSITE


# The objects of several arrays that files hold.
composites.register(composites.Kind("gpucast.quantized.", "gpucast.quantization.quantized", "Quantized", _quantized))


def __dir__() -> list[str]:
    """The names that are for users."""
    return [*__all__, "__version__"]


#: The modules of names that no cast needs.
_LATER = {
    **dict.fromkeys(
        ("Quantized", "cast_grouped", "dequantize", "hadamard", "quantize", "quantize_grouped"), "quantization"
    ),
    **dict.fromkeys(("device_function", "device_functions"), "user_kernels.device_functions"),
    **dict.fromkeys(("load", "save"), "files.named_arrays"),
    **dict.fromkeys(("from_dlpack", "to_dlpack"), "libraries.dlpack"),
    "CastReport": "casting.loss_counts",
    "cast_report": "casting.cast_report",
    "ufunc": "user_kernels.ufunc",
}

# Hidden from type checkers: they would take any name for a public one.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import these names when they are first used, so that ``import gpucast`` stays quick."""
        with exact():
            if name in ("layers", "mixed", "quantization"):
                return importlib.import_module(f"gpucast.{name}")
            if name in _LATER:
                # Kept, so that torch.compile meets a function of this module, and not this one.
                globals()[name] = found = getattr(importlib.import_module(f"gpucast.{_LATER[name]}"), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
