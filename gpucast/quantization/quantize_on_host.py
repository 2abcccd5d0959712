# SPDX-License-Identifier: Apache-2.0
"""Quantization of NumPy arrays: by the extension module, or slowly by the reference where that is missing.

There are two passes over the array: first the extremes of all blocks, then, with the scales, the codes. Where all
numbers are finite and no DOUBLEs, and the rounding is to nearest, the codes come from FLOAT arithmetic, corrected where
it may differ from that of DOUBLE (``kernels/host/codes.hpp``).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.expression import Node
from gpucast.core.extension import MODULE, say_slow
from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import Options, resolve
from gpucast.host import loops, numbers
from gpucast.quantization import block_loops
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.formats import Format, Parts
from gpucast.quantization.steps import evaluate

if MODULE is None:
    # With it comes the reference of casts, which takes a while to import.
    from gpucast.quantization import exact_quantize

NDArray = npt.NDArray[Any]

_FLOAT, _DOUBLE, _E8M0 = dtype("FLOAT"), dtype("DOUBLE"), dtype("FLOAT8E8M0")
_SMALLEST_FLOAT = math.ldexp(1.0, -126)
#: The shortest blocks of adjacent elements for which there are loops of their own.
_SHORTEST = 16
#: `short_block` of ``kernels/host/blocks.hpp``.
_COUNTS = 32


@exact()
def quantize(x: NDArray, format: Format, *, axis: int = -1, scale: Any = None, random: Random | None = None) -> Parts:
    """As `gpucast.quantization.exact_quantize.quantize`. Extra memory grows with the number of blocks only, but an
    array that is not in C order is copied."""
    if MODULE is None:
        say_slow()
        return exact_quantize.quantize(x, format, axis=axis, scale=scale, **_stochastic(random))
    axis = axis % x.ndim if x.ndim else 0
    grid, shape = BlockGrid.of(format, x.shape, axis), format.scales_shape(x.shape, axis)
    source = np.require(x, x.dtype.newbyteorder("="), ["C", "A"]).reshape(grid.shape)
    low, high, lost, is_quick = _extremes(source, grid, format)
    factor = None
    if format.steps is None:
        stored, g = _scales(low, high, format, scale, shape)
    else:
        stored, g, factor, undefined = _scales_by_steps(high, format, dtype(source.dtype), scale, shape)
        lost |= undefined
        is_quick &= not undefined.any()
    stored = stored.reshape(grid.counts)
    # Formats with steps have no zero points.
    s = _cast(stored, _DOUBLE) if factor is None else factor
    d = s * g if format.global_scale and factor is None else s
    zero = _zero_points(low, s, format)
    if lost.any():
        zero[lost] = 0
        stored[lost] = _cast(np.float64(np.nan), format.scale)
    is_quick &= scale is None or format.global_scale
    if format.rule == "4over6":
        stored, d, data = _four_over_six(source, grid, format, high, stored, g, lost, is_quick)
    if format.rule != "4over6" or random is not None:
        data = _codes(source, grid, format, d, zero, lost, is_quick, random)
    return Parts(
        data.reshape(x.shape),
        stored.reshape(shape),
        None if format.zero_point is None else zero.astype(format.zero_point.numpy).reshape(shape),
        np.asarray(g, np.float32).reshape(np.shape(scale)) if format.global_scale else None,
    )


@exact()
def quantize_by(x: NDArray, format: Format, known: Parts, *, axis: int = -1, random: Random | None = None) -> Parts:
    """As `gpucast.quantization.exact_quantize.quantize_by`."""
    if MODULE is None:
        say_slow()
        return exact_quantize.quantize_by(x, format, known, axis=axis, **_stochastic(random))
    format = format.by_given_scales
    grid = BlockGrid.of(format, x.shape, axis % x.ndim if x.ndim else 0)
    source = np.require(x, x.dtype.newbyteorder("="), ["C", "A"]).reshape(grid.shape)
    stored = known.scales.reshape(grid.counts).copy()
    s = _cast(stored, _DOUBLE)
    lost = np.zeros(grid.counts, bool)
    if format.nan_in_scale:
        lost = np.isnan(s) | _extremes(source, grid, format)[2]
        stored[lost] = _cast(np.float64(np.nan), format.scale)
    zero = np.zeros(grid.counts, np.int32)
    if known.zero_points is not None:
        zero = np.where(lost, 0, known.zero_points.reshape(grid.counts).astype(np.int32))
    d = np.where(s == 0, format.smallest_scale, s)
    if known.global_scale is not None:
        d = d * _by_row(known.global_scale)
    data = _codes(source, grid, format, d, zero, lost, False, random)
    shape = known.scales.shape
    points = None if format.zero_point is None else zero.astype(format.zero_point.numpy).reshape(shape)
    return Parts(data.reshape(x.shape), stored.reshape(shape), points, known.global_scale)


def _stochastic(random: Random | None) -> dict[str, Any]:
    return {} if random is None else {"rounding": STOCHASTIC, "seed": random.seed, "offset": random.offset}


def _cast(x: Any, dst: DType, **attributes: Any) -> NDArray:
    x = np.asarray(x)
    out = np.empty(x.shape, dst.numpy)
    numbers.into(x, resolve(dtype(x.dtype), dst, Options(**attributes)), out)
    return out


# ---- extremes ----


def _extremes(source: NDArray, grid: BlockGrid, format: Format) -> tuple[NDArray, NDArray, NDArray, bool]:
    """Of each block the lowest and the largest finite number, 0 included (for formats that are not `two_sided` 0 and
    the largest magnitude), and whether its scale is NaN; and whether all numbers are finite FLOATs or shorter, in
    blocks for which there are quick loops."""
    found = _quick_extremes(source, grid, format)
    if found is not None:
        return *found, np.zeros(grid.counts, bool), True
    every = np.zeros(grid.counts, block_loops.EXTREMES)
    block_loops.each_run(block_loops.find(f"find_extremes_{_name(source)}"), source, source, grid, every)
    low, high = every["lowest"].copy(), every["largest"].copy()
    lost = every["is_lost"] != 0 if format.nan_in_scale else np.zeros(grid.counts, bool)
    if not format.two_sided:
        low, high = np.zeros(grid.counts), np.maximum(-low, high)
    return low, high, lost, False


def _quick_extremes(source: NDArray, grid: BlockGrid, format: Format) -> tuple[NDArray, NDArray] | None:
    """None for DOUBLE, short blocks, and arrays with an infinity or NaN."""
    src = dtype(source.dtype)
    if src is _DOUBLE or not has_loops(grid):
        return None
    kind, sign = src.code_numpy, src.sign_code
    # The initial values: as unsigned integers negative numbers begin with -0; as signed ones the others with 0.
    if not format.two_sided:
        top = np.zeros(grid.counts, kind)
        block_loops.each_run(block_loops.find(f"Largest_{src.name}"), source, source, grid, top)
        if int(top.max(initial=0)) > src.max_code:
            return None
        return np.zeros(grid.counts), _cast(top.view(src.numpy), _DOUBLE)
    ends = np.zeros(grid.counts, [("lowest", kind), ("largest", kind)])
    ends["lowest"] = sign
    block_loops.each_run(block_loops.find(f"Range_{src.name}"), source, source, grid, ends)
    low, high = (np.ascontiguousarray(ends[name]) for name in ("lowest", "largest"))
    if max(int((codes & kind.type(sign - 1)).max(initial=0)) for codes in (low, high)) > src.max_code:
        return None
    return _cast(low.view(src.numpy), _DOUBLE), _cast(high.view(src.numpy), _DOUBLE)


def has_loops(grid: BlockGrid) -> bool:
    """Whether there are quick loops: for long blocks, and where adjacent elements are in different ones."""
    return grid.lengths[2] == 1 or grid.lengths[2] >= _SHORTEST


def _name(source: NDArray) -> str:
    return dtype(source.dtype).name


# ---- scales ----


@exact()
def global_scale(amax: Any, format: Format, source: DType) -> Any:
    """The global scale, a FLOAT, for numbers up to `amax`, or for each number of an array of such."""
    if format.steps is not None:
        return _formula(format.steps.u, source, A=np.asarray(np.float32(amax)))[()]
    return np.maximum(_float(np.float64(amax) / (format.divisor * format.top_scale)), np.float32(_SMALLEST_FLOAT))


def _by_row(numbers: Any) -> Any:
    """One DOUBLE, or one of each row, for arrays over all blocks that run along rows."""
    return np.float64(numbers).reshape((1, -1, 1) if np.ndim(numbers) else ())


def _scales(low: NDArray, high: NDArray, format: Format, scale: Any, shape: tuple[int, ...]) -> tuple[NDArray, Any]:
    """The scales of all blocks as they are stored, and the global scale as `_by_row` has it."""
    g: Any = np.float64(1)
    if format.global_scale:
        found = global_scale(high.max(initial=0.0), format, _FLOAT) if scale is None else scale
        g = _by_row(np.float32(found))
    elif scale is not None:
        return np.broadcast_to(np.asarray(scale, np.float32), shape).copy(), g
    if format.scale is _E8M0:
        return _powers(high / format.divisor, up=not format.rounds_down), g
    if format.has_float_scales:
        steps = format.element.max - format.element.min
        amax = np.maximum(-low * format.negative_weight, high)
        quotients = (high - low) / steps if format.zero_points else amax / format.divisor
        s = _cast(quotients, format.scale, overflow="saturate")
        return np.maximum(s, format.scale.numpy.type(format.smallest_scale)), g
    # The codes of positive numbers are ordered as the numbers are; the smallest is 1.
    codes = _cast(high / (format.divisor * g), format.scale).view(np.uint8)
    return np.maximum(codes, 1).view(format.scale.numpy), g


def _scales_by_steps(
    high: NDArray, format: Format, source: DType, scale: Any, shape: tuple[int, ...]
) -> tuple[NDArray, Any, NDArray, NDArray]:
    """The scales of all blocks as they are stored, the global scale, the divisor or factor of the elements, and whether
    the formula makes the scale NaN."""
    steps = format.steps
    assert steps is not None
    of = partial(_formula, source=source)
    a = high.astype(np.float32)
    u = np.asarray(np.float32(1))
    if format.global_scale:
        given = global_scale(a.max(initial=0), format, source) if scale is None else scale
        u = np.asarray(_by_row(given), np.float32)
    if scale is not None and not format.global_scale:
        scales = np.broadcast_to(np.asarray(scale, np.float32), shape).reshape(a.shape)
        undefined = np.zeros(a.shape, bool)
    else:
        found = np.broadcast_to(of(steps.scale, a=a, u=u), a.shape)
        undefined = np.isnan(found)
        scales = _powers(found, up=True) if format.scale is _E8M0 else _cast(found, format.scale)
        # FLOAT8E8M0 has no zero.
        if steps.zero and (are_zero := _cast(scales, _FLOAT) == 0).any():
            scales = np.where(are_zero, _cast(of(steps.zero), format.scale), scales)
    factor = np.broadcast_to(of(steps.factor, a=a, s=_cast(scales, _FLOAT), u=u), a.shape)
    g = np.float64(of(steps.global_scale, u=u)) if format.global_scale else np.float64(1)
    return np.array(scales, format.scale.numpy, order="C"), g, factor, undefined


def code_of_zero(format: Format, source: DType) -> int:
    """The code in place of a scale that was rounded to 0."""
    assert format.steps is not None
    return int(_cast(_formula(format.steps.zero, source), format.scale).view(format.scale.code_numpy))


def _formula(formula: str | Node, source: DType, **values: NDArray) -> NDArray:
    return evaluate(formula, values, source, lambda p: _cast(_cast(p, source), _FLOAT))


def _powers(x: NDArray, up: bool) -> NDArray:
    """Finite, nonnegative DOUBLE numbers rounded to FLOAT8E8M0: to the next power of two, up or down."""
    return _cast(x, _E8M0, round_mode="up" if up else "down")


def _float(x: Any) -> NDArray:
    return _cast(x, _FLOAT, overflow="saturate")


def _zero_points(low: NDArray, s: NDArray, format: Format) -> NDArray:
    if not format.zero_points:
        return np.zeros(s.shape, np.int32)
    lowest, largest = format.element.min, format.element.max
    return np.clip(lowest - np.rint(low / s), lowest, largest).astype(np.int32)


def _four_over_six(
    source: NDArray,
    grid: BlockGrid,
    format: Format,
    high: NDArray,
    six: NDArray,
    g: NDArray,
    lost: NDArray,
    is_quick: bool,
) -> tuple[NDArray, NDArray, NDArray]:
    """The scales, the divisors and the codes of a format with the rule "4over6", from the scales by 6."""
    four = np.maximum(_cast(high / (4 * g), format.scale).view(np.uint8), 1).view(format.scale.numpy)
    four[lost] = six[lost]
    zero = _zero_points(high, high, format)
    tried = [_cast(scales, _DOUBLE) * g for scales in (six, four)]
    codes, other = (_codes(source, grid, format, d, zero, lost, is_quick, None) for d in tried)
    of_blocks = np.zeros(grid.counts, block_loops.CHOICE)
    of_blocks["six"], of_blocks["four"] = _cast(six, _FLOAT), _cast(four, _FLOAT)
    with np.errstate(all="ignore"):
        of_blocks["factor"] = np.float32(1) / np.float32(g)
    how = block_loops.Choice(source.ctypes.data, other.ctypes.data, block_loops.numbers_of(format.element))
    block_loops.each_run(block_loops.find(f"choose_{_name(source)}"), source, codes, grid, of_blocks, how)
    takes_four = of_blocks["takes_four"] != 0
    return np.where(takes_four, four, six), np.where(takes_four, tried[1], tried[0]), codes


# ---- codes ----


def _codes(
    source: NDArray,
    grid: BlockGrid,
    format: Format,
    d: NDArray,
    zero: NDArray,
    lost: NDArray,
    is_quick: bool,
    random: Random | None,
) -> NDArray:
    """The codes of all elements. `is_quick`: they are finite FLOATs or shorter, and the scales their own."""
    data = np.empty(grid.shape, format.element.numpy)
    run = _quick_run(source, format, d) if is_quick and random is None else None
    if run is None:
        _divide(source, grid, format, d, zero, lost, random, data)
    else:
        _divide_quickly(run, source, grid, format, d, zero, data)
    return data


def _quick_run(source: NDArray, format: Format, d: NDArray) -> str | None:
    """The name of the loop that works with FLOATs; None where there is none."""
    if format.steps is not None and not (np.isfinite(d) & (d != 0)).all():
        return None
    return loop_of(dtype(source.dtype), format)


def loop_of(src: DType, format: Format) -> str | None:
    """The same, for divisors that have one."""
    element, steps = format.element, format.steps
    if steps is not None:
        if element.family == "int":
            return f"Whole_{src.name}"
        # Of floats only quotients for FLOAT8E4M3FN have a loop that rounds once more.
        rounds = steps.rounds_codes and src is not _FLOAT
        is_known = not rounds or (element.name == "FLOAT8E4M3FN" and not steps.multiplies)
        return _named("Multiplied" if steps.multiplies else "Divided", src, element) if is_known else None
    if element.family == "int":
        # Other scales may give quotients that are too large for that loop's integers.
        return f"Whole_{src.name}" if format.has_float_scales or format.scale is _E8M0 else None
    return _named("Multiplied" if format.scale is _E8M0 else "Near", src, element)


def _named(division: str, src: DType, element: DType) -> str | None:
    name = f"{division}_{src.name}_{element.name}"
    return name if MODULE.find(name) else None


def _divide_quickly(
    run: str, source: NDArray, grid: BlockGrid, format: Format, d: NDArray, zero: NDArray, data: NDArray
) -> None:
    element, more, steps = format.element, None, format.steps
    if element.family == "int":
        of_blocks = np.empty(grid.counts, block_loops.STEP)
        of_blocks["d"], of_blocks["zero"] = d, zero
        more = integers(format)
    elif steps is not None:
        of_blocks = np.ascontiguousarray(d, np.float32)
        # Any `more` leaves quotients as FLOAT has them.
        more = integers(format)
    elif format.scale is _E8M0:
        # Powers of two from 2^-127 to 2^127 have reciprocals that FLOAT holds.
        of_blocks = (1 / d).astype(np.float32)
    else:
        of_blocks = np.ascontiguousarray(d)
    block_loops.each_run(block_loops.find(run), source, data, grid, of_blocks, more)


def _divide(
    source: NDArray,
    grid: BlockGrid,
    format: Format,
    d: NDArray,
    zero: NDArray,
    lost: NDArray,
    random: Random | None,
    data: NDArray,
) -> None:
    """Write the codes of all quotients as DOUBLE gives them."""
    of_blocks = np.empty(grid.counts, block_loops.DIVISOR)
    of_blocks["d"], of_blocks["zero"], of_blocks["is_lost"] = d, zero, lost
    element, cast = format.element, 0
    if element.family != "int":
        options = Options() if random is None else Options(rounding=STOCHASTIC)
        cast = loops.function_of(resolve(_DOUBLE, element, options))
    how = block_loops.Quotients(
        cast if random is None else 0,
        0 if random is None else cast,
        source.ctypes.data,
        *((0, 0, 0) if random is None else (random.seed, *divmod(random.offset, 4))),
        integers(format),
    )
    run = "divide" if format.steps is None else "step"
    block_loops.each_run(block_loops.find(f"{run}_{_name(source)}"), source, data, grid, of_blocks, how)


def integers(format: Format) -> block_loops.Integers:
    element, steps = format.element, format.steps
    lowest, largest = (int(element.min), int(element.max)) if element.family == "int" else (0, 0)
    products = steps is not None and steps.multiplies
    rounds = steps is not None and steps.rounds_codes
    return block_loops.Integers(lowest, largest, element.code_mask, products, steps is not None, rounds)


# ---- back ----


@exact()
def dequantize(parts: Parts, format: Format, to: DType, *, axis: int = -1) -> NDArray:
    """As `gpucast.quantization.exact_quantize.dequantize`, to the floating type `to`."""
    if MODULE is None:
        say_slow()
        return exact_quantize.dequantize(parts, format, to, axis=axis)
    shape: tuple[int, ...] = parts.data.shape
    grid = BlockGrid.of(format, shape, axis % len(shape) if shape else 0)
    data = np.ascontiguousarray(parts.data).reshape(grid.shape)
    out: NDArray = np.empty(grid.shape, to.numpy)
    of_blocks = np.zeros(grid.counts, block_loops.FACTOR)
    factor = _cast(parts.scales, _DOUBLE).reshape(grid.counts)
    of_blocks["factor"] = factor if parts.global_scale is None else factor * _by_row(parts.global_scale)
    if parts.zero_points is not None:
        of_blocks["zero"] = _cast(parts.zero_points, _DOUBLE).reshape(grid.counts)
    run = block_loops.find("multiply")
    block_loops.each_run(run, data, out, grid, of_blocks, products(format, to))
    return out.reshape(shape)


# ---- the same in one call of the module: `host_calls` ----


def loop(src: DType, dst: DType, **attributes: Any) -> int:
    return loops.function_of(resolve(src, dst, Options(**attributes)))


def products(format: Format, to: DType) -> block_loops.Products:
    # With a global scale the factors are sums of two FLOATs, whose products with infinity may be NaN.
    in_floats = to is not _DOUBLE and not (format.global_scale and format.element.has_inf)
    last, last_of_floats = (loop(kind, to) if kind is not to else 0 for kind in (_DOUBLE, _FLOAT))
    narrow = last_of_floats if in_floats else 0
    return block_loops.Products(loop(format.element, _FLOAT), last, to.code_numpy.itemsize, narrow, in_floats)


# ---- counts, for conversions of files ----


@exact()
def beyond(source: NDArray, grid: BlockGrid, limits: NDArray) -> int | None:
    """How many magnitudes of a native array in C order, without NaN, exceed the limits of their blocks (DOUBLE, not
    negative); None where there is no loop for that."""
    src = dtype(source.dtype)
    if MODULE is None or src is _DOUBLE or not has_loops(grid):
        return None
    nearest = limits.astype(np.float32)
    # The largest FLOAT that does not exceed the limit.
    below = nearest.view(np.uint32) - (nearest > limits).astype(np.uint32)
    counts = np.zeros(_COUNTS, np.uint64)
    block_loops.each_run(block_loops.find(f"Beyond_{src.name}"), source, source, grid, below, counts)
    return int(counts.sum())


def equal(codes: NDArray, grid: BlockGrid, of_blocks: NDArray) -> int | None:
    """How many codes of a UINT8 array in C order equal `of_blocks` of their block; None where there is no loop."""
    if MODULE is None or not has_loops(grid):
        return None
    count = np.zeros(1, np.uint64)
    block_loops.each_run(block_loops.find("Equal_UINT8"), codes, codes, grid, np.ascontiguousarray(of_blocks), count)
    return int(count[0])
