# SPDX-License-Identifier: Apache-2.0
"""The dtype table: one row per type of the ONNX Cast operator; everything else is derived.

Sources: ONNX ``TensorProto.DataType`` and the technical pages of ONNX (float8, float4, int4, int2),
IEEE 754-2019 (binary16/32/64), the OCP 8-bit and microscaling (MX) specifications.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import ml_dtypes
import numpy as np

Family = Literal["bool", "int", "float", "e8m0", "string"]
Specials = Literal["none", "ieee", "fn", "fnuz", "nan_ff"]

__all__ = ["DTYPES", "DType", "FInfo", "IInfo", "dtype", "finfo", "iinfo"]


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """One row of the table. Rows are compared by identity: there is one object per type."""

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
    #: Which codes are no finite numbers: ``ieee`` (top exponent: infinity and NaN), ``fn`` (NaN where all magnitude
    #: bits are set), ``fnuz`` (NaN in place of -0), ``nan_ff`` (all bits set, unsigned), ``none``.
    specials: Specials
    #: First opset whose Cast takes the type; None for a type that ONNX does not have.
    opset: int | None
    #: Name of the NumPy or ml_dtypes dtype that carries it on the host.
    numpy_name: str
    #: Code in safetensors headers, or None.
    safetensors: str | None

    def __repr__(self) -> str:
        return f"gpucast.dtype({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _row, (self.name,)

    # ---- storage ----

    @property
    def packed(self) -> bool:
        """True for types of less than one byte."""
        return 0 < self.bits < 8

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of one unpacked element (types below 8 bits take one byte each)."""
        if self.family == "string":
            return np.dtype(object)
        return np.dtype(getattr(ml_dtypes, self.numpy_name, self.numpy_name))

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """As `numpy`, where NumPy (2.4 and newer) looks for it: ``np.zeros(3, gpucast.dtype("BFLOAT16"))``."""
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
    def is_float(self) -> bool:
        """True for every type with an exponent, FLOAT8E8M0 included."""
        return self.family in ("float", "e8m0")

    @property
    def has_inf(self) -> bool:
        return self.specials == "ieee"

    @property
    def has_nan(self) -> bool:
        return self.is_float and self.specials != "none"

    @property
    def nan_is_signed(self) -> bool:
        return self.specials in ("ieee", "fn")

    @property
    def has_negative_zero(self) -> bool:
        return self.family == "float" and self.specials != "fnuz"

    @property
    def saturate_applies(self) -> bool:
        """True where the operator's `saturate` acts: narrow floats that have a NaN or infinity to give instead."""
        return self.has_nan and self.bits <= 8

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
        """The number that a code stands for: int for integers and BOOL, float (exact) for floating types."""
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
        return self.value(0 if self.family in ("bool", "e8m0") else self.max_code | self.sign_code)


def _table(text: str) -> tuple[DType, ...]:
    def number(field: str) -> int:
        return 0 if field == "-" else int(field)

    rows = []
    for line in text.strip().splitlines():
        name, onnx, family, *counts, specials, opset, numpy_name, safetensors = line.split()
        bits, sign, exponent, mantissa, bias = map(number, counts)
        specials = "none" if specials == "-" else specials
        code = None if safetensors == "-" else safetensors
        rows.append(
            DType(name, int(onnx), family, bits, sign, exponent, mantissa, bias, specials, int(opset), numpy_name, code)  # type: ignore[arg-type]
        )
    return tuple(rows)


#: The 26 types in the order in which Cast took them in, then by ONNX number.
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
""")

# One- and two-character codes mean other types to NumPy than to people who write "i4" for a 4-bit integer.
_NUMPY_CODE = re.compile(r"[<>=|]?[A-Za-z?][0-9]{0,2}")

#: Short forms, taken in any case.
_SHORT_FORMS = {
    "half": "FLOAT16",
    "fp16": "FLOAT16",
    "fp32": "FLOAT",
    "fp64": "DOUBLE",
    "short": "INT16",
    "str": "STRING",
}
#: Names that are taken with the library's prefix alone: without it they are NumPy's too, for other types.
_WITH_PREFIX = {"torch.int": "INT32", "torch.long": "INT64"}

#: Texts that two worlds read differently, whatever the platform's NumPy knows of them: sizes in bytes to NumPy and in
#: bits to everybody else; text of so many characters to NumPy and unsigned integers to safetensors.
_TWO_FACED = re.compile(r"[iu][1248]|f(2|4|8|16)|U[0-9]+")

_FAMILY_NAME = re.compile(r"(?:(?:fp|float)([468])_?)?(?:e([0-9])m([0-9]))?")


def _columns_of(name: str) -> dict[str, int] | None:
    """The bits that a text for several types gives: "fp8" {"bits": 8}, "e4m3" those of exponent and mantissa.

    None for a text that gives none.
    """
    found = _FAMILY_NAME.fullmatch(name.lower())
    if found is None:
        return None
    columns = ("bits", "exponent_bits", "mantissa_bits")
    given = {column: int(text) for column, text in zip(columns, found.groups(), strict=True) if text is not None}
    return given or None


#: The classes of other libraries' dtypes, as (module, name); the str of such a dtype is "module.name of the type".
#: Filled where libraries are registered.
FOREIGN: set[tuple[str, str]] = set()


def is_foreign(kind: type) -> bool:
    """Whether a class is that of a registered library's dtypes."""
    return (kind.__module__, kind.__name__) in FOREIGN


class Lookup:
    """``gpucast.dtype(anything) -> DType``: find the row that `anything` names.

    Taken, text in any case: a DType; an ONNX name ("FLOAT16", "float8e4m3fn"; "float" is ONNX's FLOAT) or number; a
    name of NumPy, ml_dtypes or PyTorch ("float32", "float8_e4m3fn", "torch.bfloat16"); a safetensors code ("BF16",
    "F8_E4M3"); a short form ("bf16", "fp16", "half", "f32"); NumPy's code with a byte order ("<f4"); a dtype or scalar
    type of NumPy, ml_dtypes, CuPy or PyTorch; ``bool``; ``str`` and NumPy's string dtypes for STRING.

    Refused with both readings named: text that two worlds read differently (NumPy's codes "i4", "f4" and "f16",
    safetensors' "U8"), the builtins float and int, and bool instances. A family ("fp8", "e4m3") is refused with its
    members. Complex types are refused by name: Cast never takes them.

    Raises TypeError for anything that names no type; for a typo it names the nearest one.
    """

    def __init__(self, rows: tuple[DType, ...]) -> None:
        #: In lower case, but for codes of safetensors that mean another type in lower case.
        self._names: dict[str, DType] = {}
        self._numbers: dict[int, DType] = {}
        # Rows of the host dtypes by NumPy's own name; STRING is found by kind instead.
        self._numpy: dict[str, DType] = {}
        for row in rows:
            self._add(row)

    def _keys(self, row: DType) -> Iterator[tuple[dict[Any, DType], Any]]:
        yield self._names, row.name.lower()
        if row.number is not None:
            yield self._numbers, row.number
        if row.family != "string":
            yield self._names, row.numpy_name
            yield self._numpy, row.numpy_name
        codes = [] if row.safetensors is None else [row.safetensors.lower(), row.safetensors]
        yield from ((self._names, code) for code in codes if not _TWO_FACED.fullmatch(code))
        for short, name in (_SHORT_FORMS | _WITH_PREFIX).items():
            if name == row.name:
                yield self._names, short

    def _add(self, row: DType) -> None:
        for table, key in self._keys(row):
            if table.setdefault(key, row) is not row:
                raise ValueError(f"dtype: {key!r} is already taken by {table[key].name}")

    @contextlib.contextmanager
    def registered(self, *rows: DType) -> Iterator[None]:
        """Take further rows in for the length of a ``with`` block."""
        taken = []
        try:
            for row in rows:
                self._add(row)
                taken.append(row)
            yield
        finally:
            for row in taken:
                for table, key in self._keys(row):
                    table.pop(key, None)

    def __call__(self, anything: Any, *, caller: str = "dtype: ") -> DType:
        """The row; `caller` begins the message of the TypeError, for callers with a parameter name to give."""
        try:
            return self._find(anything)
        except _Refused as refused:
            raise TypeError(caller + str(refused)) from None

    def names(self, row: DType) -> list[str]:
        """The texts that are taken for a row: in any case where they are in lower case, else as they are."""
        found = [name for name, named in self._names.items() if named is row]
        return [name for name in found if name.islower() or name.lower() not in found]

    def from_safetensors(self, code: str) -> DType:
        """The row of a safetensors header code such as "BF16" or "F8_E4M3"; TypeError for any other text."""
        for row in dict.fromkeys(self._names.values()):
            if row.safetensors is not None and row.safetensors == code:
                return row
        codes = ", ".join(sorted(row.safetensors for row in DTYPES if row.safetensors))
        raise TypeError(f"dtype: {code!r} is not a safetensors dtype that Cast takes; expected one of {codes}")

    def _find(self, anything: Any) -> DType:
        if isinstance(anything, DType):
            return anything
        if isinstance(anything, str):
            return self._from_name(anything)
        if isinstance(anything, np.dtype):
            return self._from_numpy(anything)
        if isinstance(anything, (bool, np.bool_)):
            raise _ambiguous(anything, "the boolean value", "as ONNX number 1 (FLOAT) or 0 (UNDEFINED)")
        if isinstance(anything, type):
            return self._from_type(anything)
        if is_foreign(type(anything)):
            return self._from_name(str(anything))
        try:
            return self._numbers[operator.index(anything)]
        except (TypeError, KeyError):
            raise self._unknown(anything) from None

    def _from_name(self, name: str) -> DType:
        row = self._names.get(name)
        if row is None and not _TWO_FACED.fullmatch(name):
            row = self._names.get(name.lower())
        if row is not None:
            return row
        if name.lower().startswith("complex"):
            raise _complex(name)
        for prefix in (f"{module}." for module, _ in FOREIGN):
            if name.lower().startswith(prefix):
                return self._from_name(name[len(prefix) :].removesuffix("_x2"))
        if name.lower() in ("int", "uint", "long", "ulong"):
            raise _ambiguous(name, f"NumPy's {np.dtype(name.lower()).name}", "as a type of another length elsewhere")
        if _TWO_FACED.fullmatch(name) or _TWO_FACED.fullmatch(name.lower()):
            raise _two_faced(name)
        if _NUMPY_CODE.fullmatch(name):
            with contextlib.suppress(TypeError):
                found = np.dtype(name)
                if name[0] in "<>=|":
                    return self._from_numpy(found, name)
                raise _ambiguous(name, f"NumPy's code for {found.name}", "as a short form of some other type")
        raise self._family(name) or self._unknown(name)

    def _family(self, name: str) -> _Refused | None:
        """The refusal of a text for several types, with these; None for any other text."""
        given = _columns_of(name)
        if given is None:
            return None
        rows = dict.fromkeys(row for row in self._names.values() if row.is_float)
        members = [row.name for row in rows if all(getattr(row, column) == n for column, n in given.items())]
        if not members:
            return None
        return _Refused(f"{name!r} is a family of types; write one of them: {', '.join(members)}")

    def _unknown(self, asked: object) -> _Refused:
        """The refusal of what is no type: with the nearest name, if one is near, else with all."""
        near = difflib.get_close_matches(asked.lower(), self._names, 1) if isinstance(asked, str) else []
        if near:
            return _Refused(f"{asked!r} is not a dtype; did you mean {self._names[near[0]].name}?")
        return _Refused(f"{asked!r} is not a dtype; expected one of {', '.join(sorted(row.name for row in DTYPES))}")

    def _from_numpy(self, kind: np.dtype[Any], asked: object = None) -> DType:
        if kind.kind in "UTSO":
            return self._names["string"]
        name = kind.name  # NumPy makes it up anew each time, which takes microseconds.
        if kind.kind == "c" or name.endswith("complex32"):
            raise _complex(name)
        row = self._numpy.get(name)
        if row is None:
            raise self._unknown(name if asked is None else asked)
        return row

    def _from_type(self, kind: type) -> DType:
        if kind is str:
            return self._names["string"]
        if kind is bool:
            return self._names["bool"]
        if kind in (float, int):
            numpy_name, onnx_name = {float: ("float64", "FLOAT"), int: ("int64", "INT32")}[kind]
            raise _ambiguous(kind, f"NumPy's {numpy_name}", f"as ONNX's {onnx_name}")
        if kind is complex:
            raise _complex(kind)
        if issubclass(kind, np.generic) or kind.__module__.startswith("ml_dtypes"):
            with contextlib.suppress(TypeError):
                found = np.dtype(kind)
                # NumPy takes any class for object.
                if found.kind != "O":
                    return self._from_numpy(found, kind)
        of_jax = getattr(kind, "dtype", None)  # jax.numpy.bfloat16 and the like.
        if isinstance(of_jax, np.dtype):
            return self._from_numpy(of_jax, kind)
        raise self._unknown(kind)


class _Refused(Exception):
    """Why a name was refused, without the words that say who asked."""


def _two_faced(name: str) -> _Refused:
    size = name[1:]
    an = "an" if size.startswith("8") else "a"
    if name[0] == "U":
        return _ambiguous(name, f"NumPy's code for text of {size} characters", f"as {an} {size}-bit unsigned integer")
    # Not every platform's NumPy has float128.
    reading = "float128" if name.lower() == "f16" else np.dtype(name.lower()).name
    kind = {"i": "integer", "u": "unsigned integer", "f": "float"}[name[0].lower()]
    return _ambiguous(name, f"NumPy's code for {reading}", f"as {an} {size}-bit {kind}")


def _ambiguous(asked: object, one: str, other: str) -> _Refused:
    return _Refused(
        f"{asked!r} is ambiguous: it reads as {one} or {other}; write a full name such as 'FLOAT16' or 'int32'"
    )


def _complex(asked: object) -> _Refused:
    return _Refused(f"{asked!r} is complex; Cast takes no complex type")


dtype = Lookup(DTYPES)


def _row(name: str) -> DType:
    """What a pickled row comes back as: the one object of that name."""
    return dtype(name)


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
