# SPDX-License-Identifier: Apache-2.0
"""`gpucast.core.strings`, the exact meaning of text, judged by plain fractions."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from numpy.dtypes import StringDType

import exact
from decimals import boundaries, text_of
from gpucast.core import strings
from gpucast.core.dtypes import DTYPES, DType, dtype

FLOATS = [row for row in DTYPES if row.is_float]
INTEGERS = [row for row in DTYPES if row.family == "int"]
OWN = [dtype(name) for name in ("FLOAT16", "FLOAT", "DOUBLE")]

# ---- what is a number ----

FINITE = {
    "0": 0, "1": 1, "+1": 1, "1.": 1, "1.0": 1, ".5": Fraction(1, 2), "00012": 12, "1e3": 1000, "1E+3": 1000,
    "1.e2": 100, ".5e1": 5, "25e-2": Fraction(1, 4), " 1": 1, "1 ": 1, "\t\n\r\f\v 7 \v\f\r\n\t": 7,
    "1e00000000000000000000000000003": 1000, "0e999999999999": 0, "0.000e-5": 0, "+.0": 0, "1e-0": 1,
    "123456789012345678901234567890": 123456789012345678901234567890,
}  # fmt: skip
WORDS = {
    "inf": "infinite", "INF": "infinite", "Infinity": "infinite", "iNfInItY": "infinite", " inf\n": "infinite",
    "nan": "nan", "NaN": "nan", "NAN": "nan", "\tnan ": "nan",
}  # fmt: skip
NO_NUMBER = [
    "", " ", "abc", "+", "-", ".", "+.", "e5", ".e5", "1e", "1e+", "1e-", "--1", "+-1", "1+", "- 1", "1 2", "1,2",
    ",", "1,", "1.2.3", "1_000", "_1", "1_", "0x10", "0x1p3", "1e5.0", "1d3", "1f", "1j", "in", "infi", "infinit",
    "infinity1", "nan(1)", "nanx", "snan", "1e5e5", "true", "None", "null", "[1]", "1\0", "\0", "1\0 ", "1\x1c",
    "\x1f1", "1\x85", "1\xa0", "\u20031", "\u00b2", "\u0663", "\uff11", "1\u0660", "\u22121", "1\u202f000",
    "\u0131nf", "\u0130nf", "\u221e", "\ud800", "1\ud800", "\ufeff1", "1\n2", "'1'", '"1"',
]  # fmt: skip


@pytest.mark.parametrize("sign", ["", "+", "-"])
def test_numbers(sign: str) -> None:
    for text, value in FINITE.items():
        signed = text if "+" in text.split("e")[0].split("E")[0] else re.sub(r"(?=[\d.])", sign, text, count=1)
        number = strings.parse(signed)
        assert (number.kind, number.negative, number.magnitude) == (
            "finite",
            "-" in signed.lower().split("e")[0],
            value,
        )
    for text, kind in WORDS.items():
        number = strings.parse(text.replace(text.strip(), sign + text.strip()))
        assert (number.kind, number.negative, number.magnitude) == (kind, sign == "-", 0)


@pytest.mark.parametrize("text", NO_NUMBER)
def test_no_numbers(text: str) -> None:
    message = f"cast: element 3 is {text!r}, which is no number; expected decimal text such as '1.5e-3', INF or NaN"
    with pytest.raises(ValueError) as caught:
        strings.parse(text, 3)
    assert str(caught.value) == message
    with pytest.raises(ValueError):
        strings.to_integer(text, dtype("INT8"), 3)
    if text != "true":
        with pytest.raises(ValueError, match=re.escape("which is no boolean") + ".*, true or false"):
            strings.to_bool(text, 3)


def test_every_ascii_character_in_every_place() -> None:
    """Alone, before, within and after a number: only what the grammar names is taken."""
    blanks = " \t\n\r\f\v"
    for code in range(128):
        c = chr(code)
        taken = {
            c: c.isdigit(),
            c + "5": c.isdigit() or c in blanks or c in "+-.",
            "5" + c: c.isdigit() or c in blanks or c == ".",
            "5" + c + "5": c.isdigit() or c in ".eE",
            "5e" + c + "5": c.isdigit() or c in "+-",
        }
        for text, wanted in taken.items():
            assert _is_number(text) == wanted, text


def _is_number(text: str) -> bool:
    try:
        strings.parse(text)
    except ValueError:
        return False
    return True


def test_messages_quote_little_of_a_long_text() -> None:
    with pytest.raises(
        ValueError, match=re.escape("cast: the text is '" + "9" * 40 + "'... (100001 characters), which is")
    ):
        strings.parse("9" * 100_000 + "x")


# ---- exactness ----


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_magnitudes_lie_on_the_right_side_of_every_boundary(row: DType) -> None:
    for middle in boundaries(row, np.random.default_rng(row.number or 0), 20):
        below, equal, above = (strings.parse(text_of(middle, nudge)).magnitude for nudge in (-1, 0, 1))
        assert below < middle == equal < above


def test_far_exponents_and_long_texts() -> None:
    huge, tiny = Fraction(10) ** 390, Fraction(10) ** -390
    for text in ("1e999999999", "1e" + "9" * 1000, "9" * 100_000, "0.1e" + "9" * 25):
        assert strings.parse(text).magnitude > huge
    for text in ("1e-999999999", "1e-" + "9" * 1000, "0." + "0" * 100_000 + "1"):
        assert 0 < strings.parse(text).magnitude < tiny
    assert strings.parse("0." + "0" * 100_000 + "25e100001").magnitude == Fraction(5, 2)
    assert strings.parse("25" + "0" * 100_000 + "e-100001").magnitude == Fraction(5, 2)
    assert strings.parse("1." + "0" * 5000 + "1").magnitude > 1
    assert strings.parse("1." + "0" * 5000).magnitude == 1


EVIL = {
    "digits": "{n}", "fraction": "0.{n}", "no end": "{n}x", "blanks": "{b}1{b}", "only blanks": "{b}",
    "blanks, no number": "1{b}x", "exponent": "1e{n}", "small": "1e-{n}", "exponent, no end": "1e{n}x",
    "many points": "{p}", "signs": "{s}", "tie": "0.5{z}1",
}  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_linear_time(name: str) -> None:
    """Of texts so long that a quadratic way would take hours, and no test would end."""
    n = 2_000_000
    text = EVIL[name].format(n="7" * n, b=" " * n, p="1." * n, s="+" * n, z="0" * n)
    assert _is_number(text) is (name in ("digits", "fraction", "blanks", "exponent", "small", "tie"))


# ---- integers and booleans ----


@pytest.mark.parametrize("row", INTEGERS, ids=str)
def test_integers(row: DType) -> None:
    low, high = int(row.min), int(row.max)
    for value in (low, high, 0, 1):
        for text in (
            str(value),
            f" {value} ",
            f"{value}.",
            f"{value}.999999999999999999999999",
            f"{value}0e-1",
            f"+{value}".replace("+-", "-"),
        ):
            assert strings.to_integer(text, row) == value, text
    assert strings.to_integer("-0.99", row) == 0
    assert strings.to_integer(f"{high // 10}e1", row) == high // 10 * 10
    for text in (str(high + 1), str(low - 1), f"{low - 1}.0", "1e999999999", "-1e30", str(high + 1) + "." + "0" * 2000):
        with pytest.raises(OverflowError) as caught:
            strings.to_integer(text, row, 7)
        assert str(caught.value).startswith("cast: element 7 is '")
        assert str(caught.value).endswith(f", out of range for {row.name}; expected {low} to {high}")
    for text in ("nan", "-INF", "infinity"):
        with pytest.raises(ValueError, match=f"is '{text}', which {row.name} cannot hold; expected a finite number"):
            strings.to_integer(text, row)


def test_booleans() -> None:
    for text in (
        "true",
        "True",
        "TRUE",
        "tRuE",
        " true\t",
        "1",
        "-1",
        "0.5",
        "nan",
        "-inf",
        "1e-999999",
        "0." + "0" * 900 + "1",
    ):
        assert strings.to_bool(text) is True, text
    for text in ("false", "False", "FALSE", "fAlSe", "\nfalse ", "0", "-0", "0.0", "+.0", "0e999", "-0e-999"):
        assert strings.to_bool(text) is False, text
    for text in ("tru", "truee", "t rue", "yes", "+true", "true\0", "\u017false", ""):
        with pytest.raises(ValueError):
            strings.to_bool(text)


# ---- arrays of text ----


def test_texts_of_every_kind_of_array() -> None:
    words = ["1", "", "abc", "2.5"]
    for array in (
        np.array(words, dtype=object),
        np.array(words),
        np.array(words).astype(">U4"),
        np.array(words, dtype="S"),
        np.array(words, dtype=StringDType()),
        np.array(words, dtype=StringDType(na_object=None)),
        np.array([np.str_(words[0]), b"", *words[2:]], dtype=object),
    ):
        assert list(strings.texts(array)) == words
        assert list(strings.texts(array.reshape(2, 2).T)) == [words[i] for i in (0, 2, 1, 3)]
        assert {type(text) for text in strings.texts(array)} == {str}
    assert list(strings.texts(np.array("1.5", dtype=object))) == ["1.5"]
    assert list(strings.texts(np.empty((0, 3), dtype=object))) == []


@pytest.mark.parametrize(
    "element", [None, math.nan, 1, 1.5, True, np.float32(2), [1], ("1",), bytearray(b"1")], ids=repr
)
def test_other_objects_are_no_text(element: object) -> None:
    array = np.empty(3, dtype=object)
    array[:2], array[2] = "1", element
    with pytest.raises(TypeError) as caught:
        list(strings.texts(array))
    wanted = f"cast: element 2 is {element!r} of type {type(element).__name__}; expected str or ASCII bytes"
    assert str(caught.value) == wanted


def test_bytes_must_be_ascii() -> None:
    for array in (np.array([b"1", b"\xe9"]), np.array([b"1", "1\u00e9".encode()], dtype=object)):
        with pytest.raises(
            ValueError, match=r"cast: element 1 is b'.*', which is not ASCII; expected str or ASCII bytes"
        ):
            list(strings.texts(array))


@pytest.mark.parametrize("order", "<>")
def test_invalid_characters(order: str) -> None:
    array = np.array([0x31, 0, 0x32, 0x110000, 0xFFFFFFFF, 0x33], np.uint32).astype(f"{order}u4").view(f"{order}U2")
    texts = strings.texts(array, first=7)
    assert next(texts) == "1"
    with pytest.raises(ValueError, match="cast: element 8 has the code 0x110000, which is no character; expected str"):
        next(texts)
    assert list(strings.texts(array[:1])) == ["1"]
    assert list(strings.texts(array[:0])) == []


# ---- number -> text ----

LAYOUT = {
    -0.0: "-0.0", 1.0: "1.0", -2.5: "-2.5", 100.0: "100.0", 0.5: "0.5", 0.0001: "0.0001", 0.00012: "0.00012",
    0.00001: "1e-05", 0.000099: "9.9e-05", 1.5e-7: "1.5e-07", 1e15: "1000000000000000.0",
    1.5e15: "1500000000000000.0", 9.999e15: "9999000000000000.0", 1e16: "1e+16", 1.25e16: "1.25e+16",
    -3e20: "-3e+20", math.inf: "INF", -math.inf: "-INF", math.nan: "NaN", -math.nan: "NaN", 123456.0: "123456.0",
}  # fmt: skip


def test_layout() -> None:
    for value, text in (*LAYOUT.items(), (0.0, "0.0")):
        assert strings.format(value, dtype("DOUBLE")) == text
        assert strings.format(float(np.float32(value)), dtype("FLOAT")) == text
    for row, value, text in (
        ("FLOAT16", 65504.0, "65500.0"), ("FLOAT16", 2.0**-24, "6e-08"), ("FLOAT16", 0.0999755859375, "0.1"),
        ("BFLOAT16", 3.140625, "3.140625"), ("FLOAT8E8M0", 2.0**-127, "5.877472e-39"),
        ("FLOAT8E4M3FN", 448.0, "448.0"), ("FLOAT", 2.0**-149, "1e-45"), ("DOUBLE", 2.0**-1074, "5e-324"),
        ("FLOAT", 3.4028234663852886e38, "3.4028235e+38"), ("FLOAT", 1048576.25, "1048576.2"),
        ("FLOAT", 1048576.75, "1048576.8"), ("DOUBLE", 2.0**-44, "5.684341886080802e-14"),
        ("FLOAT4E2M1", -6.0, "-6.0"), ("INT4", -8, "-8"), ("UINT64", 2**64 - 1, "18446744073709551615"),
        ("BOOL", 1, "True"), ("BOOL", 0, "False"),
    ):  # fmt: skip
        assert strings.format(value, dtype(row)) == text


@pytest.mark.parametrize("row", OWN, ids=str)
def test_shortest_and_closest(row: DType) -> None:
    """The text reads back; no decimal of fewer digits does; none of as many digits that does is closer."""
    rng = np.random.default_rng(row.number or 0)
    codes = {int(code) for code in rng.integers(1, row.max_code, 700)} | {1, 2, 3, row.max_code}
    codes |= {
        exponent << row.mantissa_bits
        for exponent in range(1, (1 << row.exponent_bits) - 1, max(1, row.exponent_bits - 4))
    }
    for code in sorted(codes):
        value = Fraction(row.value(code))
        text = strings.format(float(value), row)
        shown = Fraction(text)
        assert exact.round_magnitude(shown, row) == code
        count = len(re.sub(r"e.*|\.0$|\.", "", text).strip("0"))
        unit = _unit(value, count)
        for other in (shown - unit, shown + unit):
            if exact.round_magnitude(other, row) == code:
                assert abs(other - value) >= abs(shown - value), (code, text)
        coarse = _unit(value, count - 1)
        for other in (value // coarse * coarse, (value // coarse + 1) * coarse) if count > 1 else ():
            assert exact.round_magnitude(other, row) != code, (code, text)


def _unit(value: Fraction, count: int) -> Fraction:
    """The last place of decimals of `count` digits as large as the value."""
    k = len(str(int(value))) - 1 if value >= 1 else -len(str(int(1 / value)))
    if Fraction(10) ** (k + 1) <= value:
        k += 1
    return Fraction(10) ** (k - count + 1)
