# SPDX-License-Identifier: Apache-2.0
"""Groups of rows on a device, quantized or cast in one launch that reads their ends there."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast.codegen.cast_kernel import KernelSource, kernel_file, options, structs
from gpucast.codegen.fused_kernel import fused_prelude
from gpucast.codegen.spec import KernelSpec
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule
from gpucast.gpu import cast_on_gpu, driver
from gpucast.quantization.formats import Format
from gpucast.quantization.gpu import memory
from gpucast.quantization.gpu.source import FILES, columns_of, divide_by, format_struct

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: `group_threads` of kernels/grouped.cu.
_THREADS = 256


@dataclass(frozen=True)
class GroupedSpec(KernelSpec[KernelSource]):
    """The kernel that quantizes groups, or casts them."""

    #: From the source to the element type; with a scale where groups are cast.
    rule: CastRule
    #: None for a cast.
    format: Format | None = None
    stochastic: bool = False

    def source(self) -> KernelSource:
        rule, format = self.rule, self.format
        src, dst = rule.src, rule.dst
        # Whole words of codes: 8 of 6 bits are none.
        elements = 8 if src.bits == 64 and dst.bits != 6 else 16
        # The groups are found once for all tiles of a thread. More tiles than these need too many registers.
        tiles = 2 if src.bits <= 16 else 1
        kinds = [src, _FLOAT, _DOUBLE, dst]
        # Random words, and quotients of DOUBLEs, take more registers than three blocks of an SM leave to a thread.
        resident = 3 - self.stochastic - (src.bits == 64)
        if format is None:
            name = f"gpucast_cast_groups_{src.numpy_name}_to_{dst.numpy_name}"
            name += "_saturate" * (rule.overflow == "saturate") + "_stochastic" * self.stochastic
            head = f"namespace gpucast {{\ntypedef CastRule<{options(rule)}> {name}_rule;\n}}\n"
            work = f"CastGroups<{src.name}, {dst.name}, FLOAT, DOUBLE, {name}_rule, {elements}, {tiles}>"
        else:
            assert isinstance(format.block, tuple)
            block = format.block[-1]
            columns = [*columns_of(format), f"block{block}", *["stochastic"] * self.stochastic]
            name = "_".join(["gpucast_quantize_groups", src.numpy_name, *columns])
            head = format_struct(format, self.stochastic, f"{name}_format", src)
            work = f"QuantizeGroups<{name}_format, {src.name}, FLOAT, DOUBLE, {elements}, {tiles}, {block}>"
            kinds.append(format.scale)
        return KernelSource(
            name=name,
            rule=rule,
            shape="contiguous",
            unpacked=False,
            prelude="\n".join([fused_prelude(), *map(kernel_file, (*FILES, "tiles.cuh", "grouped.cu"))]),
            structs=structs(*kinds),
            kernel=f"{head}GPUCAST_GROUPED({name}, {resident}, {_THREADS * elements * tiles}, {work})\n",
            tile=1,
            elements=elements * tiles,
            threads=_THREADS,
            more="gpucast::GroupedArguments",
        )


@dataclass(frozen=True)
class GroupedArguments:
    """``struct GroupedArguments`` of kernels/grouped.cu, with arrays in place of addresses."""

    offsets: Any
    #: A number, or a FLOAT for each group or for all.
    scale: Any
    scales: Any
    ends: Any
    valid: Any
    rows: int
    columns: int
    result_rows: int
    pad: int
    layout: int
    seed: int = 0
    offset: int = 0

    def to_bytes(self) -> bytes:
        groups, number = self.offsets.size, isinstance(self.scale, float)
        return struct.pack(
            "<5Q3qQ3If5I4x2Q",
            *(self.offsets.data.ptr, 0 if number else self.scale.data.ptr),
            *(0 if self.scales is None else self.scales.data.ptr, self.ends.data.ptr, self.valid.data.ptr),
            *(self.rows, self.columns, self.result_rows, (2**64 - 1) // self.columns, *divide_by(self.columns)),
            self.scale if number else 1.0,
            *(
                0 if number or self.scale.size == 1 else 1,
                groups,
                self.pad,
                self.offsets.dtype == np.int64,
                self.layout,
            ),
            *(self.seed, self.offset),
        )


def dense(name: str, x: Any, caller: str, alignment: int = 0) -> Any:
    """The array, or a copy on the current device, in C order and at a multiple of `alignment`, or of its items."""
    made = target(name, x, caller, alignment)
    if made is not x:
        memory.copy(x, made)
    return made


def target(name: str, x: Any, caller: str, alignment: int = 0) -> Any:
    """The array, or a new one on the current device in place of one that `dense` copies."""
    if memory.is_dense(x, alignment):
        return x
    if driver.driver().capturing():
        raise RuntimeError(
            f"{caller}: a CUDA graph is being captured, and {name} is not in C order at an aligned address; "
            "memory for a copy cannot be allocated then"
        )
    return cast_on_gpu.new(x.shape, dtype(x.dtype))


def hand_over(written: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Copy results that `target` has moved."""
    for name, part in wanted.items():
        if written[name] is not part:
            memory.copy(written[name], part)


def run(spec: GroupedSpec, x: Any, data: Any, arguments: GroupedArguments, device: int) -> None:
    """Launch it on the current stream of the device. `data`: the codes, in C order."""
    with driver.driver().on(device):
        # A result without rows still has ends.
        n = max(arguments.result_rows * arguments.columns, 1)
        driver.kernel(spec, device)(x.data.ptr, memory.address(data), n, arguments)
