# SPDX-License-Identifier: Apache-2.0
"""Checks of the results that a call of `gpucast.quantize` is to write."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpucast.arrays.operand import share_memory
from gpucast.arrays.packed import PackedArray, device_index
from gpucast.core.dtypes import DType
from gpucast.core.formats import Format
from gpucast.gpu import devices
from gpucast.quantization.quantized import Quantized


def checked_outs(
    out: Any, x: Any, format: Format, src: DType, result_specs: list[tuple[bool, int, Any]], scale_layout: str
) -> list[Quantized]:
    """The `out` of a call as a list. TypeError or ValueError where it cannot take the results of the array `x`."""
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(outs) != len(result_specs) or not all(isinstance(q, Quantized) for q in outs):
        wanted = "a Quantized" if len(result_specs) == 1 else "a tuple of two Quantized"
        raise TypeError(f"quantize: out is {_named(out)}; expected {wanted}")
    for q, (swapped, axis, _) in zip(outs, result_specs, strict=True):
        shape = (*x.shape[:-2], x.shape[-1], x.shape[-2]) if swapped else x.shape
        pairs: tuple[tuple[str, Any, Any], ...] = (
            ("format", q.format, format),
            ("shape", q.shape, shape),
            ("axis", q.axis, axis),
            ("scale_layout", q.scale_layout, scale_layout),
            ("dtype", q.dtype, src),
            ("device", devices.name(device_index(q.data)), devices.name(device_index(x))),
        )
        for name, got, expected in pairs:
            if got != expected:
                raise ValueError(f"quantize: out has {name} {got}; expected {expected}")
    _check_memory(outs, x)
    return outs


def _check_memory(outs: list[Quantized], x: Any) -> None:
    """ValueError for parts that cannot be written, or that share memory."""
    written = [(f"out.{name}", part) for q in outs for name, part in _arrays(q)]
    for name, part in written:
        if not part.flags.c_contiguous:
            raise ValueError(f"quantize: {name} is not contiguous; expected C order")
        if isinstance(part, np.ndarray) and not part.flags.writeable:
            raise ValueError(f"quantize: {name} is read-only")
        if share_memory(part, x):
            raise ValueError(f"quantize: {name} shares memory with x; expected separate memory")
    single = outs[0].format.block == "tensor"
    for (one, a), (other, b) in itertools.combinations(written, 2):
        # The plain and the transposed result have the same global scale, and the same only one.
        is_shared = a is b and one == other and (one == "out.global_scale" or (single and one != "out.data"))
        if not is_shared and share_memory(a, b):
            raise ValueError(f"quantize: {one} shares memory with {other}; expected separate memory")


def _arrays(q: Quantized) -> Iterator[tuple[str, Any]]:
    for name, part in q.parts().items():
        yield name, part.data if isinstance(part, PackedArray) else part


def _named(out: Any) -> str:
    if isinstance(out, (tuple, list)):
        return f"a {type(out).__name__} of {', '.join(type(q).__name__ for q in out) or 'nothing'}"
    return type(out).__name__
