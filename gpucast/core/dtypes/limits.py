# SPDX-License-Identifier: Apache-2.0
"""The limits of floating and integer types, under the attribute names of NumPy's `finfo` and `iinfo`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpucast.core.dtypes.lookup import dtype
from gpucast.core.dtypes.table import DType


@dataclass(frozen=True)
class FInfo:
    """Limits of a floating type, as exact Python floats. Attribute names follow numpy.finfo."""

    dtype: DType
    bits: int
    max: float
    #: Lowest finite value; for FLOAT8E8M0, which has no sign, 2^-127.
    min: float
    #: Distance from 1.0 to the next larger value.
    eps: float
    smallest_normal: float
    #: Equal to smallest_normal where the type has no subnormals (FLOAT8E8M0).
    smallest_subnormal: float
    #: Bits of the exponent and of the stored mantissa.
    nexp: int
    nmant: int
    has_inf: bool
    has_nan: bool


def finfo(kind: Any) -> FInfo:
    """Limits of a floating type (anything that `gpucast.dtype` takes). TypeError for other families."""
    row = dtype(kind)
    if not row.is_float:
        raise TypeError(f"finfo: {row.name} is not a floating type; see gpucast.iinfo")
    one = row.bias << row.mantissa_bits
    first_normal = 0 if row.family == "e8m0" else 1 << row.mantissa_bits
    return FInfo(
        dtype=row,
        bits=row.bits,
        max=float(row.max),
        min=float(row.min),
        eps=float(row.value(one + 1)) - 1.0,
        smallest_normal=float(row.value(first_normal)),
        smallest_subnormal=float(row.value(min(1, first_normal))),
        nexp=row.exponent_bits,
        nmant=row.mantissa_bits,
        has_inf=row.has_inf,
        has_nan=row.has_nan,
    )


@dataclass(frozen=True)
class IInfo:
    """Limits of an integer type. Attribute names follow numpy.iinfo."""

    dtype: DType
    bits: int
    min: int
    max: int


def iinfo(kind: Any) -> IInfo:
    """Limits of an integer type (anything that `gpucast.dtype` takes). TypeError for other families, BOOL included."""
    row = dtype(kind)
    if row.family != "int":
        raise TypeError(f"iinfo: {row.name} is not an integer type; see gpucast.finfo")
    return IInfo(row, row.bits, int(row.min), int(row.max))
