# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the kernels that quantize in tiles: one read of the array gives the plain and the transposed result.

`kernels/quantize_tiles.cu` has the function. This module writes its arguments and the sizes of its tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import RANDOM
from gpucast.kernel.kernel import Kernel, Part, array_and
from gpucast.quantization.cuda.source import PARTS, columns_of, format_struct
from gpucast.quantization.formats import Format
from gpucast.quantization.scale_orders import ScaleLayout

#: Which elements of the array that is read share a scale: a run along its rows or down its columns, a square, or all.
#: "nothing": this result is not requested.
Run = Literal["nothing", "along", "down", "square", "everywhere"]

_TILE_COLUMNS = 128
#: The compute capability from which blocks stay, as `TileShape` in `kernels/tiles.cuh` has it.
STAYS_FROM = 90
_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")


#: One result, in the array's order or transposed, all of it in C order; zeros for parts that do not exist.
TILE_RESULT = Fields("TileResult", (("data", "u8*"), ("scales", "u8*"), ("zero_points", "u8*")))
#: What a kernel is given: consecutive matrices, each cut into tiles.
TILE = Fields(
    "TileArguments",
    (
        ("same", TILE_RESULT),
        ("swapped", TILE_RESULT),
        ("global_scale", "const float*"),
        ("random", RANDOM),
        # The size of one matrix of the array, in elements and in tiles.
        ("rows", "i64"),
        ("columns", "i64"),
        ("tiles_down", "u32"),
        ("tiles_across", "u32"),
    ),
)
_PARTS: tuple[Part, ...] = (
    *(*PARTS, "tiles.cuh", TILE_RESULT, TILE),
    *("tile_walk.cuh", "tile_work.cuh", "tile_out.cuh", "quantize_tiles.cu"),
)


@lru_cache(maxsize=1024)
def tile_kernel(
    rule: CastRule,
    format: Format,
    block: int,
    same: Run = "nothing",
    swapped: Run = "nothing",
    given: bool = False,
    stochastic: bool = False,
    whole_columns: bool = False,
    layout: ScaleLayout = "linear",
) -> Kernel:
    """A kernel that quantizes in tiles.

    `rule`: from the source to the element type.
    `block`: the length of a block along one axis; ignored for "everywhere".
    `same`, `swapped`: the plain and the transposed result.
    `given`: whether the scales are the caller's. For "everywhere" they are always computed before this kernel runs.
    `whole_columns`: for "down", whether each column has one scale, which a kernel before this one has computed, or, of
    `given` ones, has set to NaN where the column has an infinity or NaN.
    `layout`: the order in which scales are written.
    """
    size = tile_size(rule.src, format, block)
    elements = size.rows * size.columns
    # Blocks that stay have the next tile on its way to shared memory, of which a kernel has 48 KiB unless it asks.
    stays = rule.src.bits == 16 and size.tile_rows == 64 and "everywhere" not in (same, swapped)
    kind = [f"tiles{block}", "same", same, "swapped", swapped]
    kind += ["given"] * given + ["whole"] * whole_columns + ["stochastic"] * stochastic
    kind += [layout] * (layout != "linear")
    name = "_".join(["gpucast_quantize", rule.src.numpy_name, *columns_of(format), *kind])
    lines = [
        f"enum : u32 {{ rows = {size.rows}, columns = {size.columns}, block = {block} }};",
        f"enum : u32 {{ tile_rows = {size.tile_rows}, tile_columns = {_TILE_COLUMNS} }};",
        f"enum : bool {{ given = {given:d}, whole_columns = {whole_columns:d}, stays = {stays:d} }};",
        f"static GPUCAST_CONSTANT Run same() {{ return Run::{same}; }}",
        f"static GPUCAST_CONSTANT Run swapped() {{ return Run::{swapped}; }}",
    ]
    tiles = "".join(f"    {line}\n" for line in lines)
    line = (
        format_struct(format, stochastic, f"{name}_format", rule.src, layout=layout)
        + f"namespace gpucast {{\nstruct {name}_tiles {{\n{tiles}}};\n}}\n"
        + f"GPUCAST_QUANTIZE_TILES({name}, {rule.src.name}, {size.threads})\n"
    )
    dtypes = rule.src, _FLOAT, _DOUBLE, format.element, format.scale
    loop = {"turn": elements, "stays_from": STAYS_FROM} if stays else {}
    return Kernel(name, _PARTS, dtypes, line, size.threads, array_and(TILE), elements, **loop)


def tile_size(src: DType, format: Format, block: int) -> Size:
    """The size of a tile, for arrays of a type."""
    # 64 elements per thread keep 128 bytes or more in flight. Its rows are one or two vectors of 16 bytes; eight
    # elements below one byte fill a word, which the quick conversions need.
    columns = 8 if src.bits == 16 or (src.bits == 32 and format.element.bits < 8) else 4
    return Size((32 if src.bits == 64 else 64) // columns, columns, 128 if block == 128 else 64)


@dataclass(frozen=True)
class Size:
    """The size of a thread's patch, and of the tile, in elements."""

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int = _TILE_COLUMNS

    @property
    def threads(self) -> int:
        """Threads of a block, which casts one tile."""
        return self.tile_rows * self.tile_columns // (self.rows * self.columns)

    def tiles(self, rows: int, columns: int) -> tuple[int, int]:
        """The number of tiles of a matrix, down and across."""
        return -(-rows // self.tile_rows), -(-columns // self.tile_columns)
