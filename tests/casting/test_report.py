# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

import gpucast
from gpucast import CastReport, PackedArray, cast_report
from gpucast.casting.cast_report import _COMPARED, _compare
from gpucast.core.dtypes import DType
from gpucast.parity.cases import NUMERIC, cases
from gpucast.reference import exact_cast
from hard_codes import every_or_hard

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("values", "to", "attributes", "wanted"),
    [
        ([1, 2, 0], "FLOAT16", {}, CastReport(3, 2)),
        ([1e6, -INF, 464, 465, NAN], "FLOAT8E4M3FN", {}, CastReport(5, 5, saturated=3, max_relative_error=1 - 448e-6)),
        ([1e6, -INF, 464], "FLOAT8E4M3FN", {"saturate": False}, CastReport(3, 3, nan=2, max_relative_error=16 / 464)),
        ([1e6, INF, 2.0**-30], "FLOAT16", {}, CastReport(3, 3, infinite=1, underflowed=1, max_relative_error=1.0)),
        (
            [1e6, INF],
            "FLOAT16",
            {"overflow": "saturate"},
            CastReport(2, 2, saturated=2, max_relative_error=1 - 0.065504),
        ),
        ([300, -1, 0.5, NAN, INF, 8], "UINT8", {}, CastReport(6, 6, 0, 3, 0, 0, 1, 1, 256.0)),
        ([300, -1, 255.5], "UINT8", {"overflow": "saturate"}, CastReport(3, 3, 2, max_relative_error=1.0)),
        ([0.4, 6.9, 7, 7.1, NAN], "FLOAT4E2M1", {}, CastReport(5, 5, 2, nan_lost=1, max_relative_error=0.25)),
        ([-1, 0, 2.0**-130, 3], "FLOAT8E8M0", {}, CastReport(4, 3, 2, max_relative_error=7.0)),
        ([1e9, -1e9], "FLOAT16", {"rounding": "toward_zero"}, CastReport(2, 2, 2, max_relative_error=1 - 65504e-9)),
        ([1e9, -1e9], "FLOAT16", {"rounding": "upward"}, CastReport(2, 2, 1, 0, 1, max_relative_error=1 - 65504e-9)),
        # Of nearest values the tie beyond the largest number is out of range only where ties go away from zero.
        ([464, -464], "FLOAT8E4M3FN", {}, CastReport(2, 2, max_relative_error=16 / 464)),
        ([464, -463], "FLOAT8E4M3FN", {"rounding": "nearest_away"}, CastReport(2, 2, 1, max_relative_error=16 / 464)),
        ([7.5, 6.5, -8.5], "INT4", {"rounding": "nearest_even"}, CastReport(3, 3, 0, 1, max_relative_error=15.5 / 7.5)),
        ([7.5, 7.4, -8.5], "INT4", {"rounding": "nearest_away"}, CastReport(3, 3, 0, 2, max_relative_error=15.5 / 7.5)),
        ([INF, NAN, 0], "DOUBLE", {}, CastReport(3, 2)),
        ([5, 0], "BOOL", {}, CastReport(2, 1)),
        ([5, 0], "STRING", {}, CastReport(2, 1)),
    ],
)
def test_counts(values: list[float], to: str, attributes: dict[str, object], wanted: CastReport) -> None:
    report = cast_report(np.array(values, np.float64), to, **attributes)  # type: ignore[arg-type]
    assert report.max_relative_error == pytest.approx(wanted.max_relative_error, rel=1e-12)
    assert {**vars(report), "max_relative_error": 0} == {**vars(wanted), "max_relative_error": 0}


def test_it_does_not_depend_on_layout_size_or_chunks() -> None:
    x = np.random.default_rng(0).standard_normal((300, 500)).astype(np.float32) * 300
    whole = cast_report(x, "FLOAT8E4M3FN")
    assert whole.elements == x.size and 0 < whole.saturated < x.size and whole.max_relative_error > 0.03
    for view in (x.T, np.asfortranarray(x), x[::-1], x.astype(">f4"), x.reshape(-1)):
        assert cast_report(view, "FLOAT8E4M3FN") == whole
    halves = cast_report(x[:, ::2], "FLOAT8E4M3FN") + cast_report(x[:, 1::2], "FLOAT8E4M3FN")
    assert halves == whole
    rows = [cast_report(row, "FLOAT8E4M3FN") for row in x]
    assert sum(rows[1:], rows[0]) == whole
    assert cast_report(np.empty((0, 3)), "INT8") == CastReport()


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_quick_ways_report_what_comparing_each_element_does(src: DType, exhaustive: bool) -> None:
    """Counted by code, within the limits and beyond them: hard values alone, and few or many among ordinary ones."""
    ordinary = exact_cast.cast(np.random.default_rng(6).standard_normal(5000), src.name).view(src.code_numpy)
    for dst in NUMERIC if exhaustive else NUMERIC[NUMERIC.index(src) % 2 :: 2]:
        codes = every_or_hard(src, dst, 1500)
        few = np.resize(ordinary, 3 * _COMPARED)
        few[::30] = np.resize(codes, few[::30].size)
        for x in (codes, ordinary, few, np.concatenate([np.resize(codes, _COMPARED), ordinary])):
            x = x.view(src.numpy)
            for case in cases(src, dst, [None]):
                with np.errstate(all="ignore"):
                    wanted = _compare(x, case.rule, src)
                assert cast_report(x, dst, **dict(case.attributes)) == wanted, case


def test_wide_integers_are_exact() -> None:
    x = np.array([2**63 - 1, 2**53 + 1], np.int64)
    assert cast_report(x, "UINT64") == cast_report(x, "INT64") == CastReport(2, 2)
    assert cast_report(x, "DOUBLE").max_relative_error == pytest.approx(1 / (2**53 + 1))
    assert cast_report(np.array([2**63], np.uint64), "INT64").wrapped == 1
    assert cast_report(np.array([2**63 - 1], np.uint64), "INT64").wrapped == 0
    assert cast_report(x, "INT8", overflow="saturate").saturated == 2


def test_packed_and_text_sources() -> None:
    packed = PackedArray.pack(np.arange(16, dtype=np.uint8), "UINT4")
    assert cast_report(packed, "INT4").wrapped == 8
    assert cast_report(np.array(["1e9", "1", "nan"]), "FLOAT16") == CastReport(3, 3, infinite=1)
    assert cast_report(["100.5"], "INT8").max_relative_error == pytest.approx(0.5 / 100.5)
    assert cast_report(["1", "0"], "BOOL") == cast_report(["1", "0"], "STRING") == CastReport(2)


def test_lost_is_every_change() -> None:
    assert CastReport(9, 9, 1, 2, 3, 4, 5, 6).lost == 21
    with pytest.raises(TypeError):
        CastReport() + 1  # type: ignore[operator]


def test_errors_are_those_of_cast() -> None:
    with pytest.raises(TypeError, match="^cast_report: to='float7' is not a dtype"):
        cast_report([1.0], "float7")
    with pytest.raises(ValueError, match="^cast_report: rounding='stochastic' has no report"):
        cast_report([1.0], "FLOAT16", rounding="stochastic")
    with pytest.raises(ValueError, match="^cast_report: opset=0"):
        cast_report([1.0], "FLOAT", opset=0)
    with pytest.raises(TypeError, match="element 1 is None"):
        cast_report(np.array(["1", None], object), "STRING")
    with pytest.raises(ValueError, match="element 0 is 'x'"):
        gpucast.cast_report(["x"], "FLOAT")
