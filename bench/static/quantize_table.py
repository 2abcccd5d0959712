# SPDX-License-Identifier: Apache-2.0
"""A table of six kernels that quantize, by the model of the static check: ``python -m bench.static.quantize_table``."""

from __future__ import annotations

import argparse

from bench.static import quantize
from bench.static.budget import Checked
from bench.static.check import architectures
from gpucast.quantization.gpu.source import Kind

#: Kinds, types and formats.
SIX = (
    ("rows", "BFLOAT16 mxfp8e4m3"),
    ("rows", "FLOAT mxfp4"),
    ("rows", "BFLOAT16 nvfp4"),
    ("squares", "BFLOAT16 float8e4m3fn_128x128"),
    ("columns", "FLOAT int8_axis"),
    ("whole", "FLOAT int8_axis"),
    ("rows", "FLOAT16 int4_32"),
)


def measure(arch: str) -> list[Checked]:
    """The kernels of the six for an architecture; a scale for each column takes two."""
    passes: tuple[Kind, ...] = ("rows", "columns")
    split = [(kind, *name.split()) for kind, name in SIX]
    single = [(kind, format, source) for kind in passes for of, source, format in split if of == kind]
    found = [*quantize.of_rows(arch, single), *quantize.of_tiles(arch)]
    return [one for kind, name in SIX for one in found if (one.kind, one.name) == (kind, name)]


def rows(arch: str) -> list[str]:
    """The lines of a table in Markdown."""
    lines = []
    for one in measure(arch):
        of, kernel = one.estimate, one.kernel
        cells = (
            f"{one.name}, {one.kind}",
            arch,
            f"{kernel.per_element:.2f}",
            str(kernel.registers),
            f"{of.in_flight / 1024:.0f} of {of.needed / 1024:.0f}",
            f"{of.busiest} {of.use[of.busiest]:.2f}",
            f"{100 * of.share:.0f} %",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch", nargs="*", help="such as sm_90 (default: for devices 8.0, 9.0, 10.0)")
    print("| Kernel | For | Instructions an element | Registers | KiB in flight an SM | Busiest unit | Of a copy |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for arch in parser.parse_args().arch or architectures():
        print("\n".join(rows(arch)), flush=True)


if __name__ == "__main__":
    main()
