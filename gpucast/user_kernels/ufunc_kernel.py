# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the kernels of `gpucast.ufunc`: an expression of several arrays, cast once."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, NamedTuple

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule
from gpucast.kernel.cast_kernel import THREADS, options
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import FUSED, FUSED_PARTS, FusedOps, template_options
from gpucast.kernel.kernel import Kernel, array_and
from gpucast.kernel.strides import DIMS
from gpucast.user_kernels.expression import COMPUTE, Expression

#: ``ufunc_dims`` of kernels/ufunc.cu; and the most inputs, whose fields the arguments of a kernel have room for.
MAX_UFUNC_DIMS, MAX_INPUTS = 10, 10
Walk = Literal["dense", "strided", "number"]

UFUNC_INPUT = Fields(
    "UfuncInput",
    (
        # Its address, or 0 and the number that it is.
        ("from", "const u8*"),
        ("number", "double"),
        # The strides of this input, and of the result, in bits.
        ("dims", DIMS.of(MAX_UFUNC_DIMS)),
    ),
)
#: What a kernel is given.
UFUNC = Fields("UfuncArguments", (("given", FUSED), ("input", UFUNC_INPUT, "Inputs")), "Inputs")


class UfuncInput(NamedTuple):
    """How a kernel reads an input."""

    dtype: DType
    #: Bits of an element in memory.
    bits: int
    walk: Walk


@lru_cache(maxsize=256)
def ufunc_kernel(
    expression: Expression, rule: CastRule, ops: FusedOps, inputs: tuple[UfuncInput, ...], walk: Walk
) -> Kernel:
    """The kernel of an expression.

    `rule`: the cast of the compute type, FLOAT or DOUBLE, as `resolve` gives it.
    `walk`: how the result is written, "dense" or "strided".
    """
    compute, dst = rule.src, rule.dst
    bits = [dst.bits, *(one.bits for one in inputs if one.walk != "number")]
    # Whole bytes and words of all sides, and as much as fast paths of small types cast together.
    elements = 16 if {2, 6} & set(bits) else 8 if 4 in bits or max(bits) <= 16 else 4
    key = f"{expression.text} {(rule, ops, inputs, walk)}"
    name = f"gpucast_ufunc_{dst.numpy_name.replace('_', '')}_{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return Kernel(
        name,
        (*FUSED_PARTS, UFUNC_INPUT, UFUNC, "ufunc.cu"),
        (compute, dst, *COMPUTE, *(one.dtype for one in inputs)),
        _line(name, elements, expression, rule, ops, inputs, walk),
        THREADS,
        array_and(UFUNC.of(len(inputs))),
        elements,
        elements,
    )


def _line(
    name: str,
    elements: int,
    expression: Expression,
    rule: CastRule,
    ops: FusedOps,
    inputs: tuple[UfuncInput, ...],
    walk: Walk,
) -> str:
    compute, dst, count = rule.src, rule.dst, len(inputs)
    value = "float" if compute.bits == 32 else "double"
    code = expression.code(lambda number: literal(number, compute))
    loads = "".join(
        f"    load_values<{one.dtype.name}, {compute.name}, {one.bits}, Walk::{one.walk}>"
        f"(more.input[{i}], begin, n, x[{i}]);\n"
        for i, one in enumerate(inputs)
    )
    converter = f"{compute.name}, {dst.name}, FLOAT, DOUBLE, {compute.bits}, {name}_rule, "
    converter += f"Scaling::{template_options(ops)}"
    return f"""
namespace gpucast {{
typedef CastRule<{options(rule)}> {name}_rule;
GPUCAST_INLINE {value} {name}_value(const {value} (&x)[{count}]) {{ return {code}; }}
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
    store_values<{dst.bits}, Walk::{walk}, {elements}>(dst, more.input[0].dims, begin, n, out);
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
