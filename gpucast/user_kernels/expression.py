# SPDX-License-Identifier: Apache-2.0
"""The expressions of `gpucast.ufunc`: a few operations of Python's grammar.

Each is one that IEEE 754 rounds correctly, so that NumPy and a GPU compute the same bits. A tree is read once; NumPy
evaluates it on the host, and a kernel's text is written of it. So both mean the same.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast.core.checks import cut
from gpucast.core.dtypes import dtype

#: The types in which expressions are computed.
COMPUTE = (dtype("FLOAT"), dtype("DOUBLE"))
_BINARY = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_COMPARED = {
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
#: Those that are called, and the number of their arguments.
_CALLED = {"abs": 1, "sqrt": 1, "minimum": 2, "maximum": 2, "where": 3}
#: Those whose result is true or false, and those that take such operands.
_LOGICAL = {"logical_and", "logical_or", "logical_not"}
_CONDITIONS = {*_COMPARED.values(), *_LOGICAL}
_ALLOWED = "names, numbers, + - * /, comparisons, and, or, not, a if b else c, and " + ", ".join(_CALLED)


def _minimum(a: Any, b: Any) -> Any:
    """NaN where either is; of equal numbers the second, so that zeros have one sign everywhere."""
    return np.where((a < b) | (a != a), a, b)


def _maximum(a: Any, b: Any) -> Any:
    return np.where((a > b) | (a != a), a, b)


#: Those that NumPy does not have in the same meaning under the same name.
_NUMPY: dict[str, Callable[..., Any]] = {"minimum": _minimum, "maximum": _maximum}


@dataclass(frozen=True)
class Node:
    """An operation and its operands; "name" and "number" have none."""

    operation: str
    operands: tuple[Node, ...] = ()
    #: The place of a name, or a number.
    value: float = 0


@dataclass(frozen=True)
class Expression:
    """A checked expression. `names` are in the order in which they first appear."""

    text: str
    names: tuple[str, ...]
    root: Node

    def evaluate(self, arrays: Sequence[Any], kind: Any) -> Any:
        """The value for NumPy arrays of one floating dtype, the compute type. NaN is positive."""
        value = _evaluate(self.root, arrays, np.dtype(kind).type)
        # Processors differ in the sign of NaN.
        return np.where(value != value, np.dtype(kind).type(math.nan), value)

    def code(self, number: Callable[[float], str]) -> str:
        """The same as C++: calls with the names of NumPy of ``x[0]`` and so on, and numbers as `number` writes them."""
        return _code(self.root, number)


def parse(text: Any, caller: str) -> Expression:
    """Read an expression. TypeError unless it is text; ValueError for an operation that is not taken."""
    if not isinstance(text, str):
        raise TypeError(f"{caller}: expression={text!r} must be a str")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{caller}: expression={cut(text)} is not an expression of Python: {error}") from None
    names: dict[str, int] = {}
    try:
        root = _node(tree, names)
    except _Refused as refused:
        raise ValueError(f"{caller}: expression={cut(text)} has {refused}; expected {_ALLOWED}") from None
    except RecursionError:
        raise ValueError(f"{caller}: expression={cut(text)} is nested too deeply") from None
    if root.operation in _CONDITIONS or not names:
        what = "true or false" if names else "a number alone"
        raise ValueError(f"{caller}: expression={cut(text)} is {what}; expected a number for every element")
    return Expression(text, tuple(names), root)


class _Refused(Exception):
    """The error for a part of an expression that is not accepted."""


def _node(tree: ast.expr, names: dict[str, int]) -> Node:
    if isinstance(tree, ast.Name):
        return Node("name", value=names.setdefault(tree.id, len(names)))
    if isinstance(tree, ast.Constant) and isinstance(tree.value, (int, float)) and not isinstance(tree.value, bool):
        return Node("number", value=_number(tree.value))
    if isinstance(tree, ast.BinOp) and type(tree.op) in _BINARY:
        return _operation(_BINARY[type(tree.op)], [tree.left, tree.right], names)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, (ast.USub, ast.UAdd)):
        one = _operation("negative", [tree.operand], names)
        return one if isinstance(tree.op, ast.USub) else one.operands[0]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return _operation("logical_not", [tree.operand], names)
    if isinstance(tree, ast.BoolOp):
        name = "logical_and" if isinstance(tree.op, ast.And) else "logical_or"
        found = [_node(value, names) for value in tree.values]
        while len(found) > 1:
            found[:2] = [_checked(name, tuple(found[:2]))]
        return found[0]
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _COMPARED:
        return _operation(_COMPARED[type(tree.ops[0])], [tree.left, tree.comparators[0]], names)
    if isinstance(tree, ast.IfExp):
        return _operation("where", [tree.test, tree.body, tree.orelse], names)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        if _CALLED.get(tree.func.id) == len(tree.args):
            return _operation(tree.func.id, tree.args, names)
    try:
        raise _Refused(cut(ast.unparse(tree)))
    except (ValueError, RecursionError):
        # An integer that Python does not write, or a part that is too deep for it.
        raise _Refused(f"a part of another kind ({type(tree).__name__})") from None


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


def _operation(name: str, operands: Sequence[ast.expr], names: dict[str, int]) -> Node:
    return _checked(name, tuple(_node(operand, names) for operand in operands))


def _checked(name: str, operands: tuple[Node, ...]) -> Node:
    """The operation, where conditions stand as its operands just where it takes them."""
    for place, operand in enumerate(operands):
        wanted = name in _LOGICAL or (name == "where" and place == 0)
        if (operand.operation in _CONDITIONS) != wanted:
            raise _Refused(f"{'a number' if wanted else 'a condition'} as operand {place + 1} of {name}")
    return Node(name, operands)


def _evaluate(node: Node, arrays: Sequence[Any], kind: Any) -> Any:
    if node.operation == "name":
        return arrays[int(node.value)]
    if node.operation == "number":
        return kind(node.value)
    operands = [_evaluate(operand, arrays, kind) for operand in node.operands]
    return (_NUMPY.get(node.operation) or getattr(np, node.operation))(*operands)


def _code(node: Node, number: Callable[[float], str]) -> str:
    if node.operation == "name":
        return f"x[{int(node.value)}]"
    if node.operation == "number":
        return number(node.value)
    return f"{node.operation}({', '.join(_code(operand, number) for operand in node.operands)})"
