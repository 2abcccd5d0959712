# SPDX-License-Identifier: Apache-2.0
"""The static estimate of kernels that are not a plain cast of aligned contiguous arrays: transposed, strided and
misaligned sources, and fused casts. All but misaligned and fused ones have a goal.

Of a strided array the estimate counts the bytes of its elements, not those of the sectors between them. Several
dimensions are two, and the elements of a thread lie in one row; each further dimension costs one more turn of the
search, and elements in two rows a second search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench import cubin
from bench.static.budget import GATED
from bench.static.kernels import StaticKernel, kernel, marked
from bench.static.model import judged
from bench.static.paths import Path, full_tile
from bench.static.sass import Block, blocks, parse
from gpucast.casting.fused_options import fused_rule
from gpucast.codegen.cast_kernel import KernelSource, kernel_source
from gpucast.codegen.fused_kernel import FusedOps, fused_source
from gpucast.compile import compiler, disassembler
from gpucast.core.dtypes import dtype
from gpucast.core.rule import STOCHASTIC, Options, resolve

PAIRS = (
    ("INT8", "UINT8"), ("FLOAT", "FLOAT16"), ("FLOAT16", "FLOAT"), ("FLOAT", "FLOAT8E4M3FN"),
    ("FLOAT8E4M3FN", "FLOAT16"), ("BFLOAT16", "FLOAT16"), ("INT8", "FLOAT"), ("DOUBLE", "FLOAT"),
)  # fmt: skip
#: One side is the row-major stream.
PACKED = (
    ("FLOAT", "FLOAT4E2M1"), ("INT8", "INT4"), ("FLOAT", "FLOAT6E2M3"), ("FLOAT4E2M1", "FLOAT16"), ("UINT4", "INT8"),
    ("FLOAT6E3M2", "FLOAT"),
)  # fmt: skip
#: Source, destination, fused operations.
FUSED = (
    ("FLOAT", "FLOAT8E4M3FN", FusedOps("narrow", amax=True), False),
    ("BFLOAT16", "FLOAT8E4M3FN", FusedOps("narrow", amax=True), False),
    ("FLOAT", "BFLOAT16", FusedOps("narrow", amax=True), False),
    ("FLOAT", "FLOAT", FusedOps("narrow", finite=True), False),
    ("FLOAT", "BFLOAT16", FusedOps(), True),
    ("FLOAT", "FLOAT8E4M3FN", FusedOps(), True),
)
#: Layout -> the share of a copy that it is to reach. "strided" has one dimension; "rows", "spread" and "packed" have
#: several, of which the last is dense in the source, in "spread" is not. "edges" are what transposed kernels do element
#: by element: the ends of arrays, elements between the addresses of words.
GOALS = {"transposed": 0.80, "strided": 0.60, "rows": 0.60, "spread": 0.60, "packed": 0.60, "edges": 0.0}

#: (layout, source, destination) -> why the goal is missed on sm_90. Entries that do not apply are an error.
KNOWN: dict[tuple[str, str, str], str] = {}


@dataclass(frozen=True)
class LayoutMeasurement:
    #: A key of `GOALS`, "misaligned" or "fused".
    layout: str
    kernel: StaticKernel

    def __str__(self) -> str:
        return f"{self.kernel.arch} {self.layout} {self.kernel.source.name}"


def measure(arch: str) -> list[LayoutMeasurement]:
    """All chosen kernels for an architecture such as "sm_90"."""
    return [LayoutMeasurement(layout, _facts(source, arch, layout)) for layout, source in _sources()]


def _sources() -> Iterator[tuple[str, KernelSource]]:
    for src, dst in PAIRS:
        rule = resolve(dtype(src), dtype(dst))
        transposed, strided = kernel_source(rule, "transposed"), kernel_source(rule, "strided")
        yield "transposed", transposed
        yield "edges", transposed
        yield from ((layout, strided) for layout in ("strided", "rows", "spread"))
        source = kernel_source(rule)
        # One tile is one turn of a loop.
        yield "misaligned", replace(source, elements=source.tile)
    for src, dst in PACKED:
        yield "packed", kernel_source(resolve(dtype(src), dtype(dst)), "strided")
    for src, dst, ops, random in FUSED:
        rounding = STOCHASTIC if random else None
        rule = fused_rule(dtype(src), dtype(dst), Options(rounding=rounding), scaled=ops.scaling != "none")
        yield "fused", fused_source(rule, ops)


def _facts(source: KernelSource, arch: str, layout: str) -> StaticKernel:
    compiled = compiler.compile(marked(source.text), source.name, arch)
    code = parse(disassembler.disassemble(compiled.code).decode())[source.name]
    path = _path(source, layout, blocks(code))
    return kernel(source, arch, code, cubin.kernels(compiled.code)[source.name], compiled.log, path=path)


def _path(source: KernelSource, layout: str, flow: list[Block]) -> Path | None:
    """That of a layout; None for that of a full tile."""
    bits = source.src_bits, source.rule.dst.bits
    load, store = (source.elements * count // 8 for count in bits)
    src_bytes, dst_bytes = (count // 8 for count in bits)
    if layout == "edges":
        # An element is one turn of each of two loops.
        return full_tile(flow, src_bytes, dst_bytes, loop=True, rare=True)
    if layout == "strided":
        # No side is dense.
        return full_tile(flow, load, store, load_width=src_bytes, store_width=dst_bytes)
    if layout in ("rows", "spread", "packed"):
        # The place in several dimensions is searched for in a loop.
        return full_tile(flow, load, store, loop=True, load_width=src_bytes if layout == "spread" else None)
    if layout == "misaligned":
        # Shifted loads read one access more: of vectors where whole vectors are a tile, else of words.
        return full_tile(flow, load + (16 if load % 16 == 0 else 4), store)
    return None


def verdict(found: Sequence[LayoutMeasurement], known: Mapping[tuple[str, str, str], str] | None = None) -> list[str]:
    """Why the check fails: goals that are missed, and known misses that no longer exist."""
    failures = []
    for one in found:
        of = judged(one.kernel)
        key = (one.layout, one.kernel.rule.src.name, one.kernel.rule.dst.name)
        goal = GOALS.get(one.layout, 0.0) if one.kernel.capability in GATED else 0.0
        problems = [f"{one.kernel.local} bytes of local memory"] if one.kernel.local else []
        if of.share < goal:
            problems.append(f"{of}; the goal is {100 * goal:.0f} %")
        if goal and key in (KNOWN if known is None else known):
            problems = [] if problems else ["reaches its goal; take it out of the known misses"]
        failures += [f"{one}: {problem}" for problem in problems]
    return failures


def report(found: Sequence[LayoutMeasurement]) -> None:
    """A line for each kernel."""
    for one in found:
        print(
            f"{one!s:66} {one.kernel.per_element:6.2f} instr/el, {judged(one.kernel)}, {one.kernel.registers} registers"
        )
