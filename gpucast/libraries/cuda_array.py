# SPDX-License-Identifier: Apache-2.0
"""``__cuda_array_interface__``: arrays on a device without DLPack, such as Numba's. Results are CuPy arrays.

The interface cannot name the types that NumPy lacks. Arrays whose typestr is '<V2' or '|V1' are refused; pass their
codes as integers through `gpucast.from_bytes`.

Source: Numba's CUDA Array Interface, versions 0 to 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast import kernel
from gpucast.arrays.libraries import Lent, Library
from gpucast.casting import engines
from gpucast.core.dtypes import dtype
from gpucast.kernel import devices


class CudaArrayLibrary(Library):
    """Objects with ``__cuda_array_interface__``. Results are CuPy arrays, which have the interface too."""

    def take(self, x: Any, caller: str, writing: bool = False) -> Any:
        interface = x.__cuda_array_interface__
        devices.require(caller)
        driver = kernel.driver.driver()
        try:
            address, readonly = interface["data"]
            shape, strides = tuple(interface["shape"]), interface.get("strides")
            kind = np.dtype(interface["typestr"])
            stream = interface.get("stream")
        except (KeyError, TypeError, ValueError) as error:
            raise TypeError(
                f"{caller}: the __cuda_array_interface__ of {type(x).__name__} is malformed: {error}"
            ) from None
        if interface.get("mask") is not None:
            raise TypeError(f"{caller}: x has a mask in its __cuda_array_interface__, which would be lost")
        if kind.kind == "V":
            raise TypeError(
                f"{caller}: x has typestr {interface['typestr']!r} in its __cuda_array_interface__, which names no "
                "type; pass "
                "its codes as integers, with the type, through gpucast.from_bytes"
            )
        if stream == 0:
            raise ValueError(
                f"{caller}: stream 0 is not allowed in __cuda_array_interface__; expected None, 1, 2 or a handle"
            )
        src = dtype(kind, caller=f"{caller}: x.dtype=")
        if src.family == "string" or not kind.isnative:
            raise TypeError(f"{caller}: x has typestr {interface['typestr']!r}; expected numbers in native byte order")
        if writing and readonly:
            raise ValueError(f"{caller}: out is read-only")
        index = driver.current() if 0 in shape else driver.device_of(address)
        return engines.of(index).view(address, shape, None if strides is None else tuple(strides), src, x)

    def lent(self, x: Any) -> Lent | None:
        try:
            interface = x.__cuda_array_interface__
            stream, shape = interface.get("stream"), interface["shape"]
            if not stream or 0 in shape or kernel.driver.unavailable() is not None:
                return None
            return Lent(kernel.driver.driver().device_of(interface["data"][0]), int(stream))
        except Exception:  # `take` tells what is wrong.
            return None


LIBRARY = CudaArrayLibrary()
