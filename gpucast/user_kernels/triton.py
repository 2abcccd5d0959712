# SPDX-License-Identifier: Apache-2.0
"""Casts of blocks in kernels of Triton, with the bits of `gpucast.cast`, by integer operations alone.

`encode` makes codes of a block of float32: of any float of 16 bits or fewer, named by constant text. `decode` makes
float32 of such codes. Codes are uint8, or uint16 for types of 16 bits; types below one byte take a byte each. So blocks
have the same bits on every GPU, also for types that Triton does not have, or rounds in its own way::

    import triton, triton.language as tl
    from gpucast.interop.triton import decode, encode


    @triton.jit
    def scaled(x, codes, scale, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        block = tl.load(x + i, i < n)
        tl.store(codes + i, encode(block * scale, "FLOAT8E4M3FN"), i < n)

The attributes of a cast have their defaults. ``encode(block, to, False)`` does not saturate. Triton's interpreter ran
these functions, and its compiler takes them; no GPU has run them yet.
"""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(f"gpucast.interop.triton needs Triton ({error}): pip install triton") from error

from gpucast.core.dtypes import dtype
from gpucast.core.rule import Options, resolve


class _Small:
    """A float of 16 bits or fewer. A class, because Triton lets functions name classes, but no functions of Python."""

    def __init__(self, name: Any, saturate: Any) -> None:
        kind = dtype(name, caller="gpucast.interop.triton: ")
        if kind.family != "float" or kind.bits > 16 or not kind.signed:
            raise ValueError(f"gpucast.interop.triton: {kind.name} is not a float with a sign of 16 bits or fewer")
        overflow = resolve(dtype("FLOAT"), kind, Options(saturate=bool(saturate))).overflow
        beyond = kind.inf_code if overflow == "infinity" else kind.nan_code if overflow == "nan" else kind.max_code
        #: Bits, those of the mantissa, and the bias.
        self.layout = (kind.bits, kind.mantissa_bits, kind.bias)
        #: The largest finite magnitude, what stands for numbers beyond it, NaN (-1: the zero of the other sign), and
        #: whether NaN and zero have no sign.
        self.codes = (kind.max_code, beyond, kind.nan_code if kind.has_nan else -1, not kind.has_negative_zero)


@triton.constexpr_function  # type: ignore[untyped-decorator]
def _layout(name: Any) -> Any:
    return _Small(name, True).layout


@triton.constexpr_function  # type: ignore[untyped-decorator]
def _codes(name: Any, saturate: Any) -> Any:
    return _Small(name, saturate).codes


@triton.jit  # type: ignore[untyped-decorator]
def encode(x, to: tl.constexpr, saturate: tl.constexpr = True):  # type: ignore[no-untyped-def]
    """The codes of a block of float32."""
    layout: tl.constexpr = _layout(to)
    codes: tl.constexpr = _codes(to, saturate)
    mantissa: tl.constexpr = layout[1]
    word = x.to(tl.float32).to(tl.int32, bitcast=True)
    magnitude = word & 0x7FFFFFFF
    # The number is significand * 2^(field - 150); a code counts ULPs from zero on.
    field = tl.maximum(magnitude >> 23, 1)
    significand = (magnitude & 0x7FFFFF) | tl.where(magnitude >= 0x800000, 0x800000, 0)
    wanted = field - 127 + layout[2]
    # Shifts by more than 25 give zero, as one by 25 does.
    drop = tl.minimum(23 - mantissa + tl.maximum(1 - wanted, 0), 25)
    kept = significand >> drop
    rest = significand & ((1 << drop) - 1)
    half = 1 << (drop - 1)
    kept += tl.where((rest > half) | ((rest == half) & ((kept & 1) != 0)), 1, 0)
    code = ((tl.maximum(wanted, 1) - 1) << mantissa) + kept
    code = tl.where((code > codes[0]) | (magnitude == 0x7F800000), codes[1], code)
    sign = (word >> 31) & 1
    if codes[2] < 0:
        # Nothing stands for NaN: it becomes the zero of the other sign.
        sign = tl.where(magnitude > 0x7F800000, 1 - sign, sign)
        code = tl.where(magnitude > 0x7F800000, 0, code)
    else:
        code = tl.where(magnitude > 0x7F800000, codes[2], code)
    if codes[3]:
        sign = tl.where((code == 0) | (code == codes[2]), 0, sign)
    code = code | (sign << (layout[0] - 1))
    return code.to(tl.uint16 if layout[0] == 16 else tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def decode(codes, of: tl.constexpr):  # type: ignore[no-untyped-def]
    """The float32 of a block of codes of a type."""
    layout: tl.constexpr = _layout(of)
    special: tl.constexpr = _codes(of, False)
    mantissa: tl.constexpr = layout[1]
    sign_bit: tl.constexpr = 1 << (layout[0] - 1)
    code = codes.to(tl.int32) & (2 * sign_bit - 1)
    magnitude = code & (sign_bit - 1)
    word = (magnitude << (23 - mantissa)) + ((127 - layout[2]) << 23)
    if layout[2] != 127:
        # Subnormal numbers: their fraction times the least of them, exactly.
        least: tl.constexpr = (128 - layout[2] - mantissa) << 23
        tiny = magnitude.to(tl.float32) * tl.full((), least, tl.int32).to(tl.float32, bitcast=True)
        word = tl.where(magnitude < (1 << mantissa), tiny.to(tl.int32, bitcast=True), word)
    if special[2] >= 0 and special[3]:
        # NaN stands where -0 would.
        return tl.where(code == sign_bit, 0x7FC00000, word | ((code & sign_bit) << (32 - layout[0]))).to(
            tl.float32, bitcast=True
        )
    if special[2] >= 0:
        word = tl.where(magnitude > special[0], tl.where(magnitude == special[1], 0x7F800000, 0x7FC00000), word)
        if special[1] == special[2]:
            word = tl.where(magnitude == special[2], 0x7FC00000, word)
    return (word | ((code & sign_bit) << (32 - layout[0]))).to(tl.float32, bitcast=True)
