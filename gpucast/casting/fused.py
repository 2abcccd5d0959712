# SPDX-License-Identifier: Apache-2.0
"""A cast and what is done in the same pass: a multiplication by one number, rounding at random, the largest magnitude.

With a number, every value becomes DOUBLE as a cast has it (exact for all but 64-bit integers, which are rounded once),
is multiplied with the number, a DOUBLE too (rounded once, IEEE 754, subnormals kept), and the product is cast to the
destination as any DOUBLE is. NaN keeps its sign; infinity times zero is the positive NaN. So the product of two FLOATs
is rounded once in all.

The largest magnitude is that of the source's values, before the multiplication, rounded to FLOAT; NaN is larger than
infinity. What is there already counts too: the larger code, as a 32-bit integer, stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucast.core.dtypes import DType, dtype
from gpucast.core.options import Options
from gpucast.core.rule import CastRule, resolve

_DOUBLE = dtype("DOUBLE")


def fused_rule(src: DType, dst: DType, *, scaled: bool, **attributes: Any) -> CastRule:
    """The rule of a fused cast: scaled, how `dst` is reached from DOUBLE. Attributes and errors as for `resolve`."""
    rule = resolve(src, dst, **attributes)
    return replace(resolve(_DOUBLE, dst, **attributes), src=src) if scaled else rule


def rule_of(options: Options, src: DType, dst: DType, caller: str) -> CastRule:
    """The rule that a cast follows for one array. Errors as for `resolve`, for the caller `caller`."""
    return fused_rule(
        src,
        dst,
        scaled=options.scale is not None,
        saturate=options.saturate,
        round_mode=options.round_mode,
        opset=options.opset,
        rounding=options.rounding,
        overflow=options.overflow,
        versions=options.versions,
        caller=caller,
    )
