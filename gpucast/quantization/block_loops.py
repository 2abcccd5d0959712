# SPDX-License-Identifier: Apache-2.0
"""Calls of the extension module for all blocks of an array (``kernels/host/blocks.hpp`` and those that it names,
``hadamard.hpp``)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.core.extension import MODULE
from gpucast.host import loops
from gpucast.quantization.block_grid import BlockGrid

NDArray = npt.NDArray[Any]
Triple = tuple[int, int, int]

#: Elements of a call: signals, such as Ctrl-C, are looked at between calls.
_PIECE = 1 << 22

#: What blocks have: `Extremes`, `Divisor`, `Factor`, `Step` and `TwoScales` of ``kernels/host``.
EXTREMES = np.dtype([("lowest", np.float64), ("largest", np.float64), ("is_lost", np.uint64)])
DIVISOR = np.dtype([("d", np.float64), ("zero", np.int32), ("is_lost", np.int32)])
FACTOR = np.dtype([("factor", np.float64), ("zero", np.float64)])
STEP = np.dtype([("d", np.float32), ("zero", np.int32)])
CHOICE = np.dtype([("six", np.float32), ("four", np.float32), ("factor", np.float32), ("takes_four", np.uint32)])


class _Array(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("itemsize", ctypes.c_uint64))


class _Blocks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64 * 3) for name in ("shape", "lengths", "grid")]


class _EachRun(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.c_uint64),
        *((name, _Array) for name in ("src", "dst", "of")),
        ("more", ctypes.c_uint64),
        ("blocks", _Blocks),
        *((name, ctypes.c_uint64) for name in ("first_row", "last_row", "first_column", "last_column")),
    )


class Integers(ctypes.Structure):
    """The range of an integer format's codes, the bits of a code, and how quotients become codes."""

    _fields_ = (
        ("least", ctypes.c_int32),
        ("most", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("mask", "products", "in_float", "rounds")),
    )


class Quotients(ctypes.Structure):
    """How quotients become codes. Functions are addresses, 0 for none."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("cast", "cast_at_random", "first", "seed", "first_block", "skip")),
        ("to", Integers),
    )


class Products(ctypes.Structure):
    """How codes become FLOATs, DOUBLEs results, and FLOATs results; whether products may come from FLOATs."""

    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("from_codes", "to", "itemsize", "to_from_floats", "in_floats")
    )


class Choice(ctypes.Structure):
    """Two ways to quantize: where the array begins, its codes by the other scales, and the numbers of the 16 codes."""

    _fields_ = (
        ("first", ctypes.c_uint64),
        ("other", ctypes.c_uint64),
        ("value", ctypes.c_float * 16),
    )


class Transform(ctypes.Structure):
    """A Hadamard transform: a bit for each negative sign, the factor, and whether signs come last."""

    _fields_ = (("negative", ctypes.c_uint32 * 4), ("factor", ctypes.c_float), ("inverse", ctypes.c_uint32))


class Triple3(ctypes.Structure):
    """Three lengths."""

    _fields_ = (("each", ctypes.c_uint64 * 3),)

    @classmethod
    def of(cls, three: Triple) -> Triple3:
        return cls((ctypes.c_uint64 * 3)(*three))


_GRID = tuple((name, Triple3) for name in ("shape", "lengths", "grid"))


#: The most steps of a `Formula`.
MOST_STEPS = 31


class Formula(ctypes.Structure):
    """`Formula` of ``kernels/host/formulas.hpp``."""

    _fields_ = (
        ("count", ctypes.c_uint32), ("steps", ctypes.c_uint32 * MOST_STEPS), ("numbers", ctypes.c_float * MOST_STEPS),
    )  # fmt: skip


class FormulaSteps(ctypes.Structure):
    """`FormulaSteps` of ``kernels/host/block_scales.hpp``."""

    _fields_ = (
        ("are_there", ctypes.c_uint64),
        *((name, Formula) for name in ("scale", "factor", "u", "global")),
        *(
            (name, ctypes.c_uint64)
            for name in ("to_scale", "from_scale", "code_of_zero", "to_source", "from_source")
        ),
    )  # fmt: skip


class Quantizing(ctypes.Structure):
    """`Quantizing` of ``kernels/host/block_scales.hpp``. Functions are addresses."""

    _fields_ = (
        *_GRID,
        *(
            (name, ctypes.c_uint64)
            for name in (
                "src_bytes", "scale_bytes", "element_bits", "extremes", "elements", "to_double", "to_scale",
                "from_scale", "to_float", "scales", "division", "two_sided", "has_global", "has_zeros", "sign_code",
                "max_code", "least_scale",
            )
        ),
        *(
            (name, ctypes.c_double)
            for name in ("divisor", "top_scale", "steps", "negative_weight", "lowest", "largest")
        ),
        ("to", Integers),
        ("divide", ctypes.c_uint64),
        ("at_random", ctypes.c_uint64),
        ("choose", ctypes.c_uint64),
        ("value", ctypes.c_float * 16),
        ("steps_of", FormulaSteps),
    )  # fmt: skip


class OrderOfScales(ctypes.Structure):
    """`ScaleOrder` of ``kernels/host/orders.hpp``."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("bytes", "rows", "row_bytes")),
        ("lengths", Triple3),
        ("strides", Triple3),
        ("next", ctypes.c_uint64),
    )


class Grouping(ctypes.Structure):
    """`Grouping` of ``kernels/host/groups.hpp``, up to the works of casts."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in (
                "rows", "columns", "result_rows", "groups", "pad", "src_bytes", "end_bytes", "dst_bits", "block",
            )
        ),
        ("quantizing", Quantizing),
        ("order", OrderOfScales),
    )  # fmt: skip


class Transforming(ctypes.Structure):
    """`Transforming` of ``kernels/host/orders.hpp``."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("size", "length", "src_bytes", "run")),
        ("how", Transform),
    )


class Dequantizing(ctypes.Structure):
    """`Dequantizing` of ``kernels/host/dequantizing.hpp``."""

    _fields_ = (
        *_GRID,
        *((name, ctypes.c_uint64) for name in ("scale_bytes", "element_bits", "dst_bytes", "from_scale", "from_zero")),
        ("products", Products),
    )


class Turning(ctypes.Structure):
    """`Turning` of ``kernels/host/orders.hpp``."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("matrices", "rows", "columns"))


class Producing(ctypes.Structure):
    """`Producing` of ``kernels/host/quantize.hpp``."""

    _fields_ = (
        ("quantizing", Quantizing), ("turning", Turning), ("transform", Transforming), ("order", OrderOfScales),
    )  # fmt: skip


class Restoring(ctypes.Structure):
    """`Restoring` of ``kernels/host/quantize.hpp``, up to the work of its last cast."""

    _fields_ = (
        ("dequantizing", Dequantizing), ("transform", Transforming), ("order", OrderOfScales),
        ("dst_bytes", ctypes.c_uint64), ("casts", ctypes.c_uint64),
    )  # fmt: skip


def numbers_of(element: DType | None) -> Any:
    """The numbers of the 16 codes of a type; zeros for none."""
    return (ctypes.c_float * 16)(*(0.0 if element is None else float(element.value(code)) for code in range(16)))


find: Callable[[str], int] = lru_cache(maxsize=256)(loops.find)


def each_run(run: int, src: NDArray, dst: NDArray, grid: BlockGrid, of_blocks: NDArray, more: Any = None) -> None:
    """Call a function for all elements of an array in C order: `src` is read and `dst`, which may be the same, written.

    `of_blocks`: what belongs to each block, in C order. `more`: a structure or an array that belongs to all.
    """
    if not src.size:
        return
    shape, lengths, counts = grid.shape, grid.lengths, grid.counts
    if shape[2] == 1:
        # Rows of a single element, as along a last axis, are one row.
        shape, lengths, counts = ((1, outer, rows) for outer, rows, _ in (shape, lengths, counts))
    if lengths[:2] == (1, 1) and shape[2] % lengths[2] == 0:
        # Rows consist of whole blocks: all of them are one row, so that short rows cost no calls.
        shape, counts = (1, 1, math.prod(shape)), (1, 1, math.prod(counts))
    at = 0 if more is None else more.ctypes.data if isinstance(more, np.ndarray) else ctypes.addressof(more)
    call = _EachRun(
        run, _Array(src.ctypes.data, src.itemsize), _Array(dst.ctypes.data, dst.itemsize),
        _Array(of_blocks.ctypes.data, of_blocks.itemsize), at,
        _Blocks(*((ctypes.c_uint64 * 3)(*three) for three in (shape, lengths, counts))),
    )  # fmt: skip
    function, address = find("each_run"), ctypes.addressof(call)
    rows, columns = shape[0] * shape[1], shape[2]
    step = max(1, _PIECE // columns)
    for row in range(0, rows, step):
        call.first_row, call.last_row = row, min(row + step, rows)
        for column in range(0, columns, _PIECE):
            call.first_column, call.last_column = column, min(column + _PIECE, columns)
            MODULE.call(function, address)
