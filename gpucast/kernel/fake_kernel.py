# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of casts there and back: to a narrow type, and what that leaves in the type of the source."""

from __future__ import annotations

from functools import lru_cache

from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.kernel.cast_kernel import THREADS, Shape, options, plain_kernel
from gpucast.kernel.fused_kernel import (
    FUSED,
    FUSED_DIMS,
    FUSED_PARTS,
    FusedOps,
    fused_name,
    fused_tiles,
    template_options,
)
from gpucast.kernel.kernel import Kernel, array_and
from gpucast.kernel.strides import MAX_DIMS

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")


@lru_cache(maxsize=1024)
def fake_kernel(there: CastRule, back: CastRule, ops: FusedOps, shape: Shape = "contiguous") -> Kernel:
    """The kernel that casts by `there`, with the operations `ops`, and its results by `back`, times the inverse of the
    scale. The rules are those of `gpucast.core.rule.resolve`. ValueError for the shape "transposed"."""
    if shape == "transposed":
        raise ValueError("fake_kernel: there is no transposed kernel; expected 'contiguous' or 'strided'")
    src, narrow = there.src, there.dst
    same = plain_kernel(resolve(src, src), shape)
    name = fused_name(there, ops, shape, False).replace("_to_", "_as_", 1)
    head = f"{name}, {src.name}, {narrow.name}, {template_options(ops)}"
    tile, elements, ahead, given = same.tile, same.elements, 0, FUSED_DIMS.of(MAX_DIMS)
    if shape == "strided":
        line = f"GPUCAST_FAKE_STRIDED({head}, {MAX_DIMS}, {elements}, {THREADS})\n"
    else:
        tile, tiles = fused_tiles(there, ops, same.tile, src.bits)
        elements, ahead, given = tile * tiles, tile - 1, FUSED
        line = f"GPUCAST_FAKE_CONTIGUOUS({head}, {tile}, {tiles}, {THREADS})\n"
    rules = f"typedef CastRule<{options(there)}> {name}_rule;\ntypedef CastRule<{options(back)}> {name}_back;\n"
    return Kernel(
        name,
        (*FUSED_PARTS, "fake.cu"),
        (src, _FLOAT, _DOUBLE, narrow),
        f"namespace gpucast {{\n{rules}}}\n{line}",
        THREADS,
        array_and(given),
        elements,
        tile,
        ahead,
    )
