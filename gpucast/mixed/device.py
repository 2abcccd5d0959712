# SPDX-License-Identifier: Apache-2.0
"""The two small kernels of a training step on a device: nothing is read back to adjust a scale or to choose a tree."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

from gpucast import launch
from gpucast.cast import cast
from gpucast.creation import empty_like
from gpucast.device_cast import address, is_contiguous
from gpucast.dtypes import dtype
from gpucast.packed import home
from gpucast.rule import Rule, resolve
from gpucast.source import KernelSource, Shape, kernel_file, kernel_source, options

#: What the kernels read and write: a flag and words, bytes and bytes.
FLAG_TO_WORDS = resolve(dtype("BOOL"), dtype("UINT32"))
BYTES = resolve(dtype("UINT8"), dtype("UINT8"))


@dataclass(frozen=True)
class Adjustment:
    """``struct Adjustment`` of kernels/mixed.cu: by what a loss scale changes."""

    factor: float
    least: float
    period: int

    def to_bytes(self) -> bytes:
        return struct.pack("<ffI", self.factor, self.least, self.period)


@dataclass(frozen=True)
class Choice:
    """``struct Choice`` of kernels/mixed.cu: the addresses of the flag and of the array to take where it is false."""

    chosen: int
    otherwise: int

    def to_bytes(self) -> bytes:
        return struct.pack("<QQ", self.chosen, self.otherwise)


def adjust(state: Any, finite: Any, by: Adjustment) -> None:
    """Adjust a loss scale: `state` is a CuPy array of the words of ``struct LossScale``, `finite` a byte beside it."""
    device = int(state.device.id)
    with launch.driver().on(device):
        kernel = launch.kernel(FLAG_TO_WORDS, "contiguous", False, device, adjust_source)
        kernel(finite.data.ptr, state.data.ptr, 1, by)


def select(chosen: Any, x: Any, y: Any, out: Any = None) -> Any:
    """A copy of `x` where the byte `chosen` is not 0, else of `y`, of the same shape and dtype and on one device.

    `out` (checked) may be x or y.
    """
    device = home(x)
    assert device is not None
    with launch.driver().on(device):
        one, other = _dense(x), _dense(y)
        result = out if out is not None and is_contiguous(out) else empty_like(x)
        if one.size:
            kernel = launch.kernel(BYTES, "contiguous", False, device, select_source)
            kernel(address(one), address(result), one.nbytes, Choice(chosen.data.ptr, address(other)))
        return result if out is None or result is out else cast(result, x.dtype, out=out)


def _dense(x: Any) -> Any:
    """`x` itself where its elements lie in C order without gaps, else a copy that does."""
    return x if is_contiguous(x) else cast(x, x.dtype, out=empty_like(x))


def adjust_source(rule: Rule, shape: Shape, *, unpacked: bool) -> KernelSource:
    """The kernel of `adjust`; the parameters are those of `gpucast.source.kernel_source`."""
    name = "gpucast_adjust_loss_scale"
    plain = _source(name, rule, shape, unpacked, "Adjustment", f"GPUCAST_ADJUST({name})\n")
    return replace(plain, tile=1, elements=1, threads=1)


def select_source(rule: Rule, shape: Shape, *, unpacked: bool) -> KernelSource:
    """The kernel of `select`; the parameters are those of `gpucast.source.kernel_source`."""
    name = "gpucast_select"
    plain = _source(name, rule, shape, unpacked, "Choice", "")
    typedef = f"namespace gpucast {{\ntypedef Rule<{options(rule)}> {name}_rule;\n}}\n"
    sizes = f"{plain.tile}, {plain.elements // plain.tile}, {plain.threads}"
    return replace(plain, kernel=f"{typedef}GPUCAST_SELECT({name}, {sizes})\n")


def _source(name: str, rule: Rule, shape: Shape, unpacked: bool, more: str, kernel: str) -> KernelSource:
    plain = kernel_source(rule, shape, unpacked=unpacked)
    prelude = f"{plain.prelude}\n{kernel_file('mixed.cu')}"
    return replace(plain, name=name, prelude=prelude, kernel=kernel, more=f"gpucast::{more}")
