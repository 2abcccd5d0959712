# SPDX-License-Identifier: Apache-2.0
"""Casts arrays of text to numbers and back, quickly, with the results that `gpucast.core.strings` defines.

Text to floats goes through float64, but without double rounding: where the double is on a boundary of the destination
(such as the midpoint of two neighbours) and differs from the text's number, it is first moved by one ULP towards that
number.

Everything works on chunks, so that the extra memory is bounded. orjson is used if it is installed; it only makes it
quicker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.chunks import spans
from gpucast.arrays.operand import Operand, operand
from gpucast.core import arithmetic, dtypes, packages, strings
from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule
from gpucast.host.cast_on_host import into
from gpucast.reference.exact_cast import from_strings

Array = npt.NDArray[Any]

# Of texts that consist of these characters float() accepts exactly those that `strings.parse` does.
_PLAIN = b"0123456789.+-eE"
_LETTERS_AND_BLANKS = b"infatyINFATY" + strings.BLANKS.encode()

# The usual spellings; any others take the slow path.
_WORDS = {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}


@cache
def fast_library() -> Any:
    """The orjson module, or None where it is not installed (extra `fast`)."""
    with packages.importing():
        try:
            import orjson
        except ImportError:
            return None
        return orjson


def apply(source: Operand, rule: CastRule, target: Operand | None = None) -> Operand:
    """Cast text, or to text, into `target`, which is returned, or into a new array."""
    # All of it before the target is touched: a text that is no number leaves that as it was.
    texts = source.array.get() if source.packed else source.data
    convert = parse if rule.src.family == "string" else format
    result = operand(convert(texts, rule), rule.dst)
    if target is None:
        return result
    target.data[...] = result.data
    return target


@arithmetic.exact()
def parse(x: Array, rule: CastRule) -> Array:
    """Text (object, str, bytes or StringDType, any shape) to a new array of ``rule.dst``, of x's shape, in C order.

    Raises what `strings` raises for the first element, row-major, that the destination cannot take.
    """
    flat = x.reshape(-1)
    result = np.empty(flat.size, rule.dst.numpy)
    for part in spans(flat.size):
        first = part.start
        texts, error = _texts(flat[part], first)
        # Converting first reports a text that is no number before a later element that is no text.
        result[first : first + len(texts)] = _READ[rule.dst.family](texts, first, rule)
        if error is not None:
            raise error
    return result.reshape(x.shape)


@arithmetic.exact()
def format(x: Array, rule: CastRule) -> Array:
    """Numbers of any type (or text) to a new object array of str, of x's shape, in C order."""
    src = rule.src
    if src.family == "string":
        return parse(x, rule)
    flat = x.reshape(-1)
    result = np.empty(flat.size, dtype=object)
    for part in spans(flat.size):
        result[part] = _format(flat[part].astype(src.numpy, copy=False), src, flat.size)
    return result.reshape(x.shape)


# ---- text -> number ----


def _texts(chunk: Array, first: int) -> tuple[list[str], Exception | None]:
    """The texts of a chunk up to the first element that is not a text, and the error for that element."""
    if chunk.dtype.kind == "S" and chunk.itemsize:
        characters = np.ascontiguousarray(chunk).view(np.uint8)
        if characters.max() < 128:
            # ASCII widened to 4 bytes each is NumPy's layout of str arrays: quicker than decoding one by one.
            return characters.astype(np.uint32).view(f"U{chunk.itemsize}").tolist(), None
    elif strings.has_characters(chunk):
        elements = chunk.tolist()
        if set(map(type, elements)) == {str}:
            return elements, None
    texts: list[str] = []
    try:
        texts.extend(strings.texts(chunk, first))
    except (TypeError, ValueError) as error:
        return texts, error
    return texts, None


def _read_strings(texts: list[str], first: int, rule: CastRule) -> list[str]:
    return texts


def _read_floats(texts: list[str], first: int, rule: CastRule) -> Array:
    dst = rule.dst
    if rule.rounds_by_rule:
        return from_strings(np.array(texts, object), rule, first)
    numbers = _doubles(texts, first)
    if dst.numpy == np.float64:
        return np.clip(numbers, dst.min, dst.max) if rule.overflow == "saturate" else numbers
    for i in np.flatnonzero(_on_boundary(numbers, dst)).tolist():
        numbers[i] = _toward(texts[i], float(numbers[i]))
    result = np.empty(numbers.size, dst.numpy)
    into(numbers, dataclasses.replace(rule, src=dtypes.dtype("DOUBLE")), result)
    return result


def _on_boundary(numbers: Array, dst: DType) -> Array:
    """Which doubles are infinite, or at a point where the result of the cast to `dst` changes (for FLOAT8E8M0: may)."""
    fraction, exponent = np.frexp(numbers)
    if dst.family == "e8m0":
        boundary: Array = (fraction == 0.5) | (fraction == 0.75)
    else:
        # The spacing continues beyond the largest value, because overflow is decided after rounding.
        spacing = np.maximum(exponent, 2 - dst.bias) - 1 - dst.mantissa_bits
        steps = np.ldexp(numbers, -spacing)
        boundary = np.abs(steps - np.rint(steps)) == 0.5
    return boundary | np.isinf(numbers)


def _toward(text: str, number: float) -> float:
    """The nearest double of a text's number, moved by one ULP towards that number unless they are equal."""
    if math.isinf(number):
        return number if "n" in text.lower() else math.nextafter(number, 0.0)
    exact, rounded = Decimal(text), Decimal.from_float(number)
    return number if exact == rounded else math.nextafter(number, math.inf if exact > rounded else -math.inf)


def _doubles(texts: list[str], first: int) -> Array:
    """The nearest doubles. ValueError with the index of the first text that is not a number."""
    joined = ",".join(texts)
    if joined.isascii():
        raw = joined.encode()
        others = raw.translate(None, _PLAIN)
        commas = len(texts) - 1
        try:
            library = fast_library()
            if library is not None and others == b"," * commas:
                return _json_doubles(library, texts, raw)
        except ValueError:
            pass  # JSON has no "+1", ".5", "1." or "01", and no infinity for "1e400".
        try:
            if others.translate(None, _LETTERS_AND_BLANKS) == b"," * commas:
                return np.array(texts, dtype=object).astype(np.float64)
        except ValueError:
            pass
    for index, text in enumerate(texts, first):
        strings.parse(text, index)
    raise AssertionError("float() refuses a text that strings.parse accepts")


def _json_doubles(library: Any, texts: list[str], raw: bytes) -> Array:
    numbers = np.fromiter(library.loads(b"[%b]" % raw), np.float64, len(texts))
    for i in np.flatnonzero(numbers == 0).tolist():
        # JSON's -0 is an integer, which has no sign.
        if texts[i][0] == "-":
            numbers[i] = -0.0
    return numbers


def _read_integers(texts: list[str], first: int, rule: CastRule) -> Array:
    dst = rule.dst
    wide = np.dtype(np.int64 if dst.signed or dst.bits < 64 else np.uint64)
    try:
        values = _integers(texts, first, wide)
        fits = bool(((values >= dst.min) & (values <= dst.max)).all())
    except (ValueError, OverflowError):
        fits = False
    if not fits:
        exact = [strings.to_integer(text, dst, index) for index, text in enumerate(texts, first)]
        values = np.array(exact, dtype=wide)
    codes: Array = values.astype(dst.code_numpy) & dst.code_numpy.type(dst.code_mask)
    return codes.view(dst.numpy)


def _integers(texts: list[str], first: int, wide: np.dtype[Any]) -> Array:
    """The numbers without their fractions; ValueError or OverflowError for a text whose number the wide type lacks."""
    joined = ",".join(texts)
    if joined.isascii() and joined.encode().translate(None, b"0123456789+-") == b"," * (len(texts) - 1):
        return np.array(texts, dtype=object).astype(wide)
    numbers = _doubles(texts, first)
    values = np.trunc(numbers)
    # An integral double from at most 16 characters, so at most 15 digits and a point or an exponent, is exact.
    long = np.fromiter(map(len, texts), np.int64, len(texts)) > 16
    doubtful = ~(np.abs(numbers) < 2.0**53) | (long & (values == numbers))
    if wide == np.uint64 and (values < 0).any():
        raise OverflowError("negative")
    result = np.where(doubtful, 0.0, values).astype(wide)
    dtype = dtypes.dtype(wide)
    for i in np.flatnonzero(doubtful).tolist():
        result[i] = strings.to_integer(texts[i], dtype)
    return result


def _read_bools(texts: list[str], first: int, rule: CastRule) -> Array:
    digits = [_WORDS.get(text, text) for text in texts]
    try:
        numbers = _doubles(digits, first)
    except ValueError:
        return np.array([strings.to_bool(text, index) for index, text in enumerate(texts, first)], dtype=np.bool_)
    result: Array = numbers != 0
    for i in np.flatnonzero(~result).tolist():
        # Most are written as zeros; others are nonzero numbers too small for a double.
        result[i] = bool(digits[i].strip("+-0.")) and strings.to_bool(texts[i])
    return result


_READ: dict[str, Callable[[list[str], int, CastRule], Any]] = {
    "bool": _read_bools,
    "int": _read_integers,
    "float": _read_floats,
    "e8m0": _read_floats,
    "string": _read_strings,
}


# ---- number -> text ----

# Making a table of all 65,536 texts takes tens of milliseconds, which does not pay off for fewer elements.
_TABLE_SIZE = 4096


@arithmetic.exact()
def _powers_of_ten() -> Array:
    return np.array([float(f"1e{exponent}") for exponent in range(-64, 65)])


_POWERS_OF_TEN = _powers_of_ten()


def _format(chunk: Array, src: DType, size: int) -> Any:
    if src.bits <= 8 or (src.bits <= 16 and size >= _TABLE_SIZE):
        codes = chunk.view(src.code_numpy)
        return _table(src)[codes & src.code_numpy.type(src.code_mask)]
    return _format_wide(chunk, src)


@cache
@arithmetic.exact()
def _table(src: DType) -> Array:
    """The texts of all codes of a type of 16 bits or fewer."""
    codes = range(1 << src.bits)
    result = np.empty(len(codes), dtype=object)
    if src.bits <= 8:
        result[:] = [strings.format(src.value(code), src) for code in codes]
    else:
        result[:] = _format_wide(np.array(codes, src.code_numpy).view(src.numpy), src)
    return result


def _format_wide(chunk: Array, src: DType) -> list[str]:
    if src.family == "int":
        return list(map(str, chunk.tolist()))
    values = chunk.astype(strings.shortest_in(src).numpy, copy=False)
    library = fast_library() if values.dtype != np.float16 else None
    if library is not None:
        texts = _json_texts(library, values)
    elif values.dtype == np.float64:
        texts = list(map(repr, values.tolist()))
    else:
        texts = _shortest_texts(values, src)
    for i in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[i] = strings.format(float(values[i]), src)
    return texts


def _json_texts(library: Any, values: Array) -> list[str]:
    """The texts of repr, from JSON's, which have the same digits. The caller replaces infinities and NaN."""
    raw = library.dumps(np.ascontiguousarray(values), option=library.OPT_SERIALIZE_NUMPY)[1:-1] + b","
    magnitude = np.abs(values)
    if (magnitude >= 1e13).any():
        # orjson before 3.12 writes no "+".
        raw = raw.replace(b"e+", b"e").replace(b"e", b"e+").replace(b"e+-", b"e-")
    if ((magnitude < 1e-5) & (magnitude != 0)).any():
        for k in (6, 7, 8, 9):
            raw = raw.replace(b"e-%d," % k, b"e-0%d," % k)
    texts: list[str] = raw.decode().split(",")
    texts.pop()
    # In these ranges JSON and repr choose differently between plain and scientific layout, at least for float32.
    for start, stop in ((1e-6, 1e-4), (1e13, 1e16)):
        low, high = values.dtype.type(start), values.dtype.type(stop)
        for i in np.flatnonzero((magnitude >= low) & (magnitude < high)).tolist():
            texts[i] = repr(float(texts[i]))
    return texts


def _shortest_texts(values: Array, src: DType) -> list[str]:
    """repr of the shortest decimals that read back to float16 or float32 values.

    Such a decimal has at most 9 digits, so that repr of its nearest double shows just these digits. The search tries 1,
    2, ... digits in double arithmetic; numbers close to a tie are left to exact arithmetic.
    """
    # repr(float(str(x))) of NumPy's scalars gives the same texts, in 1.5 (any bits) to 3 times (normal distribution)
    # the time of a million FLOATs.
    result = values.astype(np.float64)
    exact: list[int] = []
    rest = np.flatnonzero(np.isfinite(values) & (values != 0))
    later = rest[:0]
    if values.dtype == np.float32:
        # Normal float32 values are so dense that a decimal of fewer than 6 digits is also the nearest with 6 digits.
        normal = np.abs(values[rest]) >= np.finfo(np.float32).smallest_normal
        rest, later = rest[~normal], rest[normal]
    for count in range(1, 10):
        if count == 6:
            rest = np.concatenate([rest, later])
        value = result[rest]
        place = np.floor(np.log10(np.abs(value))).astype(np.int64) - (count - 1)
        scaled = value * _POWERS_OF_TEN[64 - place]
        digits = np.rint(scaled)
        decimal = np.where(place < 0, digits / _POWERS_OF_TEN[64 - place], digits * _POWERS_OF_TEN[64 + place])
        low, high = ((decimal * (1 + error)).astype(values.dtype) == value for error in (-(2.0**-48), 2.0**-48))
        found = low & high
        doubtful = (low | high) & (~found | (np.abs(np.abs(scaled - digits) - 0.5) < 1e-5))
        # Below a power of two values are twice as dense: the decimal above it may read back when the nearest does not.
        doubtful |= ~found & (np.abs(np.frexp(value)[0]) == 0.5)
        found &= ~doubtful
        # Only powers of ten up to 10^22 are exact doubles, with which a division or product is rounded once.
        for i in np.flatnonzero(found & (np.abs(place) > 22)).tolist():
            decimal[i] = float(f"{int(digits[i])}e{place[i]}")
        result[rest[found]] = decimal[found]
        exact += rest[doubtful].tolist()
        rest = rest[~(found | doubtful)]
    texts = list(map(repr, result.tolist()))
    for i in exact:
        texts[i] = _exact_text(float(values[i]), src)
    return texts


@lru_cache(maxsize=4096)
@arithmetic.exact()
def _exact_text(value: float, src: DType) -> str:
    return strings.format(value, src)
