# SPDX-License-Identifier: Apache-2.0
"""The static check of the kernels that quantize in tiles, which one read and all results move."""

from __future__ import annotations

from bench import cubin
from bench.static.kernels import kernel, marked
from bench.static.quantize import StaticMeasurement
from bench.static.sass import parse
from gpucast.codegen.cast_kernel import join
from gpucast.compile import compiler, disassembler
from gpucast.core.dtypes import dtype
from gpucast.core.formats import FORMATS
from gpucast.core.rule import CastRule
from gpucast.quantization.gpu.tile_source import Run, TileSpec

#: Both results at once, with blocks along the last axis; one result with blocks along the first axis, or with a scale
#: for each column.
RUNS: dict[str, tuple[Run, Run]] = {
    "both": ("along", "down"),
    "squares": ("square", "square"),
    "down": ("down", "nothing"),
    "whole": ("down", "nothing"),
}
CHOSEN: tuple[tuple[str, str, str], ...] = (
    ("both", "mxfp8e4m3", "FLOAT"),
    ("both", "mxfp8e4m3", "BFLOAT16"),
    ("both", "float8e4m3fn_1x128", "BFLOAT16"),
    ("squares", "float8e4m3fn_128x128", "BFLOAT16"),
    ("down", "mxfp8e4m3", "BFLOAT16"),
    ("whole", "int8_axis", "FLOAT"),
    ("whole", "int8_axis", "BFLOAT16"),
)

#: The side of the tiles of columns with a scale each.
_OF_COLUMNS = 64
#: As in `bench.static.quantize`.
KNOWN: dict[tuple[str, str, str, str], str] = {}


def measure(arch: str) -> list[StaticMeasurement]:
    """All chosen kernels, compiled as one program for an architecture such as "sm_90".

    Without both results at once for sm_100a and similar: that machine code has more paths than `bench.static.paths`
    follows.
    """
    sources = []
    chosen = [one for one in CHOSEN if one[0] != "both" or not arch.startswith("sm_10")]
    for kind, name, source in chosen:
        format, runs = FORMATS[name], RUNS[kind]
        block = format.block[-1] if isinstance(format.block, tuple) else _OF_COLUMNS
        rule = CastRule(dtype(source), format.element)
        sources.append(TileSpec(rule, format, block, *runs, whole_columns=kind == "whole").source())
    structs = dict(src for source in sources for src in source.structs)
    text = join(sources[0].prelude, structs, [source.kernel for source in sources])
    compiled = compiler.compile(marked(text), "tiles", arch)
    of_cubin, of_code = cubin.kernels(compiled.code), parse(disassembler.disassemble(compiled.code).decode())
    found = []
    for (kind, name, src), one in zip(chosen, sources, strict=True):
        results = 2 - RUNS[kind].count("nothing")
        # The bytes that every thread stores in addition to those of one result.
        extra_bytes = (results - 1) * one.elements * one.rule.dst.bits // 8
        facts = kernel(one, arch, of_code[one.name], of_cubin[one.name], compiled.log, extra_bytes)
        found.append(StaticMeasurement(kind, name, src, facts, results))
    return found
