# SPDX-License-Identifier: Apache-2.0
"""Casts that involve a device: where the work is done, and what is copied over the bus."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast import gpu
from gpucast.arrays.packed import PackedArray, home
from gpucast.casting import fused as fused_cast
from gpucast.core.fused_ops import Fusion
from gpucast.core.rule import Rule, resolve
from gpucast.cpu import cast as host_cast
from gpucast.gpu import devices


def cast(x: Any, rule: Rule, place: str | None, out: Any, who: str, fusion: Fusion | None = None) -> Any:
    """Cast `x` (checked, as is `out`) to where `place` says; None is where x is.

    The cast runs on the side of the bus that leaves fewer bytes to cross it; text is read and written on the host. One
    that does more beside (`fusion`) runs where x is.
    """
    devices.require(who)
    source = home(x)
    target = source if place is None else None if place == "cpu" else devices.index(place, who)
    if rule.dst.family == "string":
        if target is not None and place is not None:
            raise ValueError(f"{who}: device={place!r} cannot hold STRING; expected None or 'cpu'")
        target = None
    if out is not None and home(out) != target:
        raise ValueError(f"{who}: out is on {devices.name(home(out))}; the result belongs on {devices.name(target)}")
    if fusion is not None:
        if source == target:
            return fused_cast.apply(x, rule, fusion, out)
        return _moved(fused_cast.apply(x, rule, fusion), target, isinstance(x, PackedArray), out)
    if source == target:
        return host_cast.apply(x, rule, out) if source is None else gpu.cast.apply(x, rule, out)
    if rule.src.family == "string" or 0 < rule.dst.bits < rule.src.bits:
        narrow = host_cast.apply(x, rule) if source is None else gpu.cast.apply(x, rule)
        return _moved(narrow, target, isinstance(x, PackedArray), out)
    if target is None:
        return host_cast.apply(gpu.cast.to_host(x), rule, out)
    return gpu.cast.apply(gpu.cast.to_device(x, target), rule, out)


def _moved(y: Any, target: int | None, packed: bool, out: Any) -> Any:
    """A finished result on the other side: on the host PackedArrays for PackedArrays only, on a device always."""
    if target is None:
        y = gpu.cast.to_host(y)
        if isinstance(y, PackedArray) and not packed:
            y = y.get()
        if out is None:
            return y
        if isinstance(out, PackedArray):
            out.data[...] = y.data
        else:
            out[...] = y
        return out
    if isinstance(y, np.ndarray) and gpu.cast.row_of(y).packed:
        y = PackedArray.pack(y)
    y = gpu.cast.to_device(y, target)
    row = gpu.cast.row_of(y)
    return y if out is None else gpu.cast.apply(y, resolve(row, row), out)
