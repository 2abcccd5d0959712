# SPDX-License-Identifier: Apache-2.0
"""A table of six kernels that quantize, by the model of the static check: ``python -m bench.static.quantize_table``."""

from __future__ import annotations

import argparse

from bench.static import quantize, tiles
from bench.static.check import architectures
from bench.static.quantize import StaticMeasurement
from gpucast.quantization.gpu.source import Kind

SIX = ("mxfp8e4m3 BFLOAT16", "mxfp4 FLOAT", "nvfp4 BFLOAT16", "float8e4m3fn_128x128 BFLOAT16", "int8_axis FLOAT",
       "int4_32 FLOAT16")  # fmt: skip
_PASSES: tuple[Kind, ...] = ("rows", "columns")
_TILES = ("squares", "whole")


def measure(arch: str) -> list[StaticMeasurement]:
    """The kernels of the six for an architecture; a scale for each column takes two."""
    pairs = [(name, source) for name, source in map(str.split, SIX) if name != "float8e4m3fn_128x128"]
    single = [(_PASSES[name == "int8_axis"], name, source) for name, source in pairs]
    found = [*quantize.measure(arch, single), *(one for one in tiles.measure(arch) if one.kind in _TILES)]
    by_pair = {pair: [one for one in found if f"{one.format} {one.source}" == pair] for pair in SIX}
    return [one for pair in SIX for one in by_pair[pair]]


def rows(arch: str) -> list[str]:
    """The lines of a table in Markdown."""
    lines = []
    for one in measure(arch):
        of, kernel = one.estimate, one.kernel
        cells = (
            f"{one.format} from {one.source}, {one.kind}",
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
