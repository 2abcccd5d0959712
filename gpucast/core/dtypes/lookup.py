# SPDX-License-Identifier: Apache-2.0
"""The lookup of a dtype by any of its names."""

from __future__ import annotations

import contextlib
import copyreg
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast.core.dtypes.table import DTYPES, DType
from gpucast.core.errors import nearest

# One- and two-character codes mean other types to NumPy than to people who write "i4" for a 4-bit integer.
# NumPy warns of "a".
_NUMPY_CODE = r"[<>=|]?[A-Zb-z?][0-9]{0,2}"

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

#: Names of formats of quantization, which have scales, and the options of `gpucast convert` for them.
_QUANTIZED = r"(?:mx|nv)(?:fp|int)[468].*|nf4|(?:u?int[248]|float8\w*?)_(?:zp_)?(?:tensor|axis|[0-9x]+)(?:_\w+)?"
_QUANTIZED_FILES = {
    "mxfp8": "--to FLOAT8E4M3FN --scale mx",
    "mxfp6": "--to FLOAT6E2M3 --scale mx",
    "mxfp4": "--to FLOAT4E2M1 --scale mx",
    "nvfp4": "--to FLOAT4E2M1 --scale nvfp4",
}

_FAMILY_NAME = r"(?:(?:fp|float)([468])_?)?(?:e([0-9])m([0-9]))?"
#: The classes of other libraries' dtypes, as (module, name), and the function that names such a dtype in words that
#: `dtype` takes. Filled where libraries are registered.
FOREIGN: dict[tuple[str, str], Callable[[Any], str]] = {}


def _columns_of(name: str) -> dict[str, int] | None:
    """The bits that a name for several types gives: "fp8" gives {"bits": 8}, "e4m3" gives those of exponent and
    mantissa. None for other text."""
    found = re.fullmatch(_FAMILY_NAME, name.lower())
    if found is None:
        return None
    columns = ("bits", "exponent_bits", "mantissa_bits")
    given = {column: int(text) for column, text in zip(columns, found.groups(), strict=True) if text is not None}
    return given or None


def is_foreign(kind: type) -> bool:
    """Tell whether a class is the class of dtypes of a registered library."""
    return (kind.__module__, kind.__name__) in FOREIGN


#: Types of NumPy that no type here is, though their names are near.
_LONG = "ONNX has no wider type than DOUBLE; cast it to float64 first"
_VOID = "numpy.load gives it for types that NumPy lacks; x.view(ml_dtypes.{}) says which, and gpucast.save keeps it"
UNLIKE = {
    **dict.fromkeys(("longdouble", "float128", "float96", "longfloat"), _LONG),
    **dict.fromkeys(("clongdouble", "complex256", "complex192"), _LONG),
    "void16": _VOID.format("bfloat16"),
    "void8": _VOID.format("float8_e4m3fn"),
}


class Lookup:
    """``gpucast.dtype(anything) -> DType``: find a type by any of its names.

    Names are, in any case: a DType; an ONNX name ("FLOAT16", "float8e4m3fn"; "float" is ONNX's FLOAT) or number; a
    name of NumPy, ml_dtypes or PyTorch ("float32", "float8_e4m3fn", "torch.bfloat16"); a safetensors code ("BF16",
    "F8_E4M3"); a short form ("bf16", "fp16", "half", "f32"); a family with one member ("fp4", "e8m0"); NumPy's code
    with a byte order ("<f4"); a dtype or scalar type of NumPy, ml_dtypes, CuPy or PyTorch; ``bool``; ``str`` and
    NumPy's string dtypes for STRING.

    Refused, with both readings in the message: text that two libraries read differently (NumPy's codes "i4", "f4" and
    "f16", safetensors' "U8"), the builtins float and int, and bool instances. A family of several types ("fp8", "e4m3")
    is refused with its members, a format of quantization ("mxfp4") with the call that takes it. Cast has no complex
    types.

    Raises TypeError for anything that names no type. The message names the nearest one.
    """

    def __init__(self, rows: tuple[DType, ...]) -> None:
        #: In lower case, except codes of safetensors that mean another type in lower case.
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
        """Add rows for the length of a ``with`` block."""
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
        """Return the row. `caller` begins the message of the TypeError."""
        try:
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
                return self._from_name(FOREIGN[type(anything).__module__, type(anything).__name__](anything))
            try:
                return self._numbers[operator.index(anything)]
            except (TypeError, KeyError):
                raise self._unknown(anything) from None
        except _Refused as refused:
            raise TypeError(caller + str(refused)) from None

    def names(self, row: DType) -> list[str]:
        """The names of a row. Those in lower case are taken in any case."""
        found = [name for name, named in self._names.items() if named is row]
        return [name for name in found if name.islower() or name.lower() not in found]

    def from_safetensors(self, code: str) -> DType:
        """The row of a safetensors header code such as "BF16" or "F8_E4M3"; TypeError for any other text."""
        for row in dict.fromkeys(self._names.values()):
            if row.safetensors is not None and row.safetensors == code:
                return row
        codes = ", ".join(sorted(row.safetensors for row in DTYPES if row.safetensors))
        raise TypeError(f"dtype: {code!r} is not a safetensors dtype that Cast takes; expected one of {codes}")

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
        if re.fullmatch(_NUMPY_CODE, name):
            with contextlib.suppress(TypeError):
                found = np.dtype(name)
                if name[0] in "<>=|":
                    return self._from_numpy(found, name)
                raise _ambiguous(name, f"NumPy's code for {found.name}", "as a short form of some other type")
        if re.fullmatch(_QUANTIZED, name.lower()):
            raise _quantized(name)
        members = self._family(name)
        if len(members) == 1:
            return members[0]
        if members:
            names = ", ".join(row.name for row in members)
            raise _Refused(f"{name!r} is a family of types; write one of them: {names}")
        raise self._unknown(name)

    def _family(self, name: str) -> list[DType]:
        """The types that a name such as "fp8" or "e4m3" stands for."""
        given = _columns_of(name)
        if given is None:
            return []
        rows = dict.fromkeys(row for row in self._names.values() if row.is_float)
        return [row for row in rows if all(getattr(row, column) == n for column, n in given.items())]

    def _unknown(self, asked: object) -> _Refused:
        """The refusal of an unknown name, with the nearest name if one is near, otherwise with all names."""
        if not isinstance(asked, type) and (
            getattr(asked, "shape", None) or (isinstance(asked, (list, dict)) and asked)
        ):
            kind = type(asked).__name__
            return _Refused(f"{kind} is no dtype: the array is the first argument, and the type the second")
        if isinstance(asked, str) and asked in UNLIKE:
            return _Refused(f"{asked!r} is not a dtype: {UNLIKE[asked]}")
        near = nearest(asked.lower(), self._names) if isinstance(asked, str) else []
        if near:
            return _Refused(f"{asked!r} is not a dtype; did you mean {self._names[near[0]].name}?")
        if isinstance(asked, str) and "-" in asked:
            return _Refused(f"{asked!r} is not a dtype; `gpucast recipes` lists the names with a hyphen, for quantize")
        return _Refused(f"{asked!r} is not a dtype; expected one of {', '.join(sorted(row.name for row in DTYPES))}")

    def _from_numpy(self, kind: np.dtype[Any], asked: object = None) -> DType:
        if kind.kind in "UTSO":
            return self._names["string"]
        if kind.names is not None:
            return self._from_field(kind)
        name = kind.name  # NumPy makes it up anew each time, which takes microseconds.
        if kind.kind == "c" or name.endswith("complex32"):
            raise _complex(name)
        row = self._numpy.get(name)
        if row is None:
            raise self._unknown(name if asked is None else asked)
        return row

    def _from_field(self, kind: np.dtype[Any]) -> DType:
        """The type whose codes are the only field of a structured dtype, as `gpucast.save` writes them for NumPy."""
        names = kind.names or ()
        row = self._numpy.get(names[0]) if len(names) == 1 else None
        if row is None or row.numpy.isbuiltin == 1 or kind.newbyteorder("=") != row.numpy_field:
            raise self._unknown(kind)
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
            # Not `contextlib.suppress`, which torch.compile knows from 2.10 on.
            found: np.dtype[Any] = np.dtype(object)
            try:
                found = np.dtype(kind)
            except TypeError:
                pass
            # NumPy takes any class for object.
            if found.kind != "O":
                return self._from_numpy(found, kind)
        of_jax = getattr(kind, "dtype", None)  # jax.numpy.bfloat16 and the like.
        if isinstance(of_jax, np.dtype):
            return self._from_numpy(of_jax, kind)
        raise self._unknown(kind)


class _Refused(Exception):
    """Why a name was refused, without the words that say who asked."""


def _quantized(name: str) -> _Refused:
    if name.lower() == "nf4":
        call = "gpucast.quantize(x, 'nvfp4'), 'mxfp4' or 'int4_32' instead: NF4 itself is not among its formats"
    else:
        options = _QUANTIZED_FILES.get(name.lower()[:5])
        format = {"mxfp8": "mxfp8e4m3", "mxfp6": "mxfp6e3m2"}.get(name.lower(), name.lower())
        call = f"gpucast.quantize(x, {format!r})" + (f", or `gpucast convert` with {options}" if options else "")
    return _Refused(f"{name!r} is a format of quantization, with scales, and no dtype; use {call}")


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
    """Unpickle a row: return the one object of that name."""
    return dtype(name)


# Here, since it takes the lookup: a row does not know who finds it.
copyreg.pickle(DType, lambda row: (_row, (row.name,)))


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
