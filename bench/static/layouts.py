# SPDX-License-Identifier: Apache-2.0
"""The static estimate of kernels that are not a plain cast of aligned contiguous arrays: transposed, strided and
misaligned sources, and fused casts. All but misaligned and fused ones have a goal.

Of a strided array the estimate counts the bytes of its elements, not those of the sectors between them. Several
dimensions are two, and the elements of a thread lie in one row; each further dimension costs one more turn of the
search, and elements in two rows a second search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.static.budget import Asked, Checked, checked
from bench.static.kernels import Cast, Code, facts
from bench.static.paths import Path, full_tile, marked
from bench.static.sass import Block
from gpucast.casting.fused_options import fused_rule
from gpucast.core.dtypes import dtype
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import Options, resolve
from gpucast.kernel.fused_kernel import FusedOps, fused_kernel

PAIRS = (
    ("INT8", "UINT8"), ("FLOAT", "FLOAT16"), ("FLOAT16", "FLOAT"), ("FLOAT", "FLOAT8E4M3FN"),
    ("FLOAT8E4M3FN", "FLOAT16"), ("BFLOAT16", "FLOAT16"), ("INT8", "FLOAT"), ("DOUBLE", "FLOAT"),
)  # fmt: skip
#: One side is the row-major stream.
PACKED = (
    ("FLOAT", "FLOAT4E2M1"), ("INT8", "INT4"), ("FLOAT", "FLOAT6E2M3"), ("FLOAT4E2M1", "FLOAT16"), ("UINT4", "INT8"),
    ("FLOAT6E3M2", "FLOAT"),
)  # fmt: skip
#: Source, destination, fused operations, and whether it rounds at random.
FUSED = (
    ("FLOAT", "FLOAT8E4M3FN", FusedOps("narrow", amax=True), False),
    ("BFLOAT16", "FLOAT8E4M3FN", FusedOps("narrow", amax=True), False),
    ("FLOAT", "BFLOAT16", FusedOps("narrow", amax=True), False),
    ("FLOAT", "FLOAT", FusedOps("narrow", finite=True), False),
    ("FLOAT", "BFLOAT16", FusedOps(), True),
    ("FLOAT", "FLOAT8E4M3FN", FusedOps(), True),
)
#: Layout -> the share of a copy that it is to reach. "strided" has one dimension; "dense rows", "spread rows" and
#: "packed" have several, of which the last is dense in the source, in "spread rows" is not. "edges" are what transposed
#: kernels do element by element: the ends of arrays, elements between the addresses of words.
GOALS = {"transposed": 0.80, "strided": 0.60, "dense rows": 0.60, "spread rows": 0.60, "packed": 0.60}


def measure(arch: str) -> list[Checked]:
    """All chosen kernels for an architecture such as "sm_90"."""
    return checked((_asked(*one) for one in _sources()), arch)


def _asked(layout: str, source: Cast) -> Asked:
    def of(arch: str, code: Code) -> Checked:
        kernel = facts(source, arch, code, path=_path(source, layout, code.blocks))
        return Checked(layout, source.kernel.name, kernel, GOALS.get(layout, 0.0))

    return Asked(source, of)


def _sources() -> Iterator[tuple[str, Cast]]:
    for src, dst in PAIRS:
        rule = resolve(dtype(src), dtype(dst))
        transposed, strided = Cast.of(rule, "transposed"), Cast.of(rule, "strided")
        yield from ((layout, transposed) for layout in ("transposed", "edges"))
        yield from ((layout, strided) for layout in ("strided", "dense rows", "spread rows"))
        kernel = Cast.of(rule).kernel
        # One tile is one turn of a loop.
        yield "misaligned", Cast(replace(kernel, elements=kernel.tile), rule)
    for src, dst in PACKED:
        yield "packed", Cast.of(resolve(dtype(src), dtype(dst)), "strided")
    for src, dst, ops, random in FUSED:
        rounding = STOCHASTIC if random else None
        rule = fused_rule(dtype(src), dtype(dst), Options(rounding=rounding), scaled=ops.scaling != "none")
        yield "fused", Cast(fused_kernel(rule, ops), rule)


def _path(source: Cast, layout: str, flow: list[Block]) -> Path | None:
    """That of a layout; None for that of a full tile."""
    bits = source.rule.src.bits, source.rule.dst.bits
    load, store = (source.kernel.elements * count // 8 for count in bits)
    src_bytes, dst_bytes = (count // 8 for count in bits)
    if layout == "edges":
        # An element is one turn of each of two loops, which are rare.
        return full_tile(flow, src_bytes, dst_bytes, avoid=())
    if layout == "strided":
        # No side is dense.
        return full_tile(flow, load, store, load_width=src_bytes, store_width=dst_bytes)
    if layout in ("dense rows", "spread rows", "packed"):
        # The place in several dimensions is searched for in a loop.
        width = src_bytes if layout == "spread rows" else None
        return full_tile(flow, load, store, avoid=marked(flow), load_width=width)
    if layout == "misaligned":
        # Shifted loads read one access more: of vectors where whole vectors are a tile, else of words.
        return full_tile(flow, load + (16 if load % 16 == 0 else 4), store)
    return None
