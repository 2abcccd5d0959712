# SPDX-License-Identifier: Apache-2.0
"""The dtype table: one row per type of the ONNX Cast operator; everything else is derived.

Sources: ONNX ``TensorProto.DataType`` and the technical pages of ONNX (float8, float4, int4, int2),
IEEE 754-2019 (binary16/32/64), the OCP 8-bit and microscaling (MX) specifications.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np

Family = Literal["bool", "int", "float", "e8m0", "string"]
Specials = Literal["none", "ieee", "fn", "fnuz", "nan_ff"]

#: For each family the lengths that there are layouts for, and the special codes that its rule knows.
_LEGAL: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "bool": ((8,), ("none",)),
    "int": ((2, 4, 6, 8, 16, 32, 64), ("none",)),
    "float": ((4, 6, 8, 16, 32, 64), ("none", "ieee", "fn", "fnuz", "nan_ff")),
    "e8m0": ((8,), ("nan_ff",)),
    "string": ((0,), ("none",)),
}


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """A number type: one row of the table of types. Each type has one object, so types compare by identity."""

    #: ONNX name, e.g. ``FLOAT8E4M3FN``.
    name: str
    #: ONNX ``TensorProto.DataType`` number; None for a type that ONNX does not have.
    number: int | None
    #: Which rule rounds a value to this type.
    family: Family
    #: Bits of one element; 8 for BOOL, 0 for STRING.
    bits: int
    #: Bits of the sign: 1 for signed types, else 0.
    sign_bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    #: The codes that are not finite numbers: ``ieee`` (top exponent: infinity and NaN), ``fn`` (NaN where all magnitude
    #: bits are set), ``fnuz`` (NaN in place of -0), ``nan_ff`` (NaN where all bits are set; no sign), ``none``.
    specials: Specials
    #: First opset whose Cast takes the type; None for a type that ONNX does not have.
    opset: int | None
    #: Name of the dtype in NumPy or ml_dtypes. If neither has it, arrays on the host hold codes: see `numpy`.
    numpy_name: str
    #: Code in safetensors headers, or None.
    safetensors: str | None
    # What every cast asks is known from the start.
    #: True for every type with an exponent, FLOAT8E8M0 included.
    is_float: bool = field(init=False)
    has_nan: bool = field(init=False)
    #: True where the operator's `saturate` acts: narrow floats that have a NaN or infinity to give instead.
    saturate_applies: bool = field(init=False)
    #: True for types of less than one byte.
    packed: bool = field(init=False)

    def __post_init__(self) -> None:
        is_float = self.family in ("float", "e8m0")
        has_nan = is_float and self.specials != "none"
        object.__setattr__(self, "is_float", is_float)
        object.__setattr__(self, "has_nan", has_nan)
        object.__setattr__(self, "saturate_applies", has_nan and self.bits <= 8)
        object.__setattr__(self, "packed", 0 < self.bits < 8)
        problem = _problem(self)
        if problem is not None:
            raise ValueError(f"dtype: the row of {self.name} is wrong: {problem}")

    def __repr__(self) -> str:
        return f"gpucast.dtype({self.name!r})"

    def __str__(self) -> str:
        return self.name

    # ---- storage ----

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of one unpacked element (types below 8 bits take one byte each).

        For a type that NumPy and ml_dtypes lack it has one field, named `numpy_name`, that holds the code.
        """
        if self.family == "string":
            return np.dtype(object)
        try:
            return np.dtype(getattr(ml_dtypes, self.numpy_name, self.numpy_name))
        except TypeError:
            return self.numpy_field

    @cached_property
    def numpy_field(self) -> np.dtype[Any]:
        """The dtype of one field, named `numpy_name`, that holds the code: NumPy's own files keep such."""
        return np.dtype([(self.numpy_name, self.code_numpy)])

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """The same for NumPy 2.4 and newer: ``np.zeros(3, gpucast.dtype("BFLOAT16"))``."""
        return self.numpy

    @cached_property
    def code_numpy(self) -> np.dtype[Any]:
        """The unsigned NumPy dtype that holds one code."""
        if self.family == "string":
            raise TypeError("STRING has no codes")
        return np.dtype(f"uint{max(8, self.bits)}")

    @property
    def code_mask(self) -> int:
        return (1 << self.bits) - 1

    def nbytes(self, size: int) -> int:
        """Bytes of `size` elements in ONNX raw_data."""
        return -(-size * self.bits // 8)

    # ---- numbers ----

    @property
    def signed(self) -> bool:
        return self.sign_bits == 1

    @property
    def has_inf(self) -> bool:
        return self.specials == "ieee"

    @property
    def nan_is_signed(self) -> bool:
        return self.specials in ("ieee", "fn")

    @property
    def has_negative_zero(self) -> bool:
        return self.family == "float" and self.signed and self.specials != "fnuz"

    @property
    def sign_code(self) -> int:
        """The sign bit; 0 for unsigned types."""
        return self.sign_bits << (self.bits - 1) if self.bits else 0

    @cached_property
    def nan_code(self) -> int:
        """The quiet NaN, positive where NaN has a sign."""
        if not self.has_nan:
            raise ValueError(f"{self.name} has no NaN")
        if self.specials == "fnuz":
            return self.sign_code
        if self.specials == "ieee":
            return self.inf_code | 1 << (self.mantissa_bits - 1)
        return self.code_mask & ~self.sign_code

    @cached_property
    def inf_code(self) -> int:
        """Positive infinity."""
        if not self.has_inf:
            raise ValueError(f"{self.name} has no infinity")
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @cached_property
    def max_code(self) -> int:
        """The largest finite value."""
        magnitude = self.code_mask & ~self.sign_code
        if self.specials == "ieee":
            return self.inf_code - 1
        if self.specials in ("fn", "nan_ff"):
            return magnitude - 1
        return magnitude

    def value(self, code: int) -> int | float:
        """The number of a code: an int for integers and BOOL, an exact float for floating types."""
        if self.family == "string":
            raise TypeError("STRING has no codes")
        if not 0 <= code <= self.code_mask:
            raise ValueError(f"{self.name}: code {code:#x} is not in 0..{self.code_mask:#x}")
        if self.family == "bool":
            return int(code != 0)
        if self.family == "int":
            return code - ((code & self.sign_code) << 1)
        magnitude, sign = code & ~self.sign_code, -1.0 if code & self.sign_code else 1.0
        if magnitude > self.max_code or (self.specials == "fnuz" and code == self.nan_code):
            return sign * math.inf if self.has_inf and magnitude == self.inf_code else math.nan
        if self.bits == 64:
            # Made of its code, because arithmetic with subnormals depends on the modes of the thread's processor.
            # All numbers of other types, and the factors below, are normal as DOUBLE.
            double: float = struct.unpack("<d", struct.pack("<Q", code))[0]
            return double
        exponent, mantissa = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        if self.family == "e8m0":
            return math.ldexp(1.0, exponent - self.bias)
        if exponent == 0:
            return sign * math.ldexp(mantissa, 1 - self.bias - self.mantissa_bits)
        return sign * math.ldexp(mantissa + (1 << self.mantissa_bits), exponent - self.bias - self.mantissa_bits)

    @cached_property
    def max(self) -> int | float:
        """The largest finite value."""
        return self.value(self.max_code)

    @cached_property
    def min(self) -> int | float:
        """The lowest finite value."""
        if self.family == "int":
            return self.value(self.sign_code)
        return self.value(self.max_code | self.sign_code if self.signed else 0)


def _problem(row: DType) -> str | None:
    """Say which fields of a row contradict each other; None for a row without a fault."""
    if row.family not in _LEGAL:
        return f"family {row.family!r}; expected one of {', '.join(get_args(Family))}"
    lengths, specials = _LEGAL[row.family]
    if row.bits not in lengths:
        return f"{row.bits} bits; {row.family} types have {', '.join(map(str, lengths))}"
    if row.specials not in specials:
        return f"special codes {row.specials!r}; {row.family} types have {', '.join(specials)}"
    if row.is_float:
        sign, least = int(row.specials != "nan_ff"), int(row.specials == "ieee")
        if row.sign_bits != sign or row.exponent_bits < 1 or row.mantissa_bits < least:
            found = f"bits of sign, exponent, mantissa: {row.sign_bits}, {row.exponent_bits}, {row.mantissa_bits}"
            return f"{found}; sign {sign}, exponent 1 or more, mantissa {least} or more"
        if row.sign_bits + row.exponent_bits + row.mantissa_bits != row.bits:
            fields = f"{row.sign_bits} + {row.exponent_bits} + {row.mantissa_bits}"
            return f"{fields} bits of sign, exponent and mantissa are not the {row.bits} bits of the type"
        if row.bits < 64 and not (row.bias + row.mantissa_bits <= 1023 and (1 << row.exponent_bits) - row.bias <= 1024):
            return f"with a bias of {row.bias} some of its numbers are not normal numbers of DOUBLE"
    elif row.sign_bits not in ((0, 1) if row.family == "int" else (0,)):
        return f"{row.sign_bits} sign bits"
    elif row.exponent_bits or row.mantissa_bits or row.bias:
        return f"{row.family} types have no exponent, mantissa or bias"
    for name, number in (("ONNX number", row.number), ("opset", row.opset)):
        if number is not None and number < 1:
            return f"{name} {number}; expected 1 or more, or none"
    if row.family != "string" and row.numpy.itemsize != row.code_numpy.itemsize:
        return f"{row.numpy_name} has {8 * row.numpy.itemsize} bits in NumPy; expected {8 * row.code_numpy.itemsize}"
    return None


def _table(text: str) -> tuple[DType, ...]:
    return tuple(map(_row, text.strip().splitlines()))


def _row(line: str) -> DType:
    fields = line.split()
    if len(fields) != 12:
        raise ValueError(f"dtype: a row has 12 columns, and this one {len(fields)}: {line.strip()!r}")
    name, onnx, family, *counts, specials, opset, numpy_name, safetensors = (
        None if field == "-" else field for field in fields
    )
    try:
        number, first = (None if field is None else int(field) for field in (onnx, opset))
        bits, sign, exponent, mantissa, bias = (int(field or 0) for field in counts)
    except ValueError:
        raise ValueError(f"dtype: a number was expected in the row {line.strip()!r}") from None
    specials = specials or "none"
    return DType(name, number, family, bits, sign, exponent, mantissa, bias, specials, first, numpy_name, safetensors)  # type: ignore[arg-type]


#: The types in the order in which Cast took them in, then by ONNX number. "-" is none, in any column but the first.
#: Columns: ONNX name, number, family, bits, sign / exponent / mantissa bits, bias, specials, first opset, NumPy name,
#: safetensors code.
DTYPES: tuple[DType, ...] = _table("""
    FLOAT            1  float   32  1   8  23   127  ieee     1  float32          F32
    UINT8            2  int      8  0   -   -     -  -        1  uint8            U8
    INT8             3  int      8  1   -   -     -  -        1  int8             I8
    UINT16           4  int     16  0   -   -     -  -        1  uint16           U16
    INT16            5  int     16  1   -   -     -  -        1  int16            I16
    INT32            6  int     32  1   -   -     -  -        1  int32            I32
    INT64            7  int     64  1   -   -     -  -        1  int64            I64
    BOOL             9  bool     8  0   -   -     -  -        1  bool             BOOL
    FLOAT16         10  float   16  1   5  10    15  ieee     1  float16          F16
    DOUBLE          11  float   64  1  11  52  1023  ieee     1  float64          F64
    UINT32          12  int     32  0   -   -     -  -        1  uint32           U32
    UINT64          13  int     64  0   -   -     -  -        1  uint64           U64
    STRING           8  string   -  -   -   -     -  -        9  object           -
    BFLOAT16        16  float   16  1   8   7   127  ieee    13  bfloat16         BF16
    FLOAT8E4M3FN    17  float    8  1   4   3     7  fn      19  float8_e4m3fn    F8_E4M3
    FLOAT8E4M3FNUZ  18  float    8  1   4   3     8  fnuz    19  float8_e4m3fnuz  F8_E4M3FNUZ
    FLOAT8E5M2      19  float    8  1   5   2    15  ieee    19  float8_e5m2      F8_E5M2
    FLOAT8E5M2FNUZ  20  float    8  1   5   2    16  fnuz    19  float8_e5m2fnuz  F8_E5M2FNUZ
    UINT4           21  int      4  0   -   -     -  -       21  uint4            -
    INT4            22  int      4  1   -   -     -  -       21  int4             -
    FLOAT4E2M1      23  float    4  1   2   1     1  -       23  float4_e2m1fn    F4
    FLOAT8E8M0      24  e8m0     8  0   8   0   127  nan_ff  24  float8_e8m0fnu   F8_E8M0
    UINT2           25  int      2  0   -   -     -  -       25  uint2            -
    INT2            26  int      2  1   -   -     -  -       25  int2             -
    FLOAT6E2M3      27  float    6  1   2   3     1  -       28  float6_e2m3fn    F6_E2M3
    FLOAT6E3M2      28  float    6  1   3   2     3  -       28  float6_e3m2fn    F6_E3M2
    FLOAT8UE5M3      -  float    8  0   5   3    15  nan_ff   -  float8_ue5m3     -
""")
