# SPDX-License-Identifier: Apache-2.0
"""What a code stands for, from the manifest's row of its type alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

NDArray = npt.NDArray[Any]
Row = dict[str, Any]


def codes_dtype(row: Row) -> np.dtype[Any]:
    """The unsigned NumPy type that holds a code; 2, 4 and 6 bits take one byte."""
    return np.dtype(f"uint{max(8, row['bits'])}")


def _magnitude_of_infinity(row: Row) -> int:
    return int(((1 << row["exponent_bits"]) - 1) << row["mantissa_bits"])


def is_nan(codes: NDArray, row: Row) -> NDArray:
    """Which codes are NaN, of any sign and payload."""
    sign = row["sign_bits"] << (row["bits"] - 1)
    magnitude = codes & codes.dtype.type((1 << row["bits"]) - 1 - sign)
    if row["specials"] == "ieee":
        return np.asarray(magnitude > _magnitude_of_infinity(row))
    if row["specials"] == "fnuz":
        return np.asarray(codes == sign)
    if row["specials"] in ("fn", "nan_ff"):
        return np.asarray(magnitude == (1 << row["bits"]) - 1 - sign)
    return np.zeros(codes.shape, bool)


def value(code: int, row: Row) -> int | float:
    """The number of a code, exact."""
    bits, mantissa_bits = row["bits"], row["mantissa_bits"]
    sign = code >> (bits - 1) if row["sign_bits"] else 0
    if row["family"] in ("int", "bool"):
        return int(code - (sign << bits))
    if is_nan(np.array([code], codes_dtype(row)), row)[0]:
        return math.nan
    exponent, mantissa = divmod(code & ((1 << (bits - row["sign_bits"])) - 1), 1 << mantissa_bits)
    if row["family"] == "e8m0":
        return math.ldexp(1.0, exponent - row["bias"])
    if row["specials"] == "ieee" and exponent == (1 << row["exponent_bits"]) - 1:
        return -math.inf if sign else math.inf
    significand = mantissa + (exponent > 0) * (1 << mantissa_bits)
    magnitude = math.ldexp(significand, max(exponent, 1) - row["bias"] - mantissa_bits)
    return -magnitude if sign else magnitude


def shown(code: int, row: Row) -> str:
    """Code and value as one word: ``0x7e (448.0)``."""
    return f"{code:#0{2 + -(-row['bits'] // 4)}x} ({value(code, row)!r})"
