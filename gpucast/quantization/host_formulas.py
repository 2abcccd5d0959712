# SPDX-License-Identifier: Apache-2.0
"""The formulas of `Steps` for the module, which evaluates them for all blocks (``kernels/host/formulas.hpp``)."""

from __future__ import annotations

import ctypes

import numpy as np

from gpucast.core.dtypes import DType, dtype
from gpucast.core.expression import Node
from gpucast.quantization import block_loops, quantize_on_host
from gpucast.quantization.formats import Format
from gpucast.quantization.steps import constants, parse

_FLOAT = dtype("FLOAT")
#: `Operation` there.
_OPERATIONS = (
    "number", "a", "s", "u", "add", "subtract", "multiply", "divide", "negative", "min", "max", "T", "power", "pick",
)  # fmt: skip
_MOST_LEVELS = 8


def steps_of(format: Format, src: DType) -> block_loops.FormulaSteps | None:
    """The steps of a format for arrays of a type; None for formulas that are longer than the module takes."""
    steps, scale = format.steps, format.scale
    if steps is None:
        return block_loops.FormulaSteps()
    found = [
        _formula(one, src)
        for one in (
            parse(steps.scale),
            steps.factor,
            parse(steps.u or "1"),
            parse(steps.global_scale if steps.u else "1"),
        )
    ]
    if None in found:
        return None
    zero = quantize_on_host.code_of_zero(format, src) if steps.zero else 0
    powers = {"round_mode": "up"} if scale.name == "FLOAT8E8M0" else {}
    stored = (
        (0, 0)
        if scale is _FLOAT
        else (quantize_on_host.loop(_FLOAT, scale, **powers), quantize_on_host.loop(scale, _FLOAT))
    )
    source = (0, 0) if src is _FLOAT else (quantize_on_host.loop(_FLOAT, src), quantize_on_host.loop(src, _FLOAT))
    return block_loops.FormulaSteps(True, *found, *stored, zero, *source)


def _formula(formula: Node, src: DType) -> block_loops.Formula | None:
    """A formula as steps of a stack; `A`, of u, is the magnitude of the one block that there is."""
    known = constants(src)
    steps: list[tuple[int, float]] = []

    def add(node: Node, level: int) -> int:
        """The highest level of the stack."""
        levels = [add(one, level + i) for i, one in enumerate(node.operands)]
        number = node.number if node.number is not None else known.get(node.name)
        name = "number" if number is not None else "a" if node.name == "A" else node.name
        steps.append((_OPERATIONS.index(name), 0.0 if number is None else float(np.float32(number))))
        return max([level + 1, *levels])

    if add(formula, 0) > _MOST_LEVELS or len(steps) > block_loops.MOST_STEPS:
        return None
    operations, numbers = zip(*steps, strict=True)
    most = block_loops.MOST_STEPS
    return block_loops.Formula(len(steps), (ctypes.c_uint32 * most)(*operations), (ctypes.c_float * most)(*numbers))
