# SPDX-License-Identifier: Apache-2.0
"""Text: the reference and the host, judged by plain fractions and by repr."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.dtypes import StringDType

import exact
from codes import every_code, random_codes
from gpucast.arrays.chunks import CHUNK
from gpucast.core import strings
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import BY_RULE, word_of
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.host import text as host_text
from gpucast.parity.cases import NUMERIC, SMALL, rules
from gpucast.reference import exact_cast

FLOATS = [row for row in NUMERIC if row.is_float]
INTEGERS = [row for row in NUMERIC if row.family == "int"]
STRING, BOOL, INT8, FLOAT, DOUBLE = map(dtype, ("STRING", "BOOL", "INT8", "FLOAT", "DOUBLE"))
Way = Callable[[np.ndarray, CastRule], np.ndarray]


def host(x: np.ndarray, rule: CastRule) -> np.ndarray:
    """As `gpucast.cast` does it."""
    return host_text.parse(x, rule) if rule.src is STRING else host_text.format(x, rule)


@pytest.fixture(params=[exact_cast.apply, host], ids=["reference", "host"])
def way(request: pytest.FixtureRequest) -> Way:
    """Both implementations."""
    found: Way = request.param
    return found


def objects(texts: Any) -> np.ndarray:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array


def parse(way: Way, texts: Any, to: DType, **attributes: Any) -> np.ndarray:
    return way(objects(texts), resolve(STRING, to, Options(**attributes)))


def show(way: Way, x: np.ndarray) -> np.ndarray:
    return way(x, resolve(dtype(x.dtype), STRING))


# ---- what is a number ----

FINITE = {
    "0": 0, "1": 1, "1.": 1, "1.0": 1, ".5": Fraction(1, 2), "00012": 12, "1e3": 1000, "1E+3": 1000,
    "1.e2": 100, ".5e1": 5, "25e-2": Fraction(1, 4), " 1": 1, "1 ": 1, "\t\n\r\f\v 7 \v\f\r\n\t": 7,
    "1e00000000000000000000000000003": 1000, "0e999999999999": 0, "0.000e-5": 0, ".0": 0, "1e-0": 1,
    "123456789012345678901234567890": 123456789012345678901234567890,
}  # fmt: skip
WORDS = ("inf", "INF", "Infinity", "iNfInItY", " inf\n", "nan", "NaN", "NAN", "\tnan ")
NO_NUMBER = [
    "", " ", "abc", "+", "-", ".", "+.", "e5", ".e5", "1e", "1e+", "1e-", "--1", "+-1", "1+", "- 1", "1 2", "1,2",
    ",", "1,", "1.2.3", "1_000", "_1", "1_", "0x10", "0x1p3", "1e5.0", "1d3", "1f", "1j", "in", "infi", "infinit",
    "infinity1", "nan(1)", "nanx", "snan", "1e5e5", "None", "null", "[1]", "1\0", "\0", "1\0 ", "1\x1c",
    "\x1f1", "1\x85", "1\xa0", "\u20031", "\u00b2", "\u0663", "\uff11", "1\u0660", "\u22121", "1\u202f000",
    "\u0131nf", "\u0130nf", "\u221e", "\ud800", "1\ud800", "\ufeff1", "1\n2", "'1'", '"1"', "tru", "t rue", "yes",
    "+true", "true\0", "\u017false",
]  # fmt: skip
EXPECTED = "expected decimal text such as '1.5e-3', INF or NaN"


@pytest.mark.parametrize("sign", ["", "+", "-"])
def test_numbers(sign: str, way: Way) -> None:
    numbers = {text: float(value) for text, value in FINITE.items()} | {text: float(text) for text in WORDS}
    found = parse(way, [text.replace(text.strip(), sign + text.strip()) for text in numbers], DOUBLE)
    assert list(map(repr, found.tolist())) == [repr(-x if sign == "-" else x) for x in numbers.values()]
    assert repr(parse(way, ["-0", "5"], DOUBLE).tolist()) == "[-0.0, 5.0]"


@pytest.mark.parametrize(("to", "what"), [("FLOAT", ""), ("INT8", ""), ("BOOL", ", true or false")])
def test_no_numbers(to: str, what: str, way: Way) -> None:
    for text in NO_NUMBER:
        with pytest.raises(ValueError) as caught:
            parse(way, ["1", "0", "1", text], dtype(to))
        kind = "boolean" if to == "BOOL" else "number"
        assert str(caught.value) == f"cast: element 3 is {text!r}, which is no {kind}; {EXPECTED}{what}"


def test_every_ascii_character_in_every_place(way: Way) -> None:
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
            assert is_number(way, text) == wanted, text


def is_number(way: Way, text: str) -> bool:
    try:
        parse(way, [text], DOUBLE)
    except ValueError:
        return False
    return True


EVIL = {
    "digits": "{n}", "fraction": "0.{n}", "no end": "{n}x", "blanks": "{b}1{b}", "only blanks": "{b}",
    "blanks, no number": "1{b}x", "exponent": "1e{n}", "small": "1e-{n}", "exponent, no end": "1e{n}x",
    "many points": "{p}", "signs": "{s}", "tie": "0.5{z}1",
}  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_linear_time(name: str, way: Way) -> None:
    """Of texts so long that a quadratic way would take hours, and no test would end."""
    n = 2_000_000
    text = EVIL[name].format(n="7" * n, b=" " * n, p="1." * n, s="+" * n, z="0" * n)
    wanted = name in ("digits", "fraction", "blanks", "exponent", "small", "tie")
    assert is_number(way, text) is wanted


# ---- text -> float ----


def text_of(value: Fraction, nudge: int = 0) -> str:
    """The whole decimal expansion of a fraction whose denominator is a power of two.

    With `nudge` +1 or -1 it is followed by a tail that makes the magnitude larger or smaller by less than 10^-1000 of
    its own size.
    """
    places = value.denominator.bit_length() - 1
    digits = abs(value.numerator) * 5**places
    if nudge:
        digits, places = digits * 10**1100 + nudge, places + 1100
    shown = str(digits).rjust(places + 1, "0")
    whole, fraction = shown[: len(shown) - places], shown[len(shown) - places :]
    return f"{whole}{'.' + fraction if fraction else ''}"


def boundaries(row: DType, rng: np.random.Generator) -> list[Fraction]:
    """Magnitudes at which rounding to a floating type changes: all, or the ends and some others of many."""
    if row.family == "e8m0":
        exponents = {-128, -127, -126, -1, 0, 1, 126, 127, 128, *rng.integers(-127, 128, 30).tolist()}
        return [Fraction(2) ** k * Fraction(m, 4) for k in sorted(exponents) for m in (3, 4, 5, 6)]
    if row.bits <= 8:
        codes = set(range(row.max_code + 1))
    else:
        first_normal, one = 1 << row.mantissa_bits, row.bias << row.mantissa_bits
        codes = {first_normal, one, one + first_normal}
        codes = {0, 1, 2, row.max_code - 1, row.max_code} | {code + step for code in codes for step in (-2, -1, 0, 1)}
        codes |= set(rng.integers(0, row.max_code, 30).tolist())
    # After the largest value comes the next with an unlimited exponent.
    values = {code: Fraction(row.value(code)) for code in codes}
    above = Fraction(2) ** (math.frexp(row.max)[1] - row.mantissa_bits - 1)
    return [
        (value + (value + above if code == row.max_code else Fraction(row.value(code + 1)))) / 2
        for code, value in sorted(values.items())
    ]


#: Doubles are read correctly themselves: 2^-1075 and its neighbours decide about the smallest subnormal.
DOUBLES = (
    "2.4703282292062327208e-324 2.4703282292062328e-324 2.47e-324 1.7976931348623158e308 9007199254740993 5e-324 "
    "3e-324 1.797693134862315807e308 1.797693134862315808e308 9007199254740992.9999999999999999999 "
    "2.2250738585072011e-308 2.2250738585072012e-308 6929495644600919.5 3.7455744005952583e15 0 0.0 1e-999 1e400"
).split()
#: Numbers as far away, or as near, as no type can tell; longer than the digits that Python turns into integers.
LONG = {
    Fraction(10) ** 400: ("1e999999999", "1e" + "9" * 1000, "9" * 100_000, "0.1e" + "9" * 25),
    Fraction(10) ** -400: ("1e-999999999", "1e-" + "9" * 1000, "0." + "0" * 100_000 + "1"),
    Fraction(5, 2): ("0." + "0" * 100_000 + "25e100001", "25" + "0" * 100_000 + "e-100001", "2.5" + "0" * 5000),
    Fraction(5, 2) + Fraction(10) ** -900: ("2.5" + "0" * 5000 + "1",),
}


@pytest.mark.parametrize("dst", FLOATS, ids=str)
def test_one_rounding(dst: DType, way: Way) -> None:
    """Exactly on a boundary of the destination, and beside it by a tail that no double can see; and anywhere."""
    rng = np.random.default_rng(dst.number or 0)
    decimals = [text_of(middle, nudge) for middle in boundaries(dst, rng) for nudge in (-1, 0, 1)]
    scale = math.frexp(float(dst.max))[1] * 0.32
    some = zip(np.abs(rng.standard_normal(500)), rng.normal(0, scale, 500).astype(int), strict=True)
    decimals += [*DOUBLES, *(f"{d:.6f}e{e}" for d, e in some)]
    numbers = {text: Fraction(text) for text in decimals} | {text: one for one, many in LONG.items() for text in many}
    every = {text: exact.ExactNumber("finite", False, one) for text, one in numbers.items()}
    every |= {"INF": exact.ExactNumber("infinite", False), "nan": exact.ExactNumber("nan", False)}
    every |= {f"-{text}": exact.ExactNumber(one.kind, True, one.magnitude) for text, one in every.items()}
    texts = objects(list(every))
    asked = [word_of(name) for name in BY_RULE["float"]] if dst.family == "float" else []
    for rule in (*rules(STRING, dst), *(resolve(STRING, dst, Options(rounding=word)) for word in asked)):
        wanted = [exact.cast(number, rule) for number in every.values()]
        for text, got, right in zip(every, way(texts, rule).view(dst.code_numpy).tolist(), wanted, strict=True):
            assert got == right, (rule, text[:60], hex(got), hex(right))


@pytest.mark.parametrize("src", [row for row in SMALL if row.is_float], ids=str)
def test_every_code_reads_back(src: DType) -> None:
    codes = every_code(src)
    texts = show(host, codes.view(src.numpy))
    # The text of a FLOAT8E8M0 value lies beside its power of two, on either side.
    nearest = {"round_mode": "nearest"} if src.family == "e8m0" else {}
    back = parse(host, texts, src, saturate=not (src.has_inf and src.bits == 8), **nearest)
    nan = np.array([isinstance(value, float) and math.isnan(value) for value in map(src.value, codes.tolist())])
    assert (texts[nan] == "NaN").all()
    wanted = np.where(nan, src.nan_code if src.has_nan else 0, codes)
    assert (back.view(src.code_numpy) == wanted).all()


# ---- text -> integer, bool ----


@pytest.mark.parametrize("dst", INTEGERS, ids=str)
def test_integers(dst: DType, way: Way) -> None:
    low, high = int(dst.min), int(dst.max)
    values = [low, low + 1, high - 1, high, 0, 1, high // 2, high // 3]
    plain = {str(value): value for value in values} | {"-0": 0, "+1": 1, "0001": 1}
    forms = plain | {" 1\n": 1, "-0.99": 0, "1e-999": 0, "0." + "9" * 23: 0, "1.": 1, "100e-2": 1}
    for value in values:
        forms |= dict.fromkeys((f" {value} ", f"{value}.", f"{value}0e-1", f"{value}.99999999999999999999999"), value)
    for texts in (plain, forms, plain | {"1.5": 1}):
        got = parse(way, list(texts), dst)
        assert got.dtype == dst.numpy
        assert [dst.value(code) for code in got.view(dst.code_numpy).tolist()] == list(texts.values())
    for text in (str(high + 1), str(low - 1), f"{low - 1}.0", "1e999999999", "-1e30", f"{high + 1}.{'0' * 2000}"):
        with pytest.raises(OverflowError, match="^cast: element 1 is '") as caught:
            parse(way, ["0", text], dst)
        assert str(caught.value).endswith(f", out of range for {dst.name}; expected {low} to {high}")


def test_booleans(way: Way) -> None:
    yes = [*"true True TRUE tRuE 1 -1 0.5 nan -inf 1e-999999".split(), " true\t", "0." + "0" * 900 + "1"]
    no = [*"false False FALSE fAlSe 0 -0 0.0 +.0 0e999 -0e-999".split(), "\nfalse "]
    for texts in ([*yes, *no], yes[4:], no[4:-1]):
        assert parse(way, texts, BOOL).tolist() == [text in yes for text in texts]


# ---- kinds and shapes of arrays ----

TEXTS = ["1.5", "-2", "3e2", "0.25", "7", "+8"]
MAKERS: list[Callable[[list[str]], np.ndarray]] = [
    objects,
    np.array,
    lambda words: np.array(words, dtype="S"),
    lambda words: np.array(words, dtype=StringDType()),
    lambda words: np.array(words, dtype=StringDType(na_object=None)),
    lambda words: np.array(words).astype(">U9"),
    lambda words: objects([words[0].encode(), np.str_(words[1]), *words[2:]]),
]
VIEWS: list[Callable[[np.ndarray], np.ndarray]] = [
    lambda a: a,
    lambda a: a.T,
    lambda a: a[..., ::-1],
    lambda a: a[:0],
    lambda a: a.reshape(-1)[2:3].reshape(()),
]


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 2)])
@pytest.mark.parametrize("make", MAKERS)
def test_kinds_shapes_and_strides(make: Callable[[list[str]], np.ndarray], shape: tuple[int, ...], way: Way) -> None:
    x = make(TEXTS).reshape(shape)
    wanted = np.array([float(word) for word in TEXTS], dtype=np.float32).reshape(shape)
    for view in VIEWS:
        got = way(view(x), resolve(STRING, FLOAT))
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, view(wanted), strict=True)
        texts = way(view(x), resolve(STRING, STRING))
        assert texts.tolist() == view(objects(TEXTS).reshape(shape)).tolist()
        assert {type(text) for text in texts.flat} <= {str}


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_format_follows_shape_strides_and_byte_order(src: DType, way: Way) -> None:
    codes = random_codes(src, (2, 3, 4), src.number or 0)
    x = codes.view(src.numpy)
    texts = objects([strings.format(src.value(code), src) for code in codes.reshape(-1).tolist()]).reshape(x.shape)
    for view in VIEWS:
        got = show(way, view(x))
        assert got.dtype == object and got.flags.c_contiguous and got.shape == view(texts).shape
        assert got.tolist() == view(texts).tolist()
    if src.bits >= 16 and not src.numpy.isbuiltin == 2:
        assert way(x.astype(src.numpy.newbyteorder()), resolve(src, STRING)).tolist() == texts.tolist()


# ---- number -> text ----

DIGITS = [0.0, -0.0, 1.0, -2.5, 0.00012, 1e-4, 9.9999e-5, 9.9e-5, 1e-5, 1e-6, 1.5e-6, 1.5e-7, 1e-7, 2.5e-9, 1e-10, 1e12]
DIGITS += [1e13, 1.5e14, 1e15, 1.5e15, 9.999e15, 9.9999e15, 1e16, 1.25e17, -3e20, 1e22, 1e30, 0.5, 100.0, 123456.0]
LAYOUT = [(value, repr(value)) for value in DIGITS]
LAYOUT += [(math.inf, "INF"), (-math.inf, "-INF"), (math.nan, "NaN"), (-math.nan, "NaN")]
SHOWN: list[tuple[str, float, str]] = [
    ("FLOAT16", 65504.0, "65500.0"), ("FLOAT16", 2.0**-24, "6e-08"), ("FLOAT16", 0.0999755859375, "0.1"),
    ("BFLOAT16", 3.140625, "3.140625"), ("FLOAT8E8M0", 2.0**-127, "5.877472e-39"),
    ("FLOAT8E4M3FN", 448.0, "448.0"), ("FLOAT", 2.0**-149, "1e-45"), ("DOUBLE", 2.0**-1074, "5e-324"),
    ("FLOAT", 3.4028234663852886e38, "3.4028235e+38"), ("FLOAT", 1048576.25, "1048576.2"),
    ("FLOAT", 1048576.75, "1048576.8"), ("DOUBLE", 2.0**-44, "5.684341886080802e-14"),
    ("FLOAT4E2M1", -6.0, "-6.0"), ("INT4", -8, "-8"), ("UINT64", 2**64 - 1, "18446744073709551615"),
    ("BOOL", 1, "True"), ("BOOL", 0, "False"),
    # Double arithmetic alone takes 1.01946066500000007...e-16 for a tie, and to even.
    ("FLOAT", float(np.array(0x24EB1256, np.uint32).view(np.float32)), "1.01946067e-16"),
    *((name, *pair) for name in ("FLOAT", "DOUBLE") for pair in LAYOUT),
]  # fmt: skip


def test_layout(way: Way) -> None:
    for name, value, text in SHOWN:
        assert show(way, np.array([value]).astype(dtype(name).numpy)).tolist() == [text]


def test_only_the_low_bits_of_a_code_count(way: Way) -> None:
    x = np.array([0x7F, 0xF1], dtype=np.uint8).view(ml_dtypes.int4)
    assert show(way, x).tolist() == ["-1", "1"]
    # All but the byte 0 of a BOOL are True.
    x = np.array([0, 1, 2, 255], dtype=np.uint8).view(np.bool_)
    assert show(way, x).tolist() == ["False", "True", "True", "True"]


@pytest.mark.parametrize("row", [dtype("FLOAT16"), FLOAT, DOUBLE], ids=str)
def test_shortest_and_closest(row: DType) -> None:
    """The text reads back; no decimal of fewer digits does; none of as many digits that does is closer."""
    rng = np.random.default_rng(row.number or 0)
    codes = {int(code) for code in rng.integers(1, row.max_code, 700)} | {1, 2, 3, row.max_code}
    step = max(1, row.exponent_bits - 4)
    codes |= {exponent << row.mantissa_bits for exponent in range(1, (1 << row.exponent_bits) - 1, step)}
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


@pytest.mark.parametrize("src", SMALL, ids=str)
def test_every_code_is_written_as_the_exact_way_does(src: DType, exhaustive: bool) -> None:
    codes = every_code(src)[:: 1 if exhaustive or src.bits <= 8 else 7]
    wanted = [strings.format(src.value(code), src) for code in codes.tolist()]
    # By the table, and without it.
    assert show(host, codes.view(src.numpy)).tolist() == wanted
    assert show(host, codes[-1000:].view(src.numpy)).tolist() == wanted[-1000:]


def hard_values(kind: Any, random: int) -> np.ndarray:
    """Finite values of every size, of few digits, on ties of decimals, and around powers of two and ten."""
    rng = np.random.default_rng(11)
    info = np.finfo(kind)
    patterns = rng.integers(0, 1 << info.bits, random, dtype=f"uint{info.bits}").view(kind)
    with np.errstate(over="ignore", under="ignore"):
        few = (rng.integers(1, 10**7, random) / 10.0 ** rng.integers(0, 20, random)).astype(kind)
        tens = [float(f"{m}e{k}") for k in range(-46, 39) for m in (1, 2, 5, 9, 9.999999, 1.000001)]
        twos = np.ldexp(1.0, np.arange(info.minexp - info.nmant, info.maxexp)).astype(kind)
        around = np.concatenate([np.array(tens).astype(kind), twos])
    # Multiples of 1/8 that are as long as the type allows have two equally close shortest decimals.
    ties = (np.ldexp(1.0, info.nmant - 3) + np.arange(random // 4) / 8).astype(kind)
    small = rng.integers(0, 1 << info.nmant, random // 4, dtype=f"uint{info.bits}").view(kind)
    beside = [np.nextafter(around, kind(0)), np.nextafter(around, kind(np.inf))]
    x = np.concatenate([patterns, few, ties, small, around, *beside])
    x = np.concatenate([x, -x, np.arange(1000, dtype=f"uint{info.bits}").view(kind)])
    return x[np.isfinite(x)]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_wide_floats_have_the_shortest_digits_in_reprs_layout(kind: Any, exhaustive: bool) -> None:
    x = hard_values(kind, 1_000_000 if exhaustive else 20_000)
    digits = x.tolist() if kind is np.float64 else map(float, x.astype(StringDType()).tolist())
    assert show(host, x).tolist() == list(map(repr, digits))


# ---- errors ----

NO_TEXT = (None, math.nan, 1, 1.5, True, np.float32(2), ("1",), bytearray(b"1"))
NONE_IS = "None of type NoneType; expected str or ASCII bytes"
#: Texts, destination, and the error: its type, the index of its element, and its words after "is ".
BAD: list[tuple[list[Any], str, type[Exception], int, str]] = [
    (["1", "2", "x"], "FLOAT", ValueError, 2, f"'x', which is no number; {EXPECTED}"),
    (["0", "1e5", "128", "x"], "INT8", OverflowError, 1, "'1e5', out of range for INT8; expected -128 to 127"),
    (["0", "128", "x"], "INT8", OverflowError, 1, "'128', out of range for INT8; expected -128 to 127"),
    (["0", "x", "128"], "INT8", ValueError, 1, f"'x', which is no number; {EXPECTED}"),
    (["0", "1.5", "-1"], "UINT64", OverflowError, 2, f"'-1', out of range for UINT64; expected 0 to {2**64 - 1}"),
    (["9" * 5000], "INT2", OverflowError, 0,
     f"'{'9' * 40}'... (5000 characters), out of range for INT2; expected -2 to 1"),
    (["1", "nan"], "INT32", ValueError, 1, "'nan', which INT32 cannot hold; expected a finite number"),
    (["1", "INF", "x"], "UINT4", ValueError, 1, "'INF', which UINT4 cannot hold; expected a finite number"),
    (["x", None], "FLOAT", ValueError, 0, f"'x', which is no number; {EXPECTED}"),
    ([None, "x"], "FLOAT", TypeError, 0, NONE_IS),
    (["1", None], "STRING", TypeError, 1, NONE_IS),
    (["1", b"\xff"], "FLOAT", ValueError, 1, "b'\\xff', which is not ASCII; expected str or ASCII bytes"),
    *((["1", x], "INT8", TypeError, 1, f"{x!r} of type {type(x).__name__}; expected str or ASCII bytes")
      for x in NO_TEXT),
]  # fmt: skip


@pytest.mark.parametrize("before", [0, 5, CHUNK - 1])
def test_errors_name_the_first_bad_element(before: int, way: Way) -> None:
    for texts, to, kind, index, words in BAD if before < 10 else BAD[:1] if way is exact_cast.apply else BAD[::6]:
        with pytest.raises(kind) as caught:
            parse(way, ["1"] * before + texts, dtype(to))
        assert type(caught.value) is kind
        assert str(caught.value) == f"cast: element {before + index} is {words}"


CODES = np.array([0x31, 0x78, 0x110000], np.uint32)
BAD_ARRAYS: list[tuple[np.ndarray, type[Exception], str]] = [
    (np.array([b"1", b"2", b"\xff"]), ValueError, "element 2 is b'.xff', which is not ASCII"),
    (np.array([b"1", b"x", b"\xff"]), ValueError, "element 1 is 'x', which is no number"),
    (np.array([["1", "2"], ["3", None]], StringDType(na_object=None)), TypeError, "element 3 is None"),
    (CODES[[0, 0, 2]].view("U1"), ValueError, "element 2 has the code 0x110000, which is no character"),
    (CODES[[0, 2]].astype(">u4").view(">U1"), ValueError, "element 1 has the code 0x110000, which is no character"),
    (CODES.view("U1"), ValueError, "element 1 is 'x', which is no number"),
    (np.array([["1", "2"], ["x", "y"], ["3", "4"]]).T[::-1], ValueError, "element 1 is 'y'"),
]


@pytest.mark.parametrize(("x", "kind", "words"), BAD_ARRAYS, ids=[case[2][:30] for case in BAD_ARRAYS])
def test_errors_of_other_arrays(x: np.ndarray, kind: type[Exception], words: str, way: Way) -> None:
    with pytest.raises(kind, match=f"^cast: {words}"):
        way(x, resolve(STRING, FLOAT))
