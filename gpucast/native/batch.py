# SPDX-License-Identifier: Apache-2.0
"""Casts of many arrays in one call of the host's compiled library, plain ones and those with a scale."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.codegen.host import HostUnit, batch_unit, scaled_unit
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule, resolve
from gpucast.cpu import fused, lanes
from gpucast.native import cast as native_cast
from gpucast.native import library as host_native
from gpucast.native import threads
from gpucast.native.calls import pointer

Array = npt.NDArray[Any]
#: A table with a number for each array.
Table = npt.NDArray[np.uint64]
#: ``each(src, to, sizes, nbytes, fused)`` casts arrays at addresses `src` to those at `to`.
Each = Callable[[Table, Table, Table, Table, FusedInputs], None]

_SCALED = tuple(map(dtype, ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")))
_DOUBLE = dtype("DOUBLE")
#: Numbers by which the casts with a scale are tried: one that FLOAT holds, others, and what makes NaN of infinities.
_TRIED = (2.0**-10, 0.1, 3.0e38, 1e-300, 0.0)


def find(rule: CastRule, is_scaled: bool, nbytes: int = 0) -> Each | None:
    """The casts of arrays by a rule that `is_known`; None where they are not compiled. `nbytes`: bytes of sources about
    to be cast."""
    batch = host_native.library(batch_unit, nbytes=nbytes)
    cast: ScaledCast | native_cast.NativeCast | None
    if is_scaled:
        library = host_native.library(_scaled_unit, rule.src, nbytes=nbytes)
        cast = None if library is None else _checked(library, rule)
    else:
        cast = native_cast.find(rule, nbytes)
    return None if batch is None or cast is None else partial(_cast_each, batch, cast.function, is_scaled)


def is_known(rule: CastRule, is_scaled: bool) -> bool:
    """Whether the library has casts of many arrays by this rule, those with a scale if `is_scaled`."""
    if not is_scaled:
        return native_cast.is_known(rule)
    return rule.src in _SCALED and rule.dst in _SCALED and replace(rule, src=_DOUBLE) == resolve(_DOUBLE, rule.dst)


def _cast_each(
    batch: ctypes.CDLL,
    function: Any,
    is_scaled: bool,
    src: Table,
    to: Table,
    sizes: Table,
    nbytes: Table,
    fused: FusedInputs,
) -> None:
    more: tuple[Any, ...] = ()
    if is_scaled:
        finite = None if fused.finite is None else pointer(fused.finite)
        more = ctypes.c_double(fused.scale), finite
    run = batch.scale_each if is_scaled else batch.cast_each

    def work(start: int, stop: int) -> None:
        tables = [table[start:stop] for table in (src, to, sizes)]
        run(function, *map(pointer, tables), ctypes.c_uint64(stop - start), *more)

    threads.split_arrays(work, nbytes)


class ScaledCast:
    """Casts by one rule of products with a scale."""

    def __init__(self, library: ctypes.CDLL, rule: CastRule) -> None:
        self.function = library[f"{rule.src.name}_scaled_{rule.dst.name}"]
        self.function.restype = None

    def __call__(self, x: Array, out: Array, scale: float, finite: Array) -> None:
        """Cast flat, native codes into all of `out`, which does not overlap them."""
        pointers = pointer(x), pointer(out)
        self.function(*pointers, ctypes.c_uint64(x.size), ctypes.c_double(scale), pointer(finite))


def _scaled_unit(src: DType) -> HostUnit:
    return scaled_unit(src, [resolve(_DOUBLE, dst) for dst in _SCALED])


@lru_cache(maxsize=64)
def _checked(library: ctypes.CDLL, rule: CastRule) -> ScaledCast | None:
    """The cast, or None if it was compiled wrongly: it does what NumPy does to every exponent and many mantissas."""
    cast, codes = ScaledCast(library, rule), native_cast.codes_to_try(rule.src)
    out, wanted = np.empty((2, codes.size), rule.dst.code_numpy)
    for scale in _TRIED:
        for start in range(0, codes.size, lanes.SHORT):
            part = slice(start, start + lanes.SHORT)
            flags = np.ones((2, 1), np.uint8)
            cast(codes[part], out[part], scale, flags[0])
            given = FusedInputs(scale, finite=flags[1])
            fused.one_pass(codes[part].view(rule.src.numpy), rule, given, wanted[part].view(rule.dst.numpy))
            if flags[0] != flags[1] or not np.array_equal(out[part], wanted[part]):
                return None
    return cast
