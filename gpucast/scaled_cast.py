# SPDX-License-Identifier: Apache-2.0
"""A cast fused with a multiplication by one number, in one pass over the array.

The rule: every value becomes DOUBLE as a cast has it (exact for all but 64-bit integers, which are rounded once), is
multiplied with the number, a DOUBLE too (rounded once, IEEE 754, subnormals kept), and the product is cast to the
destination as any DOUBLE is. NaN keeps its sign; infinity times zero is the positive NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpucast import device as devices
from gpucast import host_cast
from gpucast.dtypes import DType, dtype
from gpucast.packed import PackedArray, home
from gpucast.rule import Rule, resolve

_DOUBLE = dtype("DOUBLE")


def scaled_rule(src: DType, dst: DType, **attributes: Any) -> Rule:
    """The rule of a scaled cast: how `dst` is reached from DOUBLE. Attributes and errors as for `resolve`."""
    return replace(resolve(_DOUBLE, dst, **attributes), src=src)


def apply(x: Any, rule: Rule, scale: float) -> Any:
    """`x` (checked) times `scale`, cast as the `scaled_rule` says; on a device in one launch.

    The result is of x's kind and in its memory order, as that of a cast.
    """
    if home(x) is not None:
        devices.require("cast")
        from gpucast import device_cast

        return device_cast.apply(x, rule, scale=scale)
    wide = host_cast.apply(x, resolve(rule.src, _DOUBLE))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        product = np.multiply(wide, scale, out=np.empty_like(wide))
    nan = np.isnan(product)
    if nan.any():
        # Which NaN a multiplication gives is the processor's choice.
        product[nan] = np.copysign(np.nan, np.where(np.isnan(wide[nan]), wide[nan], 1.0))
    result = host_cast.apply(product, replace(rule, src=_DOUBLE))
    return PackedArray.pack(result) if isinstance(x, PackedArray) and rule.dst.packed else result
