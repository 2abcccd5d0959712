# SPDX-License-Identifier: Apache-2.0
"""The static check of the kernels that quantize in tiles: budgets of what one read and all results move."""

from __future__ import annotations

from bench import cubin
from bench.sass import parse
from bench.static_kernels import kernel
from bench.static_quantize import StaticMeasurement
from gpucast.cli import disassembler
from gpucast.codegen.cast import join
from gpucast.compile import cubin as compiler
from gpucast.core.dtypes import dtype
from gpucast.core.formats import FORMATS
from gpucast.core.rule import CastRule
from gpucast.quantization.gpu.tile_source import Run, TileSpec

#: Both ways at once, blocks along the last axis; blocks along the first axis.
WAYS: dict[str, tuple[Run, Run]] = {
    "both": ("along", "down"),
    "squares": ("square", "square"),
    "down": ("down", "nothing"),
}
CHOSEN: tuple[tuple[str, str, str], ...] = (
    ("both", "mxfp8e4m3", "FLOAT"),
    ("both", "mxfp8e4m3", "BFLOAT16"),
    ("both", "float8e4m3fn_1x128", "BFLOAT16"),
    ("squares", "float8e4m3fn_128x128", "BFLOAT16"),
    ("down", "mxfp8e4m3", "BFLOAT16"),
)

_PIECES = "a thread finds the divisor of a row anew for eight elements"

#: As of `bench.static_quantize`.
KNOWN: dict[tuple[str, str, str, str], str] = {
    ("sm_90", "both", "BFLOAT16", "float8e4m3fn_1x128"): _PIECES,
    ("sm_100a", "squares", "BFLOAT16", "float8e4m3fn_128x128"): "codes are turned by bytes for one of the results",
}


def measure(arch: str) -> list[StaticMeasurement]:
    """All chosen kernels, compiled as one program for an architecture such as "sm_90".

    Without runs both ways for sm_100a and its like: more ways lead through that machine code than `bench.sass_paths`
    follows.
    """
    sources = []
    chosen = [one for one in CHOSEN if one[0] != "both" or not arch.startswith("sm_10")]
    for way, name, source in chosen:
        format, runs = FORMATS[name], WAYS[way]
        assert isinstance(format.block, tuple)
        rule = CastRule(dtype(source), format.element)
        sources.append(TileSpec(rule, format, format.block[-1], *runs).source())
    structs = dict(row for source in sources for row in source.structs)
    compiled = compiler.compile(join(sources[0].prelude, structs, [source.kernel for source in sources]), "tiles", arch)
    of_cubin, of_code = cubin.kernels(compiled.code), parse(disassembler.disassemble(compiled.code).decode())
    found = []
    for (way, name, row), one in zip(chosen, sources, strict=True):
        results = 2 - WAYS[way].count("nothing")
        # Every thread stores so many bytes beside those of one result.
        beside = (results - 1) * one.elements * one.rule.dst.bits // 8
        facts = kernel(one, arch, of_code[one.name], of_cubin[one.name], compiled.log, beside)
        found.append(StaticMeasurement(way, name, row, facts, results))
    return found
