# SPDX-License-Identifier: Apache-2.0
"""The static check of the kernels that quantize and dequantize, by the same model as casts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench import cubin
from bench.static.budget import GATED
from bench.static.kernels import StaticKernel, kernel, marked
from bench.static.model import Estimate, judged
from bench.static.paths import full_tile, reach
from bench.static.sass import Instruction, blocks, parse
from gpucast.codegen.cast_kernel import join
from gpucast.compile import compiler, disassembler
from gpucast.core.dtypes import dtype
from gpucast.core.formats import FORMATS
from gpucast.core.rule import CastRule
from gpucast.quantization.gpu.source import WARP, Kind, QuantizeSpec

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

#: The share of a copy that a kernel is to reach, by its kind; what two passes are to reach together.
GOALS: dict[str, float] = dict.fromkeys(("rows", "columns", "whole", "both", "squares", "down", "back"), 0.85)
TWO_PASSES = 0.50
#: Kinds whose threads only read, in a loop.
_READING = ("extremes", "columns")

#: (architecture, kind, type, format) -> why the kernel misses its goal. Entries that do not apply are an error.
KNOWN: dict[tuple[str, str, str, str], str] = {}


@dataclass(frozen=True)
class StaticMeasurement:
    #: A `Kind`, or a key of `bench.static.tiles.RUNS`.
    kind: str
    format: str
    #: The type that is quantized, or dequantized to.
    source: str
    kernel: StaticKernel
    #: How many results one read gives.
    results: int = 1

    @property
    def estimate(self) -> Estimate:
        bits = self.kernel.rule.dst.bits
        read = self.kernel.src_bits / 8
        return judged(self.kernel, read if self.kind in _READING else read + self.results * bits / 8)

    def __str__(self) -> str:
        return f"{self.kernel.arch} {self.kind} {self.source} {self.format}"


def chosen() -> list[tuple[Kind, str, str]]:
    """The kernels that are checked: kind, format, and type."""
    return [(kind, name, source) for kind, formats in CHOSEN.items() for name in formats for source in SOURCES]


def measure(arch: str, kernels: Sequence[tuple[Kind, str, str]] | None = None) -> list[StaticMeasurement]:
    """Some kernels, or all chosen ones, compiled as one program for an architecture such as "sm_90"."""
    names, sources = [], []
    for kind, name, source in chosen() if kernels is None else kernels:
        format = FORMATS[name]
        block = format.block[-1] if kind != "elements" and isinstance(format.block, tuple) else 0
        pair = (format.element, dtype(source)) if kind == "back" else (dtype(source), format.element)
        lanes, single = WARP if kind == "extremes" else 1, format.block == "tensor"
        sources.append(QuantizeSpec(CastRule(*pair), format, kind, lanes=lanes, block=block, single=single).source())
        # A thread that has a whole block also stores the block's scale.
        extra_bytes = format.scale.bits // 8 if kind == "rows" and block == sources[-1].elements else 0
        names.append((kind, name, source, extra_bytes))
    structs = dict(src for source in sources for src in source.structs)
    text = join(sources[0].prelude, structs, [source.kernel for source in sources])
    compiled = compiler.compile(marked(text), "quantize", arch)
    of_cubin = cubin.kernels(compiled.code)
    of_code = parse(disassembler.disassemble(compiled.code).decode())
    found = []
    for (kind, name, src, extra_bytes), one in zip(names, sources, strict=True):
        of = kernel(one, arch, of_code[one.name], of_cubin[one.name], compiled.log, extra_bytes=extra_bytes)
        if kind in _READING:
            of = _one_turn(of, of_code[one.name])
        found.append(StaticMeasurement(kind, name, src, of))
    return found


def _one_turn(of: StaticKernel, code: Sequence[Instruction]) -> StaticKernel:
    """A kernel whose threads go through all of their block in a loop, of which one turn counts."""
    flow = blocks(list(code))
    loops = [number for number, reached in enumerate(reach(flow)) if number in reached]
    path = full_tile(flow)
    turn = tuple(one for number in path.blocks if number in loops for one in flow[number].instructions)
    elements = sum(width * count for width, count in path.loads.items()) * 8 // of.src_bits
    source = replace(of.source, elements=elements)
    return replace(of, source=source, path=turn, repeated=(), loop=False, instructions=len(turn), loads=path.loads)


def two_passes(kernels: Sequence[StaticMeasurement]) -> dict[tuple[str, str], float]:
    """(type, format) -> the share of a copy of source and codes that quantizing reaches with two reads."""
    last = {(one.source, one.format): one for one in kernels if one.kind == "elements"}
    found = {}
    for one in kernels:
        if one.kind == "extremes":
            other = last[one.source, one.format]
            read, moved = one.kernel.src_bits / 8, other.kernel.moved
            found[one.source, one.format] = moved / (read / one.estimate.share + moved / other.estimate.share)
    return found


def problems(one: StaticMeasurement) -> list[str]:
    """The problems of a kernel; usually none."""
    kernel, found = one.kernel, []
    if kernel.local:
        found.append(f"{kernel.local} bytes of local memory: registers spill")
    if kernel.log:
        found.append(f"the compiler says: {kernel.log}")
    goal = GOALS.get(one.kind, 0.0)
    if kernel.capability in GATED and one.estimate.share < goal:
        found.append(f"{one.estimate}; the goal is {100 * goal:.0f} %")
    tile = kernel.source.elements * kernel.src_bits // 8
    wide = sum(width * count for width, count in kernel.loads.items() if width >= min(16, tile))
    if one.kind not in ("back", *_READING) and wide < tile:
        found.append(f"loads of {min(kernel.loads, default=0)} bytes at a time, not of {min(16, tile)}")
    return found


def verdict(kernels: Sequence[StaticMeasurement], known: Mapping[tuple[str, str, str, str], str] = KNOWN) -> list[str]:
    """Why the check fails: unknown problems, and known problems that no longer exist."""
    failures = []
    together = two_passes(kernels)
    for one in kernels:
        found = problems(one)
        share = together.get((one.source, one.format), 1.0) if one.kind == "extremes" else 1.0
        if one.kernel.capability in GATED and share < TWO_PASSES:
            found.append(f"{100 * share:.0f} % of a copy in two passes; the goal is {100 * TWO_PASSES:.0f} %")
        if (one.kernel.arch, one.kind, one.source, one.format) in known:
            found = [] if found else ["keeps what is checked; take it out of the known misses"]
        failures += [f"{one}: {problem}" for problem in found]
    return failures


def report(kernels: Sequence[StaticMeasurement]) -> None:
    """A line for each kernel."""
    for one in kernels:
        found = one.kernel
        print(
            f"{one!s:60} {found.per_element:6.2f} instr/el, {one.estimate}, "
            f"{found.registers} registers, loads {found.loads}, stores {found.stores}"
        )
    for (source, format), share in two_passes(kernels).items():
        print(f"{source} {format} in two passes: {100 * share:.0f} % of a copy")
