# SPDX-License-Identifier: Apache-2.0
"""The engines of blocks: they quantize, dequantize and transform checked arrays and parts, on the host or a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from gpucast.arrays.packed import PackedArray
from gpucast.casting import engines
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import Random
from gpucast.core.rule import resolve
from gpucast.host import numbers
from gpucast.quantization import cuda, hadamard_on_host, quantize_on_host, swizzle
from gpucast.quantization.block_call import BlockCall
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.formats import Format, Hadamard, Parts
from gpucast.quantization.scale_orders import ScaleLayout, size

_FLOAT = dtype("FLOAT")
#: The most elements, padding included, whose scales one kernel writes in an order: its threads have 32-bit numbers.
_LONGEST = 2**34


class BlockEngine(ABC):
    """Works on blocks where they are."""

    @abstractmethod
    def quantize(self, call: BlockCall) -> list[Parts]:
        """The parts of each result."""

    def quantize_by(
        self, x: Any, format: Format, known: Parts, axis: int, random: Random | None, layout: ScaleLayout
    ) -> Parts:
        """The parts by the scales of others, which are linear; see `exact_quantize.quantize_by`."""
        parts = self._quantize_by(x, format, known, axis, random)
        return parts if layout == "linear" else replace(parts, scales=swizzle.swizzle(parts.scales, layout=layout))

    @abstractmethod
    def _quantize_by(self, x: Any, format: Format, known: Parts, axis: int, random: Random | None) -> Parts:
        """With scales in the layout "linear"."""

    def dequantize(
        self,
        parts: Parts,
        format: Format,
        to: DType,
        axis: int,
        out: Any = None,
        workspace: Any = None,
        hadamard: Hadamard | None = None,
    ) -> Any:
        """The numbers that parts stand for, each rounded once to `to`; written to `out`, if there is one.

        `hadamard`: the transform that they have had; FLOATs are transformed back.
        """
        if hadamard is None:
            return self._dequantize(parts, format, to, axis, out, workspace)
        kept = None if out is None or workspace is None else workspace.array("codes", out.shape, _FLOAT)
        floats = self._dequantize(parts, format, _FLOAT, axis, kept, workspace)
        return self.transform(floats, hadamard, axis, to, True, out, workspace)

    @abstractmethod
    def _dequantize(self, parts: Parts, format: Format, to: DType, axis: int, out: Any, workspace: Any) -> Any:
        """Without a transform."""

    @abstractmethod
    def transform(
        self, x: Any, how: Hadamard, axis: int, to: DType, inverse: bool = False, out: Any = None, workspace: Any = None
    ) -> Any:
        """The transformed numbers, each rounded once to FLOAT and once to `to`; written to `out`, if there is one."""


class _Host(BlockEngine):
    def quantize(self, call: BlockCall) -> list[Parts]:
        results: list[Parts] = []
        format, layout = call.format, call.layout
        for swapped, axis, given, how in call.results:
            view = call.x.swapaxes(-1, -2) if swapped else call.x
            if how is not None:
                view = hadamard_on_host.transform(view, how, axis=axis)
            elif format.global_scale and results and format.steps is None and not call.transforms:
                # The plain and the transposed result have the same global scale. Steps may begin with another number.
                given = results[0].global_scale
            parts = quantize_on_host.quantize(view, format, axis=axis, scale=given, random=call.random)
            if format.element.packed:
                parts = replace(parts, data=PackedArray.pack(parts.data))
            if layout != "linear":
                parts = replace(parts, scales=swizzle.swizzle(parts.scales, layout=layout))
            results.append(parts)
        for target, result in zip(call.targets or [], results, strict=False):
            for name, part in vars(result).items():
                if part is not None:
                    _bytes_of(getattr(target, name))[...] = _bytes_of(part)
        return list(call.targets or results)

    def _quantize_by(self, x: Any, format: Format, known: Parts, axis: int, random: Random | None) -> Parts:
        parts = quantize_on_host.quantize_by(x, format, known, axis=axis, random=random)
        return replace(parts, data=PackedArray.pack(parts.data)) if format.element.packed else parts

    def _dequantize(self, parts: Parts, format: Format, to: DType, axis: int, out: Any, workspace: Any) -> Any:
        data = parts.data.get() if isinstance(parts.data, PackedArray) else parts.data
        return swizzle.into(out, quantize_on_host.dequantize(replace(parts, data=data), format, to, axis=axis))

    def transform(
        self, x: Any, how: Hadamard, axis: int, to: DType, inverse: bool = False, out: Any = None, workspace: Any = None
    ) -> Any:
        y = hadamard_on_host.transform(x, how, axis=axis, inverse=inverse)
        if to is not _FLOAT:
            y, floats = np.empty(y.shape, to.numpy), y
            numbers.into(floats, resolve(_FLOAT, to), y)
        return swizzle.into(out, y)


class _Cuda(BlockEngine):
    def quantize(self, call: BlockCall) -> list[Parts]:
        given = not call.format.global_scale and any(one.scale is not None for one in call.results)
        if call.layout != "linear" and (given or _is_long(call)):
            # Given scales are linear, and the kernels of long arrays write such.
            return self._reordered(call)
        if call.transforms or call.format.rule == "4over6":
            made: list[Parts] = cuda.hadamard.quantize(call)
            return made
        return cuda.quantize.quantize(call)

    def _reordered(self, call: BlockCall) -> list[Parts]:
        """Results whose scales one more kernel moves to their order."""
        format, targets, linear = call.format, call.targets, None
        if targets is not None:
            scales = (
                call.workspace.array(f"scales {i}", format.scales_shape(one.data.shape, spec.axis), format.scale)
                for i, (one, spec) in enumerate(zip(targets, call.results, strict=True))
            )
            linear = [replace(one, scales=scale) for one, scale in zip(targets, scales, strict=True)]
        made = self.quantize(call._replace(targets=linear, layout="linear"))
        outs = [None] * len(made) if targets is None else [one.scales for one in targets]
        assert call.layout != "linear"
        return [
            replace(one, scales=swizzle.swizzle(one.scales, layout=call.layout, out=out))
            for one, out in zip(made, outs, strict=True)
        ]

    def _quantize_by(self, x: Any, format: Format, known: Parts, axis: int, random: Random | None) -> Parts:
        return cuda.quantize.quantize_by(x, format.by_given_scales, known, axis, random)

    def _dequantize(self, parts: Parts, format: Format, to: DType, axis: int, out: Any, workspace: Any) -> Any:
        return cuda.quantize.dequantize(parts, format, to, axis=axis, out=out, workspace=workspace)

    def transform(
        self, x: Any, how: Hadamard, axis: int, to: DType, inverse: bool = False, out: Any = None, workspace: Any = None
    ) -> Any:
        return cuda.hadamard.transform(x, how, axis, to, inverse=inverse, out=out, workspace=workspace)


_HOST, _CUDA = _Host(), _Cuda()


def of(x: Any) -> BlockEngine:
    """The engine of the place where a native array is."""
    return engines.of_array(x).pick(_HOST, _CUDA)


def _is_long(call: BlockCall) -> bool:
    format, layout = call.format, call.layout
    assert layout != "linear"
    for spec in call.results:
        shape = spec.shape(call.x.shape)
        scales = size(format.scales_shape(shape, spec.axis), layout, format.scale.bits // 8)
        if scales * BlockGrid.of(format, shape, spec.axis).largest > _LONGEST:
            return True
    return False


def _bytes_of(part: Any) -> Any:
    return part.data if isinstance(part, PackedArray) else part
