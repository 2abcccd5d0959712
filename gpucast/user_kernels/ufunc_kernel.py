# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the kernels of `gpucast.ufunc`: an expression of several arrays, cast once."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from gpucast.codegen.cast_kernel import THREADS, KernelSource, kernel_file, kernel_source, options, structs
from gpucast.codegen.fused_kernel import FusedArguments, FusedOps, fused_prelude, template_options
from gpucast.codegen.spec import KernelSpec
from gpucast.codegen.strides import Dims
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.user_kernels.expression import COMPUTE, Expression

#: ``ufunc_dims`` of kernels/ufunc.cu; and the most inputs, whose fields the arguments of a kernel have room for.
MAX_UFUNC_DIMS, MAX_INPUTS = 10, 10
Walk = Literal["dense", "strided", "number"]


class UfuncInput(NamedTuple):
    """How a kernel reads an input."""

    dtype: DType
    #: Bits of an element in memory.
    bits: int
    walk: Walk


class UfuncArguments(NamedTuple):
    """The last argument of a kernel."""

    given: FusedArguments
    #: For each input its address, or 0 and the number that it is; and its dimensions, with strides in bits.
    inputs: Sequence[tuple[int, float, Dims]]

    def to_bytes(self) -> bytes:
        """``struct UfuncArguments`` of kernels/ufunc.cu."""
        inputs = (struct.pack("<Qd", at, number) + dims.pack(MAX_UFUNC_DIMS) for at, number, dims in self.inputs)
        return self.given.to_bytes() + b"".join(inputs)


@dataclass(frozen=True)
class UfuncSpec(KernelSpec[KernelSource]):
    """The kernel of an expression."""

    expression: Expression
    #: The cast of the compute type, FLOAT or DOUBLE, as `gpucast.casting.fused_options.fused_rule` gives it.
    rule: CastRule
    ops: FusedOps
    inputs: tuple[UfuncInput, ...]
    #: How the result is written: "dense" or "strided".
    walk: Walk

    def source(self) -> KernelSource:
        compute, dst = self.rule.src, self.rule.dst
        bits = [dst.bits, *(one.bits for one in self.inputs if one.walk != "number")]
        # Whole bytes and words of all sides, and as much as fast paths of small types cast together.
        elements = 16 if {2, 6} & set(bits) else 8 if 4 in bits or max(bits) <= 16 else 4
        key = f"{self.expression.text} {self}"
        name = f"gpucast_ufunc_{dst.numpy_name.replace('_', '')}_{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        types = (compute, dst, *COMPUTE, *(one.dtype for one in self.inputs))
        return replace(
            kernel_source(resolve(compute, dst), "strided"),
            name=name,
            rule=self.rule,
            prelude=_prelude(),
            structs=structs(*types),
            kernel=self._kernel(name, elements),
            tile=elements,
            elements=elements,
            threads=THREADS,
            more=f"gpucast::UfuncArguments<{len(self.inputs)}>",
        )

    def _kernel(self, name: str, elements: int) -> str:
        compute, dst, count = self.rule.src, self.rule.dst, len(self.inputs)
        value = "float" if compute.bits == 32 else "double"
        expression = self.expression.code(lambda number: literal(number, compute))
        loads = "".join(
            f"    load_values<{one.dtype.name}, {compute.name}, {one.bits}, Walk::{one.walk}>"
            f"(more.input[{i}], begin, n, x[{i}]);\n"
            for i, one in enumerate(self.inputs)
        )
        converter = f"{compute.name}, {dst.name}, FLOAT, DOUBLE, {compute.bits}, {name}_rule, "
        converter += f"Scaling::{template_options(self.ops)}"
        return f"""
namespace gpucast {{
typedef CastRule<{options(self.rule)}> {name}_rule;
GPUCAST_INLINE {value} {name}_value(const {value} (&x)[{count}]) {{ return {expression}; }}
GPUCAST_INLINE void {name}_thread(u8* dst, i64 n, const UfuncArguments<{count}>& more) {{
    Fused<{converter}> converter(more.given);
    const i64 begin = (i64(blockIdx.x) * {THREADS} + threadIdx.x) * {elements};
    {value} x[{count}][{elements}];
{loads}    Tile<{elements * compute.bits // 8}> in = {{}};
    Tile<{elements * dst.bits // 8}> out = {{}};
#pragma unroll
    for (u32 i = 0; i < {elements}; ++i) {{
        const {value} of[{count}] = {{{", ".join(f"x[{i}][i]" for i in range(count))}}};
        if (begin + i < n) put_value<{compute.name}>(in, i, {name}_value(of));
    }}
    converter.tile<{elements}>(in, out, begin);
    store_values<{dst.bits}, Walk::{self.walk}, {elements}>(dst, more.input[0].dims, begin, n, out);
    converter.finish();
}}
}}  // namespace gpucast
extern "C" __global__ void __launch_bounds__({THREADS})
    {name}(const gpucast::u8*, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,
           const __grid_constant__ gpucast::UfuncArguments<{count}> more) {{
    gpucast::{name}_thread(dst, n, more);
}}
"""


def literal(number: float, compute: DType) -> str:
    """A number of an expression, rounded to the compute type, by its bits."""
    if compute is dtype("FLOAT"):
        return f"ptx::as_float({int(compute.numpy.type(number).view('u4')):#x}u)"
    return f"ptx::as_double({int(compute.numpy.type(number).view('u8')):#x}ull)"


@lru_cache
def _prelude() -> str:
    return f"{fused_prelude()}\n{kernel_file('ufunc.cu')}"
