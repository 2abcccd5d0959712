# SPDX-License-Identifier: Apache-2.0
"""The formulas of a format with steps as CUDA text: functions of the struct of the format."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpucast.core.dtypes import DType
from gpucast.core.expression import Node
from gpucast.quantization.formats import Format
from gpucast.quantization.steps import constants, evaluate, parse

_CALLS = {
    "add": "ptx::add_rn", "multiply": "ptx::mul_rn", "divide": "ptx::div_rn", "negative": "ptx::neg", "min": "smaller",
    "max": "larger", "T": "rounded",
}  # fmt: skip
_X, _F, _A = Node("x"), Node("f"), Node("a")
#: Both powers of two: the smallest normal FLOAT, and the largest number of FLOAT8E8M0.
_SMALLEST, _LARGEST = np.float32(2.0**-126), np.float32(2.0**127)


def step_functions(format: Format, source: DType) -> list[str]:
    """The lines of the struct that find the scales and codes of arrays of a type."""
    steps, of_powers = format.steps, format.scale.family == "e8m0"
    if steps is None:
        plain = "enum : bool { by_steps = 0, divides = 0, rounds = 0 };"
        return [plain, *_over_power(of_powers, 1, 0)]
    step = Node("multiply" if steps.multiplies else "divide", (_X, _F))
    rounds = steps.rounds_codes and source.bits < 32
    # The code of a scale that replaces zero, which FLOAT8E8M0 does not have.
    zero, has_zero = 0, bool(steps.zero) and not of_powers
    if has_zero:
        zero = int(_constant(parse(steps.zero), source).astype(format.scale.numpy).view(format.scale.code_numpy))
    scale = parse(steps.scale)
    may_be_nan = format.global_scale or not _is_number(scale, source)
    return [
        f"enum : bool {{ by_steps = 1, keeps_amax = {steps.code_needs_amax:d}, has_zero = {has_zero:d} }};",
        f"enum : bool {{ divides = {not steps.multiplies:d}, rounds = {rounds:d}, may_be_nan = {may_be_nan:d} }};",
        f"typedef {source.name} source;",
        *_over_power(*_over_s(steps.factor) if of_powers else _OTHER),
        f"static GPUCAST_CONSTANT u32 zero_code() {{ return {zero:#x}; }}",
        f"static GPUCAST_INLINE float rounded(float p) {{ return {_rounded(source)}; }}",
        "static GPUCAST_INLINE float power(float p) { return ptx::as_float(ptx::bits(p) & 0xff800000); }",
        _function("step_scale", "au", scale, source),
        *_power_scale(format, source),
        _function("step_factor", "asu", steps.factor, source),
        _function("step", "xf", Node("T", (step,)) if rounds else step, source),
        _function("step_u", "A", parse(steps.u or "A"), source),
        _function("step_global", "u", parse(steps.global_scale), source),
    ]


def _is_number(node: Node, source: DType) -> bool:
    """Whether a formula of a finite magnitude alone is never NaN, as far as its form tells: zero times an infinite
    number, their quotient, or a difference of two infinite ones, needs two parts that are not constant."""
    if node == _A:
        return True
    if set(node.names).issubset(constants(source)):
        return math.isfinite(_constant(node, source))
    parts = node.operands
    if node.name in ("multiply", "divide"):
        given = [_constant(part, source) for part in parts if set(part.names).issubset(constants(source))]
        if not any(number and math.isfinite(number) for number in given):
            return False
    elif node.name == "subtract" or (node.name == "add" and _may_be_negative(node)):
        return False
    return bool(parts) and all(_is_number(part, source) for part in parts)


def _may_be_negative(node: Node) -> bool:
    signed = node.name in ("negative", "subtract") or (node.number is not None and node.number < 0)
    return signed or any(map(_may_be_negative, node.operands))


#: A factor that is none of `_over_s`.
_OTHER = (False, 1, 0)


def _over_s(factor: Node) -> tuple[bool, float, int]:
    """Whether a factor is a number from 1 to 2 over s or over max(s, the smallest normal FLOAT); the number, and the
    least code of s that it tells apart."""
    match factor:
        case Node("divide", (Node(number=float(number)), Node("s"))):
            least = 0
        case Node("divide", (Node(number=float(number)), Node("max", (Node("s"), Node(number=float(low)))))) if (
            np.float32(low) == _SMALLEST
        ):
            least = 1
        case _:
            return _OTHER
    return (True, number, least) if 1 <= np.float32(number) < 2 else _OTHER


def _over_power(holds: bool, number: float, least: int) -> list[str]:
    """The result of `_over_s`, as C++."""
    mantissa, last = (int(n.view(np.uint32)) for n in (np.float32(number), np.float32(number) / _LARGEST))
    return [
        f"enum : bool {{ over_power = {holds:d} }};",
        f"enum : u32 {{ factor_mantissa = {mantissa & 0x7FFFFF:#x}, last_factor = {last:#x}, least_code = {least} }};",
    ]


def _power_scale(format: Format, source: DType) -> list[str]:
    """Scales of FLOAT8E8M0 that are power(a) or power(a+power(a)*p), times a power of two, or max(a, number) over the
    divisor of the format, by exponents alone."""
    steps = format.steps
    assert steps is not None
    match parse(steps.scale):
        case Node("divide", (Node("max", (Node("a"), Node(number=float(low)))) as of, Node(number=float(by)))) if (
            format.scale.family == "e8m0" and not steps.zero and by == format.divisor and low / by > _SMALLEST
        ):
            # A quotient is rounded to a power of two only where it is one: for a divisor m from 1 to 2 the others are
            # 2^-23 / m or more away, which is more than half an ULP.
            return [
                "enum : bool { power_scale = 1, may_overflow = 0 };",
                "enum : u32 { power_carry = carry };",
                "enum : int { power_exponent = exponent };",
                _function("step_power", "a", of, source),
            ]
        case Node("multiply", (Node("power", (of,)), by)) if format.scale.family == "e8m0" and not (
            steps.zero or by.names
        ):
            mantissa, exponent = math.frexp(_constant(by, source))
            if mantissa == 0.5 and exponent <= 1 and (of == _A or _is_rounded_up(of)):
                return [
                    f"enum : bool {{ power_scale = 1, may_overflow = {of != _A:d} }};",
                    "enum : u32 { power_carry = 0 };",
                    f"enum : int {{ power_exponent = {1 - exponent} }};",
                    _function("step_power", "a", of, source),
                ]
    return ["enum : bool { power_scale = 0 };"]


def _is_rounded_up(node: Node) -> bool:
    match node:
        case Node("add", (Node("a"), Node("multiply", (Node("power", (Node("a"),)), Node(number=float(part)))))):
            return part <= 1
    return False


def _rounded(source: DType) -> str:
    """The FLOAT p rounded to the type of the array."""
    if source.bits >= 32:
        return "p"
    narrow = f"cast_code<FLOAT, {source.name}>(ptx::bits(p), ToWide())"
    return f"ptx::as_float(u32(cast_code<{source.name}, FLOAT>(u32({narrow}), ToWide())))"


def _function(name: str, parameters: str, formula: Node, source: DType) -> str:
    # A parameter that a formula does not have has no name, because compilers warn of it.
    named = ", ".join(f"float {one}" if one in formula.names else "float" for one in parameters)
    return f"static GPUCAST_INLINE float {name}({named}) {{ return {_text(formula, source)}; }}"


def _text(node: Node, source: DType) -> str:
    if not set(node.names) - constants(source).keys():
        return f"ptx::as_float({int(_constant(node, source).view(np.uint32)):#x})"
    if not node.operands:
        return node.name
    operands = [_text(part, source) for part in node.operands]
    match node.name:
        case "subtract":
            return f"ptx::add_rn({operands[0]}, ptx::neg({operands[1]}))"
        case "pick":
            return f"({operands[0]} != 0 ? {operands[1]} : {operands[2]})"
    return f"{_CALLS.get(node.name, node.name)}({', '.join(operands)})"


def _constant(node: Node, source: DType) -> Any:
    """The FLOAT value of a formula without names."""
    return np.float32(evaluate(node, {}, source, lambda p: p.astype(source.numpy).astype(np.float32)))
