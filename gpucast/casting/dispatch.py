# SPDX-License-Identifier: Apache-2.0
"""The choice of the side that casts, the host or a device, and copies over the bus."""

from __future__ import annotations

from gpucast import gpu
from gpucast.arrays.operand import Operand, operand
from gpucast.arrays.packed import PackedArray
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule, resolve
from gpucast.gpu import devices
from gpucast.host import cast_on_host


def cast(
    source: Operand,
    rule: CastRule,
    place: str | None,
    target: Operand | None,
    caller: str,
    fused: FusedInputs | None = None,
) -> Operand:
    """Cast to where `place` says, into `target` if there is one; None is where the source is.

    The cast runs on the side of the bus that leaves fewer bytes to cross it; text is read and written on the host. A
    fused cast runs where the source is.
    """
    if source.device is None and place in (None, "cpu") and (target is None or target.device is None):
        return apply(source, rule, target, fused)
    devices.require(caller)
    device = _device_of_result(source, rule, place, caller)
    if target is not None and target.device != device:
        there, here = devices.name(target.device), devices.name(device)
        raise ValueError(f"{caller}: out is on {there}; the result belongs on {here}")
    if source.device == device:
        return apply(source, rule, target, fused)
    if fused is not None or rule.src.family == "string" or 0 < rule.dst.bits < rule.src.bits:
        return _moved(apply(source, rule, None, fused), device, source.packed, target)
    x = gpu.cast_on_gpu.to_host(source.array) if device is None else gpu.cast_on_gpu.to_device(source.array, device)
    return apply(operand(x, rule.src), rule, target)


def apply(source: Operand, rule: CastRule, target: Operand | None = None, fused: FusedInputs | None = None) -> Operand:
    """Cast where the source is; on a device in one launch.

    The result is `target`, or a new array of the source's kind and in its memory order. With `fused` the rule is a
    `gpucast.casting.fused_rule.fused_rule`.
    """
    if source.device is not None:
        return gpu.cast_on_gpu.apply(source, rule, target, fused)
    return cast_on_host.apply(source, rule, target, fused)


def _device_of_result(source: Operand, rule: CastRule, place: str | None, caller: str) -> int | None:
    device = source.device if place is None else None if place == "cpu" else devices.index(place, caller)
    if rule.dst.family != "string":
        return device
    if device is not None and place is not None:
        raise ValueError(f"{caller}: device={place!r} cannot hold STRING; expected None or 'cpu'")
    return None


def _moved(y: Operand, device: int | None, packed: bool, target: Operand | None) -> Operand:
    """Move a finished result to the other side. On the host only PackedArrays give PackedArrays, on a device all arrays
    do."""
    if device is None:
        x = gpu.cast_on_gpu.to_host(y.array)
        y = operand(x.get() if isinstance(x, PackedArray) and not packed else x, y.dtype)
        if target is None:
            return y
        target.data[...] = y.data
        return target
    x = PackedArray.pack(y.array) if y.dtype.packed and not y.packed and y.device is None else y.array
    y = operand(gpu.cast_on_gpu.to_device(x, device), y.dtype)
    return y if target is None else gpu.cast_on_gpu.apply(y, resolve(y.dtype, y.dtype), target)
