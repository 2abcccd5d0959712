# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the casts that are fused with a multiplication: what `gpucast.source` is for plain casts."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from gpucast.dtypes import dtype
from gpucast.rule import Rule, resolve
from gpucast.source import MAX_DIMS, KernelSource, Shape, kernel_file, kernel_name, kernel_source, options, rows
from gpucast.strides import Dims

_DOUBLE = dtype("DOUBLE")
#: The most elements of a tile, where whole bytes allow it (6 bits take 16).
_TILE = 4


def scaled_source(rule: Rule, shape: Shape = "contiguous", *, unpacked: bool = False) -> KernelSource:
    """The kernel that casts, as a `gpucast.scaled_cast.scaled_rule` says, the products with a `Scale`."""
    if shape == "transposed":
        raise ValueError("scaled_source: a scaled cast has no transposed kernel; expected 'contiguous' or 'strided'")
    src, dst = rule.src, rule.dst
    plain = kernel_source(resolve(src, dst), shape, unpacked=unpacked)
    from_double = replace(rule, src=_DOUBLE)
    usual = f"gpucast_{_DOUBLE.numpy_name}_to_"
    name = kernel_name(from_double, shape, plain.unpacked).replace(
        usual, f"gpucast_scaled_{src.numpy_name.replace('_', '')}_to_", 1
    )
    halves = {"to_double": resolve(src, _DOUBLE), "from_double": from_double}
    typedefs = "".join(f"typedef Rule<{options(half)}> {name}_{way};\n" for way, half in halves.items())
    src_bits = plain.src_bits
    head = f"{name}, {src.name}, {dst.name}, {src_bits}"
    tile, elements = plain.tile, plain.elements
    if shape == "strided":
        line = f"GPUCAST_SCALED_STRIDED({head}, {MAX_DIMS}, {plain.threads})\n"
        more = f"gpucast::ScaledDims<{MAX_DIMS}>"
    else:
        tiles = elements // tile
        if 6 not in (src_bits, dst.bits):
            # An element takes some hundred instructions: it is they that cost, no longer the accesses to memory.
            tile = min(tile, _TILE)
        elements = tile * tiles
        line = f"GPUCAST_SCALED_CONTIGUOUS({head}, {tile}, {tiles}, {plain.threads})\n"
        more = "double"
    return replace(
        plain,
        name=name,
        rule=rule,
        prelude=f"{plain.prelude}\n{kernel_file('scaled.cu')}",
        rows=rows(src, _DOUBLE, dst),
        kernel=f"namespace gpucast {{\n{typedefs}}}\n{line}",
        tile=tile,
        elements=elements,
        more=more,
    )


@dataclass(frozen=True)
class Scale:
    """The last argument of a scaled kernel: the number, and for the strided shape the dimensions behind it."""

    value: float
    dims: Dims | None

    def to_bytes(self) -> bytes:
        """A double; ``struct ScaledDims`` of kernels/scaled.cu."""
        return struct.pack("<d", self.value) + (b"" if self.dims is None else self.dims.to_bytes())
