# SPDX-License-Identifier: Apache-2.0
"""Quantizing and dequantizing on the device that holds the array, on its current stream.

Blocks of 16, 32, 64 or 128 elements along any axis, and squares of these sizes, take one launch that reads x once, for
the plain result, the transposed one, or both (`gpucast.quantization.cuda.tiles`). Rows of whole blocks take one launch
without tiles. NVFP4 without a given global scale or amax reads x once more before that. All other blocks read it twice
(extremes, elements). An array that is neither in C order nor the transpose of such an array is copied first.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gpucast.arrays.packed import device_index
from gpucast.casting import cuda
from gpucast.casting.cuda import Workspace
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import Random
from gpucast.core.rule import CastRule
from gpucast.kernel import driver
from gpucast.kernel.cast_kernel import VECTOR
from gpucast.kernel.kernel import Kernel
from gpucast.quantization.block_call import BlockCall, ResultSpec
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.cuda import memory
from gpucast.quantization.cuda.source import (
    ENTIRE_THREADS,
    WARP,
    Kind,
    finishing,
    quantize_arguments,
    quantize_kernel,
    rows_in_order,
    stats_bytes,
)
from gpucast.quantization.cuda.tiles import TileResult, plan
from gpucast.quantization.formats import FORMATS, LENGTHS, Format, Parts
from gpucast.quantization.scale_orders import ScaleLayout, ScaleOrder, in_layout
from gpucast.quantization.steps import Steps

_FLOAT, _BYTE = dtype("FLOAT"), dtype("UINT8")
#: Those of `quantize_arguments`, by name.
_Arguments = dict[str, Any]
#: The number of threads that keeps a device busy, and the elements that make a thread worth starting; the bytes, in the
#: kinds `ENTIRE`.
BUSY_THREADS, _ELEMENTS, _BYTES = 1 << 17, 16, 32
#: The elements up to which 32-bit indices suffice, with a margin for a block's threads; the kinds that index elements.
_LARGE, _COUNTING = 2**32 - 2**16, ("extremes", "columns", "elements")
#: The kinds of kernels that read the global scale, and those that write scales in an order.
_SCALING = ("rows", "scales", "kept", "entire", "entire_kept", "elements")
_ORDERED = ("rows", "scales", "entire", "elements")
#: Stands for any blocks where there are none.
ONE = BlockGrid((1, 1, 1), (1, 1, 1), (1, 1, 1), False)
#: Stands for any format where scales are only moved.
_ANY = FORMATS["mxfp4"]


def quantize(call: BlockCall) -> list[Parts]:
    """The parts of each result of a call without transforms. `Parts.data` is a PackedArray for elements below one byte.

    RuntimeError in the capture of a CUDA graph if memory is neither given nor in the workspace.
    """
    device, targets, amax = device_index(call.x), call.targets, call.amax
    assert device is not None
    with driver.driver().on(device):
        call, wanted = prepare(call, device)
        format, specs, workspace, given = call.format, call.results, call.workspace, call.results[0].scale
        if format.global_scale:
            if given is None:
                global_scale = wanted[0].global_scale
                # In as many dimensions as the blocks of the format have.
                ones = (1,) * (format.min_ndim - 1)
                searched = call.x if amax is None else memory.dense(amax, workspace, "amax").reshape(*ones, -1)
                find_global_scale(call, searched, global_scale, device)
            else:
                global_scale = memory.given(given, device, wanted[0].global_scale, workspace)
            call = call._replace(results=[one._replace(scale=None) for one in specs])
            results = [replace(one, global_scale=global_scale) for one in wanted]
        else:
            results = [
                one
                if spec.scale is None
                else replace(one, scales=memory.given(spec.scale, device, one.scales, workspace))
                for spec, one in zip(specs, wanted, strict=True)
            ]
        results = _fill(call, results, device)
        if format.steps is not None:
            _finish(format, format.steps, dtype(call.x.dtype), results, device, call.layout)
        for target, result in zip(targets or [], results, strict=False):
            # Results share their scale, and the global one.
            memory.hand_over(vars(result), vars(target))
        return results


def quantize_by(x: Any, format: Format, known: Parts, axis: int, random: Random | None) -> Parts:
    """The parts of a checked CuPy array, by the scales of others on its device."""
    device = device_index(x)
    assert device is not None
    with driver.driver().on(device):
        spec = ResultSpec(False, axis, known.global_scale)
        call, (made,) = prepare(BlockCall(x, format, [spec], random), device, turns=False)
        for name in ("scales", "zero_points", "global_scale"):
            if getattr(known, name) is not None:
                memory.copy(getattr(known, name), getattr(made, name))
        _ArrayQuantizer(call, axis, device, is_row_scaled(made)).run(made, given=True)
        return made


def prepare(call: BlockCall, device: int, turns: bool = True) -> tuple[BlockCall, list[Parts]]:
    """The call with a workspace, and of an array in C order: x, a copy or, if it `turns`, the transpose of x with the
    results in terms of it. And the parts to fill, which `memory.hand_over` gives to the targets.

    RuntimeError in the capture of a CUDA graph if memory is neither given nor in the workspace.
    """
    x, specs, targets = call.x, call.results, call.targets
    workspace = call.workspace or Workspace("quantize", device)
    if targets is None:
        workspace.check_capture()
    if turns and not x.flags.c_contiguous and x.ndim > 1 and x.swapaxes(-1, -2).flags.c_contiguous:
        x, specs = x.swapaxes(-1, -2), [one._replace(swapped=not one.swapped) for one in specs]
    call = call._replace(x=memory.dense(x, workspace, "x"), results=specs, workspace=workspace)
    if targets is None:
        return call, [_new_parts(call, one) for one in specs]
    return call, [memory.targets(one, workspace, f"result {i}") for i, one in enumerate(targets)]


def _new_parts(call: BlockCall, spec: ResultSpec) -> Parts:
    """Newly allocated parts of a result. A given global scale or `amax` has one number, or one of each row."""
    format, shape = call.format, spec.shape(call.x.shape)
    scales_shape = format.scales_shape(shape, spec.axis)
    zero_points = None if format.zero_point is None else cuda.new(scales_shape, format.zero_point)
    given = call.amax if spec.scale is None else spec.scale
    global_scale = cuda.new(() if given is None else given.shape, _FLOAT) if format.global_scale else None
    scales = cuda.new(in_layout(scales_shape, call.layout, format.scale.bits // 8), format.scale)
    return Parts(cuda.new(shape, format.element), scales, zero_points, global_scale)


def find_global_scale(call: BlockCall, searched: Any, result: Any, device: int) -> None:
    """Fill the global scale from the largest magnitude of a dense array; where the call has an amax, the one of each
    row, or the only one, from one of its numbers."""
    src, own = dtype(call.x.dtype), dtype(searched.dtype)
    search = _ArrayQuantizer(call._replace(x=searched, random=None, layout="linear"), 0, device)
    if call.amax is None:
        search.find_top(result)
    elif searched.size:
        # The formulas of steps depend on the type of the array that is quantized.
        search.find_row_scales(result, own if call.format.steps is None else src)


def entire_threads(nbytes: int) -> int:
    """The threads that read so many bytes in a kernel of the kinds `ENTIRE`: whole blocks."""
    blocks = -(-max(nbytes, 1) // (_BYTES * ENTIRE_THREADS))
    return min(blocks * ENTIRE_THREADS, BUSY_THREADS)


def _fill(call: BlockCall, results: list[Parts], device: int) -> list[Parts]:
    """Launch the kernels of the results: one kernel for all, or one after the other."""
    first, *more = call.results
    given = first.scale is not None
    row_scaled = is_row_scaled(results[0])
    quantizer = _ArrayQuantizer(call, first.axis, device, row_scaled)
    if not first.swapped and not more and not given and quantizer.in_rows():
        quantizer.run(results[0], given=False)
        return results
    tile_plan = None if row_scaled else plan(call, given=given)
    if tile_plan is not None:
        if isinstance(call.format.block, str):
            quantizer.find_scales(results[0], given=given)
            # The plain and the transposed result share the scale.
            results = [replace(one, scales=results[0].scales, zero_points=results[0].zero_points) for one in results]
        sides = sorted(zip(call.results, results, strict=True), key=lambda side: side[0].swapped)
        places = [TileResult(*map(memory.address, (one.data, one.scales, one.zero_points))) for _, one in sides]
        of_all = memory.address(results[0].global_scale)
        tile_plan.run(memory.address(call.x), device, places, of_all, **_seed(call.random))
        return results
    if more:
        return [
            parts
            for one, result in zip(call.results, results, strict=True)
            for parts in _fill(call._replace(results=[one]), [result], device)
        ]
    if first.swapped:
        turned = memory.dense(call.x.swapaxes(-1, -2), call.workspace, "transposed x")
        quantizer = _ArrayQuantizer(call._replace(x=turned), first.axis, device, row_scaled)
    quantizer.run(results[0], given=given)
    return results


def is_row_scaled(parts: Parts) -> bool:
    """Whether each row has a global scale of its own."""
    return parts.global_scale is not None and parts.global_scale.ndim > 0


def _finish(format: Format, steps: Steps, src: DType, results: list[Parts], device: int, layout: ScaleLayout) -> None:
    """Replace the intermediate values of a format with steps by its scales and its global scale."""
    unique = {id(one.scales): one.scales for one in results}
    numbers = {"finish": list(unique.values()), "finish_global": [results[0].global_scale]}
    for kind in finishing(steps):
        for array in numbers[kind]:
            if array.size:
                order = layout if kind == "finish" else "linear"
                kernel = quantize_kernel(CastRule(src, format.element), format, kind, layout=order)
                driver.launch(kernel, device, 0, memory.address(array), array.size, quantize_arguments(ONE))


def _seed(random: Random | None) -> dict[str, int]:
    return {} if random is None else {"seed": random.seed, "offset": random.offset}


def swizzle(
    scales: Any, shape: tuple[int, ...], size: int, layout: ScaleOrder, *, back: bool = False, out: Any = None
) -> Any:
    """Reorder `size` scales from the linear layout of `shape`, or with `back` into it.

    `out`: a contiguous array for them.
    """
    device, kind = device_index(scales), dtype(scales.dtype)
    assert device is not None
    with driver.driver().on(device):
        scales = memory.dense(scales, Workspace("swizzle", device), "scales")
        if out is None:
            cuda.check_allocation("swizzle")
            out = cuda.new(shape if back else (size,), kind)
        if size:
            rows, columns = math.prod(shape[:-1]), shape[-1]
            blocks = BlockGrid((1, rows, columns), (1, 1, 1), (1, rows, columns))
            addresses = memory.address(scales), memory.address(out)
            driver.launch(swizzle_kernel(kind, back, layout), device, *addresses, size, quantize_arguments(blocks))
    return out


def swizzle_kernel(kind: DType, back: bool, layout: ScaleOrder = "128x4") -> Kernel:
    """The kernel of `swizzle`, for scales of a type."""
    return quantize_kernel(CastRule(kind, kind), _ANY, "unswizzle" if back else "swizzle", layout=layout)


def dequantize(
    parts: Parts, format: Format, to: DType, *, axis: int, out: Any = None, workspace: Workspace | None = None
) -> Any:
    """The values of parts on a device, whose scales are in the layout "linear". `out` is an array for them.

    RuntimeError in the capture of a CUDA graph if memory is neither given nor in the workspace.
    """
    device = device_index(parts.data)
    assert device is not None
    shape = parts.data.shape
    workspace = workspace or Workspace("dequantize", device)
    with driver.driver().on(device):
        parts = Parts(
            *(None if part is None else memory.dense(part, workspace, name) for name, part in vars(parts).items())
        )
        # Rows of whole blocks are written in vectors; the kernel of all others writes to any address.
        dense = memory.result(out, shape, to, workspace, "result")
        if dense.size:
            blocks = BlockGrid.of(format, shape, axis)
            given = quantize_arguments(
                blocks, *map(memory.address, (parts.scales, parts.zero_points, parts.global_scale))
            )
            rule, row_scaled = CastRule(format.element, to), is_row_scaled(parts)
            if _in_rows(blocks, parts.data, dense):
                kernel = quantize_kernel(rule, format, "back", block=blocks.lengths[2], row_scaled=row_scaled)
            else:
                single, large = format.block == "tensor", dense.size > _LARGE
                kernel = quantize_kernel(rule, format, "back", single=single, large=large, row_scaled=row_scaled)
            driver.launch(kernel, device, memory.address(parts.data), memory.address(dense), dense.size, given)
        memory.hand_over({"numbers": dense}, {"numbers": out})
    return dense if out is None else out


class _ArrayQuantizer:
    """Launches the kernels that quantize one array block by block, without tiles."""

    def __init__(self, call: BlockCall, axis: int, device: int, row_scaled: bool = False) -> None:
        self.x, self.format, self.random, self.layout = call.x, call.format, call.random, call.layout
        self.src, self.device, self.workspace, self.row_scaled = dtype(call.x.dtype), device, call.workspace, row_scaled
        self.blocks = BlockGrid.of(self.format, self.x.shape, axis)
        before, n, after = self.blocks.shape
        if self.format.block == "axis" and after == 1:
            # The same blocks, and their scales in the same order, as whole columns of one matrix.
            self.blocks = BlockGrid((1, before, n), (1, max(before, 1), 1), (1, 1, n))

    def find_row_scales(self, result: Any, src: DType) -> None:
        """Fill the global scales of rows from the largest magnitude of each; `src` as in `find_global_scale`."""
        self._launch("globals", self.x.size, result, {"blocks": ONE}, src=src)

    def find_top(self, result: Any) -> None:
        """Fill the global scale."""
        self._entire("top", result, {})

    def _entire(self, kind: Kind, result: Any, arguments: _Arguments) -> None:
        """One launch for a block that is the whole array."""
        size = self.x.size
        arguments = {**arguments, "blocks": BlockGrid((1, 1, size), (1, 1, max(size, 1)), (1, 1, 1), False)}
        arguments["stats"] = memory.address(self.workspace.cell())
        self._launch(kind, entire_threads(self.x.nbytes), result, arguments)

    def run(self, result: Parts, *, given: bool) -> None:
        """Fill the result. With `given`, its scales are there already."""
        arguments = self._arguments(result)
        if not given and self.in_rows():
            self._launch("rows", self.x.size, result.data, arguments)
            return
        self.find_scales(result, given=given)
        if self.x.size:
            self._launch("elements", self.x.size, result.data, arguments)

    def find_scales(self, result: Parts, *, given: bool) -> None:
        """Fill the scales and zero points. With `given`, only set the scales of blocks with NaN or infinity to NaN."""
        if given and not self.format.nan_in_scale:
            return
        if self.blocks.size == 1:
            self._entire("entire_kept" if given else "entire", result.scales, self._arguments(result))
        elif self.blocks.size:
            arguments = self._extremes(self._arguments(result))
            self._launch("kept" if given else "scales", self.blocks.size * WARP, result.data, arguments)

    def in_rows(self) -> bool:
        """Whether one kernel of the kind "rows" can do all of it."""
        return self.x.size > 0 and _in_rows(self.blocks, self.x)

    def _arguments(self, result: Parts) -> _Arguments:
        return {
            "blocks": self.blocks,
            "scales": memory.address(result.scales),
            "zero_points": memory.address(result.zero_points),
            "global_scale": memory.address(result.global_scale),
            **_seed(self.random),
        }

    def _extremes(self, filled: _Arguments) -> _Arguments:
        """Find the extremes of parts of blocks. Returns the arguments of the kernels that read them."""
        kind: Kind = "extremes"
        blocks = self.blocks
        lanes = 1 if blocks.lengths[2] == 1 else WARP
        teams = blocks.size * lanes
        side_by_side = VECTOR // self.x.itemsize
        in_vectors = blocks.counts[2] == blocks.shape[2] and blocks.shape[2] % side_by_side == 0
        if lanes == 1 and blocks.splits_outer and in_vectors and cuda.is_aligned(self.x, VECTOR):
            kind, teams = "columns", teams // side_by_side
        parts = max(1, min(-(-blocks.largest // (lanes * _ELEMENTS)), -(-BUSY_THREADS // teams)))
        # A multiple of the elements that the lanes read together.
        whole = lanes * _ELEMENTS
        chunk = -(-max(blocks.largest, 1) // (parts * whole)) * whole
        stats = self.workspace.array(kind, (blocks.size * parts * stats_bytes(self.src),), _BYTE)
        arguments = {**filled, "stats": memory.address(stats), "parts": parts, "chunk": chunk}
        self._launch(kind, teams * parts, stats, arguments, lanes)
        return arguments

    def _launch(
        self, kind: Kind, n: int, dst: Any, arguments: _Arguments, lanes: int = 1, src: DType | None = None
    ) -> None:
        random = self.random is not None and kind in ("rows", "elements")
        block = self.blocks.lengths[2] if kind == "rows" else 0
        single = kind == "elements" and self.format.block == "tensor"
        large = kind in _COUNTING and self.x.size > _LARGE
        rule = CastRule(src or self.src, self.format.element)
        row_scaled = self.row_scaled and kind in _SCALING
        layout = self.layout if kind in _ORDERED else "linear"
        kernel = quantize_kernel(rule, self.format, kind, random, lanes, block, large, single, row_scaled, layout)
        if kind == "rows" and layout != "linear":
            blocks, n = rows_in_order(self.blocks, self.format, self.src, layout)
            arguments = {**arguments, "blocks": blocks}
        addresses = memory.address(self.x), memory.address(dst)
        driver.launch(kernel, self.device, *addresses, n, quantize_arguments(**arguments))


def _in_rows(blocks: BlockGrid, *arrays: Any) -> bool:
    """Whether rows consist of whole blocks of a length in LENGTHS, and the arrays are aligned for vectors."""
    return (
        blocks.splits_outer
        and blocks.lengths[1] == 1
        and blocks.lengths[2] in LENGTHS
        and blocks.shape[2] % blocks.lengths[2] == 0
        and all(cuda.is_aligned(x, VECTOR) for x in arrays)
    )
