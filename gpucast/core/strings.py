# SPDX-License-Identifier: Apache-2.0
"""The meaning of text as a number, and the text of a number: exact, one element at a time, slow.

This is the specification of the STRING type. `gpucast.reference.exact_cast` uses it directly.
`gpucast.host.text` falls back to it and takes its error messages from here. Functions that read text take its
`index` in the array for the message.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from gpucast.core import dtypes
from gpucast.core.dtypes import DType

#: Blanks that may stand around a number: those of C's isspace. Python's own set has U+001C to U+001F and more.
BLANKS = " \t\n\r\f\v"

# re.ASCII: otherwise "i" would match U+0131 and U+0130 as well when case is ignored.
_NUMBER = re.compile(
    rf"[{BLANKS}]*(?P<sign>[+-]?)"
    r"(?:(?=\.?[0-9])(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?:e(?P<exponent>[+-]?[0-9]+))?"
    r"|(?P<word>inf(?:inity)?|nan))"
    rf"[{BLANKS}]*",
    re.ASCII | re.IGNORECASE,
)

# The midpoint of two neighbouring doubles has at most 768 significant digits. A number cut after 800 digits and given
# one more digit, 1, for whatever followed lies on the same side of every midpoint as the whole number does.
_DIGITS = 800
# No type reaches as far as 10^+-400: whatever lies beyond may stand there.
_EXPONENT = 400
# An exponent of more digits than this outruns the length of any text.
_EXPONENT_DIGITS = 20

# Characters of an element that a message quotes.
_SHOWN = 40

_EXPECTED = "expected decimal text such as '1.5e-3', INF or NaN"


@dataclass(frozen=True)
class Number:
    """A text as a number. NaN has a sign; `magnitude` is 0 unless the number is finite.

    `magnitude` compares with every value and every midpoint of any type as the exact number does. It equals that number
    if the text has at most 800 significant digits and lies within 10^-400 to 10^400.
    """

    kind: Literal["finite", "infinite", "nan"]
    negative: bool
    magnitude: Fraction


def texts(x: np.ndarray[Any, Any], first: int = 0) -> Iterator[str]:
    """Iterate over the elements of an array of object, str, bytes or StringDType in row-major order; bytes are read as
    ASCII.

    TypeError for an element that is no text (None, NaN and the missing values of StringDType included). ValueError for
    bytes that are not ASCII and for a str with invalid characters. Both name the index in the flattened array, counted
    from `first`. The texts come one by one, so that an error of an earlier text comes first.
    """
    flat = x.reshape(-1)
    size = flat.size
    if not has_characters(flat):
        points = _points(flat)
        size, place = np.argwhere(points > sys.maxunicode)[0]
    for index, element in enumerate(flat[:size].tolist(), first):
        yield _text(element, index)
    if size < flat.size:
        raise ValueError(
            f"cast: element {first + size} has the code {points[size, place]:#x}, which is no character; "
            "expected str or ASCII bytes"
        )


def has_characters(x: np.ndarray[Any, Any]) -> bool:
    """Tell whether all codes of a flat array of str are valid characters. Memory and files may hold others, of which
    NumPy makes broken objects."""
    return x.dtype.kind != "U" or not x.nbytes or bool(_points(x).max(initial=0) <= sys.maxunicode)


def _points(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The codes of a flat array of str, a row for each element."""
    native = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
    return native.view(np.uint32).reshape(x.size, -1)


def parse(text: str, index: int | None = None) -> Number:
    """Parse the text of a number, in time linear in its length. ValueError for any other text."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{_found(text, index)}, which is no number; {_EXPECTED}")
    negative = match["sign"] == "-"
    if match["word"]:
        return Number("nan" if match["word"].lower() == "nan" else "infinite", negative, Fraction(0))
    fraction = match["fraction"] or ""
    digits = (match["whole"] + fraction).lstrip("0")
    if not digits:
        return Number("finite", negative, Fraction(0))
    scale = _exponent(match["exponent"] or "0") - len(fraction)
    rest = digits[_DIGITS:]
    if rest:
        digits = digits[:_DIGITS] + ("1" if rest.strip("0") else "0")
        scale += len(rest) - 1
    leading = scale + len(digits) - 1
    if abs(leading) > _EXPONENT:
        return Number("finite", negative, Fraction(10) ** (_EXPONENT if leading > 0 else -_EXPONENT))
    return Number("finite", negative, Fraction(int(digits) * 10 ** max(scale, 0), 10 ** max(-scale, 0)))


def to_integer(text: str, row: DType, index: int | None = None) -> int:
    """Parse a number and cut off its fraction.

    OverflowError outside the range of the type. ValueError for INF, NaN and text that is not a number.
    """
    number = parse(text, index)
    if number.kind != "finite":
        raise ValueError(f"{_found(text, index)}, which {row.name} cannot hold; expected a finite number")
    value = int(number.magnitude) * (-1 if number.negative else 1)
    if not row.min <= value <= row.max:
        raise OverflowError(f"{_found(text, index)}, out of range for {row.name}; expected {row.min} to {row.max}")
    return value


def to_bool(text: str, index: int | None = None) -> bool:
    """Parse true or false in any case, or a number, which is true unless exactly zero. ValueError for other text."""
    word = text.strip(BLANKS).lower()
    if word in ("true", "false"):
        return word == "true"
    try:
        number = parse(text, index)
    except ValueError:
        raise ValueError(f"{_found(text, index)}, which is no boolean; {_EXPECTED}, true or false") from None
    return number.kind != "finite" or number.magnitude != 0


def format(value: float, row: DType) -> str:
    """Format a value of a type (an int or bool for integers and BOOL, otherwise the exact float)."""
    if row.family == "bool":
        return str(bool(value))
    if row.family == "int":
        return str(int(value))
    value = float(value)
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value):
        return f"{sign}INF"
    # In integers from here on: other modes of the processor may take a subnormal for 0.
    code = struct.unpack("<Q", struct.pack("<d", value))[0] & (1 << 63) - 1
    exponent, mantissa = code >> 52, code & (1 << 52) - 1
    if not code:
        return f"{sign}0.0"
    significand = mantissa + (1 << 52) if exponent else mantissa
    return sign + _layout(*_shortest(significand, max(exponent, 1) - 1075, shortest_in(row)))


def shortest_in(row: DType) -> DType:
    """The type that must read the text of a floating type back: the type itself where NumPy has it, otherwise FLOAT."""
    return row if row.numpy_name in ("float16", "float32", "float64") else dtypes.dtype("FLOAT")


def _text(element: object, index: int) -> str:
    if isinstance(element, str):
        # Not str(element): a subclass, such as an Enum, may print as something else.
        return str.__str__(element)
    if isinstance(element, bytes):
        try:
            return element.decode("ascii")
        except UnicodeDecodeError:
            raise ValueError(f"{_found(element, index)}, which is not ASCII; expected str or ASCII bytes") from None
    raise TypeError(f"{_found(element, index)} of type {type(element).__name__}; expected str or ASCII bytes")


def _found(element: object, index: int | None) -> str:
    if isinstance(element, (str, bytes)) and len(element) > _SHOWN:
        shown = f"{element[:_SHOWN]!r}... ({len(element)} characters)"
    else:
        shown = repr(element)[: 2 * _SHOWN]
    return f"cast: {'the text' if index is None else f'element {index}'} is {shown}"


def _exponent(text: str) -> int:
    digits = text.lstrip("+-0")
    # int() refuses thousands of digits.
    exponent = int(digits or "0") if len(digits) <= _EXPONENT_DIGITS else 10**_EXPONENT_DIGITS
    return -exponent if text.startswith("-") else exponent


def _shortest(significand: int, scale: int, row: DType) -> tuple[str, int]:
    """The fewest digits d.ddd and the exponent k such that d.ddd x 10^k reads back as a finite value > 0 of a type. The
    value is significand x 2^scale.

    Among equally short decimals it is the closest to the value; of two equally close, the one with an even last digit.
    """
    exponent = significand.bit_length() + scale
    # The spacing of values around this one is 4 x 2^quarter, so the ends of its interval are whole quarters.
    quarter = max(exponent - 1, 1 - row.bias) - row.mantissa_bits - 2
    shift = scale - quarter - 2
    spacings = significand << shift if shift >= 0 else significand >> -shift
    center, high = 4 * spacings, 4 * spacings + 2
    # Below a power of two the values lie twice as close, except below the smallest normal one.
    at_power = spacings == 1 << row.mantissa_bits and exponent - 1 > 1 - row.bias
    low = center - (1 if at_power else 2)
    # Ties read back to even: the ends belong to the interval of an even value.
    closed = spacings % 2 == 0

    # log10(2) is 78913 / 2^18, nearly: the estimate is off by 1 at most.
    k = (exponent - 1) * 78913 >> 18
    value = Fraction(significand) * Fraction(2) ** scale
    k += (value >= Fraction(10) ** (k + 1)) - (value < Fraction(10) ** k)
    for count in range(1, 18):
        # In one common unit: a candidate is digits * decimal, an end of the interval is quarters * binary.
        place = k - count + 1
        decimal = 10 ** max(place, 0) << max(-quarter, 0)
        binary = 10 ** max(-place, 0) << max(quarter, 0)
        floor = center * binary // decimal
        candidates = [
            (abs(digits * decimal - center * binary), digits % 2, digits)
            for digits in (floor, floor + 1)
            if low * binary < digits * decimal < high * binary
            or (closed and digits * decimal in (low * binary, high * binary))
        ]
        if candidates:
            text = str(min(candidates)[2])
            return text.rstrip("0"), place + len(text) - 1
    raise AssertionError("17 digits identify every double")


def _layout(digits: str, k: int) -> str:
    """Write d.ddd x 10^k as repr(float) does."""
    if -4 <= k < 0:
        return "0." + "0" * (-k - 1) + digits
    if 0 <= k < 16:
        return f"{digits[: k + 1].ljust(k + 1, '0')}.{digits[k + 1 :] or '0'}"
    return f"{digits[0]}{'.' + digits[1:] if digits[1:] else ''}e{k:+03d}"
