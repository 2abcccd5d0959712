# SPDX-License-Identifier: Apache-2.0
"""The FLOAT arithmetic of another library for scales and codes, as formulas in a row of data.

A formula has numbers, names, + - * /, parentheses and these functions. Every operation rounds once to FLOAT, in the
order in which it is written, as IEEE 754 has it: 1/448 is the reciprocal rounded to FLOAT.

- ``min(p, q)``, ``max(p, q)``
- ``T(p)``: p rounded to the type of the array, in which PyTorch computes
- ``power(p)``: the power of two at or below p
- ``pick(c, p, q)``: p where c is not 0, else q

``largest`` is the largest FLOAT, ``tiny`` the smallest normal number of the array's type, ``eps`` the distance from 1
to its next number.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType

NDArray = npt.NDArray[Any]

_CONSTANTS = ("largest", "tiny", "eps")
_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
#: The functions, and how many arguments they take.
_FUNCTIONS = {"min": 2, "max": 2, "T": 1, "power": 1, "pick": 3}


@dataclass(frozen=True)
class Node:
    """A part of a formula: a number, a name, or an operator or function with its operands."""

    name: str
    operands: tuple[Node, ...] = ()
    number: float | None = None

    @cached_property
    def names(self) -> frozenset[str]:
        """All names in it."""
        if self.number is not None:
            return frozenset()
        if not self.operands:
            return frozenset([self.name])
        return frozenset().union(*(part.names for part in self.operands))


@dataclass(frozen=True)
class Steps:
    """The formulas of a format's scales and codes, in place of the exact quotients of `Format.rule`.

    `a` is the largest magnitude of a block, `A` that of the whole array, `x` an element, `s` the scale as it is stored.
    ValueError for formulas that do not go together.
    """

    #: The formula of a scale, from a and u, before it is rounded to the type of the scales.
    scale: str
    #: The formula of a code, from x: ``x*f`` or ``x/f`` or T of one of these, with f of a, s and u.
    code: str
    #: The formula of u from A, in formats with a global scale: the number that the library passes to its kernels. A
    #: given `scale` is u.
    u: str = ""
    #: The formula of the global scale from u: the factor of codes times scales.
    global_scale: str = "u"
    #: The number in place of a scale that was rounded to 0.
    zero: str = ""

    def __post_init__(self) -> None:
        known = {"scale": "au", "code": "asux", "u": "A", "global_scale": "u", "zero": ""}
        for column, names in known.items():
            text = getattr(self, column)
            if text and (unknown := parse(text).names - {*names, *_CONSTANTS}):
                raise ValueError(
                    f"Steps: {column}={text!r} has {', '.join(sorted(unknown))}; expected {' '.join(names)}"
                )
        _, x, factor = self._code
        if x != Node("x") or "x" in factor.names:
            raise ValueError(f"Steps: code={self.code!r} must be x*f or x/f, or T of one of these")

    @property
    def _code(self) -> tuple[str, Node, Node]:
        node = parse(self.code)
        node = node.operands[0] if node.name == "T" else node
        if node.name not in ("*", "/") or len(node.operands) != 2:
            raise ValueError(f"Steps: code={self.code!r} must be x*f or x/f, or T of one of these")
        return node.name, *node.operands

    @cached_property
    def label(self) -> str:
        """The part of a kernel's name that identifies these steps."""
        return f"steps{zlib.crc32(repr(self).encode()):08x}"

    @property
    def multiplies(self) -> bool:
        """Whether elements are multiplied by `factor`; else they are divided."""
        return self._code[0] == "*"

    @property
    def factor(self) -> Node:
        """The factor in `code`."""
        return self._code[2]

    @property
    def rounds_codes(self) -> bool:
        """Whether products or quotients are rounded to the type of the array before they become codes."""
        return parse(self.code).name == "T"

    @property
    def rounds_scales(self) -> bool:
        """Whether scales are numbers of the type of the array."""
        return parse(self.scale).name == "T"

    @property
    def code_needs_amax(self) -> bool:
        """Whether the scale alone does not give the factor."""
        return "a" in self.factor.names


@lru_cache(maxsize=256)
def parse(text: str) -> Node:
    """A formula as a tree. ValueError for one that is none."""
    try:
        return _node(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError):
        raise ValueError(f"Steps: {text!r} is no formula") from None


def _node(part: ast.expr) -> Node:
    if isinstance(part, ast.Name):
        return Node(part.id)
    if (
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Name)
        and _FUNCTIONS[part.func.id] == len(part.args)
        and not part.keywords
    ):
        return Node(part.func.id, tuple(map(_node, part.args)))
    if isinstance(part, ast.BinOp):
        return Node(_OPERATORS[type(part.op)], (_node(part.left), _node(part.right)))
    value = part.value if isinstance(part, ast.Constant) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Node("number", number=float(value))
    raise KeyError


def evaluate(node: Node, values: Mapping[str, NDArray], source: DType, to_source: Any) -> NDArray:
    """The FLOAT value of a formula for FLOATs. `to_source` rounds FLOATs to the type of the array."""
    if node.number is not None:
        return np.asarray(np.float32(node.number))
    if not node.operands:
        found = constants(source).get(node.name)
        return values[node.name] if found is None else np.asarray(np.float32(found))
    p, *more = (evaluate(part, values, source, to_source) for part in node.operands)
    with np.errstate(all="ignore"):
        match node.name:
            case "+":
                return p + more[0]
            case "-":
                return p - more[0]
            case "*":
                return p * more[0]
            case "/":
                return p / more[0]
            case "min":
                return np.minimum(p, more[0])
            case "max":
                return np.maximum(p, more[0])
            case "power":
                return np.asarray((p.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32))
            case "pick":
                return np.where(p != 0, *more)
    return np.asarray(to_source(p))


def constants(source: DType) -> dict[str, float]:
    """The names that stand for numbers, for arrays of a type."""
    numbers = (float(np.finfo(np.float32).max), 2.0 ** (1 - source.bias), 2.0**-source.mantissa_bits)
    return dict(zip(_CONSTANTS, numbers, strict=True))
