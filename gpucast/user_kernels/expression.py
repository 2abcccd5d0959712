# SPDX-License-Identifier: Apache-2.0
"""The expressions of `gpucast.ufunc`: `gpucast.core.expression` with a few functions, for arrays of FLOAT or DOUBLE."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast.core import expression
from gpucast.core.checks import cut
from gpucast.core.dtypes import dtype
from gpucast.core.expression import Node

#: The types in which expressions are computed.
COMPUTE = (dtype("FLOAT"), dtype("DOUBLE"))
#: The functions, and the number of their arguments.
_FUNCTIONS = {"abs": 1, "sqrt": 1, "minimum": 2, "maximum": 2, "where": 3}


def _minimum(a: Any, b: Any) -> Any:
    """NaN where either is; of equal numbers the second, so that zeros have one sign everywhere."""
    return np.where((a < b) | (a != a), a, b)


def _maximum(a: Any, b: Any) -> Any:
    return np.where((a > b) | (a != a), a, b)


@dataclass(frozen=True)
class Expression:
    """A checked expression. `names` are in the order in which they first appear."""

    text: str
    names: tuple[str, ...]
    root: Node

    def evaluate(self, arrays: Sequence[Any], kind: Any) -> Any:
        """The value for NumPy arrays of one floating dtype, the compute type. NaN is positive."""
        number = np.dtype(kind).type
        values = dict(zip(self.names, arrays, strict=True))
        value = self.root.evaluate(values, number, {"minimum": _minimum, "maximum": _maximum})
        # Processors differ in the sign of NaN.
        return np.where(value != value, number(math.nan), value)

    def code(self, number: Callable[[float], str]) -> str:
        """The same as C++: calls with the names of NumPy of ``x[0]`` and so on, and numbers as `number` writes them."""

        def written(node: Node) -> str:
            if node.number is not None:
                return number(node.number)
            if not node.operands:
                return f"x[{self.names.index(node.name)}]"
            return f"{node.name}({', '.join(map(written, node.operands))})"

        return written(self.root)


def parse(text: Any, caller: str) -> Expression:
    """Read an expression. TypeError unless it is text; ValueError for an operation that is not taken."""
    if not isinstance(text, str):
        raise TypeError(f"{caller}: expression={text!r} must be a str")
    root = expression.parse(text, _FUNCTIONS, f"{caller}: expression=")
    if root.is_condition or not root.names:
        kind = "true or false" if root.names else "a number alone"
        raise ValueError(f"{caller}: expression={cut(text)} is {kind}; expected a number for every element")
    return Expression(text, root.names, root)
