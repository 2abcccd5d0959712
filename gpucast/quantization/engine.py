# SPDX-License-Identifier: Apache-2.0
"""Quantizes, dequantizes and transforms checked arrays and parts on the host or the device where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpucast.arrays.packed import PackedArray, device_index
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import Random
from gpucast.core.rule import resolve
from gpucast.host import numbers
from gpucast.quantization import gpu, hadamard_on_host, quantize_on_host, swizzle
from gpucast.quantization.block_grid import BlockGrid, size
from gpucast.quantization.formats import Format, Hadamard, Parts
from gpucast.quantization.scale_orders import ScaleLayout, ScaleOrder

_FLOAT = dtype("FLOAT")
#: The most elements, padding included, whose scales one kernel writes in an order: its threads have 32-bit numbers.
_LONGEST = 2**34


def quantize(
    x: Any,
    format: Format,
    result_specs: list[tuple[bool, int, Any]],
    random: Random | None,
    targets: list[Parts] | None = None,
    workspace: Any = None,
    amax: Any = None,
    hadamards: Sequence[Hadamard | None] = (),
    layout: ScaleLayout = "linear",
) -> list[Parts]:
    """The parts of each result. Its specification: whether it is transposed, its axis, and the caller's scales.

    `targets`: parts that are written instead of new ones; on a device with a `workspace`, if it is to be kept.
    `amax`: a FLOAT on the device to find the global scale from.
    `hadamards`: the transform of each result's numbers along its axis, which has a global scale of its own then.
    `layout`: that of the scales.
    """
    if device_index(x) is not None:
        wanted = [gpu.tiles.ResultSpec(*one) for one in result_specs]
        transforms = any(hadamards) or format.rule == "4over6"
        given = not format.global_scale and any(one.scale is not None for one in wanted)
        if layout != "linear" and (given or _is_long(x.shape, format, result_specs, layout)):
            # Given scales are linear, and the kernels of long arrays write such.
            return _reordered(x, format, result_specs, random, targets, workspace, amax, hadamards, layout)
        if transforms:
            hows = hadamards or [None] * len(wanted)
            return gpu.hadamard_on_gpu.quantize(
                x, format, wanted, hows, random=random, targets=targets, workspace=workspace, amax=amax, layout=layout
            )
        return gpu.quantize_on_gpu.quantize(
            x, format, wanted, random=random, targets=targets, workspace=workspace, amax=amax, layout=layout
        )
    results: list[Parts] = []
    for i, (swapped, axis, given) in enumerate(result_specs):
        view = x.swapaxes(-1, -2) if swapped else x
        if any(hadamards):
            how = hadamards[i]
            view = view if how is None else hadamard_on_host.transform(view, how, axis=axis)
        elif format.global_scale and results and format.steps is None:
            # The plain and the transposed result have the same global scale. Steps may begin with another number.
            given = results[0].global_scale
        parts = quantize_on_host.quantize(view, format, axis=axis, scale=given, random=random)
        if format.element.packed:
            parts = replace(parts, data=PackedArray.pack(parts.data))
        if layout != "linear":
            parts = replace(parts, scales=swizzle.swizzle(parts.scales, layout=layout))
        results.append(parts)
    for target, result in zip(targets or [], results, strict=False):
        for name, part in vars(result).items():
            if part is not None:
                _bytes_of(getattr(target, name))[...] = _bytes_of(part)
    return targets or results


def quantize_by(x: Any, format: Format, known: Parts, axis: int, random: Random | None, layout: ScaleLayout) -> Parts:
    """The parts by the scales of others, which are linear; see `exact_quantize.quantize_by`."""
    if device_index(x) is not None:
        parts = gpu.quantize_on_gpu.quantize_by(x, format.by_given_scales, known, axis, random)
    else:
        parts = quantize_on_host.quantize_by(x, format, known, axis=axis, random=random)
        if format.element.packed:
            parts = replace(parts, data=PackedArray.pack(parts.data))
    return parts if layout == "linear" else replace(parts, scales=swizzle.swizzle(parts.scales, layout=layout))


def _is_long(
    shape: tuple[int, ...], format: Format, result_specs: list[tuple[bool, int, Any]], layout: ScaleOrder
) -> bool:
    for swapped, axis, _ in result_specs:
        one = (*shape[:-2], shape[-1], shape[-2]) if swapped else shape
        scales = size(format.scales_shape(one, axis), layout, format.scale.bits // 8)
        if scales * BlockGrid.of(format, one, axis).largest > _LONGEST:
            return True
    return False


def _reordered(
    x: Any,
    format: Format,
    result_specs: list[tuple[bool, int, Any]],
    random: Random | None,
    targets: list[Parts] | None,
    workspace: Any,
    amax: Any,
    hadamards: Sequence[Hadamard | None],
    layout: ScaleOrder,
) -> list[Parts]:
    """Results on a device whose scales one more kernel moves to their order."""
    linear = None
    if targets is not None:
        linear = [
            replace(one, scales=workspace.array(f"scales {i}", format.scales_shape(one.data.shape, axis), format.scale))
            for i, (one, (_, axis, _)) in enumerate(zip(targets, result_specs, strict=True))
        ]
    made = quantize(x, format, result_specs, random, linear, workspace, amax, hadamards)
    outs = [None] * len(made) if targets is None else [one.scales for one in targets]
    return [
        replace(one, scales=swizzle.swizzle(one.scales, layout=layout, out=out))
        for one, out in zip(made, outs, strict=True)
    ]


def dequantize(
    parts: Parts,
    format: Format,
    to: DType,
    axis: int,
    out: Any = None,
    workspace: Any = None,
    hadamard: Hadamard | None = None,
) -> Any:
    """The numbers that parts stand for, each rounded once to `to`; written to `out`, if there is one.

    `hadamard`: what they are the transform of; FLOATs are transformed back.
    """
    if hadamard is not None:
        kept = None if out is None or workspace is None else workspace.array("codes", out.shape, _FLOAT)
        numbers = dequantize(parts, format, _FLOAT, axis, kept, workspace)
        return transform(numbers, hadamard, axis, to, inverse=True, out=out, workspace=workspace)
    if device_index(parts.data) is not None:
        return gpu.quantize_on_gpu.dequantize(parts, format, to, axis=axis, out=out, workspace=workspace)
    data = parts.data.get() if isinstance(parts.data, PackedArray) else parts.data
    numbers = quantize_on_host.dequantize(replace(parts, data=data), format, to, axis=axis)
    if out is None:
        return numbers
    out[...] = numbers
    return out


def transform(
    x: Any,
    hadamard: Hadamard,
    axis: int,
    to: DType,
    *,
    inverse: bool = False,
    out: Any = None,
    workspace: Any = None,
) -> Any:
    """The transformed numbers, each rounded once to FLOAT and once to `to`; written to `out`, if there is one."""
    if device_index(x) is not None:
        return gpu.hadamard_on_gpu.transform(x, hadamard, axis, to, inverse=inverse, out=out, workspace=workspace)
    made = hadamard_on_host.transform(x, hadamard, axis=axis, inverse=inverse)
    result = made
    if to is not _FLOAT:
        result = np.empty(made.shape, to.numpy)
        numbers.into(made, resolve(dtype(made.dtype), to), result)
    if out is None:
        return result
    out[...] = result
    return out


def _bytes_of(part: Any) -> Any:
    return part.data if isinstance(part, PackedArray) else part
