# SPDX-License-Identifier: Apache-2.0
"""The rules of casts as ``__device__`` functions, for users' kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import STOCHASTIC, Rounding
from gpucast.core.rule import ATTRIBUTES, CastRule, Options, OverflowKeyword, RoundMode, resolve
from gpucast.kernel.cast_kernel import options
from gpucast.kernel.fused_kernel import FUSED_PARTS
from gpucast.kernel.kernel import host_section, parts_text, unit

#: How many values a function takes, by the end of its name.
WIDTHS = {"": 1, "_x2": 2, "_x4": 4}
_FLOAT = dtype("FLOAT")
#: The C++ types that hold a value of these types as such; every other type is held by its code.
_VALUES = {"FLOAT": "float", "DOUBLE": "double", "BOOL": "bool"}
_UNSIGNED = {8: "unsigned char", 16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}
_SIGNED = {8: "signed char", 16: "short", 32: "int", 64: "long long"}


def device_functions(functions: Iterable[tuple[Any, Any] | tuple[Any, Any, Mapping[str, Any]]]) -> str:
    """CUDA text with a ``__device__`` function for each rule, the rule of `cast`; and the same text for C++ compilers.

    Each item is ``(src, dst)`` or ``(src, dst, keywords)``, with the keywords `saturate`, `round_mode`, `opset`,
    `rounding` and `overflow` of `cast`. It gives three functions:

    - ``D gpucast_<src>_to_<dst>(S value)``. FLOAT, DOUBLE, BOOL and integers of 8 to 64 bits are passed as the types
      float, double, bool and integers of C++. Any other type (float16, bfloat16, float8, and types below one byte) is
      passed and returned as its code in the smallest unsigned integer that holds it; the upper bits are ignored in the
      argument and zero in the result.
    - ``gpucast_<src>_to_<dst>_x2`` and ``_x4``: two and four values at a time, by one instruction for several where the
      GPU has it. Values of 16 bits or fewer are packed as in memory, the first in the lowest bits, in the smallest
      unsigned integer: four FLOAT8E4M3FN in ``unsigned int``, two INT4 in ``unsigned char``. Wider ones are a
      ``gpucast::Vector<float, 4>``, which takes ``{a, b, c, d}``, and is read by ``.at[i]``.

    Attributes with an effect follow in the name: ``gpucast_float32_to_int8_saturate_nearest_even_x4``. With
    ``rounding="stochastic"`` the functions take ``gpucast::Random{seed, offset}`` and ``long long index``, the place of
    the (first) value in the array, and give the bits of `cast`. The function of one value also takes 32 random bits of
    your own, ``unsigned random``, instead.

    The text needs no header, takes C++17, and gives the same results with ``--use_fast_math``: it consists of integer
    arithmetic, inline PTX and tests for NaN. (The PTX of NVRTC was compared, and by hand that of nvcc 13.0.) A C++
    compiler without CUDA takes it too, so that a kernel is tested without a GPU; there a model stands for the
    instructions of ``GPUCAST_ARCH`` (900 if you do not define it), and options must not change floating-point
    arithmetic. Use only one of these texts in a program: each contains the whole prelude.

    Errors as for `cast`; ValueError for STRING.

    Example: a scale fused with the cast, in one pass over memory::

        text = gpucast.device_functions([("FLOAT", "FLOAT8E4M3FN")])
        scaled = cupy.ElementwiseKernel(
            "float32 x, float32 scale",
            "uint8 code",
            "code = gpucast_float32_to_float8e4m3fn(x * scale)",
            "scaled",
            preamble=text,
        )
        y = scaled(x, 0.5).view(ml_dtypes.float8_e4m3fn)
    """
    if isinstance(functions, str) or not isinstance(functions, Iterable):
        raise TypeError(
            f"device_functions: functions={functions!r} must be a list of (src, dst) or (src, dst, keywords)"
        )
    rules: dict[CastRule, None] = {}
    for item in functions:
        if isinstance(item, str) or not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
            raise TypeError(f"device_functions: {item!r} is not (src, dst) or (src, dst, keywords)")
        src, dst, *more = item
        keywords = more[0] if more else {}
        if not isinstance(keywords, Mapping) or not set(keywords) <= set(ATTRIBUTES):
            raise TypeError(f"device_functions: keywords={keywords!r}; expected a dict of {', '.join(ATTRIBUTES)}")
        rules[_rule(src, dst, Options(**keywords, caller="device_functions"))] = None
    return _text(rules)


def device_function(
    src: Any,
    dst: Any,
    *,
    saturate: bool = True,
    round_mode: RoundMode = "up",
    opset: int | None = None,
    rounding: Rounding | None = None,
    overflow: OverflowKeyword | None = None,
) -> str:
    """The text of `device_functions` for one rule. Attributes and errors as for `cast`; ValueError for STRING."""
    rule = _rule(src, dst, Options(saturate, round_mode, opset, rounding, overflow, caller="device_function"))
    return _text([rule])


def held_as(kind: DType, count: int = 1) -> str:
    """The C++ type of so many values of a type, as the functions take and return it."""
    if count > 1 and kind.bits <= 16:
        return next(name for bits, name in _UNSIGNED.items() if bits >= count * kind.bits)
    signed = kind.family == "int" and kind.signed and not kind.packed
    one = _VALUES.get(kind.name) or (_SIGNED if signed else _UNSIGNED)[max(kind.bits, 8)]
    return one if count == 1 else f"gpucast::Vector<{one}, {count}>"


def _rule(src: Any, dst: Any, asked: Options) -> CastRule:
    caller = asked.caller
    rule = resolve(dtype(src, caller=f"{caller}: src="), dtype(dst, caller=f"{caller}: dst="), asked)
    if "string" in (rule.src.family, rule.dst.family):
        raise ValueError(f"{caller}: {rule.src.name} to {rule.dst.name} has no kernel; STRING is cast on the host")
    return rule


def _text(rules: Iterable[CastRule]) -> str:
    rules = list(rules)
    types = (_FLOAT, *(kind for rule in rules for kind in (rule.src, rule.dst)))
    return unit(_prelude(), types, [_functions(rule) for rule in rules])


@lru_cache(maxsize=1)
def _prelude() -> str:
    return "\n".join(
        [
            "#if !defined(__CUDACC__) && !defined(GPUCAST_HOST)",
            "#ifndef GPUCAST_ARCH",
            "#define GPUCAST_ARCH 900",
            "#endif",
            host_section(),
            "#elif !defined(__CUDA_ARCH__) && !defined(GPUCAST_ARCH)",
            "// nvcc reads the text for the host, too, where these have no names.",
            "#define GPUCAST_ARCH 750",
            "#define __clz(word) __builtin_clz(word)",
            "#define __clzll(word) __builtin_clzll(word)",
            "#endif",
            parts_text((*FUSED_PARTS, "functions.cuh")),
            "#if defined(__CUDACC__) && !defined(__CUDA_ARCH__)",
            "#undef __clz",
            "#undef __clzll",
            "#endif",
        ]
    )


def _functions(rule: CastRule) -> str:
    return "".join(
        f"__device__ __forceinline__ {held_as(rule.dst, count)} {rule.function}{end}"
        f"({held_as(rule.src, count)} {'value' if count == 1 else 'values'}{parameters}) {{\n{body}}}\n"
        for end, count in WIDTHS.items()
        for parameters, body in _bodies(rule, count)
    )


def _bodies(rule: CastRule, count: int) -> list[tuple[str, str]]:
    """For each function of so many values the parameters after these, and its lines."""
    pair, stochastic = f"gpucast::{rule.src.name}, gpucast::{rule.dst.name}", rule.rounding == STOCHASTIC
    as_rule = f"gpucast::CastRule<{options(rule)}>()"
    counted = ", const gpucast::Random& random, long long index"
    if count > 1:
        arguments = f"values, random, index, {as_rule}" if stochastic else f"values, {as_rule}"
        by_float = "" if stochastic else "gpucast::FLOAT, "
        types = f"{pair}, {by_float}{count}, {held_as(rule.dst, count)}"
        lines = f"    return gpucast::cast_values<{types}>({arguments});\n"
        return [(counted if stochastic else "", lines)]
    wide = "true" if max(rule.src.bits, rule.dst.bits) > 32 else "false"
    convert = (
        f"convert_stochastic<{pair}>(code, random, " if stochastic else f"cast_value<{pair}, gpucast::FLOAT>(code, "
    )
    lines = (
        f"    typedef gpucast::WordOf<{wide}>::type Word;\n"
        f"    const Word code = {_to_code(rule.src)};\n"
        f"    const Word result = gpucast::{convert}{as_rule});\n"
        f"    return {_from_code(rule.dst)};\n"
    )
    if not stochastic:
        return [("", lines)]
    return [(", unsigned random", lines), (counted, f"    return {rule.function}(value, random.one(index));\n")]


def _to_code(src: DType) -> str:
    if src.name in ("FLOAT", "DOUBLE"):
        return "gpucast::ptx::bits(value)"
    return f"Word(({_UNSIGNED[max(src.bits, 8)]})value)" + (f" & {src.code_mask:#x}" if src.packed else "")


def _from_code(dst: DType) -> str:
    if dst.name == "FLOAT":
        return "gpucast::ptx::as_float((unsigned)result)"
    if dst.name == "DOUBLE":
        return "gpucast::ptx::as_double(result)"
    return f"({held_as(dst)})result"
