# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the kernels that quantize in tiles, one read for results in an array's order and transposed.

`kernels/quantize_tiles.cu` has the function; here are its arguments and the sizes of its tiles.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

from gpucast.codegen.cast import KernelSource, kernel_file, structs
from gpucast.codegen.fused import fused_prelude
from gpucast.codegen.spec import KernelSpec
from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import Format
from gpucast.core.rule import Rule
from gpucast.quantization.gpu.source import FILES, columns_of, format_struct

#: Which elements share a scale, told by the array that is read: a run along its rows or down its columns, a square, or
#: all; "nothing": there is no such result.
Run = Literal["nothing", "along", "down", "square", "everywhere"]

#: Lengths of blocks.
BLOCKS = (16, 32, 64, 128)
_TILE_COLUMNS = 128
_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")


@dataclass(frozen=True)
class TileSpec(KernelSpec[KernelSource]):
    """A kernel that quantizes in tiles."""

    #: Source to element.
    rule: Rule
    format: Format
    #: Elements of a block along one axis; of no meaning for "everywhere".
    block: int
    #: The result in the array's own order, and the one that is transposed.
    same: Run = "nothing"
    swapped: Run = "nothing"
    #: Whether scales are the caller's. Those for "everywhere" are there in any case.
    given: bool = False
    stochastic: bool = False

    def source(self) -> KernelSource:
        rule, format, size, name = self.rule, self.format, self.size, self._name(self.rule.src)
        lines = [
            f"enum : u32 {{ rows = {size.rows}, columns = {size.columns}, block = {self.block} }};",
            f"enum : u32 {{ tile_rows = {size.tile_rows}, tile_columns = {_TILE_COLUMNS} }};",
            f"enum : bool {{ given = {self.given:d} }};",
            f"static GPUCAST_CONSTANT Run same() {{ return Run::{self.same}; }}",
            f"static GPUCAST_CONSTANT Run swapped() {{ return Run::{self.swapped}; }}",
        ]
        tiles = "".join(f"    {line}\n" for line in lines)
        kernel = (
            format_struct(format, self.stochastic, f"{name}_format")
            + f"namespace gpucast {{\nstruct {name}_tiles {{\n{tiles}}};\n}}\n"
            + f"GPUCAST_QUANTIZE_TILES({name}, {rule.src.name}, {size.threads})\n"
        )
        return KernelSource(
            name=name,
            rule=rule,
            shape="contiguous",
            unpacked=False,
            prelude="\n".join([fused_prelude(), *map(kernel_file, (*FILES, "tiles.cuh", "quantize_tiles.cu"))]),
            structs=structs(rule.src, _FLOAT, _DOUBLE, format.element, format.scale),
            kernel=kernel,
            tile=1,
            elements=size.rows * size.columns,
            threads=size.threads,
            more="gpucast::TileArguments",
        )

    @property
    def size(self) -> Size:
        """Of a tile, for arrays of the source's type."""
        src = self.rule.src
        # 64 elements of a thread are 128 bytes or more under way. Its rows are vectors of 16 bytes, or two of them:
        # eight elements below a byte fill a word, as the quick ways to codes want it.
        columns = 8 if src.bits == 16 or (src.bits == 32 and self.format.element.bits < 8) else 4
        return Size((32 if src.bits == 64 else 64) // columns, columns, 128 if self.block == 128 else 64)

    def _name(self, other: DType) -> str:
        kind = [f"tiles{self.block}", "same", self.same, "swapped", self.swapped]
        kind += ["given"] * self.given + ["stochastic"] * self.stochastic
        return "_".join(["gpucast_quantize", other.numpy_name, *columns_of(self.format), *kind])


@dataclass(frozen=True)
class Size:
    """Of a thread's patch of a tile, and rows of the tile, in elements."""

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int = _TILE_COLUMNS

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tile_rows * self.tile_columns // (self.rows * self.columns)

    def tiles(self, rows: int, columns: int) -> tuple[int, int]:
        """Tiles of a matrix, below each other and side by side."""
        return -(-rows // self.tile_rows), -(-columns // self.tile_columns)


@dataclass(frozen=True)
class TileResult:
    """Addresses on the device; 0 for what there is not."""

    data: int = 0
    scales: int = 0
    zero_points: int = 0


@dataclass(frozen=True)
class TileArguments:
    """The last argument of a kernel: matrices of rows x columns, one after the other, each of so many tiles."""

    rows: int
    columns: int
    #: Below each other and side by side.
    tiles: tuple[int, int]
    same: TileResult = field(default_factory=TileResult)
    swapped: TileResult = field(default_factory=TileResult)
    global_scale: int = 0
    seed: int = 0
    offset: int = 0

    def to_bytes(self) -> bytes:
        """``struct TileArguments`` of kernels/quantize_tiles.cu."""
        results = (getattr(result, name) for result in (self.same, self.swapped) for name in vars(result))
        return struct.pack(
            "<9Q2q2I", *results, self.global_scale, self.seed, self.offset, self.rows, self.columns, *self.tiles
        )
