# SPDX-License-Identifier: Apache-2.0
"""Quantizing and dequantizing on the device that holds the array, on its current stream.

Blocks of 16, 32, 64 or 128 elements along any axis, and squares of these sizes, take one launch that reads x once, for
the plain result, the transposed one, or both (`gpucast.quantization.gpu.tiles`). Rows of whole blocks take one launch
without tiles. NVFP4 without a given global scale reads x once more before that. All other blocks read it twice
(extremes, elements). An array that is neither in C order nor the transpose of such an array is copied first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpucast.arrays.operand import operand
from gpucast.arrays.packed import PackedArray, device_index
from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import FORMATS, Format, Parts
from gpucast.core.random import Random
from gpucast.core.rule import CastRule, resolve
from gpucast.gpu import cast, driver
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.gpu.source import ROW_BLOCKS, WARP, Kind, QuantizeArguments, QuantizeSpec, stats_bytes
from gpucast.quantization.gpu.tile_source import TileResult
from gpucast.quantization.gpu.tiles import ResultSpec, plan

_FLOAT, _BYTE = dtype("FLOAT"), dtype("UINT8")
#: The number of threads that keeps a device busy, and the elements that make a thread worth starting.
_THREADS, _ELEMENTS = 1 << 17, 16
#: The alignment in bytes that kernels of the kind "rows" need for their vector loads.
_ALIGNMENT = 16
#: The elements up to which 32-bit indices suffice, with a margin for a block's threads; the kinds that index elements.
_LARGE, _COUNTING = 2**32 - 2**16, ("extremes", "top", "elements")
#: Stands for any format where scales are only moved.
_ANY = FORMATS["mxfp4"]


def quantize(
    x: Any, format: Format, result_specs: Sequence[ResultSpec], *, random: Random | None = None
) -> list[Parts]:
    """The parts of each requested result of a checked CuPy array; all results have the same global scale.

    `Parts.data` is a PackedArray where elements are below one byte. RuntimeError while a CUDA graph is captured,
    because memory has to be allocated.
    """
    cuda, device, src = driver.driver(), device_index(x), dtype(x.dtype)
    assert device is not None
    with cuda.on(device):
        if cuda.capturing():
            raise RuntimeError("quantize: a CUDA graph is being captured, and memory cannot be allocated then")
        if not x.flags.c_contiguous and x.ndim > 1 and x.swapaxes(-1, -2).flags.c_contiguous:
            x, result_specs = x.swapaxes(-1, -2), [replace(one, swapped=not one.swapped) for one in result_specs]
        x = _dense(x)
        global_scale = None
        if format.global_scale:
            scale = result_specs[0].scale
            if scale is None:
                global_scale = _ArrayQuantizer(x, src, format, 0, device, random).find_global_scale()
            else:
                global_scale = _given(scale, (), device)
            result_specs = [replace(one, scale=None) for one in result_specs]
        results = [_new(x.shape, format, one, device, global_scale) for one in result_specs]
        return _fill(x, src, format, result_specs, results, device, random)


def _new(shape: tuple[int, ...], format: Format, spec: ResultSpec, device: int, global_scale: Any) -> Parts:
    """Newly allocated parts of a result, holding the caller's scales if there are any."""
    shape = _swap(shape) if spec.swapped else shape
    scales_shape = format.scales_shape(shape, spec.axis)
    zero_points = None if format.zero_point is None else cast.new(scales_shape, format.zero_point)
    if spec.scale is None:
        scales = cast.new(scales_shape, format.scale)
    else:
        scales = _given(spec.scale, scales_shape, device)
    return Parts(cast.new(shape, format.element), scales, zero_points, global_scale)


def _fill(
    x: Any,
    src: DType,
    format: Format,
    result_specs: Sequence[ResultSpec],
    results: list[Parts],
    device: int,
    random: Random | None,
) -> list[Parts]:
    """Launch the kernels of the results: one kernel for all, or one after the other."""
    given = result_specs[0].scale is not None
    call = _ArrayQuantizer(x, src, format, result_specs[0].axis, device, random)
    if not result_specs[0].swapped and len(result_specs) == 1 and not given and call.in_rows():
        call.run(results[0], given=False)
        return results
    tile_plan = plan(x.shape, src, format, result_specs, random, given=given)
    if tile_plan is not None:
        if format.block == "tensor":
            call.find_scales(results[0], given=given)
            # The plain and the transposed result share the scale.
            results = [replace(one, scales=results[0].scales, zero_points=results[0].zero_points) for one in results]
        sides = sorted(zip(result_specs, results, strict=True), key=lambda side: side[0].swapped)
        places = [TileResult(*map(_address, (one.data, one.scales, one.zero_points))) for _, one in sides]
        tile_plan.run(_address(x), device, places, _address(results[0].global_scale), **_seed(random))
        return results
    if len(result_specs) > 1:
        return [
            parts
            for one, result in zip(result_specs, results, strict=True)
            for parts in _fill(x, src, format, [one], [result], device, random)
        ]
    if result_specs[0].swapped:
        call = _ArrayQuantizer(_dense(x.swapaxes(-1, -2)), src, format, result_specs[0].axis, device, random)
    call.run(results[0], given=given)
    return results


def _swap(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _seed(random: Random | None) -> dict[str, int]:
    return {} if random is None else {"seed": random.seed, "offset": random.offset}


def swizzle(scales: Any, shape: tuple[int, ...], size: int, *, back: bool = False) -> Any:
    """One-byte scales in the order "128x4", `size` of them, from linear scales of `shape`; `back`: the inverse."""
    device, kind = device_index(scales), dtype(scales.dtype)
    assert device is not None
    with driver.driver().on(device):
        scales = _dense(scales)
        out = cast.new(shape if back else (size,), kind)
        if size:
            rows, columns = math.prod(shape[:-1]), shape[-1]
            blocks = BlockGrid((1, rows, columns), (1, 1, 1), (1, rows, columns))
            kernel = driver.kernel(swizzle_spec(kind, back), device)
            kernel(_address(scales), _address(out), size, QuantizeArguments(blocks))
    return out


def swizzle_spec(kind: DType, back: bool) -> QuantizeSpec:
    """The kernel of `swizzle`, for scales of a type."""
    return QuantizeSpec(CastRule(kind, kind), _ANY, "unswizzle" if back else "swizzle")


def dequantize(parts: Parts, format: Format, to: DType, *, axis: int) -> Any:
    """The numbers that parts on a device represent; their scales are in the layout "linear"."""
    cuda, device = driver.driver(), device_index(parts.data)
    assert device is not None
    shape = parts.data.shape
    parts = Parts(*(None if part is None else _dense(part) for part in vars(parts).values()))
    with cuda.on(device):
        if cuda.capturing():
            raise RuntimeError("dequantize: a CUDA graph is being captured, and memory cannot be allocated then")
        out = cast.new(shape, to)
        if out.size:
            blocks = BlockGrid.of(format, shape, axis)
            arguments = QuantizeArguments(blocks, *map(_address, (parts.scales, parts.zero_points, parts.global_scale)))
            rule = CastRule(format.element, to)
            if _in_rows(blocks, parts.data):
                spec = QuantizeSpec(rule, format, "back", block=blocks.lengths[2])
            else:
                spec = QuantizeSpec(rule, format, "back", single=format.block == "tensor", large=out.size > _LARGE)
            kernel = driver.kernel(spec, device)
            kernel(_address(parts.data), _address(out), out.size, arguments)
    return out


class _ArrayQuantizer:
    """Launches the kernels that quantize one array block by block, without tiles."""

    def __init__(self, x: Any, src: DType, format: Format, axis: int, device: int, random: Random | None) -> None:
        self.x, self.src, self.format, self.device, self.random = x, src, format, device, random
        self.blocks = BlockGrid.of(format, x.shape, axis)

    def find_global_scale(self) -> Any:
        size = self.x.size
        everything = BlockGrid((1, 1, size), (1, 1, max(size, 1)), (1, 1, 1), False)
        stats, arguments = self._extremes("top", everything)
        result = cast.new((), _FLOAT)
        self._launch("global", WARP, result, arguments)
        del stats
        return result

    def run(self, result: Parts, *, given: bool) -> None:
        """Fill the result; if `given`, its scales are there already."""
        arguments = self._arguments(result)
        if not given and self.in_rows():
            self._launch("rows", self.x.size, result.data, arguments)
            return
        self.find_scales(result, given=given)
        if self.x.size:
            self._launch("elements", self.x.size, result.data, arguments)

    def find_scales(self, result: Parts, *, given: bool) -> None:
        """Fill the scales and zero points; if `given`, set only the scales of blocks with NaN or infinity to NaN."""
        if self.blocks.size and not (given and not self.format.nan_in_scale):
            stats, arguments = self._extremes("extremes", self.blocks, self._arguments(result))
            self._launch("kept" if given else "scales", self.blocks.size * WARP, result.data, arguments)
            # CuPy reuses this memory only for later work on the same stream, so it may be freed before the kernels ran.
            del stats

    def in_rows(self) -> bool:
        """Whether a single kernel of the kind "rows" can do it."""
        return self.x.size > 0 and _in_rows(self.blocks, self.x)

    def _arguments(self, result: Parts) -> QuantizeArguments:
        places = map(_address, (result.scales, result.zero_points, result.global_scale))
        return QuantizeArguments(self.blocks, *places, **_seed(self.random))

    def _extremes(
        self, kind: Kind, blocks: BlockGrid, filled: QuantizeArguments | None = None
    ) -> tuple[Any, QuantizeArguments]:
        lanes = 1 if blocks.lengths[2] == 1 else WARP
        teams = blocks.size * lanes
        parts = max(1, min(-(-blocks.largest // (lanes * _ELEMENTS)), -(-_THREADS // teams)))
        # A multiple of the elements that the lanes read together.
        whole = lanes * _ELEMENTS
        chunk = -(-max(blocks.largest, 1) // (parts * whole)) * whole
        stats = cast.new((blocks.size * parts * stats_bytes(self.src),), _BYTE)
        arguments = replace(filled or QuantizeArguments(blocks), stats=_address(stats), parts=parts, chunk=chunk)
        self._launch(kind, teams * parts, stats, arguments, lanes)
        return stats, arguments

    def _launch(self, kind: Kind, n: int, dst: Any, arguments: QuantizeArguments, lanes: int = 1) -> None:
        random = self.random is not None and kind in ("rows", "elements")
        block = self.blocks.lengths[2] if kind == "rows" else 0
        single = kind == "elements" and self.format.block == "tensor"
        large = kind in _COUNTING and self.x.size > _LARGE
        rule = CastRule(self.src, self.format.element)
        spec = QuantizeSpec(rule, self.format, kind, random, lanes, block, large, single)
        kernel = driver.kernel(spec, self.device)
        kernel(_address(self.x), _address(dst), n, arguments)


def _in_rows(blocks: BlockGrid, x: Any) -> bool:
    """Whether rows consist of whole blocks of a length in ROW_BLOCKS, and x is aligned for vector loads."""
    return (
        blocks.splits_outer
        and blocks.lengths[1] == 1
        and blocks.lengths[2] in ROW_BLOCKS
        and blocks.shape[2] % blocks.lengths[2] == 0
        and _address(x) % _ALIGNMENT == 0
    )


def _given(scale: Any, shape: tuple[int, ...], device: int) -> Any:
    """The caller's scales as a new FLOAT array on the device."""
    if device_index(scale) != device:
        scale = cast.to_host(scale) if device_index(scale) is not None else scale
        scale = np.ascontiguousarray(np.broadcast_to(np.asarray(scale, np.float32), shape))
        return cast.to_device(scale, device).reshape(shape)
    import cupy

    wide = cupy.broadcast_to(scale, shape)
    source = operand(wide)
    return cast.apply(source, resolve(source.dtype, _FLOAT), operand(cast.new(shape, _FLOAT))).array


def _dense(x: Any) -> Any:
    """The array, or a copy of it if it is not in C order or not aligned to its element size."""
    if isinstance(x, PackedArray) or (x.flags.c_contiguous and _address(x) % x.itemsize == 0):
        return x
    source = operand(x)
    row = source.dtype
    return cast.apply(source, resolve(row, row), operand(cast.new(x.shape, row))).array


def _address(x: Any) -> int:
    if x is None:
        return 0
    return int((x.data if isinstance(x, PackedArray) else x).data.ptr)
