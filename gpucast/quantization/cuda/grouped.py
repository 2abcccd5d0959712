# SPDX-License-Identifier: Apache-2.0
"""Groups of rows on a device, quantized or cast in one launch that reads their ends there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.casting import cuda
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule
from gpucast.kernel import driver
from gpucast.kernel.cast_kernel import options
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import RANDOM
from gpucast.kernel.kernel import Kernel, Part, array_and
from gpucast.quantization.cuda import memory
from gpucast.quantization.cuda.source import DIVISION, PARTS, block_of, columns_of, divide_by, format_struct
from gpucast.quantization.formats import Format
from gpucast.quantization.scale_orders import ScaleLayout

_FLOAT, _DOUBLE, _E8M0 = dtype("FLOAT"), dtype("DOUBLE"), dtype("FLOAT8E8M0")
#: `group_threads` of kernels/grouped.cu.
_THREADS = 256


#: What a kernel is given.
GROUPED = Fields(
    "GroupedArguments",
    (
        # The ends of the groups in the rows of the source: i64 if `wide`, else i32.
        ("offsets", "const u8*"),
        # A FLOAT for each group, `scale_step` apart, or null: then `scale` is that of all.
        ("scale_at", "const float*"),
        # The results besides the codes: scales of blocks, the ends of the groups with their padding, and how many are
        # valid.
        ("scales", "u8*"),
        ("ends", "u8*"),
        ("valid", "int*"),
        ("rows", "i64"),
        ("columns", "i64"),
        ("result_rows", "i64"),
        # (2^64 - 1) / columns.
        ("inverse", "u64"),
        ("by_columns", DIVISION),
        ("scale", "float"),
        ("scale_step", "u32"),
        ("groups", "u32"),
        ("pad", "u32"),
        ("wide", "u32"),
        ("random", RANDOM),
    ),
)
_PARTS: tuple[Part, ...] = (*PARTS, "tiles.cuh", GROUPED, "grouped.cu")


@lru_cache(maxsize=256)
def grouped_kernel(
    rule: CastRule, format: Format | None = None, stochastic: bool = False, layout: ScaleLayout = "linear"
) -> Kernel:
    """The kernel that quantizes groups, or casts them where there is no format.

    `rule`: from the source to the element type; with a scale where groups are cast. `layout`: the order in which scales
    are written.
    """
    src, dst = rule.src, rule.dst
    # Whole words of codes: 8 of 6 bits are none.
    elements = 8 if src.bits == 64 and dst.bits != 6 else 16
    dtypes = [src, _FLOAT, _DOUBLE, dst]
    # As many blocks of an SM as leave a thread the registers for two tiles: random words and quotients of DOUBLEs take
    # most, quotients for scales of FP8 more than those for other floats, steps and scales in an order more than others.
    linear = layout == "linear"
    if stochastic or src.bits == 64:
        resident = 2
    elif format is None:
        resident = 4 if dst.bits <= 8 else 2
    elif format.scale is _E8M0:
        resident = 3 + (src.bits == 16) + linear
    elif format.has_float_scales:
        resident = 3
    else:
        resident = 2 + (src.bits == 16 and linear and format.steps is None)
    if format is None:
        name = f"gpucast_cast_groups_{src.numpy_name}_to_{dst.numpy_name}"
        name += "_saturate" * (rule.overflow == "saturate") + "_stochastic" * stochastic
        head = f"namespace gpucast {{\ntypedef CastRule<{options(rule)}> {name}_rule;\n}}\n"
        work = f"CastGroups<{src.name}, {dst.name}, FLOAT, DOUBLE, {name}_rule, {elements}>"
    else:
        block = block_of(format)
        columns = [*columns_of(format), f"block{block}", *["stochastic"] * stochastic]
        columns += [layout] * (layout != "linear")
        name = "_".join(["gpucast_quantize_groups", src.numpy_name, *columns])
        head = format_struct(format, stochastic, f"{name}_format", src, layout=layout)
        work = f"QuantizeGroups<{name}_format, {src.name}, FLOAT, DOUBLE, {elements}, {block}>"
        dtypes.append(format.scale)
    line = f"{head}GPUCAST_GROUPED({name}, {resident}, {work})\n"
    turn = 2 * elements
    return Kernel(name, _PARTS, tuple(dtypes), line, _THREADS, array_and(GROUPED), elements, turn=turn, stays_from=0)


def grouped_arguments(
    offsets: Any,
    scale: Any,
    scales: Any,
    ends: Any,
    valid: Any,
    rows: int,
    columns: int,
    result_rows: int,
    pad: int,
    seed: int = 0,
    offset: int = 0,
) -> bytes:
    """The bytes of `GROUPED`, with arrays in place of addresses. `scale`: a number, or a FLOAT for each group or for
    all."""
    number = isinstance(scale, float)
    return GROUPED.pack(
        *(offsets.data.ptr, 0 if number else scale.data.ptr),
        *(0 if scales is None else scales.data.ptr, ends.data.ptr, valid.data.ptr),
        *(rows, columns, result_rows, (2**64 - 1) // columns, *divide_by(columns)),
        *(scale if number else 1.0, 0 if number or scale.size == 1 else 1),
        *(offsets.size, pad, offsets.dtype == np.int64),
        *(seed, offset),
    )


def dense(name: str, x: Any, caller: str, alignment: int = 0) -> Any:
    """The array, or a copy on the current device, in C order and at a multiple of `alignment`, or of its items."""
    made = target(name, x, caller, alignment)
    if made is not x:
        memory.copy(x, made)
    return made


def target(name: str, x: Any, caller: str, alignment: int = 0) -> Any:
    """The array, or a new one on the current device in place of one that `dense` copies."""
    if memory.is_dense(x, alignment):
        return x
    if driver.driver().capturing():
        raise RuntimeError(
            f"{caller}: a CUDA graph is being captured, and {name} is not in C order at an aligned address; "
            "memory for a copy cannot be allocated then"
        )
    return cuda.new(x.shape, dtype(x.dtype))


def run(kernel: Kernel, x: Any, data: Any, rows: int, given: bytes, device: int) -> None:
    """Launch it on the current stream of the device. `data`: the codes, in C order, of so many rows."""
    with driver.driver().on(device):
        # A result without rows still has ends.
        driver.launch(kernel, device, x.data.ptr, memory.address(data), max(rows * x.shape[-1], 1), given)
