# SPDX-License-Identifier: Apache-2.0
"""Casts of many arrays in one call of the host's compiled library, plain ones and those with a scale."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt

from gpucast.arrays.batch_item import Table
from gpucast.codegen.host import batch_unit
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule
from gpucast.native import cast as native_cast
from gpucast.native import fused as native_fused
from gpucast.native import library as host_native
from gpucast.native import threads
from gpucast.native.calls import pointer

Array = npt.NDArray[Any]
#: ``each(src, to, sizes, nbytes, fused)`` casts arrays at addresses `src` to those at `to`.
Each = Callable[[Table, Table, Table, Table, FusedInputs], None]
#: ``run(src, to, sizes, count, fused)`` casts so many arrays, whose addresses and sizes are in tables.
Run = Callable[[Any, Any, Any, Any, FusedInputs], None]


def find(rule: CastRule, is_scaled: bool, nbytes: int = 0) -> Each | None:
    """The casts of arrays by a rule that `is_known`; None where they are not compiled. `nbytes`: bytes of sources about
    to be cast."""
    if is_scaled:
        fused = native_fused.find(rule, True, nbytes)
        return None if fused is None else partial(_cast_each, fused.each)
    batch, cast = host_native.library(batch_unit, nbytes=nbytes), native_cast.find(rule, nbytes)
    if batch is None or cast is None:
        return None
    cast_each, function = batch.cast_each, cast.function
    return partial(_cast_each, lambda src, to, sizes, count, fused: cast_each(function, src, to, sizes, count))


def is_known(rule: CastRule, is_scaled: bool) -> bool:
    """Whether the library has casts of many arrays by this rule, those with a scale if `is_scaled`."""
    return is_scaled or native_cast.is_known(rule)


def _cast_each(run: Run, src: Table, to: Table, sizes: Table, nbytes: Table, fused: FusedInputs) -> None:
    def work(start: int, stop: int) -> None:
        own = src[start:stop], to[start:stop], sizes[start:stop]
        run(pointer(own[0]), pointer(own[1]), pointer(own[2]), ctypes.c_uint64(stop - start), fused)

    threads.split_arrays(work, nbytes)
