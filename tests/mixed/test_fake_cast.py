# SPDX-License-Identifier: Apache-2.0
"""gpucast.mixed.fake_cast: the values of two casts, in one pass, on the host and over the stand-in for a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
from codes import values
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.host import numbers
from gpucast.mixed import DelayedScaling, fake_cast
from host_driver import HostDriver, download, installed, rehearsed, upload

WIDE = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
#: Keywords, and whether they are for a type.
KEYWORDS: tuple[dict[str, Any], ...] = (
    {},
    {"scale": 48.0},
    {"scale": np.float32(0.3)},
    {"scale": 0.3},
    {"rounding": "upward"},
    {"rounding": "nearest_away", "scale": 7.0},
    {"rounding": "stochastic", "seed": 5, "offset": 3},
    {"rounding": "stochastic", "seed": 5, "scale": np.float64(1e-3)},
    {"saturate": False, "scale": 1e6},
    {"overflow": "saturate", "scale": 1e6},
)


def two_casts(x: Any, to: Any, **keywords: Any) -> Any:
    inverse, scale = None, keywords.get("scale")
    if scale is not None:
        narrow = float(np.float32(scale)) == float(scale)
        inverse = float(np.float32(1) / np.float32(scale)) if narrow else 1 / float(scale)
    return gpucast.cast(gpucast.cast(x, to, **keywords), gpucast.dtype(x.dtype), scale=inverse)


def cases() -> list[tuple[str, str, dict[str, Any]]]:
    found = []
    for src in WIDE:
        for to in DTYPES:
            if to.family in ("bool", "string"):
                continue
            for keywords in KEYWORDS:
                try:
                    gpucast.cast(values(dtype(src), (2,)), to, **keywords)
                except (TypeError, ValueError):
                    continue
                found.append((src, to.name, keywords))
    return found


CASES = cases()


def test_the_values_are_those_of_two_casts() -> None:
    assert len(CASES) > 500
    for src, to, keywords in CASES:
        for x in (values(dtype(src), (1030,)), values(dtype(src), (6, 40))[:, ::3]):
            wanted = two_casts(x, to, **keywords)
            got = fake_cast(x, to, **keywords)
            assert got.dtype == x.dtype and got.tobytes() == wanted.tobytes(), (src, to, keywords)
            out = np.empty_like(x)
            assert fake_cast(x, to, out=out, **keywords) is out and out.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("in_place", [False, True])
def test_the_largest_magnitude_is_that_of_the_source(in_place: bool) -> None:
    x = np.float32([[1.0, -500.0], [0.1, 2.0]])
    amax, wanted = np.zeros(1, np.float32), two_casts(x, "FLOAT8E4M3FN", scale=0.5)
    y = fake_cast(x, "FLOAT8E4M3FN", scale=0.5, amax=amax, out=x if in_place else None)
    assert amax[0] == 500 and (y is x) == in_place and y.tobytes() == wanted.tobytes()


def test_without_the_module_the_values_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(dtype("FLOAT"), (100,))
    wanted = [fake_cast(x, to, **keywords) for src, to, keywords in CASES if src == "FLOAT"]
    monkeypatch.setattr("gpucast.mixed.fake_casts.MODULE", None)
    monkeypatch.setattr(numbers, "MODULE", None)
    monkeypatch.setattr(numbers, "say_slow", lambda: None)
    got = [fake_cast(x, to, **keywords) for src, to, keywords in CASES if src == "FLOAT"]
    assert [y.tobytes() for y in got] == [y.tobytes() for y in wanted]


def test_one_launch_on_a_device(exhaustive: bool) -> None:
    cases = CASES if exhaustive else CASES[::37]
    built = rehearsed(
        lambda x=x, case=case: fake_cast(x, case[1], **case[2])
        for case in cases
        for x in (upload(values(dtype(case[0]), (3, 50))), upload(values(dtype(case[0]), (3, 50)))[:, ::2])
    )
    with installed(built) as driver:
        for src, to, keywords in cases:
            x = values(dtype(src), (3, 50))
            wanted, on_device = two_casts(x, to, **keywords), upload(x)
            for given, expected in ((on_device, wanted), (on_device[:, ::2], None)):
                if expected is None:
                    expected = two_casts(np.ascontiguousarray(x[:, ::2]), to, **keywords)
                before = len(driver.launched)
                y = fake_cast(given, to, **keywords)
                assert len(driver.launched) == before + 1
                assert download(y).tobytes() == expected.tobytes(), (src, to, keywords)


def test_a_scale_on_the_device_is_read_there() -> None:
    x = values(dtype("FLOAT"), (300,))
    with installed(HostDriver()):
        for scale in (np.float32(0.3), np.float64(0.3), np.float32(2.0**127)):
            amax = upload(np.zeros(1, np.float32))
            y = fake_cast(upload(x), "FLOAT8E5M2", scale=upload(np.full(1, scale)), amax=amax)
            assert download(y).tobytes() == two_casts(x, "FLOAT8E5M2", scale=scale).tobytes()
            assert np.isnan(download(amax)[0])


@pytest.mark.parametrize("name", ["mxfp8e4m3", "nvfp4", "int8_32", "deepgemm-ue8m0"])
def test_formats_with_blocks(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)
    wanted = gpucast.quantize(x, name).dequantize()
    assert fake_cast(x, name).tobytes() == wanted.tobytes()
    assert fake_cast(x, gpucast.quantize(x, name).format).tobytes() == wanted.tobytes()
    half = gpucast.cast(x, "BFLOAT16")
    out = np.empty_like(half)
    assert fake_cast(half, name, out=out) is out
    assert out.tobytes() == gpucast.quantize(half, name).dequantize("BFLOAT16").tobytes()
    by_columns = gpucast.quantize(x, "mxfp4", axis=0).dequantize()
    assert fake_cast(x, "mxfp4", axis=0).tobytes() == by_columns.tobytes()


def test_formats_with_random_words_by_a_plan() -> None:
    x = values(dtype("FLOAT"), 4096).reshape(32, 128)
    for seed in (5, 6, 5):
        q = gpucast.quantize(x, "mxfp8e4m3", rounding="stochastic", seed=seed, offset=3)
        y = fake_cast(x, "mxfp8e4m3", rounding="stochastic", seed=seed, offset=3)
        np.testing.assert_array_equal(y, gpucast.dequantize(q))


def test_delayed_scales() -> None:
    scaling, x = DelayedScaling("FLOAT8E4M3FN", tensors=2), np.float32([0.001, -0.02, 0.007])
    for _ in range(2):
        wanted = gpucast.cast(
            gpucast.cast(x, "FLOAT8E4M3FN", scale=scaling.scale[1]), "FLOAT", scale=scaling.inverse[1]
        )
        assert scaling.fake_cast(x, 1).tobytes() == wanted.tobytes()
        assert scaling.amax.tolist() == [0, np.float32(0.02)]
        scaling.update()
    with pytest.raises(IndexError, match=r"DelayedScaling.fake_cast: tensor=2 must be from 0 to 1"):
        scaling.fake_cast(x, 2)


@pytest.mark.parametrize(
    ("x", "to", "keywords", "error", "message"),
    [
        (np.ones(3, np.float32), "STRING", {}, TypeError, "to=STRING holds no numbers"),
        (np.ones(3, np.float32), "BOOL", {}, TypeError, "to=BOOL holds no numbers"),
        (np.ones(3, np.float32), "float7", {}, TypeError, "to='float7' is not a dtype"),
        (np.ones(3, np.int32), "INT8", {}, TypeError, "x.dtype=INT32"),
        (
            gpucast.PackedArray.pack(gpucast.cast(np.ones(4), "INT4")),
            "INT8",
            {},
            TypeError,
            "x.dtype=INT4 must be one of",
        ),
        (np.ones(3, np.float32), "INT8", {"rounding": []}, ValueError, r"rounding=\[\]"),
        (np.ones(3, np.float32), "INT8", {"scale": 0.0}, ValueError, "scale=0.0 must be above 0"),
        (np.ones(3, np.float32), "INT8", {"scale": np.float32([np.nan])}, ValueError, "scale=nan must be above 0"),
        (
            np.ones(3, np.float32),
            "INT8",
            {"scale": 5e-324},
            ValueError,
            "scale=5e-324 must be above 0 and finite, and so must 1 / scale",
        ),
        (np.ones(3, np.float32), "INT8", {"scale": -1.0}, ValueError, "scale=-1.0 must be finite"),
        (
            np.ones(32, np.float32),
            "mxfp4",
            {"saturate": False},
            ValueError,
            "saturate=False is for types, not for the format mxfp4",
        ),
        (
            np.ones(32, np.float32),
            "mxfp4",
            {"saturate": np.ones(2)},
            ValueError,
            r"saturate=array\(\[1., 1.\]\) is for",
        ),
        (
            np.ones(3, np.float32),
            "INT8",
            {"axis": 0},
            ValueError,
            "axis=0 is for formats with blocks, not for the type",
        ),
        (np.ones(3, np.float32), "INT8", {"axis": "rows"}, TypeError, "axis='rows' must be an integer"),
        (np.ones(32, np.float32), "mxfp4", {"axis": 7}, ValueError, "axis=7 is out of bounds"),
        (np.ones(32, np.float32), "mxfp4", {"rounding": "up"}, ValueError, "rounding='up' must be None or"),
        (np.ones(32, np.float32), "mxfp4", {"seed": 3}, ValueError, "seed=3 does not apply"),
        (np.ones(32, np.float32), "mxfp4", {"scale": 2.0}, ValueError, "scale= is for formats with FLOAT scales"),
        (np.ones(32, np.float32), "nvfp4", {"scale": "two"}, TypeError, "scale='two' has dtype"),
        (np.ones(32, np.float32), "nvfp4", {"scale": np.ones(2)}, ValueError, r"scale= has shape \(2,\)"),
        (np.ones(32, np.float32), "nvfp4", {"amax": -1.0}, ValueError, "amax=-1.0 must be finite"),
        (np.ones(3, np.float32), "mxfp8e4m3_32x32", {}, TypeError, "to='mxfp8e4m3_32x32' is neither"),
        (np.ones(3, np.float32), "float8e4m3fn_128x128", {}, ValueError, r"shape \(3,\) has 1"),
        (np.ones(3, np.float32), "INT8", {"out": np.ones(3)}, TypeError, "out has dtype float64"),
        (np.ones(3, np.float32), "INT8", {"out": np.ones(4, np.float32)}, ValueError, r"out has shape \(4,\)"),
    ],
)
def test_impossible_wishes(x: Any, to: Any, keywords: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^fake_cast: {message}"):
        fake_cast(x, to, **keywords)


def test_a_call_like_an_earlier_one_speaks_in_the_same_name() -> None:
    x = np.ones((4, 32), np.float32)
    for _ in range(3):
        fake_cast(x, "nvfp4", scale=2.0)
    with pytest.raises(ValueError, match="^fake_cast: scale=-1.0 must be finite and above 0"):
        fake_cast(x, "nvfp4", scale=-1.0)
    for _ in range(3):
        gpucast.quantize(x, "nvfp4", scale=2.0)
    with pytest.raises(ValueError, match="^quantize: scale=-1.0 must be finite and above 0"):
        gpucast.quantize(x, "nvfp4", scale=-1.0)
