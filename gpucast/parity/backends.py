# SPDX-License-Identifier: Apache-2.0
"""The implementations that the harness compares with the reference, each as a function from codes to codes."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpucast import casting, kernel
from gpucast.arrays.array import Array
from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.arrays.packed import PackedArray
from gpucast.casting.cast import cast as gpucast_cast
from gpucast.casting.engine import Call
from gpucast.casting.host import HOST
from gpucast.core import extension
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.fuse import fuse_of
from gpucast.kernel import devices as device
from gpucast.kernel import nvidia
from gpucast.kernel.fused_kernel import FUSED, cast_kernel
from gpucast.parity import host_build
from gpucast.parity.cases import Case

NDArray = npt.NDArray[Any]
#: From flat codes of the case's source type, one element each, to as many codes of its destination type.
CastCodes = Callable[[Case, NDArray], NDArray]


class CastBackend(Protocol):
    """One implementation of every numeric cast."""

    name: str
    #: The device, in words.
    device: str
    #: How many cases to prepare at a time.
    batch: int

    def prepare(self, cases: Sequence[Case], optimize: bool) -> CastCodes:
        """Prepare the casts of these cases; returns the function that casts them, for one thread at a time."""


class HostBackend:
    """The extension module, or the reference if the module is missing."""

    name = "host"
    batch = 8

    def __init__(self) -> None:
        self.device = f"{extension.status()}, {platform.machine()}"

    def prepare(self, cases: Sequence[Case], optimize: bool) -> CastCodes:
        def cast(case: Case, codes: NDArray) -> NDArray:
            source = Array.of(codes.view(case.rule.src.numpy), case.rule.src)
            call = Call("parity", source, case.rule, fuse_of(random=case.random))
            HOST.run((call,))
            return np.asarray(call.written.data.view(case.rule.dst.code_numpy))

        return cast


class KernelsBackend:
    """The text of the CUDA kernels, built for the host by a C++ compiler."""

    name = "kernels"
    # Compiled together they take a quarter of the time that they would take one by one.
    batch = 20

    def __init__(self) -> None:
        self.device = f"host build by {os.path.basename(host_build.compiler()[0])}, {platform.machine()}"

    def prepare(self, cases: Sequence[Case], optimize: bool) -> CastCodes:
        # Kernels with stochastic rounding have a longer prelude, so they are compiled separately.
        kernels, fused = (
            host_build.build(
                [cast_kernel(case.rule) for case in cases if (case.random is not None) == at_random],
                optimize=optimize,
            )
            for at_random in (False, True)
        )

        def cast(case: Case, codes: NDArray) -> NDArray:
            src, dst = case.rule.src, case.rule.dst
            data = np.ascontiguousarray(pack_codes(codes, src.bits) if src.packed else codes)
            out = np.empty(dst.nbytes(codes.size), np.uint8)
            arguments = host_build.Arguments(data.ctypes.data, out.ctypes.data, codes.size)
            if case.random is None:
                kernels.run(case.rule, arguments)
            else:
                more = FUSED.fill(random=(case.random.seed, case.random.offset))
                fused.run(case.rule, arguments._replace(more=more))
            return np.asarray(unpack_codes(out, dst.bits, codes.size) if dst.packed else out.view(dst.code_numpy))

        return cast


class GpuBackend:
    """The complete device path: `gpucast.cast` on arrays that are on the current device."""

    name = "gpu"
    batch = 4

    def __init__(self) -> None:
        problem = device.unavailable()
        if problem is not None:
            raise DeviceUnavailable(f"no GPU to compare: {problem[0]}; {problem[1]}")
        self._index = kernel.driver.driver().current()
        found = nvidia.find()
        devices = () if found is None else found.devices
        self.device = devices[self._index] if self._index < len(devices) else f"cuda:{self._index}"

    def prepare(self, cases: Sequence[Case], optimize: bool) -> CastCodes:
        def cast(case: Case, codes: NDArray) -> NDArray:
            src, dst = case.rule.src, case.rule.dst
            x = codes.view(src.numpy)
            there = casting.cuda.to_device(PackedArray.pack(x) if src.packed else x, self._index)
            y = casting.cuda.to_host(gpucast_cast(there, dst, **dict(case.attributes)))
            return np.asarray(y.get() if dst.packed else y).view(dst.code_numpy)

        return cast


BACKENDS: dict[str, Callable[[], CastBackend]] = {"gpu": GpuBackend, "kernels": KernelsBackend, "host": HostBackend}


def backend(name: str | None) -> CastBackend:
    """The backend of a name (None: "gpu", else "kernels"). DeviceUnavailable or CompilerMissing if it cannot run."""
    if name is None:
        name = "gpu" if device.unavailable() is None else "kernels"
    return BACKENDS[name]()
