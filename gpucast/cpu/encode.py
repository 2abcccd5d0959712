# SPDX-License-Identifier: Apache-2.0
"""Codes of every type to exact float64 values and back: short and exact, but not the quickest.

The host path uses it to build tables, to cast small arrays, and for the few elements of a large array that its quick
lanes do not handle. It works on whole arrays in float64, where every scaling by a power of two used here is exact, so
`numpy.rint` (to nearest, ties to even) is the only rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule

Array = npt.NDArray[Any]


def decode(codes: Array, src: DType) -> Array:
    """The float64 values of flat, native codes of a type of at most 16 bits, FLOAT or DOUBLE.

    NaN keeps its sign, or is positive if the type's NaN has no sign.
    """
    if src.family == "bool":
        truth: Array = (codes != 0).astype(np.float64)
        return truth
    if src.family == "int":
        integers: Array = (codes & src.code_numpy.type(src.code_mask)).astype(np.int64)
        return ((integers ^ src.sign_code) - src.sign_code).astype(np.float64)
    codes = codes & src.code_numpy.type(src.code_mask)
    values: Array = codes.view(src.numpy).astype(np.float64)
    if src.has_nan:
        nan = np.isnan(values)
        negative = src.nan_is_signed & (codes[nan] & src.code_numpy.type(src.sign_code) != 0)
        values[nan] = np.where(negative, -np.nan, np.nan)
    return values


def encode(values: Array, rule: CastRule) -> Array:
    """The codes of ``rule.dst``, which may be any type, for flat float64 values.

    Call it under ``numpy.errstate(all="ignore")``: overflow and the like must not warn.
    """
    dst = rule.dst
    if dst.family == "bool":
        return np.not_equal(values, 0).view(np.uint8)
    if dst.family == "int":
        return _to_integer(values, rule)
    if dst.family == "e8m0":
        return _to_exponent(values, rule)
    if dst.bits > 16:
        result: Array = values.astype(dst.numpy)
        if rule.overflow == "saturate":
            np.clip(result, dst.min, dst.max, out=result)
        return canonical_nan(result.view(dst.code_numpy), result, dst)
    return _to_narrow_float(values, rule)


def canonical_nan(codes: Array, values: Array, dtype: DType) -> Array:
    """Replace, in place, each NaN of a native IEEE type by the quiet NaN of the same sign.

    `values` are the numbers of the codes, as any floating type.
    """
    # argmax treats NaN as the largest value and stops at the first one.
    if values.size and np.isnan(values[values.argmax()]):
        where = np.flatnonzero(values != values)
        code = dtype.code_numpy.type
        codes[where] = (codes[where] & code(dtype.sign_code)) | code(dtype.nan_code)
    return codes


def canonical_quiet_nan(codes: Array, dtype: DType) -> None:
    """As `canonical_nan`, for codes without signalling NaNs.

    Seen as signed integers, positive NaNs are the largest codes; seen as unsigned ones, negative NaNs are. The NaN
    without payload is the least of either, so a minimum makes all of them equal to it.
    """
    signed = codes.view(f"int{dtype.bits}")
    if codes.size and np.maximum.reduce(signed) > dtype.nan_code:
        np.minimum(signed, dtype.nan_code, out=signed)
    if codes.size and np.maximum.reduce(codes) > dtype.nan_code | dtype.sign_code:
        np.minimum(codes, dtype.nan_code | dtype.sign_code, out=codes)


def low_bits(values: Array) -> Array:
    """float64 values truncated toward zero, modulo 2^64, as int64; 0 for NaN and infinities."""
    far = ~(np.abs(values) < 2.0**63)
    if far.any():
        where = np.flatnonzero(far)
        beyond = values[where]
        # From 2^117 on every float64 is a multiple of 2^64. The comparison is false for NaN.
        odd = np.abs(beyond) < 2.0**117
        if odd.any():
            beyond = np.where(odd, beyond, 0.0)
            # Exact: the remainder is a multiple of the ULP of `beyond`, and no larger than `beyond`.
            beyond -= np.rint(beyond * 2.0**-64) * 2.0**64
            beyond[beyond >= 2.0**63] -= 2.0**64
        else:
            beyond[...] = 0.0
        values = values.copy()
        values[where] = beyond
    return values.astype(np.int64)


def _to_integer(values: Array, rule: CastRule) -> Array:
    dst = rule.dst
    if rule.rounding == "nearest_even":
        values = np.rint(values)
    codes = low_bits(values).astype(dst.code_numpy)
    if rule.overflow == "saturate":
        # max + 1 and min are powers of two or zero, so exact in float64. Values between min - 1 and min truncate to
        # min.
        code = dst.code_numpy.type
        codes[values >= float(int(dst.max) + 1)] = code(dst.max_code & ~dst.sign_code)
        codes[values < float(dst.min)] = code(dst.sign_code)
    codes &= dst.code_numpy.type(dst.code_mask)
    return codes


def _to_exponent(values: Array, rule: CastRule) -> Array:
    dst = rule.dst
    saturate = rule.overflow == "saturate"
    lowest, highest, nan = (0, dst.max_code, dst.nan_code) if saturate else (dst.nan_code,) * 3
    fraction, exponent = np.frexp(values)
    # |x| = fraction * 2^exponent with fraction in [0.5, 1): 0.5 is an exact power of two, 0.75 the middle.
    step = {"up": fraction != 0.5, "down": False, "nearest": fraction >= 0.75}[rule.round_mode]
    codes: Array = exponent - 1 + dst.bias + step
    codes[values > dst.max] = highest
    codes[values < dst.min] = lowest
    codes[np.isnan(values)] = nan
    return codes.astype(dst.code_numpy)


def _to_narrow_float(values: Array, rule: CastRule) -> Array:
    dst = rule.dst
    sign, magnitude, nan = np.signbit(values), np.abs(values), np.isnan(values)
    special = ~np.isfinite(magnitude)
    magnitude[special] = 0.0
    _, exponent = np.frexp(magnitude)
    # A binade has 2^mantissa_bits codes, one ULP apart, and the codes of the next binade follow without a gap; the
    # smallest normals have the ULP of the subnormals. So a carry out of the mantissa gives the next binade's code.
    binade = np.maximum(exponent - 2 + dst.bias, 0)
    binade[magnitude == 0] = 0
    steps = np.rint(np.ldexp(magnitude, dst.mantissa_bits + dst.bias - 1 - binade))
    codes: Array = (binade << dst.mantissa_bits) + steps.astype(np.int64)
    infinite = special & ~nan
    beyond = (codes > dst.max_code) | infinite
    if rule.overflow == "nan":
        nan |= beyond
    elif rule.infinity_is_nan:
        nan |= infinite
    codes[beyond] = dst.inf_code if rule.overflow == "infinity" else dst.max_code
    codes[sign & (codes != 0) if dst.specials == "fnuz" else sign] |= dst.sign_code
    if dst.has_nan:
        codes[nan] = dst.nan_code | np.where(sign[nan] & dst.nan_is_signed, dst.sign_code, 0)
    else:
        # As in the ONNX node tests: NaN becomes zero with the opposite sign.
        codes[nan] = np.where(sign[nan], 0, dst.sign_code)
    return codes.astype(dst.code_numpy)
