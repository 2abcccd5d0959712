# SPDX-License-Identifier: Apache-2.0
"""The specification of record of `gpucast.quantize` and `gpucast.dequantize`: literal, exact and slow.

Rounding to a type is always `gpucast.reference.cast`; there is no second copy of its rules. All else is IEEE 754 DOUBLE
arithmetic, each operation rounded once to nearest even. It shares only the tables of dtypes and formats with the host
path and the kernels.

**Quantizing.** x is FLOAT, FLOAT16, BFLOAT16 or DOUBLE; its values become DOUBLE exactly. Element i belongs to block
i // length (in each dimension, `Format.lengths`); the last block of a dimension may be ragged, that is, have fewer
elements.

1.  *Largest magnitude.* amax is the largest magnitude of the block's finite values, before any rounding; 0 where there
    are none. -0 counts as 0.
2.  *Scale*, by `Format.rule`:

    - "amax" with FLOAT scales (DeepSeek-V3 report, section 3.3): s = cast(amax / M, FLOAT, overflow="saturate"); M is
      the element's largest value (448, 57344, 127, 7, 1; the lowest integer is not used).
    - "full_range" (torchao's SYMMETRIC, compressed-tensors), for integers P..Q: as "amax", with M = (Q - P) / 2 (127.5,
      7.5, 1.5): P is used, and the largest positive numbers clamp.
    - "no_clipping" (torchao's SYMMETRIC_NO_CLIPPING_ERR): as "amax", after the magnitudes of negative numbers were
      multiplied by Q / -P (7 / 8), which is exact but for DOUBLE: P is used, and nothing clamps.
    - "amax" with FLOAT8E4M3FN scales (NVIDIA's NVFP4): g = cast(largest amax / (6 * 448), FLOAT, overflow="saturate"),
      at least 2^-126, one for the whole array (or the caller's); s = cast(amax / (6 * g), FLOAT8E4M3FN). Without a
      global scale g is 1. With FLOAT8UE5M3 scales, whose range needs no second level, it is alike, and g is 1.
    - "4over6" (Four Over Six, MIT and NVIDIA, 2025; NVFP4 alone): two scales are tried, by 6 and by 4. g is as before
      with 256 in place of 448, so that the scale by 4 fits too; s6 = cast(amax / (6 * g), FLOAT8E4M3FN), and s4 with 4
      in place of 6, both not 0. The codes by each are those of step 4, to nearest. y = cast(x, FLOAT) * (1 / g) for
      each number; the error of a scale is the sum of (y - code * s)^2, in the order of the block, from 0 on. All of
      this is FLOAT arithmetic, and each operation rounds. s4 is taken where its error is smaller, else s6; with random
      rounding too, which then rounds the codes by that scale.
    - "floor" (OCP MX v1.0, section 6.3): s = 2^(floor(log2 amax) - emax), emax the exponent of the element's largest
      value (8, 15, 2, 4, 2), that is cast(amax / 2^emax, FLOAT8E8M0, round_mode="down"), clamped to 2^-127..2^127.
    - "up" (cuBLAS, TransformerEngine; torchao's RCEIL): s = cast(amax / M, FLOAT8E8M0, round_mode="up"), clamped alike:
      the smallest power of two with which nothing clamps.
    - "even" (torchao's EVEN; compressed-tensors for FLOAT4E2M1 and FLOAT6E2M3): as "floor", after amax was rounded to
      the significant bits of an element, halves up: with m mantissa bits the scale is one power larger where amax is at
      least (2 - 2^-(m + 1)) times a power of two, that is cast(amax / (2^emax (1 - 2^-(m + 2))), FLOAT8E8M0,
      round_mode="down").
    - zero points (ONNX DynamicQuantizeLinear): lo and hi are the lowest and largest finite value of the block, 0
      included; s = cast((hi - lo) / (Q - P), FLOAT, overflow="saturate") for codes P..Q.

    Scales of BFLOAT16 (a `Format` that you define) are as those of FLOAT, cast to BFLOAT16 in place of FLOAT.

    No scale is 0: s is at least `Format.smallest_scale` (2^-126 for FLOAT, whose reciprocal is finite; 2^-9 for
    FLOAT8E4M3FN and 2^-17 for FLOAT8UE5M3, whose subnormals are valid scales; 2^-127 for FLOAT8E8M0). So an all-zero
    block is no special case: its scale is the smallest, its elements are zeros.
3.  *Zero point.* z = P - t clamped to P..Q, t = lo / s rounded to the nearest integer, ties to even.
4.  *Elements.* q = x / (s * g); s * g is exact, the quotient is rounded once to DOUBLE. Floats: cast(q, element), which
    saturates; -0 stays -0. Integers: q is rounded to the nearest integer, ties to even (as INT16, clamped); the zero
    point is added; the sum is clamped to the element's range.

    This is a true division. The code is the same as if the exact quotient were rounded once to the element: DOUBLE's
    rounding never moves a quotient x / d onto the midpoint m of two codes unless it is m, because m * d is a DOUBLE
    (a few bits times at most 28). The same holds for the scales. Where others divide as FLOAT (ONNX, torchao's NVFP4)
    or multiply with a rounded reciprocal (TransformerEngine, DeepGEMM), a quotient near a midpoint may give the
    neighbouring code. With scales of FLOAT8E8M0 all of them are exact, and equal.
5.  *NaN and infinity.* With FLOAT scales and elements that have a NaN (float8), they stay in their elements: NaN is NaN
    with its sign, infinities clamp to the largest value (as the cast and ONNX QuantizeLinear saturate); the scale is
    computed from the other elements. In all other formats a block with a NaN or an infinity gets the scale NaN (0xff,
    0x7f, 0x7fc00000), and its codes and zero point are 0, so that it dequantizes to NaN. OCP MX leaves the conversion
    of NaN and infinity open (section 6.3) and says that a block whose scale is NaN is NaN (5.1); torchao and
    microxcaling do the same (torchao's codes are then NaN where E4M3 or E5M2 has it). The global scale ignores NaN and
    infinity.
6.  *Given scales.* Formats with FLOAT scales without zero points take them from the caller in place of step 2, NVFP4
    the global one. They must be finite and positive, and are used as they are; values that are then out of range clamp.
    A given `amax`, a FLOAT, finite and not negative, stands for NVFP4's largest amax in the formula of g. Where blocks
    run along the last axis, scale or amax may be an array of x's shape without that axis: g is then one for each row.
7.  *Stochastic rounding* (float elements): step 4 casts q with ``rounding="stochastic"``; the random number is that of
    the element's row-major index. Scales and zero points are rounded as above.
8.  *Steps.* A format with `Format.steps` (a recipe) repeats the FLOAT arithmetic of another library: formulas
    (`gpucast.quantization.steps`) take the place of the quotients of steps 2 and 4, and of g; each of their operations
    rounds to FLOAT. Scales have no lower bound but the formula's. A block with a NaN or an infinity, or whose formula
    gives NaN (zeros by an infinite u), has the scale NaN, and codes 0. Any other quotient that is NaN is the positive
    NaN.

9.  *Transforms.* With a Hadamard transform x is replaced by that of `gpucast.quantization.exact_hadamard` along `axis`,
    a FLOAT array, before step 1. Each result of an array then has a global scale of its own. Random rounding (step 7)
    is that of the transformed numbers.

10. *Scales of another result.* With the scales of a `Quantized` (zero points and global scale too) steps 1 to 3 are
    left out, and step 4 gives the codes, not 8. A block that has the scale NaN, or gets it by step 5, has codes 0. To
    divide by, a scale of 0 counts as the smallest one.

**Dequantizing.** (code - zero point) * s * g, in DOUBLE, where it is exact, then one cast to the destination (out of
range: infinity). Where s * g is NaN the result is the positive NaN, whatever the code; a NaN element keeps its sign.
Zero times infinity, which quantizing never gives, is the positive NaN, whichever of them is the scale. With a
Hadamard transform the destination is FLOAT first, and the numbers are transformed back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import dtype
from gpucast.core.expression import Node
from gpucast.quantization.formats import Format, Parts
from gpucast.quantization.steps import evaluate
from gpucast.reference.exact_cast import cast

NDArray = npt.NDArray[Any]


@exact()
def quantize(
    x: NDArray, format: Format, *, axis: int = -1, scale: Any = None, amax: Any = None, **stochastic: Any
) -> Parts:
    """Quantize a NumPy array, as described above. `scale`, `amax`: see step 6; `stochastic`: the keywords of step 7."""
    if x.ndim == 0:
        parts = quantize(x.reshape(1), format, scale=scale, amax=amax, **stochastic)
        return replace(parts, data=parts.data.reshape(()))
    axis %= x.ndim
    value = cast(x, "DOUBLE")
    block, grid = _blocks(x.shape, format, axis)
    finite = np.isfinite(value)

    low, high = np.zeros(grid), np.zeros(grid)
    np.minimum.at(low, _at(block, finite), value[finite])
    np.maximum.at(high, _at(block, finite), value[finite])
    largest = np.maximum(-low * format.negative_weight, high)
    lost = np.zeros(grid, bool)
    if format.nan_in_scale:
        lost[_at(block, ~finite)] = True
    zero = np.zeros(grid, np.int32)
    # A scale in formats with a global one is that.
    given, s = scale is not None and not format.global_scale, np.zeros(grid)
    if given:
        s = cast(np.broadcast_to(cast(scale, "FLOAT"), format.scales_shape(x.shape, axis)), "DOUBLE").reshape(grid)

    if format.steps is not None:
        s, g, q = _by_steps(x, largest, format, block, s if given else None, scale, amax)
        lost |= np.isnan(s)
    else:
        g = _global_scale(largest, format, scale, amax)
        if not given:
            s = _scales(value, low, high, largest, format, block, g)
        if format.zero_points:
            first, last = int(format.element.min), int(format.element.max)
            zero = np.where(lost, 0, np.clip(first - _integers(low / s), first, last))
        q = _quotients(value, block, s * g)
    shape = format.scales_shape(x.shape, axis)
    return Parts(
        _codes(q, format, block, zero, lost, stochastic),
        cast(np.where(lost, np.nan, s), format.scale).reshape(shape),
        None if format.zero_point is None else cast(zero, format.zero_point).reshape(shape),
        _of_rows(cast(g, "FLOAT")) if format.global_scale else None,
    )


def _global_scale(largest: NDArray, format: Format, scale: Any, amax: Any) -> Any:
    """g of step 2, or the caller's."""
    if not format.global_scale:
        return np.float64(1)
    if scale is not None:
        return _by_row(cast(cast(scale, "FLOAT"), "DOUBLE"))
    most = largest.max(initial=0.0) if amax is None else _by_row(cast(cast(amax, "FLOAT"), "DOUBLE"))
    top = most / (format.divisor * format.top_scale)
    return np.maximum(cast(cast(top, "FLOAT", overflow="saturate"), "DOUBLE"), np.ldexp(1.0, -126))


def _scales(
    value: NDArray, low: NDArray, high: NDArray, largest: NDArray, format: Format, block: tuple[NDArray, ...], g: Any
) -> NDArray:
    """Step 2, by the extremes of each block."""
    if format.zero_points:
        steps = float(format.element.max - format.element.min)
        scales = cast((high - low) / steps, format.scale, overflow="saturate")
    elif format.has_float_scales:
        scales = cast(largest / format.divisor, format.scale, overflow="saturate")
    elif format.scale.family == "float":
        scales = cast(largest / (format.divisor * g), format.scale)
    else:
        mode: Literal["down", "up"] = "down" if format.rounds_down else "up"
        scales = cast(largest / format.divisor, "FLOAT8E8M0", round_mode=mode)
    s: NDArray = np.maximum(cast(scales, "DOUBLE"), format.smallest_scale)
    if format.rule != "4over6":
        return s
    other = np.maximum(cast(cast(largest / (4 * g), "FLOAT8E4M3FN"), "DOUBLE"), format.smallest_scale)
    return np.asarray(np.where(_error(value, block, other, g) < _error(value, block, s, g), other, s))


def _quotients(value: NDArray, block: tuple[NDArray, ...], d: NDArray) -> NDArray:
    """q of step 4, by the products d of scales and global scale."""
    with np.errstate(all="ignore"):
        q = np.where(np.isnan(value), value, value / d[_at(block)])
    return np.where(np.isnan(q) & ~np.isnan(value), np.nan, q)


def _codes(
    q: NDArray, format: Format, block: tuple[NDArray, ...], zero: NDArray, lost: NDArray, stochastic: Any
) -> NDArray:
    """The elements of step 4. `lost`: blocks whose codes are 0."""
    q = np.where(lost[_at(block)], q.dtype.type(0), q)
    if format.element.family == "int":
        return cast(_integers(q) + zero[_at(block)], format.element, overflow="saturate")
    return cast(q, format.element, **stochastic)


@exact()
def quantize_by(x: NDArray, format: Format, known: Parts, *, axis: int = -1, **stochastic: Any) -> Parts:
    """Step 10: quantize a NumPy array by the scales of `known`."""
    if x.ndim == 0:
        parts = quantize_by(x.reshape(1), format, known, **stochastic)
        return replace(parts, data=parts.data.reshape(()))
    format = format.by_given_scales
    value = cast(x, "DOUBLE")
    block, grid = _blocks(x.shape, format, axis % x.ndim)
    s = cast(known.scales, "DOUBLE").reshape(grid)
    lost = np.isnan(s) & format.nan_in_scale
    if format.nan_in_scale:
        lost[_at(block, ~np.isfinite(value))] = True
    zero = np.zeros(grid, np.int32)
    if known.zero_points is not None:
        zero = np.where(lost, 0, known.zero_points.reshape(grid).astype(np.int32))
    g = _by_row(np.float64(1 if known.global_scale is None else known.global_scale))
    q = _quotients(value, block, np.where(s == 0, format.smallest_scale, s) * g)
    data = _codes(q, format, block, zero, lost, stochastic)
    scales = known.scales.reshape(grid).copy()
    scales[lost] = cast(np.float64(np.nan), format.scale)
    stored = None if format.zero_point is None else zero.astype(format.zero_point.numpy).reshape(known.scales.shape)
    return Parts(data, scales.reshape(known.scales.shape), stored, known.global_scale)


def _by_row(numbers: Any) -> Any:
    """Numbers of rows, to be used with arrays that have blocks or elements as their last axis."""
    return numbers[..., None] if np.ndim(numbers) else numbers


def _of_rows(numbers: Any) -> Any:
    """The inverse of `_by_row`."""
    return numbers[..., 0] if np.ndim(numbers) else numbers


def _error(value: NDArray, block: tuple[NDArray, ...], s: NDArray, g: Any) -> NDArray:
    """The squared error of each block by the scales s, for "4over6"."""
    at = _at(block)
    with np.errstate(all="ignore"):
        codes = cast(np.where(np.isfinite(value), value / (s * g)[at], 0.0), "FLOAT4E2M1")
        y = cast(value, "FLOAT") * (np.float32(1) / np.float32(g))
        rest = y - cast(codes, "FLOAT") * cast(s[at], "FLOAT")
        error = np.zeros(s.shape, np.float32)
        # One after the other, in row-major order, which is that of each block.
        np.add.at(error, at, rest * rest)
    return error


def _by_steps(
    x: NDArray, largest: NDArray, format: Format, block: tuple[NDArray, ...], given: Any, scale: Any, amax: Any
) -> tuple[NDArray, Any, NDArray]:
    """The scales of step 8, NaN where the formula is, the global scale, and the numbers that become codes."""
    steps, source = format.steps, dtype(x.dtype)
    assert steps is not None

    def of(formula: str | Node, **values: NDArray) -> NDArray:
        return evaluate(formula, values, source, lambda p: cast(cast(p, source), "FLOAT"))

    # The largest of zeros may be -0.
    a = np.abs(cast(largest, "FLOAT"))
    u = np.asarray(np.float32(1))
    if format.global_scale:
        top = np.asarray(a.max(initial=np.float32(0)) if amax is None else cast(amax, "FLOAT"))
        u = of(steps.u, A=_by_row(top)) if scale is None else _by_row(cast(scale, "FLOAT"))
    if given is not None:
        s = scales = cast(given, "FLOAT")
    else:
        attributes: dict[str, Any] = {} if format.scale is not dtype("FLOAT8E8M0") else {"round_mode": "up"}
        by_formula = np.broadcast_to(of(steps.scale, a=a, u=u), a.shape)
        scales = cast(cast(by_formula, format.scale, **attributes), "FLOAT")
        if steps.zero:
            scales = np.where(scales == 0, cast(cast(of(steps.zero), format.scale), "FLOAT"), scales)
        s = np.where(np.isnan(by_formula), np.float32(np.nan), scales)
    factor = np.broadcast_to(of(steps.factor, a=a, s=scales, u=u), a.shape)[_at(block)]
    with np.errstate(all="ignore"):
        q = cast(x, "FLOAT") * factor if steps.multiplies else cast(x, "FLOAT") / factor
    q = np.where(np.isnan(q), np.float32(np.nan), of("T(q)", q=q) if steps.rounds_codes else q)
    return cast(s, "DOUBLE"), np.asarray(of(steps.global_scale, u=u), np.float32), q


@exact()
def dequantize(parts: Parts, format: Format, to: Any = "FLOAT", *, axis: int = -1) -> NDArray:
    """The numbers that the parts stand for, cast to the type `to`."""
    shape = parts.data.shape
    if not shape:
        return dequantize(replace(parts, data=parts.data.reshape(1)), format, to).reshape(())
    axis %= len(shape)
    block, grid = _blocks(shape, format, axis)
    value = cast(parts.data, "DOUBLE")
    if parts.zero_points is not None:
        value = value - cast(parts.zero_points, "DOUBLE").reshape(grid)[_at(block)]
    s = cast(parts.scales, "DOUBLE").reshape(grid)[_at(block)]
    g = _by_row(np.float64(1 if parts.global_scale is None else parts.global_scale))
    factor = s * g
    product = value * factor
    # Which NaN an invalid operation returns depends on the processor.
    product = np.where(np.isnan(value), value, np.where(np.isnan(product), np.nan, product))
    return cast(np.where(np.isnan(factor), np.nan, product), to)


def _blocks(shape: tuple[int, ...], format: Format, axis: int) -> tuple[tuple[NDArray, ...], tuple[int, ...]]:
    """For each dimension the block index of every element, and the number of blocks."""
    lengths = format.lengths(shape, axis)
    block = tuple(index // length for index, length in zip(np.indices(shape), lengths, strict=True))
    return block, format.grid(shape, axis)


def _at(block: tuple[NDArray, ...], where: Any = ...) -> tuple[NDArray, ...]:
    """The index, into an array over all blocks, of the blocks of the elements selected by `where`."""
    return tuple(index[where] for index in block)


def _integers(q: NDArray) -> NDArray:
    """To the nearest integer, ties to even, clamped to INT16: wider than any element, so that sums are exact."""
    return cast(cast(q, "INT16", rounding="nearest_even", overflow="saturate"), "INT32")
