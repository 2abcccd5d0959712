# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of fused casts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from gpucast.core.dtypes import dtype
from gpucast.core.fuse import EMPTY, Fuse, Scaling
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, resolve
from gpucast.kernel.cast_kernel import (
    PARTS,
    THREADS,
    Shape,
    kernel_name,
    options,
    plain_kernel,
    tiles_of_thread,
)
from gpucast.kernel.fields import Fields
from gpucast.kernel.kernel import Kernel, Part, array_and
from gpucast.kernel.strides import DIMS, MAX_DIMS

#: ``struct Random`` of kernels/philox.cuh.
RANDOM = Fields("Random", (("seed", "u64"), ("offset", "u64")))
#: What a fused kernel is given. Addresses are on its device. A field without its option is not read.
FUSED = Fields(
    "FusedArguments",
    (
        # The number, or its address: of a FLOAT where the scaling is narrow, else of a DOUBLE.
        ("scale", "double"),
        ("scale_at", "const void*"),
        # The address of a FLOAT, the largest magnitude so far; its bits are compared as an integer.
        ("amax", "int*"),
        # The address of a byte that is set to 0 where a source value is infinite or NaN.
        ("finite", "u8*"),
        ("random", RANDOM),
        # The index of the array's first element in the sequence of the random words.
        ("first", "i64"),
    ),
)
FUSED_DIMS = Fields("FusedDims", (("given", FUSED), ("dims", DIMS)), "MaxDims")
#: The parts of every fused kernel.
FUSED_PARTS: tuple[Part, ...] = (*PARTS, "philox.cuh", "stochastic.cuh", FUSED, FUSED_DIMS, "fused.cu")

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: The most elements of a tile where each takes about a hundred instructions (6-bit types keep those of the cast).
_TILE = 4


class FusedOps(NamedTuple):
    """The operations fused with a cast: scale, amax, a check for finite sources. Random rounding is in the rule."""

    scaling: Scaling = "none"
    amax: bool = False
    finite: bool = False

    @classmethod
    def of(cls, fuse: Fuse) -> FusedOps:
        return PLAIN if fuse is EMPTY else cls(fuse.scaling, fuse.amax is not None, fuse.finite is not None)

    def fuses(self, rule: CastRule) -> bool:
        """Whether anything is fused with the cast."""
        return self != PLAIN or rule.rounding == STOCHASTIC


#: No fused operations.
PLAIN = FusedOps()


@lru_cache(maxsize=1024)
def cast_kernel(rule: CastRule, shape: Shape = "contiguous", unpacked: bool = False, ops: FusedOps = PLAIN) -> Kernel:
    """The kernel that casts one array: the plain one where nothing is fused. Rules and errors as for the two below."""
    return fused_kernel(rule, ops, shape, unpacked) if ops.fuses(rule) else plain_kernel(rule, shape, unpacked)


@lru_cache(maxsize=1024)
def fused_kernel(
    rule: CastRule, ops: FusedOps, shape: Shape = "contiguous", unpacked: bool = False, back: CastRule | None = None
) -> Kernel:
    """The kernel of a cast by a `gpucast.core.rule.resolve`, with the operations `ops`; with `back` the kernel
    of a cast there and back, which casts the results by that rule, times the inverse of the scale.

    ValueError for the shape "transposed", and where nothing is fused.
    """
    src, dst = rule.src, rule.dst
    if shape == "transposed":
        raise ValueError("fused_kernel: a fused cast has no transposed kernel; expected 'contiguous' or 'strided'")
    if back is None and not ops.fuses(rule):
        raise ValueError(
            f"fused_kernel: {src.name} to {dst.name} with nothing beside is a plain cast; see plain_kernel"
        )
    plain = plain_kernel(resolve(src, dst if back is None else src), shape, unpacked)
    src_bits = 8 if unpacked and src.packed else src.bits
    name, parts = fused_name(rule, ops, shape, unpacked and src.packed), FUSED_PARTS
    bits, macro = f"{src_bits}, ", "FUSED"
    if back is not None:
        name, bits, macro, parts = name.replace("_to_", "_as_", 1), "", "FAKE", (*FUSED_PARTS, "fake.cu")
    rules = {f"{name}_rule": rule} | ({} if back is None else {f"{name}_back": back})
    head = f"{name}, {src.name}, {dst.name}, {bits}{template_options(ops)}"
    tile, elements, ahead, given = plain.tile, plain.elements, 0, FUSED_DIMS.of(MAX_DIMS)
    if shape == "strided":
        line = f"GPUCAST_{macro}_STRIDED({head}, {MAX_DIMS}, {elements}, {THREADS})\n"
    else:
        tile, tiles = fused_tiles(rule, ops, plain.tile, src_bits)
        elements, ahead, given = tile * tiles, tile - 1, FUSED
        line = f"GPUCAST_{macro}_CONTIGUOUS({head}, {tile}, {tiles}, {THREADS})\n"
    typedefs = "".join(f"typedef CastRule<{options(one)}> {of};\n" for of, one in rules.items())
    return Kernel(
        name, parts, (src, _FLOAT, _DOUBLE, dst), f"namespace gpucast {{\n{typedefs}}}\n{line}", THREADS,
        array_and(given), elements, tile, ahead,
    )  # fmt: skip


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


def fused_tiles(rule: CastRule, ops: FusedOps, plain_tile: int, src_bits: int) -> tuple[int, int]:
    """Elements of a tile, and tiles of a thread, for the contiguous shape; `plain_tile`: of the cast alone."""
    src, dst = rule.src, rule.dst
    tiles = tiles_of_thread(src_bits, dst.bits, looks_up=False)
    if 6 in (src_bits, dst.bits):
        return plain_tile, tiles
    small = src.is_float and src_bits <= 8
    if rule.rounding == STOCHASTIC:
        # Random words come in blocks of four. A tile that does not begin at a block needs one block more, which costs
        # least per element in long tiles. Still longer tiles would write half a sector at a time, or spill registers.
        return 8 if dst.bits == 16 or src_bits == 64 or small else 16, 2
    # As in fused.cu: products of two FLOATs, computed without DOUBLE.
    narrow = ops.scaling == "narrow" and (src.bits <= 16 or src is _FLOAT) and dst.is_float
    # Where an element takes a few hundred instructions, these set the speed, and no longer memory.
    costly = small or not (narrow or ops.scaling == "none")
    if ops.scaling == "narrow" and (ops.amax or ops.finite) and dst.bits == 16 and src_bits >= 32:
        # Where the largest magnitude is kept beside products, four tiles are more than the registers of sm_80 hold.
        tiles = 2
    return min(plain_tile, _TILE) if costly else plain_tile, tiles
