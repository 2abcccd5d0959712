# SPDX-License-Identifier: Apache-2.0
"""Quantizing and dequantizing on the device that holds the array, on its current stream.

Rows of whole short blocks take one launch and read x once. All other blocks read it twice (extremes, elements), NVFP4
without a given global scale once more.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpucast import device_cast, launch
from gpucast.dtypes import DType, dtype
from gpucast.packed import PackedArray, home
from gpucast.quantization.formats import FORMATS, Format, Parts
from gpucast.quantization.source import ROW_BLOCKS, WARP, Blocks, Kind, QuantizeArguments, Work, found_bytes
from gpucast.random_bits import Random
from gpucast.rule import Rule, resolve

_FLOAT, _BYTE = dtype("FLOAT"), dtype("UINT8")
#: Threads that are enough to keep a device busy, and elements that make one worth starting.
_THREADS, _ELEMENTS = 1 << 17, 16
#: Alignment that the vectors of the kind "rows" need, in bytes.
_ALIGNMENT = 16
#: Elements that 32 bits count, with room for the threads of a block; the kinds that count them.
_LARGE, _COUNTING = 2**32 - 2**16, ("extremes", "top", "elements")
#: Any format will do: scales are moved as they are.
_SWIZZLES = tuple(Work(FORMATS["mxfp4"], kind) for kind in ("swizzle", "unswizzle"))


def quantize(x: Any, format: Format, *, axis: int, scale: Any = None, random: Random | None = None) -> Parts:
    """The parts of a checked CuPy array; `Parts.data` is a PackedArray where elements are below one byte.

    RuntimeError while a CUDA graph is captured: memory has to be allocated.
    """
    driver, device, row = launch.driver(), home(x), device_cast.row_of(x)
    assert device is not None
    with driver.on(device):
        if driver.capturing():
            raise RuntimeError("quantize: a CUDA graph is being captured, and memory cannot be allocated then")
        if not x.flags.c_contiguous:
            x = device_cast.apply(x, resolve(row, row), device_cast.new(x.shape, row))
        work = _Call(x, row, format, axis, device, random)
        shape = format.scales_shape(x.shape, axis)
        data = device_cast.new(x.shape, format.element)
        zero_points = None if format.zero_point is None else device_cast.new(shape, format.zero_point)
        global_scale = None
        if format.global_scale:
            global_scale = work.find_global_scale() if scale is None else _given(scale, (), device)
            scale = None
        scales = device_cast.new(shape, format.scale) if scale is None else _given(scale, shape, device)
        work.run(data, scales, zero_points, global_scale, given=scale is not None)
    return Parts(data, scales, zero_points, global_scale)


def swizzle(scales: Any, shape: tuple[int, ...], size: int, *, back: bool = False) -> Any:
    """Scales of one byte each, linear of `shape`, in the order "128x4" of `size` scales; `back`: the other way."""
    device, row = home(scales), device_cast.row_of(scales)
    assert device is not None
    with launch.driver().on(device):
        scales = _dense(scales)
        out = device_cast.new(shape if back else (size,), row)
        if size:
            rows, columns = math.prod(shape[:-1]), shape[-1]
            blocks = Blocks(1, rows, columns, 1, 1, rows, columns, True)
            kernel = launch.kernel(Rule(row, row), "contiguous", False, device, _SWIZZLES[back])
            kernel(_address(scales), _address(out), size, QuantizeArguments(blocks))
    return out


def dequantize(parts: Parts, format: Format, to: DType, *, axis: int) -> Any:
    """The numbers that parts on a device stand for; the scales are in the layout "linear"."""
    driver, device = launch.driver(), home(parts.data)
    assert device is not None
    shape = parts.data.shape
    parts = Parts(*(None if part is None else _dense(part) for part in vars(parts).values()))
    with driver.on(device):
        if driver.capturing():
            raise RuntimeError("dequantize: a CUDA graph is being captured, and memory cannot be allocated then")
        out = device_cast.new(shape, to)
        if out.size:
            arguments = QuantizeArguments(
                blocks_of(shape, format, axis), *map(_address, (parts.scales, parts.zero_points, parts.global_scale))
            )
            kernel = launch.kernel(
                Rule(format.element, to), "contiguous", False, device, Work(format, "back", large=out.size > _LARGE)
            )
            kernel(_address(parts.data), _address(out), out.size, arguments)
    return out


class _Call:
    """One array on its way through the kernels."""

    def __init__(self, x: Any, row: DType, format: Format, axis: int, device: int, random: Random | None) -> None:
        self.x, self.row, self.format, self.device, self.random = x, row, format, device, random
        self.blocks = blocks_of(x.shape, format, axis)

    def find_global_scale(self) -> Any:
        everything = Blocks(1, 1, self.x.size, 1, max(self.x.size, 1), 1, 1, False)
        found, arguments = self._extremes("top", everything)
        result = device_cast.new((), _FLOAT)
        self._launch("global", WARP, result, arguments)
        del found
        return result

    def run(self, data: Any, scales: Any, zero_points: Any, global_scale: Any, *, given: bool) -> None:
        addresses = dict(
            zip(
                ("scales", "zero_points", "global_scale"),
                map(_address, (scales, zero_points, global_scale)),
                strict=True,
            )
        )
        if self.random is not None:
            addresses |= {"seed": self.random.seed, "offset": self.random.offset}
        if not given and self._in_rows():
            self._launch("rows", self.x.size, data, QuantizeArguments(self.blocks, **addresses))
            return
        arguments = QuantizeArguments(self.blocks, **addresses)
        if self.blocks.count and not (given and not self.format.nan_in_scale):
            found, arguments = self._extremes("extremes", self.blocks, addresses)
            self._launch("kept" if given else "scales", self.blocks.count * WARP, data, arguments)
            # Memory that is given back now is used again by what is launched later on this stream only.
            del found
        if self.x.size:
            self._launch("elements", self.x.size, data, arguments)

    def _in_rows(self) -> bool:
        blocks = self.blocks
        return (
            self.x.size > 0
            and blocks.apart
            and blocks.block_rows == 1
            and blocks.block_columns in ROW_BLOCKS
            and blocks.columns % blocks.block_columns == 0
            and _address(self.x) % _ALIGNMENT == 0
        )

    def _extremes(
        self, kind: Kind, blocks: Blocks, addresses: dict[str, int] | None = None
    ) -> tuple[Any, QuantizeArguments]:
        lanes = 1 if blocks.block_columns == 1 else WARP
        teams = blocks.count * lanes
        parts = max(1, min(-(-blocks.largest // (lanes * _ELEMENTS)), -(-_THREADS // teams)))
        # Whole vectors for each lane.
        whole = lanes * _ELEMENTS
        chunk = -(-max(blocks.largest, 1) // (parts * whole)) * whole
        found = device_cast.new((blocks.count * parts * found_bytes(self.row),), _BYTE)
        arguments = QuantizeArguments(blocks, found=_address(found), parts=parts, chunk=chunk, **(addresses or {}))
        self._launch(kind, teams * parts, found, arguments, lanes)
        return found, arguments

    def _launch(self, kind: Kind, n: int, dst: Any, arguments: QuantizeArguments, lanes: int = 1) -> None:
        random = self.random is not None and kind in ("rows", "elements")
        block = self.blocks.block_columns if kind == "rows" else 0
        make = Work(self.format, kind, random, lanes, block, kind in _COUNTING and self.x.size > _LARGE)
        kernel = launch.kernel(Rule(self.row, self.format.element), "contiguous", False, self.device, make)
        kernel(_address(self.x), _address(dst), n, arguments)


def blocks_of(shape: tuple[int, ...], format: Format, axis: int) -> Blocks:
    """An array in C order, and the blocks of the format, in three dimensions. Shape () counts as (1,)."""
    shape = shape or (1,)
    if format.block == "tensor":
        size = math.prod(shape)
        return Blocks(1, 1, size, 1, max(size, 1), 1, 1, False)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if format.block == "axis":
        return Blocks(before, shape[axis], after, 1, max(after, 1), shape[axis], 1, False)
    lengths, grid = format.lengths(shape, axis), format.grid(shape, axis)
    if format.min_ndim == 2:
        (rows, columns), (down, along), (grid_rows, grid_columns) = shape[-2:], lengths[-2:], grid[-2:]
        return Blocks(math.prod(shape[:-2]), rows, columns, down, along, grid_rows, grid_columns, True)
    if axis == len(shape) - 1:
        return Blocks(1, before, shape[-1], 1, lengths[-1], before, grid[-1], True)
    return Blocks(before, shape[axis], after, lengths[axis], 1, grid[axis], after, True)


def _given(scale: Any, shape: tuple[int, ...], device: int) -> Any:
    """The caller's scales as a FLOAT array of its own on the device."""
    if home(scale) != device:
        scale = device_cast.to_host(scale) if home(scale) is not None else scale
        scale = np.ascontiguousarray(np.broadcast_to(np.asarray(scale, np.float32), shape))
        return device_cast.to_device(scale, device).reshape(shape)
    import cupy

    wide = cupy.broadcast_to(scale, shape)
    return device_cast.apply(wide, resolve(device_cast.row_of(wide), _FLOAT), device_cast.new(shape, _FLOAT))


def _dense(part: Any) -> Any:
    if isinstance(part, PackedArray) or part.flags.c_contiguous:
        return part
    row = device_cast.row_of(part)
    return device_cast.apply(part, resolve(row, row), device_cast.new(part.shape, row))


def _address(x: Any) -> int:
    if x is None:
        return 0
    return int((x.data if isinstance(x, PackedArray) else x).data.ptr)
