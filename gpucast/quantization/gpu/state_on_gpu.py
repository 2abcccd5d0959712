# SPDX-License-Identifier: Apache-2.0
"""8-bit states of optimizers on a device: one launch of a kernel of `kernels/optimizer_state.cu`."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpucast.codegen.cast_kernel import KernelSource, kernel_file, kernel_source
from gpucast.codegen.fused_kernel import fused_prelude
from gpucast.codegen.spec import KernelSpec
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.gpu import driver
from gpucast.gpu.workspace import Workspace
from gpucast.quantization.gpu import grouped_on_gpu
from gpucast.quantization.gpu.memory import address
from gpucast.quantization.gpu.source import FILES

Function = Literal["quantize_state", "dequantize_state"]
#: Elements of a thread, and threads of a block.
_ELEMENTS, _THREADS = 8, 256


@dataclass(frozen=True)
class StateArguments:
    """``struct StateArguments`` of kernels/optimizer_state.cu."""

    scales: int
    least: float
    #: FLOATs, 256 or fewer.
    table: Any

    def to_bytes(self) -> bytes:
        return struct.pack("<QfI1024s", self.scales, self.least, 0, self.table.tobytes())


@dataclass(frozen=True)
class StateSpec(KernelSpec[KernelSource]):
    """The kernel that makes codes of numbers, or numbers of codes."""

    function: Function

    def source(self) -> KernelSource:
        numbers, codes = dtype("FLOAT"), dtype("UINT8")
        rule = resolve(numbers, codes) if self.function == "quantize_state" else resolve(codes, numbers)
        return replace(
            kernel_source(rule),
            name=f"gpucast_{self.function}",
            prelude="\n".join([fused_prelude(), *map(kernel_file, (*FILES, "optimizer_state.cu"))]),
            kernel=f"GPUCAST_STATE({self.function})\n",
            tile=1,
            elements=_ELEMENTS,
            threads=_THREADS,
            more="gpucast::StateArguments",
        )


def new(shape: tuple[int, ...], kind: str, device: int, caller: str) -> Any:
    """A new array on a device. RuntimeError while a CUDA graph is captured."""
    return Workspace(caller, device).array("", shape, dtype(kind))


def dense(x: Any, name: str, caller: str) -> Any:
    """The array, or a copy in C order. RuntimeError where a CUDA graph is captured and a copy is needed."""
    with driver.driver().on(int(x.device.id)):
        return grouped_on_gpu.dense(name, x, caller)


def run(spec: StateSpec, src: Any, dst: Any, scales: Any, table: Any, least: float = 0) -> None:
    """Launch the kernel for dense arrays on one device."""
    device = int(src.device.id)
    with driver.driver().on(device):
        arguments = StateArguments(address(scales), least, table)
        driver.kernel(spec, device)(address(src), address(dst), int(src.size), arguments)
