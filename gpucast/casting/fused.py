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

from gpucast.core.dtypes import DType, dtype
from gpucast.core.options import Options
from gpucast.core.rule import CastRule, resolve

_DOUBLE, _DEFAULT = dtype("DOUBLE"), Options()


def fused_rule(src: DType, dst: DType, options: Options = _DEFAULT, *, scaled: bool) -> CastRule:
    """The rule of a fused cast: scaled, how `dst` is reached from DOUBLE. Attributes and errors as for `resolve`."""
    rule = resolve(src, dst, options)
    return replace(resolve(_DOUBLE, dst, options), src=src) if scaled else rule


def rule_of(src: DType, dst: DType, options: Options) -> CastRule:
    """The rule that a call follows for one array. Errors as for `resolve`."""
    return fused_rule(src, dst, options, scaled=options.scale is not None)
