# SPDX-License-Identifier: Apache-2.0
"""The static check of the kernels that quantize and dequantize: as for casts, by the same budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench import cubin
from bench.sass import parse
from bench.static_budget import budget, over
from bench.static_kernels import StaticKernel, kernel
from gpucast.codegen.cast import join
from gpucast.compile import cubin as compiler
from gpucast.compile import disassembler
from gpucast.core.dtypes import dtype
from gpucast.core.formats import FORMATS
from gpucast.core.rule import CastRule
from gpucast.quantization.gpu.source import Kind, QuantizeSpec

#: Formats by the kernel that is checked: the single pass over rows, the last pass over other blocks, dequantizing.
CHOSEN: dict[Kind, tuple[str, ...]] = {
    "rows": ("mxfp8e4m3", "mxfp8e5m2_up", "mxfp4", "nvfp4", "float8e4m3fn_1x128", "int8_64", "int4_128"),
    "elements": ("float8e4m3fn_tensor", "int8_axis"),
    "back": ("mxfp8e4m3", "nvfp4", "float8e4m3fn_tensor", "int8_axis"),
}
SOURCES = ("FLOAT", "BFLOAT16")

_PLACE = "the search for a thread's block takes four divisions, by multiplication, and what tells of ragged ends"


def _misses(archs: str, kind: str, sources: str, formats: str, why: str) -> dict[tuple[str, str, str, str], str]:
    return {
        (arch, kind, source, format): why
        for arch in archs.split()
        for source in sources.split()
        for format in formats.split()
    }


#: (architecture, kind, type, format) -> why the kernel exceeds its budget. Entries that do not apply are an error.
KNOWN: dict[tuple[str, str, str, str], str] = {
    **_misses("sm_100a", "elements", "BFLOAT16", "int8_axis", _PLACE),
    **_misses("sm_100a", "back", "BFLOAT16", "int8_axis", _PLACE),
}


@dataclass(frozen=True)
class StaticMeasurement:
    #: A `Kind`, or a key of `bench.static_tiles.RUNS`.
    kind: str
    format: str
    #: The type that is quantized, or dequantized to.
    source: str
    kernel: StaticKernel
    #: How many results one read gives.
    results: int = 1

    @property
    def allowed(self) -> float | None:
        """Instructions per element that the kernel may take."""
        return budget(self.kernel, self.results)

    def __str__(self) -> str:
        return f"{self.kernel.arch} {self.kind} {self.source} {self.format}"


def measure(arch: str) -> list[StaticMeasurement]:
    """All chosen kernels, compiled as one program for an architecture such as "sm_90"."""
    names, sources = [], []
    for kind, formats in CHOSEN.items():
        for name in formats:
            format = FORMATS[name]
            for source in SOURCES:
                block = format.block[-1] if kind != "elements" and isinstance(format.block, tuple) else 0
                pair = (format.element, dtype(source)) if kind == "back" else (dtype(source), format.element)
                single = format.block == "tensor"
                sources.append(QuantizeSpec(CastRule(*pair), format, kind, block=block, single=single).source())
                # A thread that has a whole block also stores the block's scale.
                extra_bytes = format.scale.bits // 8 if kind == "rows" and block == sources[-1].elements else 0
                names.append((kind, name, source, extra_bytes))
    structs = dict(src for source in sources for src in source.structs)
    text = join(sources[0].prelude, structs, [source.kernel for source in sources])
    compiled = compiler.compile(text, "quantize", arch)
    of_cubin = cubin.kernels(compiled.code)
    of_code = parse(disassembler.disassemble(compiled.code).decode())
    return [
        StaticMeasurement(
            kind,
            name,
            src,
            kernel(one, arch, of_code[one.name], of_cubin[one.name], compiled.log, extra_bytes=extra_bytes),
        )
        for (kind, name, src, extra_bytes), one in zip(names, sources, strict=True)
    ]


def problems(one: StaticMeasurement) -> list[str]:
    """The problems of a kernel; usually none."""
    kernel, found = one.kernel, []
    if kernel.local:
        found.append(f"{kernel.local} bytes of local memory: registers spill")
    if kernel.log:
        found.append(f"the compiler says: {kernel.log}")
    allowed = one.allowed
    if allowed is not None and kernel.per_element > allowed:
        found.append(f"{kernel.per_element:.2f} instructions per element, over the budget of {allowed:.2f}")
    tile = kernel.source.elements * kernel.src_bits // 8
    wide = sum(width * count for width, count in kernel.loads.items() if width >= min(16, tile))
    if one.kind != "back" and wide < tile:
        found.append(f"loads of {min(kernel.loads, default=0)} bytes at a time, not of {min(16, tile)}")
    return found


def verdict(kernels: Sequence[StaticMeasurement], known: Mapping[tuple[str, str, str, str], str] = KNOWN) -> list[str]:
    """Why the check fails: unknown problems, and known problems that no longer exist."""
    failures = []
    for one in kernels:
        found = problems(one)
        if (one.kernel.arch, one.kind, one.source, one.format) in known:
            found = [] if found else ["keeps its budget; take it out of the known misses"]
        failures += [f"{one}: {problem}" for problem in found]
    return failures


def report(kernels: Sequence[StaticMeasurement]) -> None:
    """A line for each kernel."""
    for one in kernels:
        found = one.kernel
        print(
            f"{one!s:60} {found.per_element:6.2f} instr/el, {over(found, one.results):5.2f} of the budget, "
            f"{found.registers} registers, loads {found.loads}, stores {found.stores}"
        )
