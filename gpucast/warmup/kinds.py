# SPDX-License-Identifier: Apache-2.0
"""The further kernels that `gpucast.warmup` compiles, for `cast_many`, `quantize` and `mixed`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gpucast.casting.fused_options import fused_rule
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES, Kind, batch_kernel
from gpucast.kernel.cast_kernel import Shape
from gpucast.kernel.fused_kernel import FusedOps, cast_kernel
from gpucast.kernel.kernel import Kernel
from gpucast.mixed.gpu.kernels import ADJUST, RESCALE, select_kernel
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.formats import LENGTHS, SOURCES, Format
from gpucast.quantization.gpu.grouped_on_gpu import grouped_kernel
from gpucast.quantization.gpu.hadamard_source import HadamardTile, hadamard_kernel, takes
from gpucast.quantization.gpu.quantize_on_gpu import swizzle_kernel
from gpucast.quantization.gpu.source import WARP, finishing, quantize_kernel
from gpucast.quantization.gpu.tiles import ResultSpec, plan
from gpucast.quantization.grouped import check_grouped
from gpucast.quantization.option_checks import check_format, resolve_hadamard
from gpucast.quantization.recipes import find
from gpucast.quantization.scale_orders import ScaleLayout

_FLOAT = dtype("FLOAT")
#: The types of a loss scale, of its state and of a step's flag, which are copied to and on devices.
_STATE = (_FLOAT, dtype("UINT32"), dtype("BOOL"))
#: The shape of a matrix that consists of whole blocks of every format, also transposed.
_MATRIX = (1024, 1024)


def of_many(rule: CastRule, unpacked: bool, ops: FusedOps) -> Iterator[Kernel]:
    """Kernels for trees of one type of any length; a tree with a single array is cast by that array's own kernel.

    With a scale also those that check whether all elements are finite, as loss scales need.
    """
    for finite in (False, True) if ops.scaling != "none" and rule.src.has_nan else (False,):
        kind = Kind(rule, unpacked, FusedOps(ops.scaling, False, finite))
        if finite:
            yield kind.alone
            yield cast_kernel(rule, "strided", unpacked, kind.ops)
        for argument_bytes in ARGUMENT_BYTES:
            yield batch_kernel((kind,), argument_bytes).kernel


def of_grouped_cast(src: DType, dst: DType, options: Options) -> Iterator[Kernel]:
    """The kernel of `cast_grouped`, for the types that it takes."""
    if src in SOURCES and dst.is_float:
        yield grouped_kernel(fused_rule(src, dst, options, scaled=True), stochastic=options.rounding == STOCHASTIC)


def of_formats(
    names: Iterable[Any],
    lengths: Iterable[Any],
    rows: Iterable[DType],
    rounding: str | None,
    grouped: bool,
    row_scaled: bool,
    caller: str,
) -> Iterator[Kernel]:
    """Kernels of formats, and of Hadamard transforms of these lengths, for these types.

    TypeError or ValueError for what `quantize` and `quantize_grouped` refuse.
    """
    formats = [find(name, caller) for name in names]
    hadamards = [resolve_hadamard(length, None, None, caller).length for length in lengths]
    stochastic = rounding == STOCHASTIC
    for src in rows:
        for length in hadamards:
            yield from of_transform(src, length)
        for format in formats:
            if stochastic:
                resolve(src, format.element, Options(caller=caller, rounding=rounding))
            yield from of_quantize(format, src, stochastic)
            for length in hadamards:
                check_format(format, caller)
                yield from of_hadamard(format, src, stochastic, length)
            if grouped:
                check_grouped(format, caller)
                yield grouped_kernel(CastRule(src, format.element), format, stochastic)
            if row_scaled:
                yield from of_rows(format, src, stochastic, caller)


def of_quantize(format: Format, src: DType, stochastic: bool) -> Iterator[Kernel]:
    """Kernels that quantize matrices of a type along the last axis, plain, transposed or both, and dequantize them.

    Those for rows of whole blocks, and those for all other rows. Where scales have one byte, also those that write them
    in the order "128x4".
    """
    rule, blocks, in_rows = CastRule(src, format.element), *_blocks(format)
    for layout in _layouts(format):
        if format.rule == "4over6":
            yield hadamard_kernel(rule, "rows", 0, format, stochastic, layout=layout)
            for plain in (False, True):
                yield hadamard_kernel(rule, "tiles", 0, format, stochastic, plain=plain, turned=True, layout=layout)
        else:
            yield from _of_one_scale(rule, format, stochastic, blocks, in_rows, layout)
    if format.global_scale:
        yield quantize_kernel(rule, format, "top")
        # And from one number, `amax`.
        yield quantize_kernel(rule if format.steps else CastRule(_FLOAT, format.element), format, "globals")
    for kind in () if format.steps is None else finishing(format.steps):
        yield quantize_kernel(rule, format, kind)
    for dst in dict.fromkeys((src, _FLOAT)):
        back = CastRule(format.element, dst)
        yield quantize_kernel(back, format, "back", single=format.block == "tensor")
        if in_rows:
            yield quantize_kernel(back, format, "back", block=blocks.lengths[2])
    if format.scale.bits == 8:
        for back_to_linear in (False, True):
            yield swizzle_kernel(format.scale, back_to_linear)


def _layouts(format: Format) -> tuple[ScaleLayout, ...]:
    has_order = format.scale.bits == 8 and format.min_ndim == 1 and isinstance(format.block, tuple)
    return ("linear", "128x4") if has_order else ("linear",)


def _blocks(format: Format) -> tuple[BlockGrid, bool]:
    """The blocks of a matrix, and whether they are those of rows that have kernels of their own."""
    blocks = BlockGrid.of(format, _MATRIX, 1)
    return blocks, blocks.splits_outer and blocks.lengths[1] == 1 and blocks.lengths[2] in LENGTHS


def of_rows(format: Format, src: DType, stochastic: bool, caller: str) -> Iterator[Kernel]:
    """Those of a format with a global scale for each row, and from the largest magnitude of each."""
    if not format.rows_shape(_MATRIX, 1):
        raise ValueError(f"{caller}: {format.name} takes no global scale for each row; nvfp4 does")
    rule, blocks, in_rows = CastRule(src, format.element), *_blocks(format)
    yield quantize_kernel(rule if format.steps else CastRule(_FLOAT, format.element), format, "globals")
    for layout in _layouts(format):
        if format.rule == "4over6":
            yield hadamard_kernel(rule, "rows", 0, format, stochastic, row_scaled=True, layout=layout)
            continue
        yield quantize_kernel(rule, format, "scales", row_scaled=True, layout=layout)
        yield quantize_kernel(rule, format, "elements", stochastic, row_scaled=True, layout=layout)
        if in_rows:
            block = blocks.lengths[2]
            yield quantize_kernel(rule, format, "rows", stochastic, block=block, row_scaled=True, layout=layout)
    for block in (0, blocks.lengths[2]) if in_rows else (0,):
        for dst in dict.fromkeys((src, _FLOAT)):
            yield quantize_kernel(CastRule(format.element, dst), format, "back", block=block, row_scaled=True)


def of_transform(src: DType, length: int) -> Iterator[Kernel]:
    """Hadamard transforms of a type to FLOAT, and back to it, along any axis."""
    for strided in (False, True):
        yield hadamard_kernel(CastRule(src, _FLOAT), "transform", length, strided=strided)
        for dst in dict.fromkeys((src, _FLOAT)):
            yield hadamard_kernel(CastRule(_FLOAT, dst), "transform", length, inverse=True, strided=strided)


def of_hadamard(format: Format, src: DType, stochastic: bool, length: int) -> Iterator[Kernel]:
    """Those that transform along the last axis and quantize, plain, transposed or both, besides `of_transform` and
    those that quantize a FLOAT array."""
    rule = CastRule(src, format.element)
    if format.global_scale:
        for strided in (False, True):
            yield hadamard_kernel(rule, "top", length, format, strided=strided)
    if takes(format):
        for layout in _layouts(format):
            # Of a pair of transforms one may be none.
            for own in (0, length):
                yield hadamard_kernel(rule, "rows", own, format, stochastic, layout=layout)
            for plain, own in ((False, 0), (True, 0), (True, length)):
                if HadamardTile.of(format, own, plain, True, length).fits(src):
                    yield hadamard_kernel(
                        rule, "tiles", own, format, stochastic, plain=plain, turned=True, turned_length=length,
                        layout=layout,
                    )  # fmt: skip


def _of_one_scale(
    rule: CastRule, format: Format, stochastic: bool, blocks: BlockGrid, in_rows: bool, layout: ScaleLayout
) -> Iterator[Kernel]:
    """Those that quantize by one scale for each block."""
    random = Random(0) if stochastic else None
    straight, swapped = ResultSpec(False, 1), ResultSpec(True, 1)
    if in_rows:
        yield quantize_kernel(rule, format, "rows", stochastic, block=blocks.lengths[2], layout=layout)
    for wanted in ([straight], [swapped], [straight, swapped]):
        tile_plan = plan(_MATRIX, rule.src, format, wanted, random, given=False, layout=layout)
        if tile_plan is not None and not (in_rows and wanted == [straight]):
            yield tile_plan.kernel
    lanes = 1 if blocks.lengths[2] == 1 else WARP
    if layout == "linear":
        yield quantize_kernel(rule, format, "extremes", lanes=lanes)
        if lanes == 1:
            yield quantize_kernel(rule, format, "columns", lanes=lanes)
    yield quantize_kernel(rule, format, "scales", layout=layout)
    yield quantize_kernel(rule, format, "elements", stochastic, single=format.block == "tensor", layout=layout)


def of_mixed(rows: Iterable[DType]) -> Iterator[Kernel]:
    """Kernels of loss scales for losses and gradients of these types, and of `select_tree`.

    Without the kernels that copy arrays that are not contiguous.
    """
    shapes: tuple[Shape, ...] = ("contiguous", "strided")
    loss, gradients = FusedOps("narrow"), FusedOps("narrow", finite=True)
    for src in rows:
        scale, unscale = (fused_rule(src, dst, scaled=True) for dst in (src, _FLOAT))
        for shape in shapes:
            yield cast_kernel(scale, shape, ops=loss)
            yield cast_kernel(unscale, shape, ops=gradients)
        for argument_bytes in ARGUMENT_BYTES:
            yield batch_kernel((Kind(unscale, ops=gradients),), argument_bytes).kernel
    for src in _STATE:
        yield cast_kernel(CastRule(src, src))
    yield ADJUST
    yield RESCALE
    for argument_bytes in ARGUMENT_BYTES:
        yield select_kernel(argument_bytes).kernel
