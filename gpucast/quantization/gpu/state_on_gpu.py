# SPDX-License-Identifier: Apache-2.0
"""8-bit states of optimizers on a device: one launch of a kernel that is written for the step."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays.operand import operand
from gpucast.codegen.cast_kernel import KernelSource, kernel_file, kernel_source, options, structs
from gpucast.codegen.fused_kernel import FusedArguments, fused_prelude
from gpucast.codegen.spec import KernelSpec
from gpucast.codegen.ufunc_kernel import MAX_UFUNC_DIMS, UfuncArguments, UfuncInput, literal
from gpucast.core.dtypes import dtype
from gpucast.core.expression import COMPUTE
from gpucast.core.rule import resolve
from gpucast.gpu import driver
from gpucast.gpu.ufunc_on_gpu import input_of
from gpucast.gpu.workspace import Workspace
from gpucast.quantization.gpu import grouped_on_gpu
from gpucast.quantization.gpu.memory import address
from gpucast.quantization.gpu.source import FILES
from gpucast.quantization.states.codebooks import CELL_SHIFT, find
from gpucast.quantization.states.step import Step

_FLOAT = dtype("FLOAT")
#: Elements of a thread, and threads of a block.
_ELEMENTS, _THREADS = 8, 256


class StepArguments(NamedTuple):
    """``struct StepArguments`` of kernels/optimizer_state.cu."""

    of: UfuncArguments
    scales: Sequence[int]

    def to_bytes(self) -> bytes:
        return self.of.to_bytes() + struct.pack(f"<{len(self.scales)}Q", *self.scales)


@dataclass(frozen=True)
class StepSpec(KernelSpec[KernelSource]):
    """The kernel of a step. `arrays`: what its names stand for; for states their codes."""

    step: Step
    arrays: tuple[UfuncInput, ...]

    def source(self) -> KernelSource:
        name = f"gpucast_{self.step.function}_{hashlib.sha256(repr(self).encode()).hexdigest()[:12]}"
        source, result = (
            self.arrays[self.step.names.index(names[0])] for names in (list(self.step.read), self.step.names)
        )
        return replace(
            kernel_source(resolve(source.dtype, result.dtype)),
            name=name,
            prelude="\n".join([fused_prelude(), *map(kernel_file, (*FILES, "ufunc.cu", "optimizer_state.cu"))]),
            structs=structs(*COMPUTE, *(one.dtype for one in self.arrays)),
            kernel=self._kernel(name),
            tile=1,
            elements=_ELEMENTS,
            threads=_THREADS,
            more=f"gpucast::StepArguments<{len(self.arrays)}>",
        )

    def _kernel(self, name: str) -> str:
        step, count = self.step, len(self.arrays)
        heads, fills, loads, updates, merges, stores = (list[str]() for _ in range(6))

        def table(numbers: Any) -> str:
            """Numbers in shared memory."""
            first, words = len(fills), np.pad(numbers.view(np.uint32), (0, -numbers.nbytes // 4 % 256))
            for row, of_row in enumerate(words.reshape(-1, 256).tolist(), first):
                heads.append(
                    f"static __device__ const u32 {name}_{row}[256] = {{{', '.join(map('{:#x}u'.format, of_row))}}};"
                )
                fills.append(f"tables[{row}][threadIdx.x] = ptx::as_float({name}_{row}[threadIdx.x]);")
            return f"tables[{first}]"

        for i, (one, (kind, bits, walk)) in enumerate(zip(step.names, self.arrays, strict=True)):
            at, x, scales, book = f"by.of.input[{i}]", f"x[{i}]", f"by.scales[{i}]", dict(step.books).get(one)
            if one in step.read and book is None:
                loads.append(f"load_values<{kind.name}, FLOAT, {bits}, Walk::{walk}>({at}, begin, n, {x});")
            elif one in step.read:
                numbers = table(find(book, name).numbers)
                loads.append(f"load_state({at}, {scales}, begin, {numbers}, {x});")
            if one in step.written and book is None:
                heads.append(f"typedef CastRule<{options(resolve(_FLOAT, kind))}> {name}_rule_{i};")
                stores.append(f"store_cast<FLOAT, {kind.name}, {name}_rule_{i}>({at}, begin, {x});")
            elif one in step.written:
                search = find(book, name)
                first, cells = search.cells
                places = f"{first}, {CELL_SHIFT}, {cells.size // 2 if search.numbers[0] < 0 else 0}"
                tables = f"{table(search.limits)}, {table(np.pad(cells, (0, -cells.size % 4)))}"
                merges.append(f"LargestBits largest_{i} = largest_of({x});\n    {{ GPUCAST_MERGE(32, largest_{i}) }}")
                least = f"largest_{i}.bits, {literal(search.least, _FLOAT)}"
                stores.append(f"store_state<{places}>({at}, {scales}, begin, {x}, {least}, {tables});")
        for i, (target, expression) in enumerate(step.lines):
            head = f"GPUCAST_INLINE float {name}_line_{i}(const float (&x)[{len(expression.names)}])"
            heads.append(f"{head} {{ return {expression.code(lambda number: literal(number, _FLOAT))}; }}")
            given = ", ".join(f"x[{step.names.index(one)}][i]" for one in expression.names)
            updates.append(f"    const float of_{i}[] = {{{given}}};")
            updates.append(f"    x[{step.names.index(target)}][i] = {name}_line_{i}(of_{i});")
        lines = "\n    ".join
        return f"""
namespace gpucast {{
{chr(10).join(heads)}
GPUCAST_INLINE void {name}_thread(i64 n, const StepArguments<{count}>& by, float (*tables)[256]) {{
    {lines(fills or ["(void)tables;"])}
    GPUCAST_BARRIER();
    const i64 begin = i64(blockIdx.x) * {_THREADS * _ELEMENTS} + threadIdx.x * {_ELEMENTS};
    // Whole warps: n is a multiple of 256.
    if (begin >= n) return;
    float x[{count}][{_ELEMENTS}];
    {lines(loads)}
#pragma unroll
    for (u32 i = 0; i < {_ELEMENTS}; ++i) {{
    {lines(updates)}
    }}
    {lines(merges)}
    {lines(stores)}
}}
}}  // namespace gpucast
extern "C" __global__ void __launch_bounds__({_THREADS})
    {name}(const gpucast::u8*, gpucast::u32, gpucast::u8*, gpucast::i64 n,
           const __grid_constant__ gpucast::StepArguments<{count}> by) {{
    __shared__ float tables[{max(len(fills), 1)}][256];
    gpucast::{name}_thread(n, by, tables);
}}
"""


def in_order(step: Step) -> StepSpec:
    """The kernel of a step whose arrays are FLOATs in C order, but for the codes of states."""
    kinds = (dtype("UINT8") if name in dict(step.books) else _FLOAT for name in step.names)
    return StepSpec(step, tuple(UfuncInput(kind, kind.bits, "dense") for kind in kinds))


def dense(x: Any, name: str, caller: str) -> Any:
    """The array, or a copy in C order. RuntimeError where a CUDA graph is captured and a copy is needed."""
    with driver.driver().on(int(x.device.id)):
        return grouped_on_gpu.dense(name, x, caller)


def new(shape: tuple[int, ...], kind: str, device: int, caller: str) -> Any:
    """A new array on a device. RuntimeError while a CUDA graph is captured."""
    return Workspace(caller, device).array("", shape, dtype(kind))


def run(step: Step, arrays: Mapping[str, Any], scales: Mapping[str, Any], shape: tuple[int, ...], device: int) -> None:
    """Launch it on the current stream of a device. `arrays`: those of its names, and numbers; what is written, and
    states, in C order."""
    strides, rule = tuple(32 * math.prod(shape[axis + 1 :]) for axis in range(len(shape))), resolve(_FLOAT, _FLOAT)
    found = [
        input_of(x if isinstance(x, float) else operand(x), shape, strides, rule)
        for x in (arrays[name] for name in step.names)
    ]
    for name, (_, (_, _, dims)) in zip(step.names, found, strict=True):
        if len(dims.lengths) > MAX_UFUNC_DIMS:
            given = f"{len(dims.lengths)} dimensions that are not one in memory"
            raise ValueError(f"{step.function}: {name} has {given}; a kernel takes {MAX_UFUNC_DIMS}")
    of = UfuncArguments(FusedArguments(), [argument for _, argument in found])
    with driver.driver().on(device):
        kernel = driver.kernel(StepSpec(step, tuple(kind for kind, _ in found)), device)
        kernel(0, 0, math.prod(shape), StepArguments(of, [address(scales.get(name)) for name in step.names]))
