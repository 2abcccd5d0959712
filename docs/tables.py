# SPDX-License-Identifier: Apache-2.0
"""Tables of the types and of single casts, as Markdown, which docs/pages.py writes into the pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import gpucast
from gpucast.cli import dtypes
from gpucast.core.dtypes import DTYPES, DType, dtype, finfo
from gpucast.core.rounding import OF_FLOATS, ROUNDING_MODES
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.libraries import dlpack

#: The types that PyTorch does not have at all.
_NOT_IN_TORCH = ("STRING", "FLOAT6E2M3", "FLOAT6E3M2")
FLOAT8 = tuple(row for row in DTYPES if row.family == "float" and row.saturate_applies)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


# ---- numbers ----


def number(value: float, plain: bool = True) -> str:
    """A number in full where that is short (unless not `plain`), else as a power of two times a small number where
    that is short, else rounded."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "-inf" if value < 0 else "inf"
    if isinstance(value, int):
        return str(value)
    if value == 0 or (plain and _is_short(value)):
        return _plain(value)
    mantissa, exponent = math.frexp(abs(value))
    sign, digits = "-" if value < 0 else "", f"{2 * mantissa:.10g}"
    if float(digits) != 2 * mantissa or len(digits) > 6:
        return f"{value:.7g}"
    power = f"2^{exponent - 1}"
    return sign + (power if digits == "1" else f"{digits}·{power}")


def _plain(value: float) -> str:
    return f"{value:.8f}".rstrip("0").rstrip(".")


def _is_short(value: float) -> bool:
    text = _plain(value)
    return not math.isfinite(value) or (len(text) <= 9 and float(text) == value)


def code(row: DType, bits: int) -> str:
    """A code in hexadecimal, as wide as the type."""
    return f"`{bits:#0{2 + -(-row.bits // 4)}x}`"


def coded(row: DType, bits: int) -> str:
    return f"{number(row.value(bits))} {code(row, bits)}"


# ---- types ----


def ranges() -> str:
    """The columns that tell the types apart."""
    rows = map(dtypes.describe, DTYPES)
    keys = ("name", "number", "bits", "opset")
    cells = ([*(str(row[key] or "") for key in keys), dtypes.range_text(row)] for row in rows)
    return markdown(["Type", "ONNX's number", "Bits", "First opset", "Range"], cells)


def torch_name(row: DType) -> str:
    """The dtype in PyTorch that has the values of a type; FLOAT4E2M1 only in pairs."""
    if row.name in _NOT_IN_TORCH or row.numpy.names:
        return ""
    return row.numpy_name + ("_x2" if row.name == "FLOAT4E2M1" else "")


def dlpack_name(row: DType) -> str:
    found = None if row.family == "string" else dlpack.code_of(row)
    return "" if found is None else f"{found}, {row.bits}"


def names() -> str:
    """Every type under its names."""
    head = [
        "ONNX",
        "NumPy, ml_dtypes",
        "PyTorch",
        "safetensors",
        "Taken text",
        "DLPack code, bits",
    ]
    return markdown(
        head,
        [
            [
                f"[{row.name}](#{SECTIONS[section(row)]})",
                f"`{row.numpy_name}`",
                f"`{torch_name(row)}`" if torch_name(row) else "",
                f"`{row.safetensors}`" if row.safetensors else "",
                ", ".join(f"`{text}`" for text in dtype.names(row)),
                dlpack_name(row),
            ]
            for row in DTYPES
        ],
    )


#: The kinds of types, and where the page of types has them.
SECTIONS = {
    "wide": "wide-floats",
    "float8": "float8",
    "e8m0": "float8e8m0",
    "small": "float6-and-float4",
    "narrow-integers": "2-and-4-bits",
    "bytes": "8-bits",
    "integers": "16-to-64-bits",
    "string": "string",
}


def section(row: DType) -> str:
    """The kind of a type."""
    if row.family in ("string", "e8m0"):
        return row.family
    if row.family in ("int", "bool"):
        return "narrow-integers" if row.bits < 8 else "bytes" if row.bits == 8 else "integers"
    return "wide" if row.bits > 8 else "float8" if row.bits == 8 else "small"


def limits(kind: str) -> str:
    """The properties of the types of a kind, one column each."""
    rows = [row for row in DTYPES if section(row) == kind]
    lines = [[fact, *(tell(row) for row in rows)] for fact, tell in _FACTS.items()]
    return markdown(["", *(row.name for row in rows)], [line for line in lines if any(line[1:])])


def _of_floats(tell: Callable[[DType], str]) -> Callable[[DType], str]:
    return lambda row: tell(row) if row.is_float else ""


def _zeros(row: DType) -> str:
    found = [bits for bits in (0, row.sign_code) if row.value(bits) == 0]
    return ", ".join(coded(row, bits) for bits in dict.fromkeys(found)) or "none"


def _infinities(row: DType) -> str:
    if not row.has_inf:
        return "none"
    return ", ".join(coded(row, bits) for bits in (row.inf_code, row.inf_code | row.sign_code))


def _nans(row: DType) -> str:
    if not row.has_nan:
        return "none"
    signed = [row.nan_code, row.nan_code | row.sign_code] if row.nan_is_signed else [row.nan_code]
    return ", ".join(code(row, bits) for bits in signed)


def _other_nans(row: DType) -> str:
    if not row.has_nan:
        return ""
    if row.specials != "ieee":
        return "none"
    return f"above {code(row, row.inf_code)} and above {code(row, row.inf_code | row.sign_code)}"


def _largest(row: DType) -> str:
    return coded(row, row.max_code) if row.is_float else number(row.max) if row.family == "int" else ""


def _lowest(row: DType) -> str:
    if row.family == "float" and row.signed and row.bits <= 8:
        return coded(row, row.max_code | row.sign_code)
    return number(row.min) if row.is_float or row.family == "int" else ""


_FACTS: dict[str, Callable[[DType], str]] = {
    "ONNX number": lambda row: str(row.number or "none"),
    "In Cast from opset": lambda row: str(row.opset or "none"),
    "Bits": lambda row: str(row.bits or ""),
    "Sign, exponent, mantissa": _of_floats(lambda row: f"{row.sign_bits}, {row.exponent_bits}, {row.mantissa_bits}"),
    "Bias": _of_floats(lambda row: str(row.bias)),
    "Largest": _largest,
    "Lowest": _lowest,
    "Smallest normal": _of_floats(lambda row: number(finfo(row).smallest_normal)),
    "Smallest above 0": _of_floats(lambda row: number(finfo(row).smallest_subnormal)),
    "1 to the next": _of_floats(lambda row: number(finfo(row).eps)),
    "Zeros": _of_floats(_zeros),
    "Infinities": _of_floats(_infinities),
    "NaN that a cast gives": _of_floats(_nans),
    "Other codes of NaN": _of_floats(_other_nans),
    "NumPy, ml_dtypes": lambda row: f"`{row.numpy_name}`",
    "PyTorch": lambda row: f"`{torch_name(row)}`" if torch_name(row) else "none",
    "safetensors": lambda row: f"`{row.safetensors}`" if row.safetensors else "none",
    "DLPack code, bits": lambda row: dlpack_name(row) or "none",
}  # fmt: skip


def values(kind: str) -> str:
    """Every value of the types of a kind, of 8 bits or fewer; of types whose codes are their values nothing."""
    rows = [row for row in DTYPES if section(row) == kind and row.name not in ("UINT8", "BOOL")]
    parts = [_values(row) for row in rows]
    if len(rows) > 1:
        parts = [f"**{row.name}**\n\n{part}" for row, part in zip(rows, parts, strict=True)]
    return "\n\n".join(parts)


def _values(row: DType) -> str:
    """Every value of a type. Where the sign bit only turns the sign, the half without it."""
    half = row.family == "float" and row.signed
    count = 1 << (row.bits - half)
    columns = 1 << row.mantissa_bits if row.is_float and row.mantissa_bits > 1 else 16 if row.family == "int" else 8
    columns = min(columns, count)
    grid = markdown(
        ["Code", *(f"+{i}" if count > columns else str(i) for i in range(columns))],
        [[code(row, first), *_line(row, range(first, first + columns))] for first in range(0, count, columns)],
    )
    return f"{grid}\n\n{_other_half(row)}" if half else grid


def _line(row: DType, codes: Iterable[int]) -> list[str]:
    """Values in one form."""
    found = [row.value(bits) for bits in codes]
    plain = all(isinstance(value, int) or _is_short(value) for value in found)
    return [number(value, plain) for value in found]


def _other_half(row: DType) -> str:
    sign = row.sign_code
    others = [bits for bits in range(sign) if not _is(row.value(bits | sign), -row.value(bits))]
    text = f"The same codes plus {code(row, sign)} are the same values with a minus sign"
    text += "".join(f", but {code(row, bits | sign)} is {number(row.value(bits | sign))}" for bits in others)
    return text + "."


def _is(x: float, y: float) -> bool:
    return (math.isnan(x) and math.isnan(y)) or (x == y and math.copysign(1, x) == math.copysign(1, y))


# ---- keywords ----

#: The numeric destinations, by what one word says of several of them.
_FAMILIES: dict[str, Callable[[DType], bool]] = {
    "integers": lambda row: row.family == "int",
    "FLOAT, DOUBLE": lambda row: row.family == "float" and row.bits > 16,
    "FLOAT16, BFLOAT16": lambda row: row.family == "float" and row.bits == 16,
    "FLOAT8E5M2": lambda row: row.family == "float" and row.saturate_applies and row.has_inf,
    "the other float8": lambda row: row.family == "float" and row.saturate_applies and not row.has_inf,
    "float6, FLOAT4E2M1": lambda row: row.family == "float" and not row.has_nan,
    "FLOAT8E8M0": lambda row: row.family == "e8m0",
    "BOOL": lambda row: row.family == "bool",
}
_OVERFLOW = {
    "wrap": "the low bits",
    "infinity": "infinity",
    "nan": "NaN",
    "saturate": "the nearest number",
}


def rounding() -> str:
    """The rounding modes, a row for each word."""
    rows = []
    for mode in ROUNDING_MODES:
        floats = {0: "", 16: "of 16 bits or fewer", 64: "yes"}[mode.floats]
        integers = "default" if mode.word == "truncate" else "yes" if mode.integers else ""
        if mode.name == OF_FLOATS:
            floats = "default"
        rows.append([f'`"{mode.word}"`', mode.name, integers, floats, mode.text])
    return markdown(["`rounding`", "IEEE 754", "integers", "floats", "a number that is not exact goes"], rows)


def keywords() -> str:
    """What each keyword does for each kind of destination, tried."""
    rows = []
    for name, belongs in _FAMILIES.items():
        found = {tuple(_keywords(row)) for row in DTYPES if belongs(row)}
        if len(found) != 1:
            raise AssertionError(f"the types of one row differ: {name}: {found}")
        rows.append([name, *found.pop()])
    return markdown(["To", "`rounding=None`", "`overflow`", "`saturate=False`", "`round_mode`"], rows)


def _keywords(dst: DType) -> list[str]:
    src = dtype("DOUBLE") if dst.name != "DOUBLE" else dtype("FLOAT")

    def rule(**given: Any) -> CastRule | None:
        try:
            return resolve(src, dst, Options(**given))
        except ValueError:
            return None

    usual = rule()
    assert usual is not None
    rounds = next((mode.word for mode in ROUNDING_MODES if rule(rounding=mode.word) == usual), None)
    overs = [f'`"{word}"`: {_OVERFLOW[word]}' for word in ("wrap", "saturate") if rule(overflow=word)]
    if dst.family != "bool":
        overs.insert(0, f"None: {_OVERFLOW[usual.overflow]}")
    without, down = rule(saturate=False), rule(round_mode="down")
    assert without is not None and down is not None
    return [
        f'`"{rounds}"`' if rounds else "`rounding` is refused",
        "; ".join(overs) or "refused",
        _OVERFLOW[without.overflow] if without != usual else "ignored",
        "up, down, nearest" if down != usual else "ignored",
    ]


# ---- single casts ----


def _result(value: float, to: DType, **attributes: Any) -> str:
    found = gpucast.cast(np.array(value, np.float64), to, **attributes)
    return coded(to, int(found.view(to.code_numpy)) & to.code_mask)


def float8(saturate: str) -> str:
    """The operator's table for float8: an input in each row, what gpucast gives for it in each column."""
    on = saturate == "on"
    inputs = {"0": 0.0, "-0": -0.0, "NaN": np.nan, "-NaN": -np.nan, "inf": np.inf, "-inf": -np.inf}
    rows = [[text, *(_result(value, row, saturate=on) for row in FLOAT8)] for text, value in inputs.items()]
    rows.append(["`[x]` above the largest", *(_result(2 * float(row.max), row, saturate=on) for row in FLOAT8)])
    rows.append(["`[x]` below the lowest", *(_result(-2 * float(row.max), row, saturate=on) for row in FLOAT8)])
    tiny = [-finfo(row).smallest_subnormal / 4 for row in FLOAT8]
    rows.append(["negative, `[x]` is 0", *(_result(x, row, saturate=on) for x, row in zip(tiny, FLOAT8, strict=True))])
    rows.append(["anything else", *(["`[x]`"] * len(FLOAT8))])
    return markdown(["x", *(row.name for row in FLOAT8)], rows)


def overflow() -> str:
    """Where each float type begins to overflow: the first number whose `[x]` is above the largest value."""
    rows = []
    for row in (row for row in DTYPES if row.family == "float" and row.bits <= 16):
        largest, below = float(row.max), float(row.value(row.max_code - 1))
        half_way = largest + (largest - below) / 2
        # A tie goes to the even code: up, where the largest code is odd.
        word = "from" if row.max_code % 2 else "above"
        rows.append([row.name, number(largest), f"{word} {number(half_way)}"])
    return markdown(["Type", "Largest", "`[x]` is above it"], rows)


#: Inputs that stand for all that FLOAT8E8M0 tells apart.
E8M0_INPUTS: dict[str, tuple[float, ...]] = {
    "NaN, -NaN": (np.nan, -np.nan),
    "inf": (np.inf,),
    "above 2^127": (1.25 * 2.0**127, 2.0**200),
    "2^127": (2.0**127,),
    "1.5 and above, below 2": (1.5, 1.75),
    "above 1, below 1.5": (1 + 2.0**-40, 1.25),
    "1": (1.0,),
    "2^-127": (2.0**-127,),
    "above 0, below 2^-127": (1.5 * 2.0**-128, 2.0**-200),
    "0, -0": (0.0, -0.0),
    "below 0, -inf": (-(2.0**-200), -1.0, -np.inf),
}


def e8m0() -> str:
    """What FLOAT8E8M0 makes of every kind of input, with every value of both attributes."""
    row = dtype("FLOAT8E8M0")
    modes = [(saturate, mode) for saturate in (True, False) for mode in ("up", "down", "nearest")]
    lines = []
    for text, inputs in E8M0_INPUTS.items():
        cells = [{_result(x, row, saturate=saturate, round_mode=mode) for x in inputs} for saturate, mode in modes]
        if any(len(found) > 1 for found in cells):
            raise AssertionError(f"inputs of one row differ: {text}: {cells}")
        lines.append([text, *(found.pop() for found in cells)])
    return markdown(["x", *(mode + ("" if saturate else ", off") for saturate, mode in modes)], lines)


def companions() -> str:
    """The tensors beside codes that are known."""
    from gpucast.convert.scales.companions import COMPANIONS

    fates = {
        "part": "applied to its codes; alone an error",
        "inputs": "dropped with a line",
        "cache": "carried on, or dropped with a line",
        "refused": "an error",
    }
    rows = ([one.what, " ".join(f"`{name}`" for name in one.names), fates[one.fate]] for one in COMPANIONS)
    return markdown(["What it is", "Names", "What becomes of it"], rows)


#: What a page can ask for.
TABLES: dict[str, Callable[..., str]] = {
    "companions": companions,
    "ranges": ranges,
    "names": names,
    "limits": limits,
    "values": values,
    "rounding": rounding,
    "keywords": keywords,
    "float8": float8,
    "overflow": overflow,
    "e8m0": e8m0,
}
