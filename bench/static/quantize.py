# SPDX-License-Identifier: Apache-2.0
"""The static check of the kernels that quantize and dequantize, by the same model as casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.static.budget import GATED, Asked, Checked, checked
from bench.static.kernels import Code, StaticKernel, facts
from bench.static.paths import full_tile, loops
from bench.static.sass import Block
from gpucast.codegen.cast_kernel import KernelSource
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule
from gpucast.quantization.formats import FORMATS, find
from gpucast.quantization.gpu.hadamard_source import HadamardSpec
from gpucast.quantization.gpu.source import WARP, Kind, QuantizeSpec
from gpucast.quantization.gpu.tile_source import Run, TileSpec

#: Formats by the kernel that is checked: the single pass over rows, the first and the last pass over other blocks,
#: dequantizing.
CHOSEN: dict[Kind, tuple[str, ...]] = {
    "rows": ("mxfp8e4m3", "mxfp8e5m2_up", "mxfp4", "nvfp4", "float8e4m3fn_1x128", "int8_64", "int4_128"),
    "extremes": ("float8e4m3fn_tensor", "int8_axis"),
    "columns": ("int8_axis",),
    "elements": ("float8e4m3fn_tensor", "int8_axis"),
    "back": ("mxfp8e4m3", "nvfp4", "float8e4m3fn_tensor", "int8_axis"),
}
SOURCES = ("FLOAT", "BFLOAT16")
#: Tiles that are quantized both ways, or down the columns, in one read: both results at once, with blocks along the
#: last axis; squares; one result with blocks along the first axis, or with a scale for each column.
RUNS: dict[str, tuple[Run, Run]] = {
    "both": ("along", "down"),
    "squares": ("square", "square"),
    "down": ("down", "nothing"),
    "whole": ("down", "nothing"),
}
TILES = (
    ("both", "mxfp8e4m3", "FLOAT"),
    ("both", "mxfp8e4m3", "BFLOAT16"),
    ("both", "float8e4m3fn_1x128", "BFLOAT16"),
    ("squares", "float8e4m3fn_128x128", "BFLOAT16"),
    ("down", "mxfp8e4m3", "BFLOAT16"),
    ("whole", "int8_axis", "FLOAT"),
    ("whole", "int8_axis", "BFLOAT16"),
)
#: What is done before NVFP4 by rows of BFLOAT16: a transform of this length, or none but two scales that are tried.
BEFORE = (("hadamard", "nvfp4", 16), ("hadamard", "nvfp4", 128), ("4over6", "nvfp4_4over6", 0))
#: The side of the tiles of columns with a scale each.
_OF_COLUMNS = 64
#: The share of a copy that a kernel is to reach, by its kind; what two passes are to reach together.
GOALS: dict[str, float] = dict.fromkeys(("rows", "columns", "whole", "both", "squares", "down", "back"), 0.85)
TWO_PASSES = 0.50
#: Kinds whose threads only read, in a loop.
_READING = ("extremes", "columns")


def measure(arch: str) -> list[Checked]:
    """All chosen kernels for an architecture such as "sm_90"."""
    rows = [_row(kind, name, source) for kind, formats in CHOSEN.items() for name in formats for source in SOURCES]
    # The machine code of both results at once for sm_100a has more paths than `bench.static.paths` follows.
    tiles = [_tile(*one) for one in TILES if one[0] != "both" or not arch.startswith("sm_10")]
    return checked([*rows, *(_after(*one) for one in BEFORE), *tiles], arch)


def _asked(kind: str, name: str, source: KernelSource, moved: float, extra_bytes: int = 0) -> Asked:
    """`extra_bytes`: those that each thread stores beside its codes. `moved`: bytes read and written per element."""

    def of(arch: str, code: Code) -> Checked:
        kernel = facts(source, arch, code, extra_bytes)
        if kind in _READING:
            kernel = _one_turn(kernel, code.blocks)
        return Checked(kind, name, kernel, GOALS.get(kind, 0.0), moved, kind not in ("back", *_READING))

    return Asked(source, of)


def _row(kind: Kind, name: str, src: str) -> Asked:
    format = FORMATS[name]
    block = format.block[-1] if kind != "elements" and isinstance(format.block, tuple) else 0
    pair = (format.element, dtype(src)) if kind == "back" else (dtype(src), format.element)
    lanes, single = WARP if kind == "extremes" else 1, format.block == "tensor"
    source = QuantizeSpec(CastRule(*pair), format, kind, lanes=lanes, block=block, single=single).source()
    # A thread that has a whole block also stores the block's scale.
    extra_bytes = format.scale.bits // 8 if kind == "rows" and block == source.elements else 0
    written = 0 if kind in _READING else pair[1].bits
    return _asked(kind, f"{src} {name}", source, (source.src_bits + written) / 8, extra_bytes)


def _after(kind: str, name: str, length: int) -> Asked:
    format, src = find(name, "bench"), dtype("BFLOAT16")
    source = HadamardSpec(CastRule(src, format.element), "rows", length, format).source()
    assert isinstance(format.block, tuple)
    scales = source.elements // format.block[0]
    what = f"{name}, runs of {length}" if length else name
    return _asked(kind, f"{src} {what}", source, (source.src_bits + format.element.bits) / 8, scales)


def _tile(kind: str, name: str, src: str) -> Asked:
    format, runs = FORMATS[name], RUNS[kind]
    block = format.block[-1] if isinstance(format.block, tuple) else _OF_COLUMNS
    spec = TileSpec(CastRule(dtype(src), format.element), format, block, *runs, whole_columns=kind == "whole")
    source, results = spec.source(), 2 - runs.count("nothing")
    bits = source.rule.dst.bits
    moved = (source.src_bits + results * bits) / 8
    return _asked(kind, f"{src} {name}", source, moved, (results - 1) * source.elements * bits // 8)


def _one_turn(of: StaticKernel, flow: list[Block]) -> StaticKernel:
    """A kernel whose threads go through all of their block in a loop, of which one turn counts."""
    path, turns = full_tile(flow), loops(flow)
    turn = tuple(one for number in path.blocks if number in turns for one in flow[number].instructions)
    elements = sum(width * count for width, count in path.loads.items()) * 8 // of.src_bits
    source = replace(of.source, elements=elements)
    return replace(of, source=source, path=turn, repeated=(), loop=False, instructions=len(turn), loads=path.loads)


def two_passes(kernels: Sequence[Checked]) -> dict[str, float]:
    """Type and format -> the share of a copy of source and codes that quantizing reaches with two reads."""
    last = {one.name: one for one in kernels if one.kind == "elements"}
    found = {}
    for one in kernels:
        if one.kind == "extremes":
            other = last[one.name]
            read, moved = one.kernel.src_bits / 8, other.kernel.moved
            found[one.name] = moved / (read / one.estimate.share + moved / other.estimate.share)
    return found


def verdict_of_passes(kernels: Sequence[Checked]) -> list[str]:
    """Where two passes together miss their goal."""
    return [
        f"{kernels[0].kernel.arch} {name}: {100 * share:.0f} % of a copy in two passes; the goal is {TWO_PASSES:.0%}"
        for name, share in two_passes(kernels).items()
        if kernels[0].kernel.capability in GATED and share < TWO_PASSES
    ]
