# SPDX-License-Identifier: Apache-2.0
"""Numbers as expressions of Python's grammar: the functions of `gpucast.ufunc`, and the formulas of recipes.

Text is read once, as a tree, which NumPy evaluates on the host and of which a kernel's text is written. So both mean
the same. Operations have NumPy's names; each is one that IEEE 754 rounds correctly.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpucast.core.checks import cut

_BINARY = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_COMPARED = {
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
#: Those whose result is true or false, and those that take such operands.
_LOGICAL = {"logical_and", "logical_or", "logical_not"}
_CONDITIONS = {*_COMPARED.values(), *_LOGICAL}
#: Of operations within operations: far fewer calls within calls than Python takes.
_MOST_LEVELS = 320


@dataclass(frozen=True)
class Node:
    """A number, a name, or an operation with its operands."""

    name: str
    operands: tuple[Node, ...] = ()
    number: float | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names in it, in the order in which they first appear."""
        names: dict[str, None] = {}
        waiting = [self]
        while waiting:
            node = waiting.pop()
            waiting += reversed(node.operands)
            if not node.operands and node.number is None:
                names[node.name] = None
        return tuple(names)

    @property
    def is_condition(self) -> bool:
        """Whether it is true or false."""
        return bool(self.operands) and self.name in _CONDITIONS

    def evaluate(self, values: Mapping[str, Any], kind: Any, functions: Mapping[str, Callable[..., Any]]) -> Any:
        """The value for NumPy arrays; `kind`: NumPy's type of numbers; `functions`: those that NumPy does not have in
        the same meaning under the same name."""
        if self.number is not None:
            return kind(self.number)
        if not self.operands:
            return values[self.name]
        operands = [part.evaluate(values, kind, functions) for part in self.operands]
        return (functions.get(self.name) or getattr(np, self.name))(*operands)


def parse(text: str, functions: Mapping[str, int], caller: str) -> Node:
    """Read an expression with these functions, by the number of their arguments; where "where" is one, with conditions.

    ValueError, which begins with `caller`, for anything else.
    """
    try:
        return _node(ast.parse(text.strip(), mode="eval").body, functions, _MOST_LEVELS)
    except _Refused as refused:
        conditions = "comparisons, and, or, not, a if b else c, " * ("where" in functions)
        allowed = f"names, numbers, + - * /, {conditions}and {', '.join(functions)}"
        raise ValueError(f"{caller}{cut(text)} has {refused}; expected {allowed}") from None
    except RecursionError:
        raise ValueError(f"{caller}{cut(text)} is nested too deeply") from None
    except (SyntaxError, ValueError, MemoryError) as error:
        raise ValueError(f"{caller}{cut(text)} is not an expression of Python: {error}") from None


class _Refused(Exception):
    """The error for a part of an expression that is not accepted."""


def _node(tree: ast.expr, functions: Mapping[str, int], levels: int) -> Node:
    if not levels:
        raise RecursionError
    found = _operation(tree, functions)
    if found is not None:
        name, parts = found
        operands = [_node(part, functions, levels - 1) for part in parts]
        while name in ("logical_and", "logical_or") and len(operands) > 2:
            operands[:2] = [_checked(name, operands[:2])]
        return operands[0] if name == "positive" and not operands[0].is_condition else _checked(name, operands)
    if isinstance(tree, ast.Name):
        return Node(tree.id)
    if isinstance(tree, ast.Constant) and isinstance(tree.value, (int, float)) and not isinstance(tree.value, bool):
        return Node("number", number=_number(tree.value))
    try:
        raise _Refused(cut(ast.unparse(tree)))
    except (ValueError, RecursionError):
        # An integer that Python does not write, or a part that is too deep for it.
        raise _Refused(f"a part of another kind ({type(tree).__name__})") from None


def _operation(tree: ast.expr, functions: Mapping[str, int]) -> tuple[str, Sequence[ast.expr]] | None:
    """The operation of a part and its operands; None for a name, a number, and what is not accepted."""
    match tree:
        case ast.BinOp() if type(tree.op) in _BINARY:
            return _BINARY[type(tree.op)], [tree.left, tree.right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            return "negative" if isinstance(tree.op, ast.USub) else "positive", [tree.operand]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if functions.get(name) == len(tree.args):
            return name, tree.args
    if "where" not in functions:
        return None
    match tree:
        case ast.UnaryOp(op=ast.Not()):
            return "logical_not", [tree.operand]
        case ast.BoolOp():
            return "logical_and" if isinstance(tree.op, ast.And) else "logical_or", tree.values
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            return _COMPARED[type(op)], [tree.left, tree.comparators[0]]
        case ast.IfExp():
            return "where", [tree.test, tree.body, tree.orelse]
    return None


def _number(value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number != value or math.isinf(number):
        # Python itself does not write integers of thousands of digits.
        is_long = isinstance(value, int) and value.bit_length() > 256
        shown = f"an integer of {int(value).bit_length()} bits" if is_long else f"the number {value}"
        raise _Refused(f"{shown}, which DOUBLE does not hold")
    return number


def _checked(name: str, operands: Sequence[Node]) -> Node:
    """The operation, where conditions stand as its operands just where it takes them."""
    for place, operand in enumerate(operands):
        wanted = name in _LOGICAL or (name == "where" and place == 0)
        if operand.is_condition != wanted:
            raise _Refused(f"{'a number' if wanted else 'a condition'} as operand {place + 1} of {name}")
    return Node(name, tuple(operands))
