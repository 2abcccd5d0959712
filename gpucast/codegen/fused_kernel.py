# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of fused casts."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NamedTuple

from gpucast.codegen.cast_kernel import (
    MAX_DIMS,
    THREADS,
    KernelSource,
    Shape,
    kernel_file,
    kernel_name,
    kernel_source,
    options,
    prelude,
    structs,
    tiles_of_thread,
)
from gpucast.codegen.strides import Dims
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import Scaling
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, resolve

#: The further files of fused kernels, in this order after those that every kernel needs.
FILES = ("philox.cuh", "stochastic.cuh", "fused.cu")

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: The most elements of a tile where each takes about a hundred instructions (6-bit types keep those of the cast).
_TILE = 4


class FusedOps(NamedTuple):
    """What is fused with a cast: a scale, an amax, a check for finite sources. Random rounding is part of the rule."""

    scaling: Scaling = "none"
    amax: bool = False
    finite: bool = False

    def fuses(self, rule: CastRule) -> bool:
        """Whether anything is fused with the cast."""
        return self != PLAIN or rule.rounding == STOCHASTIC


#: No fused operations.
PLAIN = FusedOps()


def fused_source(rule: CastRule, ops: FusedOps, shape: Shape = "contiguous", *, unpacked: bool = False) -> KernelSource:
    """The kernel of a cast by a `gpucast.casting.fused_options.fused_rule`, with the operations `ops`.

    Its last argument is a `FusedArguments`. ValueError for the shape "transposed" and where nothing is fused.
    """
    src, dst = rule.src, rule.dst
    if shape == "transposed":
        raise ValueError("fused_source: a fused cast has no transposed kernel; expected 'contiguous' or 'strided'")
    if not ops.fuses(rule):
        raise ValueError(
            f"fused_source: {src.name} to {dst.name} with nothing beside is a plain cast; see kernel_source"
        )
    plain = kernel_source(resolve(src, dst), shape, unpacked=unpacked)
    name = fused_name(rule, ops, shape, plain.unpacked)
    head = f"{name}, {src.name}, {dst.name}, {plain.src_bits}, {template_options(ops)}"
    tile, elements = plain.tile, plain.elements
    if shape == "strided":
        line = f"GPUCAST_FUSED_STRIDED({head}, {MAX_DIMS}, {elements}, {THREADS})\n"
        more = f"gpucast::FusedDims<{MAX_DIMS}>"
    else:
        tile, tiles = fused_tiles(rule, ops, plain)
        elements = tile * tiles
        line = f"GPUCAST_FUSED_CONTIGUOUS({head}, {tile}, {tiles}, {THREADS})\n"
        more = "gpucast::FusedArguments"
    return replace(
        plain,
        name=name,
        rule=rule,
        prelude=fused_prelude(),
        structs=fused_structs(src, dst),
        kernel=f"namespace gpucast {{\ntypedef CastRule<{options(rule)}> {name}_rule;\n}}\n{line}",
        tile=tile,
        elements=elements,
        threads=THREADS,
        more=more,
    )


def fused_prelude() -> str:
    """The text of the files that every fused kernel needs."""
    return "\n".join([prelude(), *map(kernel_file, FILES)])


def fused_structs(src: DType, dst: DType) -> tuple[tuple[str, str], ...]:
    """The structs of the dtypes that a fused kernel needs."""
    return structs(src, _FLOAT, _DOUBLE, dst)


def template_options(ops: FusedOps) -> str:
    """The last arguments of the macro ``GPUCAST_FUSED`` and of the template ``gpucast::Fused``."""
    return ", ".join((ops.scaling, *("true" if flag else "false" for flag in (ops.amax, ops.finite))))


def fused_name(rule: CastRule, ops: FusedOps, shape: Shape, unpacked: bool) -> str:
    """The name of the cast's kernel, with its fused operations appended."""
    scaled = ops.scaling != "none"
    name = kernel_name(replace(rule, src=_DOUBLE) if scaled else rule, unpacked=unpacked)
    if scaled:
        source = rule.src.numpy_name.replace("_", "")
        name = name.replace(f"gpucast_{_DOUBLE.numpy_name}_to_", f"gpucast_{source}_to_", 1)
    parts = [{"none": "", "narrow": "_scaled", "wide": "_scaled_wide"}[ops.scaling]]
    parts += ["_amax"] * ops.amax + ["_finite"] * ops.finite + [f"_{shape}"] * (shape != "contiguous")
    return name + "".join(parts)


def fused_tiles(rule: CastRule, ops: FusedOps, plain: KernelSource) -> tuple[int, int]:
    """Elements of a tile, and tiles of a thread, for the contiguous shape; `plain` is the kernel of the cast alone."""
    src, dst = rule.src, rule.dst
    tiles = tiles_of_thread(plain.src_bits, dst.bits, looks_up=False)
    if 6 in (plain.src_bits, dst.bits):
        return plain.tile, tiles
    small = src.is_float and plain.src_bits <= 8
    if rule.rounding == STOCHASTIC:
        # Random words come in blocks of four. A tile that does not begin at a block needs one block more, which costs
        # least per element in long tiles. Still longer tiles would write half a sector at a time, or spill registers.
        return 8 if dst.bits == 16 or plain.src_bits == 64 or small else 16, 2
    # As in fused.cu: products of two FLOATs, computed without DOUBLE.
    narrow = ops.scaling == "narrow" and (src.bits <= 16 or src is _FLOAT) and dst.is_float
    # Where an element takes a few hundred instructions, these set the speed, and no longer memory.
    costly = small or not (narrow or ops.scaling == "none")
    if ops.scaling == "narrow" and (ops.amax or ops.finite) and dst.bits == 16 and plain.src_bits >= 32:
        # Where the largest magnitude is kept beside products, four tiles are more than the registers of sm_80 hold.
        tiles = 2
    return min(plain.tile, _TILE) if costly else plain.tile, tiles


class FusedArguments(NamedTuple):
    """The last argument of a fused kernel. Addresses are on its device; 0 for operations that are not wanted."""

    #: The scale as a number, used if `scale_at` is 0. Otherwise `scale_at` is the address of the scale: a FLOAT for
    #: narrow scaling, a DOUBLE for wide.
    scale: float = 1.0
    scale_at: int = 0
    #: The address of a FLOAT that is raised to the largest magnitude.
    amax: int = 0
    #: The address of a byte that is set to 0 if a source value is infinite or NaN.
    finite: int = 0
    seed: int = 0
    offset: int = 0
    #: The index of the array's first element in the sequence of random words.
    first: int = 0
    #: The dimensions, for the strided shape.
    dims: Dims | None = None

    def to_bytes(self) -> bytes:
        """``struct FusedArguments`` or ``FusedDims`` of kernels/fused.cu."""
        given = struct.pack(
            "<dQQQQQq", self.scale, self.scale_at, self.amax, self.finite, self.seed, self.offset, self.first
        )
        return given + (b"" if self.dims is None else self.dims.to_bytes())
