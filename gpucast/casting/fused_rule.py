# SPDX-License-Identifier: Apache-2.0
"""Fused casts: multiplication by a number, random rounding, or the largest magnitude in the same pass.

With a number, every value becomes DOUBLE (exactly, except 64-bit integers, which are rounded once). It is multiplied by
the number, a DOUBLE, and the product is rounded once (IEEE 754, subnormals kept). Then the product is cast to the
destination as any DOUBLE is. NaN keeps its sign; infinity times zero is the positive NaN. The product of two FLOATs is
exact as a DOUBLE, so it is rounded only once, to the destination.

The largest magnitude is that of the source's values, before the multiplication, rounded to FLOAT; NaN is larger than
infinity. The number in the array counts, too: the larger code, as a 32-bit integer, stays.
"""

from __future__ import annotations

from dataclasses import replace

from gpucast.core.dtypes import DType, dtype
from gpucast.core.options import Options
from gpucast.core.rule import CastRule, resolve

_DOUBLE, _DEFAULT = dtype("DOUBLE"), Options()


def fused_rule(src: DType, dst: DType, options: Options = _DEFAULT, *, scaled: bool) -> CastRule:
    """The rule of a fused cast; `scaled`: the rule from DOUBLE to `dst`. Attributes and errors as for `resolve`."""
    rule = resolve(src, dst, options)
    return replace(resolve(_DOUBLE, dst, options), src=src) if scaled else rule


def rule_of(src: DType, dst: DType, options: Options) -> CastRule:
    """The rule of a call for one array. Errors as for `resolve`."""
    return fused_rule(src, dst, options, scaled=options.scale is not None)
