# SPDX-License-Identifier: Apache-2.0
"""The rule of a cast as a ``__device__`` function, for kernels of the user's own."""

from __future__ import annotations

from typing import Any

from gpucast.codegen.cast_kernel import join, kernel_file, kernel_name, options, prelude, structs
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import DEFAULT_OPSET, STOCHASTIC, Options, OverflowKeyword, Rounding, RoundMode, resolve

#: The C++ types that hold a value of these types as such; every other type is held by its code.
_VALUES = {"FLOAT": "float", "DOUBLE": "double", "BOOL": "bool"}
_UNSIGNED = {8: "unsigned char", 16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}
_SIGNED = {8: "signed char", 16: "short", 32: "int", 64: "long long"}


def device_function(
    src: Any,
    dst: Any,
    *,
    saturate: bool = True,
    round_mode: RoundMode = "up",
    opset: int = DEFAULT_OPSET,
    rounding: Rounding | None = None,
    overflow: OverflowKeyword | None = None,
) -> str:
    """CUDA text that defines ``__device__ D gpucast_<src>_to_<dst>(S value)``, with the same rule as `cast`.

    FLOAT, DOUBLE, BOOL and integers of 8 to 64 bits are passed as the C++ types float, double, bool and integers. Any
    other type (float16, bfloat16, float8, and types below one byte) is passed and returned as its code in the smallest
    unsigned integer that holds it; the upper bits are ignored in the argument and zero in the result. The text needs no
    header, takes C++17, and gives the same results with any compiler flags, fast math included: it consists of integer
    arithmetic and inline PTX that no flag changes. Use only one of these texts in a program: each contains the whole
    prelude.

    With ``rounding="stochastic"`` the function takes 32 random bits as a second argument, ``unsigned random``. The bits
    that `cast` uses are ``gpucast::Random{seed, offset}.one(index)``, which the text defines too.

    Attributes and errors as for `cast`; ValueError for STRING.

    Example: a scale fused with the cast, in one pass over memory::

        text = gpucast.device_function("FLOAT", "FLOAT8E4M3FN")
        scaled = cupy.ElementwiseKernel(
            "float32 x, float32 scale", "uint8 code",
            "code = gpucast_float32_to_float8e4m3fn(x * scale)", "scaled", preamble=text)
        y = scaled(x, 0.5).view(ml_dtypes.float8_e4m3fn)
    """
    rule = resolve(
        dtype(src, caller="device_function: src="),
        dtype(dst, caller="device_function: dst="),
        Options(saturate, round_mode, opset, rounding, overflow, caller="device_function"),
    )
    if "string" in (rule.src.family, rule.dst.family):
        raise ValueError(
            f"device_function: {rule.src.name} to {rule.dst.name} has no kernel; STRING is cast on the host"
        )
    name, one, other = kernel_name(rule), rule.src.name, rule.dst.name
    wide = "true" if max(rule.src.bits, rule.dst.bits) > 32 else "false"
    files, parameter, convert, argument = [prelude()], "", "cast_code", ""
    if rule.rounding == STOCHASTIC:
        files += map(kernel_file, ("philox.cuh", "stochastic.cuh"))
        parameter, convert, argument = ", unsigned random", "convert_stochastic", " random,"
    function = f"""
__device__ __forceinline__ {_type(rule.dst)} {name}({_type(rule.src)} value{parameter}) {{
    typedef gpucast::WordOf<{wide}>::type Word;
    const Word code = {_to_code(rule.src)};
    const gpucast::CastRule<{options(rule)}> rule = {{}};
    const Word result = gpucast::{convert}<gpucast::{one}, gpucast::{other}>(code,{argument} rule);
    return {_from_code(rule.dst)};
}}
"""
    return join("\n".join(files), dict(structs(rule.src, rule.dst)), [function])


def _type(kind: DType) -> str:
    if kind.name in _VALUES:
        return _VALUES[kind.name]
    signed = kind.family == "int" and kind.signed and not kind.packed
    return (_SIGNED if signed else _UNSIGNED)[max(kind.bits, 8)]


def _to_code(src: DType) -> str:
    if src.name == "FLOAT":
        return "__float_as_uint(value)"
    if src.name == "DOUBLE":
        return "Word(__double_as_longlong(value))"
    return f"Word(({_UNSIGNED[max(src.bits, 8)]})value)" + (f" & {src.code_mask:#x}" if src.packed else "")


def _from_code(dst: DType) -> str:
    if dst.name == "FLOAT":
        return "__uint_as_float((unsigned)result)"
    if dst.name == "DOUBLE":
        return "__longlong_as_double((long long)result)"
    return f"({_type(dst)})result"
