# SPDX-License-Identifier: Apache-2.0
"""Quantizing and dequantizing on the device that holds the array, on its current stream.

Blocks of 16, 32, 64 or 128 elements along any axis, and squares of these sizes, take one launch that reads x once, for
the plain result, the transposed one, or both (`gpucast.quantization.cuda.tiles`). Rows of whole blocks take one launch
without tiles. NVFP4 without a given global scale or amax reads x once more before that. All other blocks read it twice
(extremes, elements). An array that is neither in C order nor the transpose of such an array is copied first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from gpucast.quantization.block_grid import BlockGrid, in_layout
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
from gpucast.quantization.cuda.tiles import ResultSpec, TileResult, plan
from gpucast.quantization.formats import FORMATS, LENGTHS, Format, Parts
from gpucast.quantization.scale_orders import ScaleLayout, ScaleOrder
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


def quantize(
    x: Any,
    format: Format,
    result_specs: Sequence[ResultSpec],
    *,
    random: Random | None = None,
    targets: Sequence[Parts] | None = None,
    workspace: Workspace | None = None,
    amax: Any = None,
    layout: ScaleLayout = "linear",
) -> list[Parts]:
    """The parts of each requested result of a checked CuPy array. All results share one global scale.

    `amax` is a FLOAT that replaces the largest magnitude of x when the global scale is computed. `Parts.data` is a
    PackedArray for elements below one byte. `targets` are parts to write into. RuntimeError in the capture of a CUDA
    graph if memory is neither given nor in the workspace.
    """
    device, src = device_index(x), dtype(x.dtype)
    assert device is not None
    workspace = workspace or Workspace("quantize", device)
    with driver.driver().on(device):
        x, result_specs, wanted = prepare(x, format, result_specs, targets, workspace, amax, layout)
        if format.global_scale:
            given = result_specs[0].scale
            if given is None:
                global_scale = wanted[0].global_scale
                searched = x if amax is None else memory.dense(amax, workspace, "amax").reshape(-1)
                find_global_scale(searched, src, format, global_scale, device, workspace, is_amax=amax is not None)
            else:
                global_scale = memory.given(given, device, wanted[0].global_scale, workspace)
            result_specs = [replace(one, scale=None) for one in result_specs]
            results = [replace(one, global_scale=global_scale) for one in wanted]
        else:
            results = [
                one
                if spec.scale is None
                else replace(one, scales=memory.given(spec.scale, device, one.scales, workspace))
                for spec, one in zip(result_specs, wanted, strict=True)
            ]
        results = _fill(x, src, format, result_specs, results, device, random, workspace, layout)
        if format.steps is not None:
            _finish(format, format.steps, src, results, device, layout)
        for target, result in zip(targets or [], results, strict=False):
            # Results share their scale, and the global one.
            memory.hand_over(vars(result), vars(target))
        return results


def quantize_by(x: Any, format: Format, known: Parts, axis: int, random: Random | None) -> Parts:
    """The parts of a checked CuPy array, by the scales of others on its device."""
    device = device_index(x)
    assert device is not None
    workspace = Workspace("quantize", device)
    with driver.driver().on(device):
        workspace.check_capture()
        x = memory.dense(x, workspace, "x")
        made = _new_parts(x.shape, format, ResultSpec(False, axis, known.global_scale), None, "linear")
        for name in ("scales", "zero_points", "global_scale"):
            if getattr(known, name) is not None:
                memory.copy(getattr(known, name), getattr(made, name))
        call = _ArrayQuantizer(x, dtype(x.dtype), format, axis, device, random, workspace, is_row_scaled(made))
        call.run(made, given=True)
        return made


def prepare(
    x: Any,
    format: Format,
    result_specs: Sequence[ResultSpec],
    targets: Sequence[Parts] | None,
    workspace: Workspace,
    amax: Any = None,
    layout: ScaleLayout = "linear",
) -> tuple[Any, Sequence[ResultSpec], list[Parts]]:
    """An array in C order with the elements of x, or of its transpose; the results in terms of it; the parts to fill,
    which `memory.hand_over` gives to the targets. A given global scale or `amax` has one number, or one of each row.

    RuntimeError in the capture of a CUDA graph if memory is neither given nor in the workspace.
    """
    if targets is None:
        workspace.check_capture()
    if not x.flags.c_contiguous and x.ndim > 1 and x.swapaxes(-1, -2).flags.c_contiguous:
        x, result_specs = x.swapaxes(-1, -2), [replace(one, swapped=not one.swapped) for one in result_specs]
    x = memory.dense(x, workspace, "x")
    if targets is None:
        return x, result_specs, [_new_parts(x.shape, format, one, amax, layout) for one in result_specs]
    return x, result_specs, [memory.targets(one, workspace, f"result {i}") for i, one in enumerate(targets)]


def _new_parts(shape: tuple[int, ...], format: Format, spec: ResultSpec, amax: Any, layout: ScaleLayout) -> Parts:
    """Newly allocated parts of a result."""
    shape = _swap(shape) if spec.swapped else shape
    scales_shape = format.scales_shape(shape, spec.axis)
    zero_points = None if format.zero_point is None else cuda.new(scales_shape, format.zero_point)
    given = amax if spec.scale is None else spec.scale
    global_scale = cuda.new(() if given is None else given.shape, _FLOAT) if format.global_scale else None
    scales = cuda.new(in_layout(scales_shape, layout, format.scale.bits // 8), format.scale)
    return Parts(cuda.new(shape, format.element), scales, zero_points, global_scale)


def find_global_scale(
    x: Any, src: DType, format: Format, result: Any, device: int, workspace: Workspace, *, is_amax: bool
) -> None:
    """Fill the global scale from the largest magnitude of a dense array; with `is_amax`, that of each row, or the only
    one, from one of its numbers.

    `src`: the type of the array that is quantized; the formulas of steps depend on it.
    """
    own = dtype(x.dtype)
    call = _ArrayQuantizer(x, own, format, 0, device, None, workspace)
    if not is_amax:
        call.find_top(result)
    elif x.size:
        call.find_row_scales(result, own if format.steps is None else src)


def entire_threads(nbytes: int) -> int:
    """The threads that read so many bytes in a kernel of the kinds `ENTIRE`: whole blocks."""
    blocks = -(-max(nbytes, 1) // (_BYTES * ENTIRE_THREADS))
    return min(blocks * ENTIRE_THREADS, BUSY_THREADS)


def _fill(
    x: Any,
    src: DType,
    format: Format,
    result_specs: Sequence[ResultSpec],
    results: list[Parts],
    device: int,
    random: Random | None,
    workspace: Workspace,
    layout: ScaleLayout,
) -> list[Parts]:
    """Launch the kernels of the results: one kernel for all, or one after the other."""
    given = result_specs[0].scale is not None
    row_scaled = is_row_scaled(results[0])
    call = _ArrayQuantizer(x, src, format, result_specs[0].axis, device, random, workspace, row_scaled, layout)
    if not result_specs[0].swapped and len(result_specs) == 1 and not given and call.in_rows():
        call.run(results[0], given=False)
        return results
    tile_plan = None
    if not row_scaled:
        tile_plan = plan(x.shape, src, format, result_specs, random, given=given, layout=layout)
    if tile_plan is not None:
        if isinstance(format.block, str):
            call.find_scales(results[0], given=given)
            # The plain and the transposed result share the scale.
            results = [replace(one, scales=results[0].scales, zero_points=results[0].zero_points) for one in results]
        sides = sorted(zip(result_specs, results, strict=True), key=lambda side: side[0].swapped)
        places = [TileResult(*map(memory.address, (one.data, one.scales, one.zero_points))) for _, one in sides]
        tile_plan.run(memory.address(x), device, places, memory.address(results[0].global_scale), **_seed(random))
        return results
    if len(result_specs) > 1:
        return [
            parts
            for one, result in zip(result_specs, results, strict=True)
            for parts in _fill(x, src, format, [one], [result], device, random, workspace, layout)
        ]
    if result_specs[0].swapped:
        turned = memory.dense(x.swapaxes(-1, -2), workspace, "transposed x")
        call = _ArrayQuantizer(turned, src, format, result_specs[0].axis, device, random, workspace, row_scaled, layout)
    call.run(results[0], given=given)
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


def _swap(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


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
        out = cuda.new(shape if back else (size,), kind) if out is None else out
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
        if out is None:
            workspace.check_capture()
            dense = out = cuda.new(shape, to)
        else:
            # Rows of whole blocks are written in vectors; the kernel of all others writes to any address.
            dense = out if cuda.is_contiguous(out) else workspace.array("result", shape, to)
        if out.size:
            blocks = BlockGrid.of(format, shape, axis)
            given = quantize_arguments(
                blocks, *map(memory.address, (parts.scales, parts.zero_points, parts.global_scale))
            )
            rule, row_scaled = CastRule(format.element, to), is_row_scaled(parts)
            if _in_rows(blocks, parts.data, dense):
                kernel = quantize_kernel(rule, format, "back", block=blocks.lengths[2], row_scaled=row_scaled)
            else:
                single, large = format.block == "tensor", out.size > _LARGE
                kernel = quantize_kernel(rule, format, "back", single=single, large=large, row_scaled=row_scaled)
            driver.launch(kernel, device, memory.address(parts.data), memory.address(dense), out.size, given)
        if dense is not out:
            memory.copy(dense, out)
    return out


class _ArrayQuantizer:
    """Launches the kernels that quantize one array block by block, without tiles."""

    def __init__(
        self,
        x: Any,
        src: DType,
        format: Format,
        axis: int,
        device: int,
        random: Random | None,
        workspace: Workspace,
        row_scaled: bool = False,
        layout: ScaleLayout = "linear",
    ) -> None:
        self.x, self.src, self.format, self.device, self.random = x, src, format, device, random
        self.workspace, self.row_scaled, self.layout = workspace, row_scaled, layout
        self.blocks = BlockGrid.of(format, x.shape, axis)
        before, n, after = self.blocks.shape
        if format.block == "axis" and after == 1:
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
            arguments = self._extremes("extremes", self.blocks, self._arguments(result))
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

    def _extremes(self, kind: Kind, blocks: BlockGrid, filled: _Arguments | None = None) -> _Arguments:
        """Find the extremes of parts of blocks. Returns the arguments of the kernels that read them."""
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
        found = {"stats": memory.address(stats), "parts": parts, "chunk": chunk}
        arguments = {**(filled or {"blocks": blocks}), **found}
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
