# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the kernels that quantize and dequantize.

`kernels/quantize.cu` and `kernels/dequantize.cu` have a function for each kind of kernel. This module writes its
arguments and the struct of the format.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np

from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.kernel.cast_kernel import THREADS, options
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import FUSED_PARTS, RANDOM
from gpucast.kernel.kernel import Kernel, Part, array_and
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.cuda.step_source import step_functions
from gpucast.quantization.formats import Format
from gpucast.quantization.scale_orders import ScaleLayout, ScaleOrder, order
from gpucast.quantization.steps import Steps

#: "rows" quantizes in one pass. Otherwise "extremes", then "scales" (or, for given scales, "kept", which only marks
#: blocks with NaN or infinity), then "elements"; "columns" is "extremes" for blocks that are parts of columns, which
#: vectors of 16 bytes have side by side. "entire" computes the scale of one block that is the whole array, in one
#: launch ("entire_kept" as "kept"), "top" the global scale, "globals" those of rows from the largest magnitude of each.
#: "back" dequantizes. "swizzle" and "unswizzle" reorder scales. "finish" and "finish_global" end what formats with
#: steps began.
Kind = Literal[
    "rows", "extremes", "columns", "scales", "kept", "entire", "entire_kept", "top", "globals", "elements", "finish",
    "finish_global", "back", "swizzle", "unswizzle",
]  # fmt: skip


def finishing(steps: Steps) -> tuple[Kind, ...]:
    """The kinds of kernels that complete the result of a format with steps, in order."""
    scales: tuple[Kind, ...] = ("finish",) if steps.code_needs_amax else ()
    return (*scales, "finish_global") if steps.u and steps.global_scale != "u" else scales


#: What stands for padding where "finish" still has to compute the scales, none of which is -0.
_MINUS_ZERO = 0x80000000
#: The array as outer x rows x columns, and its grid of blocks of block_rows x block_columns. `splits_outer` is 0 if one
#: block spans all of the outer dimension. The last blocks of a dimension may be smaller.
BLOCKS = Fields(
    "Blocks",
    tuple(
        (name, "i64")
        for name in (
            "outer", "rows", "columns", "block_rows", "block_columns", "grid_rows", "grid_columns", "splits_outer",
        )
    ),
)  # fmt: skip
#: The constants of `divide_by`.
DIVISION = Fields("Division", (("magic", "u32"), ("first", "u32"), ("second", "u32")))
#: What a kernel is given. Addresses are on its device; 0 for parts that do not exist.
QUANTIZE = Fields(
    "QuantizeArguments",
    (
        ("scales", "u8*"),
        # Null in symmetric formats.
        ("zero_points", "u8*"),
        # The FLOAT that multiplies all scales, in formats that have it.
        ("global_scale", "const float*"),
        # Statistics from one pass to the next: `parts` of every block. Of a block that is the whole array: its cell,
        # which is zero before and after each launch.
        ("stats", "u8*"),
        ("parts", "i64"),
        ("chunk", "i64"),
        ("random", RANDOM),
        ("blocks", BLOCKS),
        # By these numbers of the blocks.
        ("columns", DIVISION),
        ("rows", DIVISION),
        ("block_columns", DIVISION),
        ("block_rows", DIVISION),
    ),
)
#: The parts of these kernels.
PARTS: tuple[Part, ...] = (
    *FUSED_PARTS, "scale_orders.cuh", "quotients.cuh", "scales.cuh", "divisor.cuh", BLOCKS, DIVISION, QUANTIZE,
    "extremes.cu", "quantize.cu", "dequantize.cu",
)  # fmt: skip

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: Threads that work on a block together in the kinds that compute statistics.
WARP = 32
#: Kinds for one block that is the whole array, and the threads of a block of theirs.
ENTIRE: tuple[Kind, ...] = ("entire", "entire_kept", "top")
ENTIRE_THREADS = 256


@lru_cache(maxsize=1024)
def quantize_kernel(
    rule: CastRule,
    format: Format,
    kind: Kind,
    stochastic: bool = False,
    lanes: int = 1,
    block: int = 0,
    large: bool = False,
    single: bool = False,
    row_scaled: bool = False,
    layout: ScaleLayout = "linear",
) -> Kernel:
    """A kernel that quantizes or dequantizes.

    `rule`: from the source to the element type; for "back" from the element to the destination; for "swizzle" and
    "unswizzle", which only move scales and ignore the format, from and to the type of the scales.
    `lanes`: threads that compute the extremes of a block together: 1 or `WARP`.
    `block`: elements of a block, for the kind "rows", and for "back" if rows consist of whole blocks; else 0.
    `large`: whether elements need 64-bit indices.
    `single`: for the kinds "elements" and "back", whether all elements share one scale.
    `row_scaled`: whether each row has a global scale of its own.
    `layout`: the order in which scales are written, or moved to and from.
    """
    other = rule.dst if kind == "back" else rule.src
    elements, lines = elements_of(kind, other, format), lines_of(kind, layout, other, stochastic)
    columns = [kind, *["stochastic"] * stochastic]
    if block:
        columns.append(f"block{block}")
    elif kind == "extremes":
        columns.append(f"lanes{lanes}")
    columns += ["blocks1"] * single + ["large"] * large + ["row_scaled"] * row_scaled
    columns += [layout] * (layout != "linear")
    name = "_".join(["gpucast_quantize", other.numpy_name, *columns_of(format), *columns])
    head = format_struct(format, stochastic, f"{name}_format", other, row_scaled=row_scaled, layout=layout)
    call = _call(kind, f"{name}_format", other, format, layout, elements, lines, lanes, block, large, single)
    threads, line = THREADS, f"GPUCAST_QUANTIZE({name}, {THREADS}, {call})\n"
    if kind in ENTIRE:
        threads, line = ENTIRE_THREADS, f"GPUCAST_QUANTIZE_WHOLE({name}, {other.name}, {ENTIRE_THREADS}, {call})\n"
    dtypes = other, _FLOAT, _DOUBLE, format.element, format.scale
    return Kernel(name, PARTS, dtypes, head + line, threads, array_and(QUANTIZE), elements * lines)


def _call(
    kind: Kind,
    own: str,
    other: DType,
    format: Format,
    layout: ScaleLayout,
    elements: int,
    lines: int,
    lanes: int,
    block: int,
    large: bool,
    single: bool,
) -> str:
    """The work of a kernel, in C++. `own`: the struct of its format."""
    arrays, both, index = "(src, dst, n, given)", "FLOAT, DOUBLE", "u64" if large else "u32"
    place, of_blocks = f"{index}, {boolean(single)}, {elements}", f"{elements}, {block}"
    value, moved = f"Value<{other.name}, {both}>", f"{order(layout).struct}, {other.bits // 8}"
    two_sided, finite = (boolean(flag) for flag in (format.two_sided, not format.nan_in_scale))
    by_column = f"{index}, {two_sided}, {finite}"
    rows = "quantize_rows" if layout == "linear" else "quantize_rows_in_order"
    back_by = f"elements<{own}, {other.name}, {both}, {place}"
    if block:
        back_by = f"rows<{own}, {other.name}, {both}, {of_blocks}"
    return {
        "rows": f"{rows}<{own}, {other.name}, {both}, {of_blocks}, {lines}, {THREADS}>{arrays}",
        "extremes": f"find_extremes<{value}, {other.name}, {by_column}, {lanes}, {THREADS}>(src, n, given)",
        "columns": f"find_column_extremes<{value}, {other.name}, {by_column}, {THREADS}>(src, n, given)",
        "scales": f"find_scales<{own}, {value}, {both}, false, {THREADS}>(given)",
        "kept": f"find_scales<{own}, {value}, {both}, true, {THREADS}>(given)",
        "globals": f"find_row_scales<{own}, {value}, DOUBLE, FLOAT, {THREADS}>{arrays}",
        "elements": f"quantize_elements<{own}, {other.name}, {both}, {place}, {THREADS}>{arrays}",
        "finish": f"static_cast<void>(given), finish_scales<{own}, false, {THREADS}>(dst, n)",
        "finish_global": f"static_cast<void>(given), finish_scales<{own}, true, {THREADS}>(dst, n)",
        "back": f"dequantize_{back_by}, {THREADS}>{arrays}",
        "swizzle": f"move_scales<{moved}, false, {THREADS}>(src, dst, n, given.blocks)",
        "unswizzle": f"move_scales<{moved}, true, {THREADS}>(src, dst, n, given.blocks)",
        "entire": f"ToScale<{own}, {value}, {both}, false>{{given}}",
        "entire_kept": f"ToScale<{own}, {value}, {both}, true>{{given}}",
        "top": f"ToGlobalScale<{own}, {value}, {both}>{{dst}}",
    }[kind]


def lines_of(kind: Kind, layout: ScaleLayout, src: DType, stochastic: bool) -> int:
    """The tiles of a thread: one in each of several rows where scales have an order, else two where registers suffice
    for enough threads."""
    if kind != "rows":
        return 1
    return 4 if layout != "linear" else 2 if src.bits == 16 and not stochastic else 1


def elements_of(kind: Kind, other: DType, format: Format) -> int:
    """Elements of a row that a thread has: whole bytes of codes (of 6-bit codes whole words), and so many that looking
    up the scale, which each thread does, costs little. `other`: the type that is no element's."""
    if kind not in ("rows", "elements", "back"):
        return 1
    return 8 if other.bits == 64 and format.element.bits != 6 else 16


def rows_in_order(blocks: BlockGrid, format: Format, src: DType, layout: ScaleOrder) -> tuple[BlockGrid, int]:
    """For the kind "rows" with scales in an order: the blocks, with a padded row's threads in place of columns, and the
    elements of all threads."""
    _, rows, columns = blocks.counts
    whole_rows, whole_columns = order(layout).padded(rows, columns, format.scale.bits // 8)
    elements = elements_of("rows", src, format)
    threads = whole_columns * blocks.lengths[2] // elements
    return replace(blocks, shape=(1, rows, threads)), whole_rows * threads * elements


def block_of(format: Format | None) -> int:
    """The length of the blocks of a format that `takes` accepts."""
    if format is None:
        return 0
    assert isinstance(format.block, tuple)
    return format.block[-1]


def columns_of(format: Format) -> list[str]:
    """The part of a kernel's name that stands for the format. It leaves out the format's own name, because formats that
    differ only in their blocks share kernels.
    """
    columns = [format.element.numpy_name, format.scale.numpy_name, format.rule]
    columns += [] if format.steps is None else [format.steps.label]
    return columns + ["zero_points"] * format.zero_points + ["global"] * format.global_scale


@exact()
def format_struct(
    format: Format,
    stochastic: bool,
    name: str,
    source: DType = _FLOAT,
    divisor: float | None = None,
    row_scaled: bool = False,
    layout: ScaleLayout = "linear",
) -> str:
    """The C++ struct of a format, the template parameter `F` of the kernels that read or write a type.

    `divisor`: what the largest magnitude of a block becomes in place of the largest element. `row_scaled`: whether each
    row has a global scale of its own.
    """
    divisor = format.divisor if divisor is None else divisor
    element, scale = format.element, format.scale
    of_element = resolve(_DOUBLE, element, Options(rounding=STOCHASTIC)) if stochastic else resolve(_FLOAT, element)
    to_float = resolve(_DOUBLE, _FLOAT, Options(overflow="saturate"))
    if scale.family == "e8m0":
        of_scale = resolve(_DOUBLE, scale, Options(round_mode="down" if format.rounds_down else "up"))
    else:
        saturates = format.has_float_scales and format.steps is None
        of_scale = resolve(_DOUBLE, scale, Options(overflow="saturate") if saturates else Options())
    spread = float(element.max - element.min) if format.zero_points else divisor
    whole = element.family == "int"
    lowest, largest = (int(element.min), int(element.max)) if whole else (0, 0)
    keeps_amax = format.steps is not None and format.steps.code_needs_amax
    padding = _MINUS_ZERO if keeps_amax and layout != "linear" else 0
    lines = [
        f"typedef {element.name} element;",
        f"typedef {scale.name} scale;",
        f"typedef CastRule<{options(of_element)}> element_rule;",
        f"typedef CastRule<{options(of_scale)}> scale_rule;",
        f"typedef CastRule<{options(to_float)}> global_rule;",
        f"enum : bool {{ zero_points = {format.zero_points:d}, nan_in_scale = {format.nan_in_scale:d} }};",
        f"enum : bool {{ two_sided = {format.two_sided:d}, clamps = {_clamps(format):d} }};",
        f"enum : bool {{ global_scale = {format.global_scale:d}, row_scaled = {row_scaled:d} }};",
        f"enum : bool {{ stochastic = {stochastic:d} }};",
        f"enum : u32 {{ smallest_scale = {format.smallest_scale_code:#x} }};",
        f"typedef {order(layout).struct} order;",
        f"enum : u32 {{ padding = {padding:#x} }};",
        f"enum : int {{ lowest = {lowest}, largest = {largest} }};",
        f"enum : int {{ exponent = {_exponent(format)} }};",
        f"enum : u32 {{ carry = {_carry(format):#x} }};",
        f"static GPUCAST_CONSTANT double divisor() {{ return {spread!r}; }}",
        f"static GPUCAST_CONSTANT float reciprocal() {{ return {float(np.float32(1 / divisor))!r}; }}",
        f"static GPUCAST_CONSTANT double negative_weight() {{ return {format.negative_weight!r}; }}",
        f"static GPUCAST_CONSTANT float last() {{ return {512.0 if whole else float(element.max)!r}; }}",
        f"static GPUCAST_CONSTANT double global_divisor() {{ return {format.divisor * format.top_scale!r}; }}",
        *step_functions(format, source),
    ]
    body = "".join(f"    {line}\n" for line in lines)
    return f"namespace gpucast {{\nstruct {name} {{\n{body}}};\n}}\n"


def _clamps(format: Format) -> bool:
    """Whether an element divided by the scale of its block may exceed the largest element by more than rounding errors.
    It may where scales have few bits and are rounded down.
    """
    return format.rule == "full_range" or format.scale.bits < 32 or format.steps is not None


def _exponent(format: Format) -> int:
    """The exponent of the power of two that divides amax, before the carry."""
    exponent = math.log2(format.divisor)
    return math.ceil(exponent) if format.rounds_down else math.floor(exponent)


def _carry(format: Format) -> int:
    """The number to add to the bits of a FLOAT, so that its mantissa carries into the exponent if it exceeds that of
    the divisor, or where scales are rounded down, if it reaches it.
    """
    mantissa = int(np.float32(format.divisor).view(np.uint32)) & 0x7FFFFF
    return -mantissa & 0x7FFFFF if format.rounds_down else 0x7FFFFF - mantissa


def boolean(flag: bool) -> str:
    """A truth value in CUDA."""
    return "true" if flag else "false"


def quantize_arguments(
    blocks: BlockGrid,
    scales: int = 0,
    zero_points: int = 0,
    global_scale: int = 0,
    stats: int = 0,
    parts: int = 1,
    chunk: int = 0,
    seed: int = 0,
    offset: int = 0,
) -> bytes:
    """The bytes of `QUANTIZE`."""
    given = scales, zero_points, global_scale, stats, parts, chunk, seed, offset
    return QUANTIZE.pack(*given, *_block_values(blocks))


@lru_cache(maxsize=1024)
def _block_values(blocks: BlockGrid) -> tuple[int, ...]:
    _, rows, columns = blocks.shape
    _, block_rows, block_columns = blocks.lengths
    _, grid_rows, grid_columns = blocks.counts
    divisions = (divide_by(n) for n in (columns, rows, block_columns, block_rows))
    return (
        *(*blocks.shape, block_rows, block_columns, grid_rows, grid_columns, blocks.splits_outer),
        *(number for division in divisions for number in division),
    )


def divide_by(n: int) -> tuple[int, int, int]:
    """The values of `DIVISION`, a factor and two shifts that replace the division i // n for i below 2**32.

    t = factor * i >> 32; i // n = t + (i - t >> first shift) >> second shift (Granlund and Montgomery, "Division by
    invariant integers using multiplication", 1994).
    """
    if not 0 < n < 1 << 32:
        return 0, 0, 0  # Not divided by, or in 64 bits.
    bits = (n - 1).bit_length()
    return ((((1 << bits) - n) << 32) // n + 1) & 0xFFFFFFFF, min(bits, 1), max(bits - 1, 0)


def stats_bytes(src: DType) -> int:
    """Bytes of the statistics of one part of a block: two magnitudes."""
    return 16 if src.bits == 64 else 8
