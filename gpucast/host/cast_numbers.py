# SPDX-License-Identifier: Apache-2.0
"""Casts of the numbers of NumPy arrays and PackedArrays into existing memory, plain or fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule
from gpucast.host import by_reference, loops
from gpucast.host.extension import MODULE, say_slow

Array = npt.NDArray[Any]

_FLOAT = dtype("FLOAT")


def into(x: Any, rule: CastRule, out: Any, fused: FusedInputs | None = None) -> None:
    """Cast the numbers of a NumPy array or a PackedArray over one into all of an array that does not overlap it."""
    if MODULE is None:
        say_slow()
        by_reference.into(x, rule, out, fused)
        return
    if not x.size:
        return
    try:
        work = loops.work(rule, fused)
    except LookupError as error:
        say_slow(str(error.args[0]))
        by_reference.into(x, rule, out, fused)
        return
    src, src_bits = _bytes_of(x)
    dst, dst_bits = _bytes_of(out)
    largest, finite = MODULE.cast(work, src, src_bits, dst, dst_bits, x.size)
    if fused is not None:
        keep(fused, largest, bool(finite))


def keep(fused: FusedInputs, largest: int, finite: bool) -> None:
    """Merge the findings of a cast (`largest`: the code of a FLOAT, any NaN) into the caller's arrays."""
    if fused.amax is not None:
        code = fused.amax.view(np.int32)
        found = largest if largest <= _FLOAT.inf_code else _FLOAT.nan_code
        code[...] = max(int(code.reshape(())[()]), found)
    if fused.finite is not None and not finite:
        fused.finite[...] = 0


def _bytes_of(x: Any) -> tuple[Array, int]:
    """The array that holds the elements, and the bits of each where they are packed, else 0."""
    return (x.data, x.dtype.bits) if isinstance(x, PackedArray) else (x, 0)
