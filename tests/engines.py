# SPDX-License-Identifier: Apache-2.0
"""What runs the rule of a cast on codes: the reference, the extension module, the kernels as host code.

Arrays for the kernels are placed at any byte and bit, between bytes that must not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from codes import codes_of
from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule
from gpucast.host import numbers
from gpucast.kernel.strides import collapse
from gpucast.parity.cases import NUMERIC
from gpucast.parity.host_build import Arguments, HostKernels
from gpucast.reference import exact_cast

_GUARD = 0xA5

#: One type of each width, an integer where there is one: its low bits tell every element from its neighbours.
BY_WIDTH = tuple({dtype.bits: dtype for dtype in sorted(NUMERIC, key=lambda dtype: dtype.family == "int")}.values())


@dataclass(frozen=True)
class GuardedBytes:
    """A copy of some bytes, `offset` bytes behind a 16-byte boundary, with `guard` bytes on both sides of it."""

    space: np.ndarray
    begin: int
    size: int

    @classmethod
    def of(cls, data: np.ndarray, offset: int, guard: int) -> GuardedBytes:
        space = np.full(guard + offset + data.size + guard, _GUARD, np.uint8)
        assert space.ctypes.data % 16 == 0 and guard % 16 == 0
        space[guard + offset : guard + offset + data.size] = data
        return cls(space, guard + offset, data.size)

    @property
    def address(self) -> int:
        return int(self.space.ctypes.data) + self.begin

    @property
    def data(self) -> np.ndarray:
        return self.space[self.begin : self.begin + self.size]

    def check_guards(self) -> None:
        assert (self.space[: self.begin] == _GUARD).all(), "written in front of the array"
        assert (self.space[self.begin + self.size :] == _GUARD).all(), "written behind the array"


def by_reference(codes: np.ndarray, rule: CastRule) -> np.ndarray:
    return codes_of(exact_cast.apply(codes.view(rule.src.numpy), rule), rule.dst)


def by_module(codes: np.ndarray, rule: CastRule) -> np.ndarray:
    """By the extension module, or what serves where it is missing."""
    out = np.empty(codes.shape, rule.dst.numpy)
    numbers.into(codes.view(rule.src.numpy), rule, out)
    return codes_of(out, rule.dst)


def by_kernels(kernels: HostKernels, rule: CastRule, codes: np.ndarray) -> np.ndarray:
    """By the contiguous kernel."""
    data, out = to_bytes(codes, rule.src), np.full(rule.dst.nbytes(codes.size), _GUARD, np.uint8)
    kernels.run(rule, Arguments(data.ctypes.data, out.ctypes.data, codes.size))
    return unpack_codes(out, rule.dst.bits, codes.size) if rule.dst.packed else out.view(rule.dst.code_numpy)


def to_bytes(codes: np.ndarray, dtype: DType) -> np.ndarray:
    return pack_codes(codes, dtype.bits) if dtype.packed else np.ascontiguousarray(codes).view(np.uint8)


def check_contiguous(
    kernels: HostKernels,
    rule: CastRule,
    codes: np.ndarray,
    wanted: np.ndarray,
    n: int,
    skip: int = 0,
    src_offset: int = 0,
    dst_offset: int = 0,
    *,
    unpacked: bool = False,
    guard: int = 64,
) -> None:
    """Cast the n elements from element `skip` on, with the source's and the destination's first byte at the offsets."""
    src, dst = rule.src, rule.dst
    taken = codes[: skip + n]
    source = GuardedBytes.of(taken.view(np.uint8) if unpacked else to_bytes(taken, src), src_offset, guard)
    byte, bit = divmod(skip * (8 if unpacked else src.bits), 8)
    out = GuardedBytes.of(np.full(dst.nbytes(n), _GUARD, np.uint8), dst_offset, guard)
    kernels.run(rule, Arguments(source.address + byte, out.address, n, bit), unpacked=unpacked)
    case = f"{rule.src} to {rule.dst}, {n} elements from {skip}, at bytes {src_offset} and {dst_offset}"
    assert np.array_equal(out.data, to_bytes(wanted[skip : skip + n], dst)), case
    out.check_guards()


def check_strided(
    kernels: HostKernels,
    rule: CastRule,
    x: np.ndarray,
    target: Callable[[np.ndarray], np.ndarray] | None,
    skip: int = 0,
    *,
    unpacked: bool = False,
    room: int = 720,
    offset: int = 0,
) -> None:
    """Cast the array of codes `x` into a view that `target` takes of `room` elements, which begin at that byte; None
    for a packed destination.

    A packed source is the row-major stream of x, after `skip` other elements.
    """
    src, dst = rule.src, rule.dst
    wanted = by_reference(np.ascontiguousarray(x).reshape(-1), rule)
    held, address, bit, src_strides = x, x.ctypes.data, 0, x.strides
    if src.packed and not unpacked:
        held = to_bytes(np.concatenate([np.zeros(skip, np.uint8), x.reshape(-1)]), src)
        byte, bit = divmod(skip * src.bits, 8)
        address, src_strides = held.ctypes.data + byte, (0,) * x.ndim
    space = GuardedBytes.of(np.full(dst.nbytes(x.size if target is None else room), _GUARD, np.uint8), offset, 64)
    out = space.data if target is None else target(space.data.view(dst.code_numpy))
    dst_strides = (0,) * x.ndim if target is None else out.strides
    dims = collapse(x.shape, src_strides, dst_strides).packed
    kernels.run(rule, Arguments(address, out.ctypes.data, x.size, bit, dims), "strided", unpacked=unpacked)
    assert np.array_equal(out.reshape(-1), to_bytes(wanted, dst) if target is None else wanted)
    # Everything that is no element of `out` is as it was.
    out[...] = np.full(out.itemsize, _GUARD, np.uint8).view(out.dtype)[0]
    assert (space.space == _GUARD).all(), "written beside the elements"
