# SPDX-License-Identifier: Apache-2.0
"""Arrays of text on the host, with and without orjson: the same codes, texts and errors as the exact way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.dtypes import StringDType

import exact
from codes import every_code, random_codes
from decimals import boundaries, text_of
from gpucast.arrays.chunks import CHUNK
from gpucast.core import strings
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import Options, resolve
from gpucast.host import text_on_host
from gpucast.parity.cases import NUMERIC, SMALL, rules

FLOATS = [row for row in NUMERIC if row.is_float]
INTEGERS = [row for row in NUMERIC if row.family == "int"]
STRING = dtype("STRING")
FLOAT, DOUBLE = dtype("FLOAT"), dtype("DOUBLE")


@pytest.fixture(params=["base", "orjson"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs without the optional library and with it."""
    if request.param == "base":
        monkeypatch.setattr(text_on_host, "fast_library", lambda: None)
    else:
        pytest.importorskip("orjson")
    return str(request.param)


def objects(texts: Any) -> np.ndarray:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array


def parse(texts: Any, to: DType, **attributes: Any) -> np.ndarray:
    return text_on_host.parse(objects(texts), resolve(STRING, to, Options(**attributes)))


def show(x: np.ndarray) -> np.ndarray:
    return text_on_host.format(x, resolve(dtype(x.dtype), STRING))


def exact_number(text: str) -> exact.ExactNumber:
    number = strings.parse(text)
    return exact.ExactNumber(number.kind, number.negative, number.magnitude)


# ---- text -> float ----


@pytest.mark.parametrize("dst", FLOATS, ids=str)
def test_one_rounding_at_every_boundary(dst: DType) -> None:
    """Exactly on a boundary of the destination, and beside it by a tail that no double can see."""
    rng = np.random.default_rng(dst.number or 0)
    texts = [text_of(middle, nudge) for middle in boundaries(dst, rng, 30) for nudge in (-1, 0, 1)]
    texts += ["-" + text for text in texts]
    texts += ["0", "-0", "-0.0", "1e-999", "-1e-999", "1e400", "-1e400", "INF", "-inf", "nan", "-NaN", "1e" + "9" * 50]
    numbers = [exact_number(text) for text in texts]
    for rule in rules(STRING, dst):
        got = text_on_host.parse(objects(texts), rule).view(dst.code_numpy)
        wanted = np.array([exact.cast(number, rule) for number in numbers], dtype=dst.code_numpy)
        for text, mine, right in zip(texts, got.tolist(), wanted.tolist(), strict=True):
            assert mine == right, (rule, text[:60], hex(mine), hex(right))


@pytest.mark.parametrize("dst", FLOATS, ids=str)
def test_random_decimals(dst: DType) -> None:
    rng = np.random.default_rng(dst.number or 0)
    scale = math.frexp(float(dst.max))[1] * 0.32
    texts = [
        f"{d:.6f}e{e}" for d, e in zip(rng.standard_normal(2000), rng.normal(0, scale, 2000).astype(int), strict=True)
    ]
    rule = resolve(STRING, dst)
    wanted = [exact.cast(exact_number(text), rule) for text in texts]
    assert text_on_host.parse(objects(texts), rule).view(dst.code_numpy).tolist() == wanted


@pytest.mark.parametrize("src", [row for row in SMALL if row.is_float], ids=str)
def test_every_code_reads_back(src: DType) -> None:
    codes = every_code(src)
    texts = show(codes.view(src.numpy))
    # The text of a FLOAT8E8M0 value lies beside its power of two, on either side.
    back = parse(texts, src, saturate=False if src.has_inf and src.bits == 8 else True, **_nearest(src))
    nan = np.array([isinstance(value, float) and math.isnan(value) for value in map(src.value, codes.tolist())])
    assert (texts[nan] == "NaN").all()
    wanted = np.where(nan, src.nan_code if src.has_nan else 0, codes)
    assert (back.view(src.code_numpy) == wanted).all()


def _nearest(row: DType) -> dict[str, str]:
    return {"round_mode": "nearest"} if row.family == "e8m0" else {}


def test_tails_far_behind_a_tie_of_doubles() -> None:
    """Doubles are read correctly themselves: 2^-1075 and its neighbours decide about the smallest subnormal."""
    texts = [
        "2.4703282292062327208e-324",
        "2.4703282292062328e-324",
        "2.47e-324",
        "1.7976931348623158e308",
        "9007199254740993",
    ]
    texts += [
        "1.797693134862315807e308",
        "1.797693134862315808e308",
        "9007199254740992.9999999999999999999",
        "5e-324",
        "3e-324",
    ]
    texts += ["2.2250738585072011e-308", "2.2250738585072012e-308", "6929495644600919.5", "3.7455744005952583e15"]
    assert parse(texts, DOUBLE).tolist() == [float(text) for text in texts]


# ---- text -> integer, bool, text ----


@pytest.mark.parametrize("dst", INTEGERS, ids=str)
def test_integers(dst: DType) -> None:
    low, high = int(dst.min), int(dst.max)
    values = [low, low + 1, high - 1, high, 0, 1, high // 2, high // 3]
    plain = [str(value) for value in values] + ["-0", "+1", "0001"]
    forms = [
        *plain,
        *(f"{value}.0" for value in values),
        *(f"{value}0e-1" for value in values),
        " 1\n",
        "-0.99",
        "1e-999",
    ]
    forms += [f"{value}.99999999999999999999999" for value in values] + ["0.99999999999999999999999", "1.", "100e-2"]
    for texts in (plain, forms, [*plain, "1.5"]):
        wanted = [strings.to_integer(text, dst) for text in texts]
        got = parse(texts, dst)
        assert got.dtype == dst.numpy
        assert [dst.value(code) for code in got.view(dst.code_numpy).tolist()] == wanted


def test_whole_doubles_of_long_fractions() -> None:
    """99.99... is 100 as a double, and 99 as an integer."""
    texts = [
        "99.99999999999999999",
        "-99.99999999999999999",
        "100.00000000000000001",
        "9007199254740993.5",
        "4503599627370495.9999",
    ]
    assert parse(texts, dtype("INT64")).tolist() == [99, -99, 100, 9007199254740993, 4503599627370495]
    assert parse([*texts[:1], str(2**63 - 1), str(-(2**63))], dtype("INT64")).tolist() == [99, 2**63 - 1, -(2**63)]
    assert parse(["1.5", str(2**64 - 1), "1.8446744073709551615e19"], dtype("UINT64")).tolist() == [
        1,
        2**64 - 1,
        2**64 - 1,
    ]


# ---- kinds and shapes of arrays ----

WORDS = ["1.5", "-2", "3e2", "0.25", "7", "+8"]
MAKERS = [
    objects,
    np.array,
    lambda words: np.array(words, dtype="S"),
    lambda words: np.array(words, dtype=StringDType()),
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
def test_kinds_shapes_and_strides(make: Callable[[list[str]], np.ndarray], shape: tuple[int, ...]) -> None:
    x = make(WORDS).reshape(shape)
    wanted = np.array([float(word) for word in WORDS], dtype=np.float32).reshape(shape)
    rule = resolve(STRING, FLOAT)
    for view in VIEWS:
        got = text_on_host.parse(view(x), rule)
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, view(wanted), strict=True)


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_format_follows_shape_strides_and_byte_order(src: DType) -> None:
    codes = random_codes(src, (2, 3, 4), src.number or 0)
    x = codes.view(src.numpy)
    texts = objects([strings.format(src.value(code), src) for code in codes.reshape(-1).tolist()]).reshape(x.shape)
    rule = resolve(src, STRING)
    for view in VIEWS:
        got = text_on_host.format(view(x), rule)
        assert got.dtype == object
        assert got.flags.c_contiguous
        assert got.shape == view(texts).shape
        assert got.tolist() == view(texts).tolist()
    if src.bits >= 16 and not src.numpy.isbuiltin == 2:
        swapped = x.astype(src.numpy.newbyteorder())
        assert text_on_host.format(swapped, rule).tolist() == texts.tolist()


def test_only_the_low_bits_of_a_code_count() -> None:
    x = np.array([0x7F, 0xF1], dtype=np.uint8).view(ml_dtypes.int4)
    assert show(x).tolist() == ["-1", "1"]
    # All but the byte 0 of a BOOL are True.
    assert show(np.array([0, 1, 2, 255], dtype=np.uint8).view(np.bool_)).tolist() == ["False", "True", "True", "True"]


# ---- number -> text ----


@pytest.mark.parametrize("src", SMALL, ids=str)
def test_every_code_is_written_as_the_exact_way_does(src: DType, exhaustive: bool) -> None:
    codes = every_code(src)[:: 1 if exhaustive or src.bits <= 8 else 7]
    wanted = [strings.format(src.value(code), src) for code in codes.tolist()]
    # By the table, and without it.
    assert show(codes.view(src.numpy)).tolist() == wanted
    assert show(codes[-1000:].view(src.numpy)).tolist() == wanted[-1000:]


def hard_values(kind: Any, random: int) -> np.ndarray:
    """Values of every size, of few digits, on ties of decimals, and around powers of two and ten."""
    rng = np.random.default_rng(11)
    info = np.finfo(kind)
    patterns = rng.integers(0, 1 << info.bits, random, dtype=f"uint{info.bits}").view(kind)
    with np.errstate(over="ignore", under="ignore"):
        few = (rng.integers(1, 10**7, random) / 10.0 ** rng.integers(0, 20, random)).astype(kind)
        tens = np.array([float(f"{m}e{k}") for k in range(-46, 39) for m in (1, 2, 5, 9, 9.999999, 1.000001)]).astype(
            kind
        )
        twos = np.ldexp(1.0, np.arange(info.minexp - info.nmant, info.maxexp)).astype(kind)
    # Multiples of 1/8 that are as long as the type allows have two equally close shortest decimals.
    ties = (np.ldexp(1.0, info.nmant - 3) + np.arange(random // 4) / 8).astype(kind)
    small = rng.integers(0, 1 << info.nmant, random // 4, dtype=f"uint{info.bits}").view(kind)
    around = np.concatenate([tens, twos])
    x = np.concatenate(
        [patterns, few, ties, small, around, np.nextafter(around, kind(0)), np.nextafter(around, kind(np.inf))]
    )
    return np.concatenate([x, -x, np.arange(1000, dtype=f"uint{info.bits}").view(kind)])


def test_float32_has_numpys_digits_in_reprs_layout(exhaustive: bool) -> None:
    x = hard_values(np.float32, 1_000_000 if exhaustive else 20_000)
    x = x[np.isfinite(x)]
    assert show(x).tolist() == [repr(float(text)) for text in x.astype(StringDType()).tolist()]


def test_a_hair_beside_a_tie_of_decimals() -> None:
    """1.01946066500000007...e-16: double arithmetic alone takes it for a tie, and to even."""
    x = np.array([0x24EB1256], dtype=np.uint32).view(np.float32)
    assert show(x).tolist() == show(np.repeat(x, 5000)).tolist()[:1] == ["1.01946067e-16"]


def test_float64_is_written_as_repr_does(exhaustive: bool) -> None:
    x = hard_values(np.float64, 1_000_000 if exhaustive else 20_000)
    x = x[np.isfinite(x)]
    assert show(x).tolist() == list(map(repr, x.tolist()))


@pytest.mark.parametrize("src", [FLOAT, DOUBLE], ids=str)
def test_specials_and_layout(src: DType) -> None:
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-4, 9.9999e-5, 1e-5, 1e-6, 1.5e-6, 1e-7, 2.5e-9, 1e-10, 1e12]
    values += [1e13, 1.5e14, 1e15, 9.9999e15, 1e16, 1.25e17, 1e22, 1e30, 0.5, 100.0, 123456.0]
    x = np.array(values, dtype=src.numpy)
    assert [text.lower() for text in show(x)] == list(map(repr, values))
    assert show(x).tolist() == [strings.format(float(value), src) for value in x]
    assert show(-x).tolist() == [strings.format(-float(value), src) for value in x]


# ---- errors ----

NO_NUMBER = "which is no number; expected decimal text such as '1.5e-3', INF or NaN"
#: Texts, destination, and the error: its type, the index of its element, and its words after "is ".
BAD: list[tuple[list[Any], str, type[Exception], int, str]] = [
    (["1", "2", "x"], "FLOAT", ValueError, 2, f"'x', {NO_NUMBER}"),
    (["1", "1,2", ""], "FLOAT", ValueError, 1, f"'1,2', {NO_NUMBER}"),
    (["1", "2,", "3"], "FLOAT", ValueError, 1, f"'2,', {NO_NUMBER}"),
    (["1", "[2]", "3"], "DOUBLE", ValueError, 1, f"'[2]', {NO_NUMBER}"),
    (["1", "null"], "FLOAT", ValueError, 1, f"'null', {NO_NUMBER}"),
    (["1", "true"], "INT8", ValueError, 1, f"'true', {NO_NUMBER}"),
    ([""], "FLOAT", ValueError, 0, f"'', {NO_NUMBER}"),
    (["1", "1e"], "FLOAT8E4M3FN", ValueError, 1, f"'1e', {NO_NUMBER}"),
    (["\u0661"], "INT32", ValueError, 0, f"'\u0661', {NO_NUMBER}"),
    (["1_0"], "INT32", ValueError, 0, f"'1_0', {NO_NUMBER}"),
    (["1", "\x1c2"], "FLOAT16", ValueError, 1, f"'\\x1c2', {NO_NUMBER}"),
    (["0", "1e5", "128", "x"], "INT8", OverflowError, 1, "'1e5', out of range for INT8; expected -128 to 127"),
    (["0", "128", "x"], "INT8", OverflowError, 1, "'128', out of range for INT8; expected -128 to 127"),
    (["0", "x", "128"], "INT8", ValueError, 1, f"'x', {NO_NUMBER}"),
    (["0", "1.5", "-1"], "UINT64", OverflowError, 2, f"'-1', out of range for UINT64; expected 0 to {2**64 - 1}"),
    (["0", "-1"], "UINT64", OverflowError, 1, f"'-1', out of range for UINT64; expected 0 to {2**64 - 1}"),
    ([str(2**64)], "UINT64", OverflowError, 0, f"'{2**64}', out of range for UINT64; expected 0 to {2**64 - 1}"),
    (["0", f"-{2**64}"], "UINT4", OverflowError, 1, f"'-{2**64}', out of range for UINT4; expected 0 to 15"),
    (
        ["9" * 5000],
        "INT2",
        OverflowError,
        0,
        f"'{'9' * 40}'... (5000 characters), out of range for INT2; expected -2 to 1",
    ),
    (["1", "nan"], "INT32", ValueError, 1, "'nan', which INT32 cannot hold; expected a finite number"),
    (["1", "INF", "x"], "UINT4", ValueError, 1, "'INF', which UINT4 cannot hold; expected a finite number"),
    (["1", "yes"], "BOOL", ValueError, 1, f"'yes', {NO_NUMBER.replace('number', 'boolean')}, true or false"),
    (["1", None], "FLOAT", TypeError, 1, "None of type NoneType; expected str or ASCII bytes"),
    (["1", math.nan], "STRING", TypeError, 1, "nan of type float; expected str or ASCII bytes"),
    (["1", 2], "INT8", TypeError, 1, "2 of type int; expected str or ASCII bytes"),
    (["x", None], "FLOAT", ValueError, 0, f"'x', {NO_NUMBER}"),
    ([None, "x"], "FLOAT", TypeError, 0, "None of type NoneType; expected str or ASCII bytes"),
    (["1", b"\xff"], "FLOAT", ValueError, 1, "b'\\xff', which is not ASCII; expected str or ASCII bytes"),
]


@pytest.mark.parametrize("before", [0, 5, CHUNK - 1])
def test_errors_name_the_first_bad_element(before: int) -> None:
    for texts, to, kind, index, words in BAD if before < 10 else BAD[::6]:
        with pytest.raises(kind) as caught:
            parse(["1"] * before + texts, dtype(to))
        assert type(caught.value) is kind
        assert str(caught.value) == f"cast: element {before + index} is {words}"


def test_errors_of_other_arrays() -> None:
    rule = resolve(STRING, FLOAT)
    with pytest.raises(ValueError, match="cast: element 2 is b'.xff', which is not ASCII"):
        text_on_host.parse(np.array([b"1", b"2", b"\xff"]), rule)
    with pytest.raises(ValueError, match="cast: element 1 is 'x', which is no number"):
        text_on_host.parse(np.array([b"1", b"x", b"\xff"]), rule)
    with pytest.raises(TypeError, match="cast: element 3 is None"):
        text_on_host.parse(np.array([["1", "2"], ["3", None]], dtype=StringDType(na_object=None)), rule)
    codes = np.array([0x31, 0x78, 0x110000], np.uint32)
    with pytest.raises(ValueError, match="cast: element 2 has the code 0x110000, which is no character"):
        text_on_host.parse(codes[[0, 0, 2]].view("U1"), rule)
    with pytest.raises(ValueError, match="cast: element 1 is 'x', which is no number"):
        text_on_host.parse(codes.view("U1"), rule)
    with pytest.raises(ValueError, match="cast: element 1 is 'y'"):
        text_on_host.parse(np.array([["1", "2"], ["x", "y"], ["3", "4"]]).T[::-1], rule)
