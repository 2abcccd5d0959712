# SPDX-License-Identifier: Apache-2.0
"""Instructions of the functions of `gpucast.device_functions`, without GPU: ``python -m bench.static.functions``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench import cubin
from bench.static.check import architectures
from bench.static.paths import Path, full_tile
from bench.static.sass import parse
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.kernel import compiler, disassembler
from gpucast.user_kernels.device_functions import WIDTHS, device_functions, held_as

PAIRS = (
    ("FLOAT", "FLOAT8E4M3FN"),
    ("FLOAT", "FLOAT8E5M2"),
    ("FLOAT16", "FLOAT8E4M3FN"),
    ("BFLOAT16", "FLOAT8E4M3FN"),
    ("FLOAT8E4M3FN", "FLOAT16"),
    ("FLOAT8E4M3FN", "FLOAT"),
    ("FLOAT", "BFLOAT16"),
    ("FLOAT", "FLOAT6E2M3"),
    ("FLOAT6E2M3", "FLOAT16"),
    ("FLOAT", "FLOAT4E2M1"),
    ("FLOAT4E2M1", "FLOAT16"),
    ("INT4", "FLOAT16"),
    ("INT8", "FLOAT16"),
)
#: A kernel with so many calls is compared with one of fewer: what they differ by belongs to the calls.
_CALLS = (2, 6)


def measure(pairs: Sequence[tuple[str, str]], arch: str) -> list[list[float]]:
    """Instructions per value of each pair, by the width; those of loads and stores do not count, nor rare branches."""
    rules = [resolve(dtype(src), dtype(dst)) for src, dst in pairs]
    kernels = [_kernel(rule, end, calls) for rule in rules for end in WIDTHS for calls in _CALLS]
    text = f"#define GPUCAST_MARK_RARE\n{device_functions(pairs)}{''.join(kernels)}"
    made = compiler.compile(text, "functions", arch).code
    assert set(cubin.kernels(made)) >= {_name(rule, end, calls) for rule in rules for end in WIDTHS for calls in _CALLS}
    code = parse(disassembler.disassemble(made, disassembler.GRAPH).decode())

    def path(rule: CastRule, end: str, calls: int) -> Path:
        stored = calls * max(WIDTHS[end] * rule.dst.bits, 8) // 8
        return full_tile(code[_name(rule, end, calls)], store_bytes=stored)

    def per_value(rule: CastRule, end: str) -> float:
        few, many = (path(rule, end, calls) for calls in _CALLS)
        accesses = [sum(one.loads.values()) + sum(one.stores.values()) for one in (few, many)]
        more = many.instructions - few.instructions - (accesses[1] - accesses[0])
        return more / (_CALLS[1] - _CALLS[0]) / WIDTHS[end]

    return [[per_value(rule, end) for end in WIDTHS] for rule in rules]


def _name(rule: CastRule, end: str, calls: int) -> str:
    return f"{rule.function}{end}_{calls}_calls"


def _kernel(rule: CastRule, end: str, calls: int) -> str:
    """All loads come first, as where a compiler sees many calls; nothing is added to an address."""
    count = WIDTHS[end]
    src, dst = held_as(rule.src, count), held_as(rule.dst, count)
    loads = "".join(f"    const {src} x{i} = from[{i}];\n" for i in range(calls))
    stores = "".join(f"    to[{i}] = {rule.function}{end}(x{i});\n" for i in range(calls))
    head = (
        f'extern "C" __global__ void {_name(rule, end, calls)}(const {src}* __restrict__ from, {dst}* __restrict__ to)'
    )
    return f"{head} {{\n{loads}{stores}}}\n"


def row(pair: tuple[str, str], values: Sequence[Sequence[float]]) -> str:
    """A line of the table: the values of a pair, for each architecture."""
    cells = [", ".join(f"{value:.1f}" for value in column) for column in values]
    return f"| {pair[0]} to {pair[1]} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch", nargs="*", help="such as sm_90 (default: for devices 8.0, 9.0, 10.0)")
    chosen = parser.parse_args().arch or architectures()
    print("| Instructions a value, of 1, 2, 4 values | " + " | ".join(chosen) + " |")
    print("| --- |" + " --- |" * len(chosen))
    found = [measure(PAIRS, arch) for arch in chosen]
    for pair, *values in zip(PAIRS, *found, strict=True):
        print(row(pair, values))


if __name__ == "__main__":
    main()
