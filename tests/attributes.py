# SPDX-License-Identifier: Apache-2.0
"""Which rules there are: every attribute value that means something, for a pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from gpucast.dtypes import DTYPES, DType
from gpucast.rule import ROUND_MODES, ROUNDINGS, Rule, resolve

NUMERIC = tuple(row for row in DTYPES if row.family != "string")
SMALL = tuple(row for row in NUMERIC if row.bits <= 16)
WIDE = tuple(row for row in NUMERIC if row.bits > 16)


def rules(src: DType, dst: DType, opsets: Iterable[int] = (28, 23)) -> list[Rule]:
    """Every distinct rule of a pair over all attribute values, at the opsets that have both types."""
    found = {}
    roundings = (None, *ROUNDINGS) if dst.family == "int" else (None,)
    wide_float = dst.family == "float" and dst.bits >= 16
    overflows = (None, "wrap", "saturate") if dst.family == "int" else (None, "saturate") if wide_float else (None,)
    grid = itertools.product((True, False), ROUND_MODES, roundings, overflows, opsets)
    for saturate, round_mode, rounding, overflow, opset in grid:
        if max(src.opset or 1, dst.opset or 1) > opset or (opset < 24 and round_mode != "up"):
            continue
        rule = resolve(
            src, dst, saturate=saturate, round_mode=round_mode, rounding=rounding, overflow=overflow, opset=opset
        )
        found[rule] = None
    return list(found)
