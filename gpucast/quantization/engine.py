# SPDX-License-Identifier: Apache-2.0
"""Quantizes and dequantizes checked arrays and parts on the host or the device where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucast.arrays.packed import PackedArray, device_index
from gpucast.core.dtypes import DType
from gpucast.core.formats import Format, Parts
from gpucast.core.random import Random
from gpucast.quantization import gpu, host


def quantize(x: Any, format: Format, result_specs: list[tuple[bool, int, Any]], random: Random | None) -> list[Parts]:
    """The parts of each result. Its specification: whether it is transposed, its axis, and the caller's scales."""
    if device_index(x) is not None:
        return gpu.quantize.quantize(x, format, [gpu.tiles.ResultSpec(*one) for one in result_specs], random=random)
    results: list[Parts] = []
    for swapped, axis, given in result_specs:
        # The plain and the transposed result have the same global scale.
        given = results[0].global_scale if format.global_scale and results else given
        view = x.swapaxes(-1, -2) if swapped else x
        results.append(host.quantize(view, format, axis=axis, scale=given, random=random))
    return results


def dequantize(parts: Parts, format: Format, to: DType, axis: int) -> Any:
    """The numbers that parts stand for, each rounded once to `to`."""
    if device_index(parts.data) is not None:
        return gpu.quantize.dequantize(parts, format, to, axis=axis)
    data = parts.data.get() if isinstance(parts.data, PackedArray) else parts.data
    return host.dequantize(replace(parts, data=data), format, to, axis=axis)
