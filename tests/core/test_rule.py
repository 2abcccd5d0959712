# SPDX-License-Identifier: Apache-2.0
"""The operator's versions and attributes: what each takes, and what it resolves to."""

from __future__ import annotations

import itertools
import re
from typing import Any, get_args

import numpy as np
import pytest

import exact
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.rounding import ROUNDING_MODES, Rounding, RoundingName, name_of, word_of
from gpucast.core.rule import (
    CAST_VERSIONS,
    CASTLIKE_VERSIONS,
    DEFAULT_OPSET,
    CastRule,
    Options,
    first_opset,
    holds,
    newest_version,
    resolve,
)
from gpucast.kernel.kernel import kernel_file
from gpucast.parity.cases import NUMERIC

FLOAT, E4M3, FNUZ, E5M2, E8M0 = map(dtype, ("FLOAT", "FLOAT8E4M3FN", "FLOAT8E5M2FNUZ", "FLOAT8E5M2", "FLOAT8E8M0"))


def test_an_opset_selects_the_newest_version_up_to_it() -> None:
    versions = (1, 6, 9, 13, 19, 21, 23, 24, 25, 28)
    for opset in range(1, 29):
        assert newest_version(opset) == max(version for version in versions if version <= opset)
    assert newest_version(28, CASTLIKE_VERSIONS) == 25
    for opset in (0, -1, 29, 10**9):
        with pytest.raises(ValueError, match=rf"^cast: opset={opset} is not supported; expected 1 to 28"):
            newest_version(opset)
    with pytest.raises(ValueError, match="expected 15 to 28"):
        newest_version(14, CASTLIKE_VERSIONS)
    assert newest_version(None) == 28
    for wrong in ("28", 28.0, True, np.True_):
        with pytest.raises(TypeError, match="^cast: opset=.* must be an integer"):
            newest_version(wrong)


@pytest.mark.parametrize("opset", CAST_VERSIONS)
def test_each_version_takes_its_types(opset: int) -> None:
    for row in DTYPES:
        for src, dst in ((row, FLOAT), (FLOAT, row)):
            if row.opset is not None and row.opset <= opset:
                assert resolve(src, dst, Options(opset=opset)).dst is dst
            else:
                since = "is in no opset" if row.opset is None else f"entered at opset {row.opset}"
                with pytest.raises(TypeError, match=rf"{row.name} {since}; opset={opset}"):
                    resolve(src, dst, Options(opset=opset))


def test_versions_have_equal_rules_except_for_fnuz_infinities() -> None:
    """So tests at opsets 28 and 23 cover all ten versions."""
    for src in DTYPES:
        for dst in DTYPES:
            found = {}
            since = max(first_opset(src), first_opset(dst))
            in_all = src.opset is not None and dst.opset is not None
            for opset in range(since, DEFAULT_OPSET + 1) if in_all else [None]:
                found.setdefault(resolve(src, dst, Options(opset=opset)), []).append(opset)
            old = [opsets for rule, opsets in found.items() if rule.infinity_is_nan]
            assert len(found) == 1 + len(old)
            assert old in ([], [[opset for opset in range(19, 24) if opset >= since]])
            assert resolve(src, dst) == list(found)[-1]
            assert bool(old) == (dst.specials == "fnuz" and src is not dst and since < 24)


@pytest.mark.parametrize("row", NUMERIC, ids=str)
def test_attributes_reach_only_the_types_that_they_act_on(row: Any) -> None:
    src = dtype("DOUBLE") if row is not dtype("DOUBLE") else FLOAT
    float8 = row.family == "float" and row.bits == 8
    assert (resolve(src, row, Options(saturate=False)) != resolve(src, row)) == (float8 or row is E8M0)
    assert (resolve(src, row, Options(round_mode="down")) != resolve(src, row)) == (row is E8M0)


def test_the_rules_themselves() -> None:
    assert resolve(FLOAT, E4M3) == CastRule(FLOAT, E4M3, overflow="saturate")
    assert resolve(FLOAT, E4M3, Options(saturate=False)) == CastRule(FLOAT, E4M3, overflow="nan")
    assert resolve(FLOAT, E5M2, Options(saturate=False)) == CastRule(FLOAT, E5M2, overflow="infinity")
    assert resolve(FLOAT, FNUZ, Options(opset=23)) == CastRule(FLOAT, FNUZ, overflow="saturate", infinity_is_nan=True)
    assert resolve(FLOAT, E8M0, Options(saturate=False, round_mode="nearest")) == CastRule(
        FLOAT, E8M0, overflow="nan", round_mode="nearest"
    )
    int8 = dtype("INT8")
    assert resolve(FLOAT, int8) == CastRule(FLOAT, int8, overflow="wrap", rounding="toward_zero")
    assert resolve(FLOAT, int8, Options(overflow="saturate", rounding="nearest_even")).rounding == "ties_to_even"
    assert resolve(FLOAT, dtype("FLOAT16")).overflow == "infinity"
    assert resolve(FLOAT, dtype("FLOAT16"), Options(overflow="saturate")).overflow == "saturate"
    ue5m3, wide = dtype("FLOAT8UE5M3"), DType("WIDE", None, "float", 16, 1, 5, 10, 16, "fnuz", None, "wide", None)
    assert resolve(FLOAT, ue5m3, Options(saturate=False)).overflow == "nan"
    assert resolve(FLOAT, wide).overflow == "nan"
    # The same type is a copy, whatever else was asked.
    assert resolve(E4M3, E4M3, Options(saturate=False)) == CastRule(E4M3, E4M3)
    assert resolve(FLOAT, FLOAT, Options(overflow="saturate")) == CastRule(FLOAT, FLOAT)


def test_a_type_that_holds_all_numbers_rounds_none() -> None:
    for src, dst in itertools.product(DTYPES, [row for row in DTYPES if row.family == "float"]):
        rule = resolve(src, dst, Options(rounding="odd"))
        assert (rule.rounding == "to_odd") == (src is not dst and not holds(dst, src))
        if src.family not in ("bool", "string") and src.bits <= 16:
            every = [exact.decode(src, code).magnitude for code in range(0, 1 << src.bits, 1 if src.bits <= 8 else 331)]
            same = [exact.decode(dst, exact.round_magnitude(one, dst)).magnitude for one in every]
            assert holds(dst, src) == (same == every and max(every) <= dst.max)


@pytest.mark.parametrize(
    ("dst", "attributes", "error", "match"),
    [
        ("FLOAT", {"round_mode": "sideways"}, ValueError, "round_mode='sideways' is not legal; expected one of up"),
        ("FLOAT", {"round_mode": "UP"}, ValueError, "is not legal"),
        ("FLOAT8E8M0", {"round_mode": None}, ValueError, "is not legal"),
        ("FLOAT", {"round_mode": ["up"]}, ValueError, "is not legal"),
        ("FLOAT", {"saturate": "no"}, TypeError, "saturate='no' must be True or False"),
        ("FLOAT", {"saturate": 2}, TypeError, "saturate=2 must be"),
        ("FLOAT", {"saturate": None}, TypeError, "must be True or False"),
        ("FLOAT", {"saturate": False, "opset": 18}, ValueError, "saturate=False needs opset 19; opset=18 has version"),
        ("FLOAT", {"round_mode": "down", "opset": 23}, ValueError, "round_mode='down' needs opset 24"),
        ("FLOAT", {"rounding": "truncate"}, ValueError, "rounding='truncate' does not apply to FLOAT; expected None"),
        ("BOOL", {"rounding": "nearest_even"}, ValueError, "does not apply to BOOL"),
        ("INT8", {"rounding": "upward"}, ValueError, "does not apply to INT8"),
        ("BOOL", {"rounding": "truncate"}, ValueError, "does not apply to BOOL; expected None$"),
        ("BOOL", {"overflow": "saturate"}, ValueError, "does not apply to BOOL; expected None$"),
        ("FLOAT8E8M0", {"rounding": "odd"}, ValueError, "does not apply to FLOAT8E8M0; expected None"),
        ("FLOAT8E8M0", {"rounding": "nearest_even"}, ValueError, "does not apply to FLOAT8E8M0; expected None"),
        ("FLOAT8E8M0", {"overflow": "wrap"}, ValueError, "does not apply to FLOAT8E8M0; expected None or 'saturate'"),
        ("DOUBLE", {"rounding": "stochastic"}, ValueError, "expected None or 'nearest_even' or 'nearest_away' or"),
        ("INT8", {"rounding": "stochastic"}, ValueError, "expected None or 'nearest_even' or 'nearest_away' or"),
        ("INT8", {"overflow": "infinity"}, ValueError, "expected None or 'wrap' or 'saturate'"),
        ("FLOAT", {"overflow": "wrap"}, ValueError, "does not apply to FLOAT; expected None or 'saturate'"),
        ("FLOAT8E5M2", {"overflow": "infinity"}, ValueError, "FLOAT8E5M2; expected None or 'saturate'"),
        ("FLOAT4E2M1", {"overflow": "wrap"}, ValueError, "does not apply"),
        ("STRING", {"overflow": "saturate"}, ValueError, "does not apply"),
        ("INT8", {"overflow": 1}, ValueError, "overflow=1 does not apply"),
    ],
)
def test_illegal_attributes(dst: str, attributes: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        resolve(FLOAT, dtype(dst), Options(**attributes))


def test_rows_and_words_agree() -> None:
    """The rows of rounding modes, the types that editors know, and the enumeration of the kernels."""
    assert {mode.word for mode in ROUNDING_MODES} == set(get_args(Rounding))
    assert {mode.name for mode in ROUNDING_MODES} == set(get_args(RoundingName))
    every = re.search(r"enum class Rounding \{ (.*) \};", kernel_file("number.cuh"))
    assert every is not None and every[1].split(", ") == list(dict.fromkeys(mode.name for mode in ROUNDING_MODES))
    for mode in ROUNDING_MODES:
        assert (mode.ties is not None) == mode.name.startswith("ties_to_")
        assert name_of(mode.word) == mode.name == name_of(word_of(mode.name))


def test_keywords_that_name_the_default_change_nothing() -> None:
    for src, dst in itertools.product(NUMERIC, NUMERIC):
        usual = resolve(src, dst)
        if dst.family == "int":
            assert resolve(src, dst, Options(rounding="truncate")) == usual
            assert resolve(src, dst, Options(rounding="toward_zero", overflow="wrap")) == usual
            # An integer has no fraction to round.
            assert (resolve(src, dst, Options(rounding="nearest_away")) == usual) == (not src.is_float or src is dst)
        elif dst.family == "float":
            assert resolve(src, dst, Options(rounding="nearest_even")) == usual
        if dst.is_float and dst.bits <= 8:
            clamped = Options(saturate=False, overflow="saturate")
            assert resolve(src, dst, Options(overflow="saturate")) == resolve(src, dst, clamped) == usual


def test_one_set_of_keywords_serves_all_destinations() -> None:
    """All numeric types but BOOL take the same ones; FLOAT8E8M0 rounds as `round_mode` says."""
    for src, dst in itertools.product(NUMERIC, NUMERIC):
        for rounding in ("nearest_even", "nearest_away", "toward_zero"):
            options = Options(rounding=rounding, overflow="saturate")
            if dst.family in ("bool", "e8m0"):
                with pytest.raises(ValueError, match="does not apply"):
                    resolve(src, dst, options)
            elif src is not dst:
                assert resolve(src, dst, options).overflow == "saturate"


def test_rounding_and_overflow_do_not_apply_to_integer_text() -> None:
    text = dtype("STRING")
    for attributes in ({"rounding": "truncate"}, {"rounding": "nearest_away"}, {"overflow": "saturate"}):
        with pytest.raises(ValueError, match="does not apply to text"):
            resolve(text, dtype("INT8"), Options(**attributes))  # type: ignore[arg-type]
    assert resolve(text, dtype("FLOAT16"), Options(overflow="saturate")).overflow == "saturate"
    assert resolve(text, dtype("FLOAT16"), Options(rounding="nearest_away")).rounding == "ties_to_away"
