# SPDX-License-Identifier: Apache-2.0
"""Kernels beside those of plain casts that `gpucast.warmup` compiles: of `cast_many`, `quantize` and `mixed`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpucast.casting.fused import fused_rule
from gpucast.codegen.batch import ARGUMENT_BYTES, Kind, ManySource, many_source
from gpucast.codegen.cast import KernelSource, Shape
from gpucast.codegen.fused import Options
from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import FORMATS, Format
from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC, Rule
from gpucast.mixed.gpu.kernels import FLAG_TO_WORDS, adjust_source, select_source
from gpucast.quantization.gpu.quantize import blocks_of
from gpucast.quantization.gpu.source import ROW_BLOCKS, WARP, Work
from gpucast.quantization.gpu.tile_source import Tiles
from gpucast.quantization.gpu.tiles import Wanted, plan

_FLOAT, _BYTES = dtype("FLOAT"), dtype("UINT8")
#: A loss scale, its whole state and the flag of a step: these are copied to and on devices.
_STATE = (_FLOAT, dtype("UINT32"), dtype("BOOL"))
#: A matrix of whole blocks of every format, both ways.
_MATRIX = (1024, 1024)


@dataclass(frozen=True)
class Many:
    """The kernel of `cast_many` for arrays that are all cast alike; called as `Options` is."""

    asked: Options
    argument_bytes: int

    def __call__(self, rule: Rule, shape: Shape = "contiguous", *, unpacked: bool = False) -> ManySource:
        return many_source((Kind(rule, unpacked, self.asked),), self.argument_bytes)


@dataclass(frozen=True)
class Select:
    """The kernel of `select_tree`; called as `Options` is."""

    argument_bytes: int

    def __call__(self, rule: Rule, shape: Shape = "contiguous", *, unpacked: bool = False) -> ManySource:
        return select_source(self.argument_bytes)


def of_many(rule: Rule, asked: Options) -> Iterator[tuple[Options | Many, Shape]]:
    """Kernels for trees of one type, whatever their length: a tree of one array is cast by a kernel of its own.

    With a scale, with and without the check that all is finite, as loss scales want it.
    """
    for finite in (False, True) if asked.scaling != "none" and rule.src.has_nan else (False,):
        options = Options(asked.scaling, False, finite)
        if finite:
            yield options, "contiguous"
            yield options, "strided"
        for argument_bytes in ARGUMENT_BYTES:
            yield Many(options, argument_bytes), "contiguous"


def of_quantize(format: Format, src: DType, rounding: str | None) -> Iterator[tuple[Rule, Work | Tiles]]:
    """Kernels that quantize matrices of a type along the last axis, transposed or not or both, and dequantize them.

    Those for whole blocks, and those for all others.
    """
    rule, stochastic = Rule(src, format.element), rounding == STOCHASTIC
    random = Random(0) if stochastic else None
    straight, swapped = Wanted(False, 1), Wanted(True, 1)
    blocks = blocks_of(_MATRIX, format, 1)
    in_rows = blocks.apart and blocks.block_rows == 1 and blocks.block_columns in ROW_BLOCKS
    if in_rows:
        yield rule, Work(format, "rows", stochastic, block=blocks.block_columns)
    for wanted in ([straight], [swapped], [straight, swapped]):
        found = plan(_MATRIX, src, format, wanted, random, given=False)
        if found is not None and not (in_rows and wanted == [straight]):
            yield rule, found.work
    yield rule, Work(format, "extremes", lanes=1 if blocks.block_columns == 1 else WARP)
    yield rule, Work(format, "scales")
    yield rule, Work(format, "elements", stochastic, single=format.block == "tensor")
    if format.global_scale:
        yield rule, Work(format, "top", lanes=WARP)
        yield rule, Work(format, "global")
    for dst in dict.fromkeys((src, _FLOAT)):
        back = Rule(format.element, dst)
        yield back, Work(format, "back", single=format.block == "tensor")
        if in_rows:
            yield back, Work(format, "back", block=blocks.block_columns)
    if format.scale.bits == 8:
        for kind in ("swizzle", "unswizzle"):
            yield Rule(format.scale, format.scale), Work(FORMATS["mxfp4"], kind)


def of_mixed(rows: Iterable[DType]) -> Iterator[tuple[Rule, Callable[..., KernelSource | ManySource], Shape]]:
    """Kernels of loss scales, whose losses and gradients have one of the types, and of `select_tree`.

    But for those that copy what is not contiguous.
    """
    shapes: tuple[Shape, ...] = ("contiguous", "strided")
    loss, gradients = Options("narrow"), Options("narrow", finite=True)
    for row in rows:
        scale, unscale = (fused_rule(row, dst, scaled=True) for dst in (row, _FLOAT))
        for shape in shapes:
            yield scale, loss, shape
            yield unscale, gradients, shape
        for argument_bytes in ARGUMENT_BYTES:
            yield unscale, Many(gradients, argument_bytes), "contiguous"
    for row in _STATE:
        yield Rule(row, row), Options(), "contiguous"
    yield FLAG_TO_WORDS, adjust_source, "contiguous"
    for argument_bytes in ARGUMENT_BYTES:
        yield Rule(_BYTES, _BYTES), Select(argument_bytes), "contiguous"
