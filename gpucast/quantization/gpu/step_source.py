# SPDX-License-Identifier: Apache-2.0
"""The formulas of a format with steps as CUDA text: functions of the struct of the format."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.core.dtypes import DType
from gpucast.core.formats import Format
from gpucast.core.steps import Node, constants, evaluate, parse

_CALLS = {"+": "ptx::add_rn", "*": "ptx::mul_rn", "/": "ptx::div_rn", "min": "smaller", "max": "larger"}
_X, _F, _S = Node("x"), Node("f"), Node("s")
#: The reciprocal of a scale of FLOAT8E8M0, by its exponent; that of 2^127 is subnormal.
_INVERSE = (
    "static GPUCAST_INLINE float inverse(float s) "
    "{ const u32 p = 0x7f000000 - (ptx::bits(s) & 0xff800000); return ptx::as_float(p ? p : 0x400000); }"
)


def step_functions(format: Format, source: DType) -> list[str]:
    """The lines of the struct that find the scales and codes of arrays of a type."""
    steps = format.steps
    if steps is None:
        return ["enum : bool { by_steps = 0, only_multiplies = 1, power_factor = 1 };"]
    step = Node("*" if steps.multiplies else "/", (_X, _F))
    rounds = steps.rounds_codes and source.bits < 32
    of_powers = format.scale.family == "e8m0"
    # Powers of two that FLOAT8E8M0 holds, and numbers from 1 to 2 divided by them, are finite and not 0.
    numerator = steps.factor.operands[0].number if _divides_by_s(steps.factor) else None
    safe = of_powers and (steps.factor == _S or (numerator is not None and 1 <= numerator < 2))
    # The code of a scale that replaces zero.
    zero = 0
    if steps.zero:
        zero = int(_constant(parse(steps.zero), source).astype(format.scale.numpy).view(format.scale.code_numpy))
    return [
        f"enum : bool {{ by_steps = 1, keeps_amax = {steps.code_needs_amax:d}, has_zero = {bool(steps.zero):d} }};",
        f"enum : bool {{ only_multiplies = {steps.multiplies and not rounds:d}, safe_factor = {safe:d} }};",
        f"enum : bool {{ power_factor = {of_powers and parse(steps.code) == parse('x*(1/s)'):d} }};",
        f"static GPUCAST_CONSTANT u32 zero_code() {{ return {zero:#x}; }}",
        f"static GPUCAST_INLINE float rounded(float p) {{ return {_rounded(source)}; }}",
        "static GPUCAST_INLINE float power(float p) { return ptx::as_float(ptx::bits(p) & 0xff800000); }",
        _function("step_scale", "au", parse(steps.scale), source),
        _INVERSE,
        _function("step_factor", "asu", _by_inverse(steps.factor) if of_powers else steps.factor, source),
        _function("step", "xf", Node("T", (step,)) if rounds else step, source),
        _function("step_u", "A", parse(steps.u or "A"), source),
        _function("step_global", "u", parse(steps.global_scale), source),
    ]


def _divides_by_s(node: Node) -> bool:
    return node.name == "/" and node.operands[1] == _S


def _by_inverse(node: Node) -> Node:
    """A formula whose quotients by s, a power of two, are products."""
    if not _divides_by_s(node):
        return node
    inverse = Node("inverse", (_S,))
    return inverse if node.operands[0].number == 1 else Node("*", (node.operands[0], inverse))


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
    if not node.names - constants(source).keys():
        return f"ptx::as_float({int(_constant(node, source).view(np.uint32)):#x})"
    if not node.operands:
        return node.name
    operands = [_text(part, source) for part in node.operands]
    match node.name:
        case "-":
            return f"ptx::add_rn({operands[0]}, ptx::neg({operands[1]}))"
        case "pick":
            return f"({operands[0]} != 0 ? {operands[1]} : {operands[2]})"
        case "T":
            return f"rounded({operands[0]})"
    return f"{_CALLS.get(node.name, node.name)}({', '.join(operands)})"


def _constant(node: Node, source: DType) -> Any:
    """The FLOAT value of a formula without names."""
    return np.float32(evaluate(node, {}, source, lambda p: p.astype(source.numpy).astype(np.float32)))
