# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the kernels that quantize in tiles: one read of the array gives the plain and the transposed result.

`kernels/quantize_tiles.cu` has the function. This module writes its arguments and the sizes of its tiles.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

from gpucast.codegen.cast_kernel import KernelSource, kernel_file, structs
from gpucast.codegen.fused_kernel import fused_prelude
from gpucast.codegen.spec import KernelSpec
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule
from gpucast.quantization.formats import Format
from gpucast.quantization.gpu.source import FILES, columns_of, format_struct
from gpucast.quantization.scale_orders import ScaleLayout

#: Which elements of the array that is read share a scale: a run along its rows or down its columns, a square, or all.
#: "nothing": this result is not requested.
Run = Literal["nothing", "along", "down", "square", "everywhere"]

_TILE_COLUMNS = 128
_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")


@dataclass(frozen=True)
class TileSpec(KernelSpec[KernelSource]):
    """A kernel that quantizes in tiles."""

    #: From the source to the element type.
    rule: CastRule
    format: Format
    #: The length of a block along one axis; ignored for "everywhere".
    block: int
    #: The plain and the transposed result.
    same: Run = "nothing"
    swapped: Run = "nothing"
    #: Whether the scales are the caller's. For "everywhere" they are always computed before this kernel runs.
    given: bool = False
    stochastic: bool = False
    #: For "down": whether each column has one scale, which a kernel before this one has computed, or, of `given` ones,
    #: has set to NaN where the column has an infinity or NaN.
    whole_columns: bool = False
    #: The order in which scales are written.
    layout: ScaleLayout = "linear"

    def source(self) -> KernelSource:
        rule, format, size, name = self.rule, self.format, self.size, self._name(self.rule.src)
        lines = [
            f"enum : u32 {{ rows = {size.rows}, columns = {size.columns}, block = {self.block} }};",
            f"enum : u32 {{ tile_rows = {size.tile_rows}, tile_columns = {_TILE_COLUMNS} }};",
            f"enum : bool {{ given = {self.given:d}, whole_columns = {self.whole_columns:d} }};",
            f"static GPUCAST_CONSTANT Run same() {{ return Run::{self.same}; }}",
            f"static GPUCAST_CONSTANT Run swapped() {{ return Run::{self.swapped}; }}",
        ]
        tiles = "".join(f"    {line}\n" for line in lines)
        kernel = (
            format_struct(format, self.stochastic, f"{name}_format", rule.src, layout=self.layout)
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
        """The size of a tile, for arrays of the source's type."""
        src = self.rule.src
        # 64 elements per thread keep 128 bytes or more in flight. Its rows are one or two vectors of 16 bytes; eight
        # elements below one byte fill a word, which the quick conversions need.
        columns = 8 if src.bits == 16 or (src.bits == 32 and self.format.element.bits < 8) else 4
        return Size((32 if src.bits == 64 else 64) // columns, columns, 128 if self.block == 128 else 64)

    def _name(self, other: DType) -> str:
        kind = [f"tiles{self.block}", "same", self.same, "swapped", self.swapped]
        kind += ["given"] * self.given + ["whole"] * self.whole_columns + ["stochastic"] * self.stochastic
        kind += [self.layout] * (self.layout != "linear")
        return "_".join(["gpucast_quantize", other.numpy_name, *columns_of(self.format), *kind])


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


@dataclass(frozen=True)
class TileResult:
    """The addresses of a result's parts on the device; 0 for parts that do not exist."""

    data: int = 0
    scales: int = 0
    zero_points: int = 0


@dataclass(frozen=True)
class TileArguments:
    """The last argument of a kernel: consecutive matrices of rows x columns, each cut into `tiles`."""

    rows: int
    columns: int
    #: The number of tiles of a matrix, down and across.
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
