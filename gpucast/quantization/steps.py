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

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core import expression
from gpucast.core.dtypes import DType
from gpucast.core.expression import Node

NDArray = npt.NDArray[Any]

_CONSTANTS = ("largest", "tiny", "eps")
#: The functions, and how many arguments they take.
_FUNCTIONS = {"min": 2, "max": 2, "T": 1, "power": 1, "pick": 3}


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
            if not isinstance(text, str):
                raise TypeError(f"Steps: {column}={text!r} must be text, a formula")
            if text and (unknown := set(parse(text).names) - {*names, *_CONSTANTS}):
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
        if node.name not in ("multiply", "divide"):
            raise ValueError(f"Steps: code={self.code!r} must be x*f or x/f, or T of one of these")
        x, factor = node.operands
        return node.name, x, factor

    @cached_property
    def label(self) -> str:
        """The part of a kernel's name that identifies these steps."""
        return f"steps{zlib.crc32(repr(self).encode()):08x}"

    @property
    def multiplies(self) -> bool:
        """Whether elements are multiplied by `factor`; else they are divided."""
        return self._code[0] == "multiply"

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
    return expression.parse(text, _FUNCTIONS, "Steps: ")


def evaluate(formula: str | Node, values: Mapping[str, NDArray], source: DType, to_source: Any) -> NDArray:
    """The FLOAT value of a formula for FLOATs. `to_source` rounds FLOATs to the type of the array."""
    node = parse(formula) if isinstance(formula, str) else formula
    functions = {"min": np.minimum, "max": np.maximum, "power": _power, "pick": _pick, "T": to_source}
    numbers = {name: np.float32(number) for name, number in constants(source).items()}
    with np.errstate(all="ignore"):
        return np.asarray(node.evaluate({**numbers, **values}, np.float32, functions))


def _power(p: Any) -> Any:
    return (p.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)


def _pick(condition: Any, p: Any, q: Any) -> Any:
    return np.where(condition != 0, p, q)


def constants(source: DType) -> dict[str, float]:
    """The names that stand for numbers, for arrays of a type."""
    numbers = (float(np.finfo(np.float32).max), 2.0 ** (1 - source.bias), 2.0**-source.mantissa_bits)
    return dict(zip(_CONSTANTS, numbers, strict=True))
