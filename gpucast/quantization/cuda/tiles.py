# SPDX-License-Identifier: Apache-2.0
"""Plans which results of an array one kernel can compute tile by tile in one read, and launches that kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule
from gpucast.kernel import driver
from gpucast.kernel.kernel import Kernel
from gpucast.quantization.block_call import BlockCall, ResultSpec
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.cuda.tile_source import TILE, Run, Size, tile_kernel, tile_size
from gpucast.quantization.formats import LENGTHS, Format

#: The number of tiles that may be mostly empty; of more tiles, at least one part in 16 must be elements.
_FEW, _WASTE = 256, 16


class TileResult(NamedTuple):
    """The addresses of a result's parts on the device; 0 for parts that do not exist."""

    data: int = 0
    scales: int = 0
    zero_points: int = 0


@dataclass(frozen=True)
class TilePlan:
    """A kernel, and the array viewed as `matrices` of rows x columns."""

    kernel: Kernel
    size: Size
    #: Whether the plain and the transposed result are requested.
    wanted: tuple[bool, bool]
    matrices: int
    rows: int
    columns: int

    def run(
        self,
        x: int,
        device: int,
        results: Sequence[TileResult],
        global_scale: int,
        seed: int = 0,
        offset: int = 0,
    ) -> None:
        """Launch the kernel for the array at address `x`. `results` are the plain result, then the transposed one."""
        size, sides = self.size, iter(results)
        same, swapped = (next(sides) if wanted else TileResult() for wanted in self.wanted)
        tiles = size.tiles(self.rows, self.columns)
        given = TILE.pack(*same, *swapped, global_scale, seed, offset, self.rows, self.columns, *tiles)
        n = self.matrices * math.prod(tiles) * size.tile_rows * size.tile_columns
        driver.launch(self.kernel, device, x, results[0].data, n, given)


def plan(call: BlockCall, *, given: bool) -> TilePlan | None:
    """The plan by which one kernel computes all results of a call, or None if no kernel can.

    `given`: the caller gives the scales. Scales of the whole tensor or of whole columns must be known before the kernel
    runs.
    """
    shape: tuple[int, ...] = call.x.shape
    src, format, result_specs = dtype(call.x.dtype), call.format, call.results
    turned = any(one.swapped for one in result_specs)
    whole_columns = format.block == "axis" and not turned and result_specs[0].axis == len(shape) - 1
    known = whole_columns or not isinstance(format.block, str) or (format.block == "tensor" and turned)
    if not math.prod(shape) or not known:
        return None
    if whole_columns:
        matrices, rows, columns = 1, math.prod(shape[:-1]), shape[-1]
        runs: list[Run] = ["down"]
    elif format.min_ndim < 2 and not turned:
        (one,) = result_specs
        # Blocks along any axis: the axes before it become matrices, those after it columns.
        matrices, rows, columns = BlockGrid.of(format, shape, one.axis).shape
        runs = ["along" if math.prod(shape[one.axis + 1 :]) == 1 else "down"]
    else:
        matrices, rows, columns = math.prod(shape[:-2]), *shape[-2:]
        runs = [_run(one, len(shape), format) for one in result_specs]
    block = format.block[-1] if isinstance(format.block, tuple) else LENGTHS[2] if whole_columns else LENGTHS[-1]
    if "nothing" in runs or block not in LENGTHS or (runs[0] == "square" and given and len(result_specs) == 2):
        return None
    # Every row of a result has to begin at a byte.
    if any((rows if one.swapped else columns) * format.element.bits % 8 for one in result_specs):
        return None
    by_place = {one.swapped: run for one, run in zip(result_specs, runs, strict=True)}
    same, swapped = by_place.get(False, "nothing"), by_place.get(True, "nothing")
    given = given and runs[0] != "everywhere"
    if given and not format.nan_in_scale and (same, swapped) == ("along", "nothing"):
        # No statistics are needed, so the simpler kernels read x only once too.
        return None
    size = tile_size(src, format, block)
    tiles = matrices * math.prod(size.tiles(rows, columns))
    empty = tiles > _FEW and tiles * size.tile_rows * size.tile_columns > _WASTE * math.prod(shape)
    if empty or tiles >= 2**31:
        return None
    kernel = tile_kernel(
        CastRule(src, format.element), format, block, same, swapped, given, call.random is not None, whole_columns,
        call.layout,
    )  # fmt: skip
    return TilePlan(kernel, size, (same != "nothing", swapped != "nothing"), matrices, rows, columns)


def _run(one: ResultSpec, ndim: int, format: Format) -> Run:
    """The elements that share a scale, in rows and columns of the array that is read."""
    if format.block == "tensor":
        return "everywhere"
    if format.min_ndim == 2:
        assert isinstance(format.block, tuple)
        return "square" if format.block[0] == format.block[1] else "nothing"
    if one.axis < ndim - 2:
        return "nothing"
    return "along" if (one.axis == ndim - 1) != one.swapped else "down"
