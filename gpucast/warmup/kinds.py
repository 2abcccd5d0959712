# SPDX-License-Identifier: Apache-2.0
"""The further kernels that `gpucast.warmup` compiles, for `cast_many`, `quantize` and `mixed`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpucast.casting.fused_options import fused_rule
from gpucast.codegen.batch_kernel import ARGUMENT_BYTES, BatchSource, BatchSpec
from gpucast.codegen.cast_kernel import KernelSource, Shape
from gpucast.codegen.fused_kernel import FusedOps
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import LENGTHS, Format, ScaleLayout
from gpucast.core.fused_ops import Random
from gpucast.core.rule import STOCHASTIC, CastRule
from gpucast.mixed.gpu.kernels import AdjustSpec, RescaleSpec, SelectSpec
from gpucast.mixed.gpu.norm_kernels import FinishSpec, NormSpec
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.gpu.hadamard_source import UnitSpec
from gpucast.quantization.gpu.quantize_on_gpu import swizzle_spec
from gpucast.quantization.gpu.source import WARP, QuantizeSpec, finishing
from gpucast.quantization.gpu.tile_source import TileSpec
from gpucast.quantization.gpu.tiles import ResultSpec, plan

_FLOAT = dtype("FLOAT")
#: The types of a loss scale, of its state and of a step's flag, which are copied to and on devices.
_STATE = (_FLOAT, dtype("UINT32"), dtype("BOOL"))
#: The shape of a matrix that consists of whole blocks of every format, also transposed.
_MATRIX = (1024, 1024)


def of_many(rule: CastRule, unpacked: bool, ops: FusedOps) -> Iterator[CastSpec | BatchSpec]:
    """Kernels for trees of one type of any length; a tree with a single array is cast by that array's own kernel.

    With a scale also those that check whether all elements are finite, as loss scales need.
    """
    for finite in (False, True) if ops.scaling != "none" and rule.src.has_nan else (False,):
        kind = CastSpec.of(rule, "contiguous", unpacked, FusedOps(ops.scaling, False, finite))
        if finite:
            yield kind
            yield replace(kind, shape="strided")
        for argument_bytes in ARGUMENT_BYTES:
            yield BatchSpec((kind,), argument_bytes)


def of_quantize(format: Format, src: DType, rounding: str | None) -> Iterator[QuantizeSpec | TileSpec | UnitSpec]:
    """Kernels that quantize matrices of a type along the last axis, plain, transposed or both, and dequantize them.

    Those for rows of whole blocks, and those for all other rows. Where scales have one byte, also those that write them
    in the order "128x4".
    """
    rule, stochastic = CastRule(src, format.element), rounding == STOCHASTIC
    blocks = BlockGrid.of(format, _MATRIX, 1)
    in_rows = blocks.splits_outer and blocks.lengths[1] == 1 and blocks.lengths[2] in LENGTHS
    if format.rule == "4over6":
        yield UnitSpec(rule, "units", 0, format, stochastic)
        for plain in (False, True):
            yield UnitSpec(rule, "tiles", 0, format, stochastic, plain=plain, turned=True)
    else:
        yield from _of_one_scale(rule, format, stochastic, blocks, in_rows, "linear")
        if format.scale.bits == 8 and format.min_ndim == 1 and isinstance(format.block, tuple):
            yield from _of_one_scale(rule, format, stochastic, blocks, in_rows, "128x4")
    if format.global_scale:
        yield QuantizeSpec(rule, format, "top", lanes=WARP)
        yield QuantizeSpec(rule, format, "global")
    for kind in () if format.steps is None else finishing(format.steps):
        yield QuantizeSpec(rule, format, kind)
    for dst in dict.fromkeys((src, _FLOAT)):
        back = CastRule(format.element, dst)
        yield QuantizeSpec(back, format, "back", single=format.block == "tensor")
        if in_rows:
            yield QuantizeSpec(back, format, "back", block=blocks.lengths[2])
    if format.scale.bits == 8:
        for back_to_linear in (False, True):
            yield swizzle_spec(format.scale, back_to_linear)


def _of_one_scale(
    rule: CastRule, format: Format, stochastic: bool, blocks: BlockGrid, in_rows: bool, layout: ScaleLayout
) -> Iterator[QuantizeSpec | TileSpec]:
    """Those that quantize by one scale for each block."""
    random = Random(0) if stochastic else None
    straight, swapped = ResultSpec(False, 1), ResultSpec(True, 1)
    if in_rows:
        yield QuantizeSpec(rule, format, "rows", stochastic, block=blocks.lengths[2], layout=layout)
    for wanted in ([straight], [swapped], [straight, swapped]):
        tile_plan = plan(_MATRIX, rule.src, format, wanted, random, given=False, layout=layout)
        if tile_plan is not None and not (in_rows and wanted == [straight]):
            yield tile_plan.spec
    lanes = 1 if blocks.lengths[2] == 1 else WARP
    if layout == "linear":
        yield QuantizeSpec(rule, format, "extremes", lanes=lanes)
        if lanes == 1:
            yield QuantizeSpec(rule, format, "columns", lanes=lanes)
    yield QuantizeSpec(rule, format, "scales", layout=layout)
    yield QuantizeSpec(rule, format, "elements", stochastic, single=format.block == "tensor", layout=layout)


def of_mixed(rows: Iterable[DType]) -> Iterator[KernelSpec[KernelSource | BatchSource]]:
    """Kernels of loss scales for losses and gradients of these types, and of `select_tree`.

    Without the kernels that copy arrays that are not contiguous.
    """
    shapes: tuple[Shape, ...] = ("contiguous", "strided")
    loss, gradients = FusedOps("narrow"), FusedOps("narrow", finite=True)
    for src in rows:
        scale, unscale = (fused_rule(src, dst, scaled=True) for dst in (src, _FLOAT))
        for shape in shapes:
            yield CastSpec(scale, shape, ops=loss)
            yield CastSpec(unscale, shape, ops=gradients)
        for argument_bytes in ARGUMENT_BYTES:
            yield BatchSpec((CastSpec(unscale, ops=gradients),), argument_bytes)
            yield NormSpec((CastSpec(CastRule(src, _FLOAT)),), argument_bytes)
    yield FinishSpec()
    for src in _STATE:
        yield CastSpec(CastRule(src, src))
    yield AdjustSpec()
    yield RescaleSpec()
    for argument_bytes in ARGUMENT_BYTES:
        yield SelectSpec(argument_bytes)
