# SPDX-License-Identifier: Apache-2.0
"""Hadamard transforms on a device, alone and before an array is quantized; and quantizing by the rule "4over6".

Rows of whole blocks of 16, 32, 64 or 128 take one launch that reads x once and transforms it on its way; so does a
transposed result, and the plain one with it, of matrices that consist of whole runs and blocks. Each global scale that
is not given takes one more read. All else is transformed to a FLOAT array, and quantized as any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucast.arrays.packed import device_index
from gpucast.casting import cuda
from gpucast.casting.cuda import Workspace
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule
from gpucast.kernel import driver
from gpucast.kernel.cast_kernel import VECTOR
from gpucast.quantization.block_call import BlockCall, ResultSpec
from gpucast.quantization.cuda import memory
from gpucast.quantization.cuda import quantize as plain
from gpucast.quantization.cuda.hadamard_source import (
    NO_RESULT,
    PART,
    PART_THREADS,
    HadamardResult,
    HadamardTile,
    hadamard_arguments,
    hadamard_kernel,
    takes,
)
from gpucast.quantization.formats import Format, Hadamard, Parts

_FLOAT = dtype("FLOAT")


def transform(
    x: Any,
    hadamard: Hadamard,
    axis: int,
    to: DType,
    *,
    inverse: bool = False,
    out: Any = None,
    workspace: Workspace | None = None,
) -> Any:
    """The transformed numbers of a checked CuPy array, each rounded once to FLOAT and once to `to`. `out`: an array for
    them. RuntimeError while a CUDA graph is captured, for memory that is neither there nor in the workspace."""
    device = device_index(x)
    assert device is not None
    workspace = workspace or Workspace("hadamard", device)
    with driver.driver().on(device):
        x = memory.dense(x, workspace, "x")
        y = memory.result(out, x.shape, to, workspace, "transformed")
        _transform(x, y, hadamard, axis, device, inverse=inverse)
        memory.hand_over({"y": y}, {"y": out})
    return y if out is None else out


def quantize(call: BlockCall) -> list[Parts]:
    """As `quantize.quantize`, also of transformed numbers, and by the rule "4over6". Each result has a global scale of
    its own."""
    device = device_index(call.x)
    assert device is not None
    with driver.driver().on(device):
        call, wanted = plain.prepare(call, device)
        sides = [_Side(call, spec, parts, device) for spec, parts in zip(call.results, wanted, strict=True)]
        if all(side.in_tiles for side in sides) and any(side.spec.swapped for side in sides):
            for side in sides:
                side.find_global_scale()
            done = _run_tiles(call, sides, device)
        else:
            done = False
        if not done:
            for side in sides:
                side.run()
        for target, result in zip(call.targets or [], wanted, strict=False):
            memory.hand_over(vars(result), vars(target))
    return wanted


@dataclass(frozen=True)
class _Side:
    """One result of a call of an array in C order."""

    call: BlockCall
    spec: ResultSpec
    parts: Parts
    device: int

    @property
    def x(self) -> Any:
        return self.call.x

    @property
    def format(self) -> Format:
        return self.call.format

    @property
    def rule(self) -> CastRule:
        """The cast from the type of x to the type of the codes."""
        return CastRule(dtype(self.x.dtype), self.format.element)

    @property
    def axis(self) -> int:
        """The axis of x along which the transform runs."""
        axis, ndim = self.spec.axis, self.x.ndim
        return 2 * ndim - 3 - axis if self.spec.swapped and axis >= ndim - 2 else axis

    @property
    def length(self) -> int:
        return 0 if self.spec.hadamard is None else self.spec.hadamard.length

    @property
    def in_registers(self) -> bool:
        """Whether warps can hold whole runs and blocks along the last axis of the result."""
        if not takes(self.format) or self.spec.axis != self.x.ndim - 1 or not self.x.size:
            return False
        assert isinstance(self.format.block, tuple)
        given = self.spec.scale is not None and not self.format.global_scale
        whole = self.x.shape[self.axis] % max(self.length, self.format.block[-1]) == 0
        return whole and not given and cuda.is_aligned(self.x, VECTOR)

    @property
    def in_tiles(self) -> bool:
        """Whether a tile in shared memory can hold them."""
        rows = self.x.shape[-1] * self.x.itemsize
        if plain.is_row_scaled(self.parts):
            return False
        return self.in_registers and self.x.ndim > 1 and self.rule.src.bits <= 32 and rows % VECTOR == 0

    def find_global_scale(self) -> None:
        """Fill the global scale of a format that has one."""
        if not self.format.global_scale:
            return
        result, given, amax, workspace = self.parts.global_scale, self.spec.scale, self.call.amax, self.call.workspace
        if given is not None:
            found = memory.given(given, self.device, result, workspace)
            if found is not result:
                memory.copy(found, result)
        elif amax is None and self.spec.hadamard is not None:
            self._find_transformed(self.spec.hadamard, result)
        else:
            searched = self.x if amax is None else memory.dense(amax, workspace, "amax").reshape(-1)
            plain.find_global_scale(self.call, searched, result, self.device)

    def _find_transformed(self, how: Hadamard, result: Any) -> None:
        runs, inner = self.x.size // how.length, math.prod(self.x.shape[self.axis + 1 :])
        strided = inner != 1 or not cuda.is_aligned(self.x, VECTOR)
        kernel = hadamard_kernel(self.rule, "top", how.length, self.format, strided=strided)
        stats = memory.address(self.call.workspace.cell())
        given = hadamard_arguments(stats=stats, runs=runs, inner=inner, transform=how)
        # No more blocks than have work.
        threads = min(-(-max(self.x.size, 1) // (PART * PART_THREADS)) * PART_THREADS, plain.BUSY_THREADS)
        driver.launch(kernel, self.device, memory.address(self.x), memory.address(result), threads, given)

    def run(self) -> None:
        """Fill the result by launches of its own."""
        side, workspace, how = self, self.call.workspace, self.spec.hadamard
        if self.format.rule == "4over6" and self.x.size and (self.spec.swapped or not self.in_registers):
            x = self.x.swapaxes(-1, -2) if self.spec.swapped else self.x
            y = workspace.array("turned x", x.shape, self.rule.src)
            memory.copy(x, y)
            side = replace(self, call=self.call._replace(x=y), spec=self.spec._replace(swapped=False))
        if side.in_registers and not side.spec.swapped:
            side.find_global_scale()
            side._run_rows()
            return
        x = self.x
        if x.size and how is not None:
            x = workspace.array(f"transformed {self.length}", x.shape, _FLOAT)
            _transform(self.x, x, how, self.axis, self.device)
        plain.quantize(self.call._replace(x=x, results=[self.spec], targets=[self.parts]))

    def _run_rows(self) -> None:
        random = self.call.random
        kernel = hadamard_kernel(
            self.rule, "rows", self.length, self.format, random is not None,
            row_scaled=plain.is_row_scaled(self.parts), layout=self.call.layout,
        )  # fmt: skip
        seed, offset = random or (0, 0)
        columns = self.x.shape[-1]
        given = hadamard_arguments(self.result, columns=columns, seed=seed, offset=offset, transform=self.spec.hadamard)
        addresses = memory.address(self.x), memory.address(self.parts.data)
        driver.launch(kernel, self.device, *addresses, self.x.size, given)

    @property
    def result(self) -> HadamardResult:
        """The addresses and the rows of the parts."""
        parts, rows = self.parts, math.prod(self.parts.data.shape[:-1])
        places = map(memory.address, (parts.data, parts.scales, parts.zero_points, parts.global_scale))
        return HadamardResult(*(*places, rows))


def _run_tiles(call: BlockCall, sides: Sequence[_Side], device: int) -> bool:
    """Launch one kernel for all results. False where a tile is too large, or signs differ."""
    by_place = {side.spec.swapped: side for side in sides}
    plain, turned = by_place.get(False), by_place[True]
    length = 0 if plain is None else plain.length
    x, format, rule = call.x, call.format, turned.rule
    tile = HadamardTile.of(format, length, plain is not None, True, turned.length)
    rows, columns = x.shape[-2:]
    tiles = -(-rows // tile.side), -(-columns // tile.side)
    matrices = math.prod(x.shape[:-2])
    if not tile.fits(rule.src) or matrices * math.prod(tiles) >= 2**31:
        return False
    kernel = hadamard_kernel(
        rule, "tiles", length, format, call.random is not None, plain=plain is not None, turned=True,
        turned_length=turned.length, layout=call.layout,
    )  # fmt: skip
    # Of two transforms the longer one has the signs of both.
    how = max((side.spec.hadamard for side in sides if side.spec.hadamard is not None), default=None)
    seed, offset = call.random or (0, 0)
    given = hadamard_arguments(
        NO_RESULT if plain is None else plain.result, turned.result, rows=rows, columns=columns, tiles=tiles,
        seed=seed, offset=offset, transform=how,
    )  # fmt: skip
    n = matrices * math.prod(tiles) * tile.side**2
    driver.launch(kernel, device, memory.address(x), memory.address(turned.parts.data), n, given)
    return True


def _transform(x: Any, y: Any, hadamard: Hadamard, axis: int, device: int, *, inverse: bool = False) -> None:
    """Write the transform of a dense array to another one."""
    if not x.size:
        return
    inner = math.prod(x.shape[axis + 1 :])
    strided = inner != 1 or not all(cuda.is_aligned(one, VECTOR) for one in (x, y))
    rule = CastRule(dtype(x.dtype), dtype(y.dtype))
    kernel = hadamard_kernel(rule, "transform", hadamard.length, inverse=inverse, strided=strided)
    given = hadamard_arguments(inner=inner, transform=hadamard)
    driver.launch(kernel, device, memory.address(x), memory.address(y), x.size, given)
