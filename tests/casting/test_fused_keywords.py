# SPDX-License-Identifier: Apache-2.0
"""The keywords scale, amax, seed and offset of `gpucast.cast`: on the host, on a device, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from fused_cases import in_use
from gpucast.casting import plans
from host_driver import HostDriver, download, upload
from memory import extra_bytes


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    with in_use() as ready:
        yield ready


def test_the_largest_magnitude(driver: HostDriver) -> None:
    """What is there counts too, the larger 32-bit code stays, and nothing happens without elements."""
    x = np.array([1.5, -3.0, 2.0], np.float32)
    for start, given, wanted in (
        (0.0, x, 3.0),
        (2.5, x, 3.0),
        (float(np.nextafter(np.float32(3), np.float32(0))), x, 3.0),
        (8.0, x, 8.0),
        (-1.0, x, 3.0),
        (8.0, x[:0], 8.0),
        (-1.0, x[:0], -1.0),
        (0.0, np.float32([1, -np.inf]), np.inf),
        (np.inf, np.float32([np.nan, 1]), np.nan),
        (np.nan, x, np.nan),
        (0.0, np.float32([-0.0]), 0.0),
    ):
        for shape in ((), (1,), (1, 1)):
            amax = np.full(shape, start, np.float32)
            there = upload(amax)
            assert gpucast.cast(given, "FLOAT8E4M3FN", scale=0.5, amax=amax).dtype == ml_dtypes.float8_e4m3fn
            gpucast.cast(upload(given), "FLOAT8E4M3FN", scale=0.5, amax=there)
            for got in (amax, download(there)):
                assert_same(got, np.full(shape, wanted, np.float32))
    # DOUBLE: what rounds beyond the largest FLOAT is infinite.
    amax = np.zeros((), np.float32)
    gpucast.cast(np.array([-3.5e38]), "FLOAT", amax=amax)
    assert amax == np.inf


def test_numbers_and_arrays_scale_alike(driver: HostDriver) -> None:
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    wanted = gpucast.cast(x, "FLOAT16", scale=0.3)
    assert_same(wanted, gpucast.cast(x.astype(np.float64) * 0.3, "FLOAT16"))
    for scale in (np.float64(0.3), np.array(0.3), np.array([[0.3]]), np.array([0.3], ">f8")):
        assert_same(gpucast.cast(x, "FLOAT16", scale=scale), wanted)
        assert_same(download(gpucast.cast(upload(x), "FLOAT16", scale=scale)), wanted)
    assert_same(download(gpucast.cast(upload(x), "FLOAT16", scale=upload(np.array([0.3])))), wanted)
    # An array is read, and not checked; by the kernel when it runs.
    for number in (0.3, -2.0, np.inf, np.nan):
        scale = upload(np.array(number, np.float32))
        wanted = gpucast.cast(x, "FLOAT8E4M3FN", scale=np.array(number, np.float32))
        assert_same(download(gpucast.cast(upload(x), "FLOAT8E4M3FN", scale=scale)), wanted)
    assert gpucast.cast_like(x, wanted, scale=2.0).dtype == wanted.dtype


def test_plain_and_fused_casts_have_plans_of_their_own(driver: HostDriver) -> None:
    plans.forget()
    for x, get in (
        (np.array([1.0, 2.0], np.float16), np.asarray),
        (upload(np.array([1.0, 2.0], np.float16)), download),
    ):
        for _ in range(2):
            assert get(gpucast.cast(x, "FLOAT")).tolist() == [1, 2]
            assert get(gpucast.cast(x, "FLOAT", scale=3.0)).tolist() == [3, 6]
            assert get(gpucast.cast(x, "FLOAT", scale=5.0)).tolist() == [5, 10]
            assert get(gpucast.cast(x, "FLOAT16", rounding="stochastic", seed=1)).tolist() == [1, 2]
            with pytest.raises(ValueError, match="needs seed="):
                gpucast.cast(x, "FLOAT16", rounding="stochastic")
            with pytest.raises(ValueError, match="seed=1 does not apply"):
                gpucast.cast(x, "FLOAT", seed=1)
            with pytest.raises(ValueError, match="offset=1 does not apply"):
                gpucast.cast(x, "FLOAT", offset=1)
    assert plans.count() == 4
    # Random bits are no part of a plan, and a rule that would take them is none of a call without.
    for x in (np.ones(3, np.float32), upload(np.ones(3, np.float32))):
        for _ in range(2):
            gpucast.cast(x, "BFLOAT16", rounding="stochastic", seed=1)
            for keywords, match in (
                ({}, "needs seed="),
                ({"scale": 2.0}, "needs seed="),
                ({"seed": 2**64}, "seed=18446744073709551616 is out of range"),
                ({"seed": 1, "offset": -1}, "offset=-1 is out of range"),
                ({"seed": 1, "scale": math.nan}, "scale=nan must be finite"),
            ):
                with pytest.raises(ValueError, match=match):
                    gpucast.cast(x, "BFLOAT16", rounding="stochastic", **keywords)
            with pytest.raises(TypeError, match="copy=1 must be True or False"):
                gpucast.cast(x, "BFLOAT16", rounding="stochastic", seed=1, copy=1)


def test_what_is_equal_to_0_but_no_integer_is_no_offset() -> None:
    x = np.ones(3, np.float32)
    for _ in range(2):
        for offset in (0.0, False, ""):
            with pytest.raises(TypeError, match="^cast: offset=.* must be an integer"):
                gpucast.cast(x, "INT8", offset=offset)
        for offset in (0, np.int64(0), None):
            assert gpucast.cast(x, "INT8", offset=offset).tolist() == [1, 1, 1]


def test_memory_on_the_host_does_not_grow() -> None:
    x, out, amax = np.ones(1 << 22, np.float32), np.empty(1 << 22, np.float16), np.zeros(1, np.float32)
    gpucast.cast(x[:100000], "FLOAT16", scale=0.1, amax=amax, out=out[:100000], rounding="stochastic", seed=0)
    fused: dict[str, Any] = {"scale": 0.1, "amax": amax, "out": out, "rounding": "stochastic", "seed": 0}
    assert extra_bytes(lambda: gpucast.cast(x, "FLOAT16", **fused)) < 1 << 16


def wrong_keywords() -> Iterator[tuple[dict[str, Any], type[Exception], str]]:
    one = np.ones(1, np.float32)
    frozen = one.copy()
    frozen.flags.writeable = False
    yield {"rounding": "stochastic"}, ValueError, "rounding='stochastic' needs seed="
    yield {"seed": 1}, ValueError, "seed=1 does not apply to rounding=None"
    yield {"rounding": "stochastic", "seed": -1}, ValueError, "seed=-1 is out of range"
    yield {"rounding": "stochastic", "seed": 1.0}, TypeError, "seed=1.0 must be an integer"
    yield {"scale": -1}, ValueError, "scale=-1 must be finite, as a DOUBLE, and not negative"
    yield {"scale": math.nan}, ValueError, "scale=nan must be finite"
    yield {"scale": np.float32(np.inf)}, ValueError, r"scale=.*inf.* must be finite"
    yield {"scale": 10**400}, ValueError, "scale=10+ must be finite"
    yield {"scale": True}, TypeError, "scale=True must be a number or an array of one FLOAT or DOUBLE"
    yield {"scale": "2"}, TypeError, "scale='2' must be a number or an array"
    yield {"scale": 1j}, TypeError, "scale=1j must be a number or an array"
    yield {"scale": [1.0]}, TypeError, r"scale=\[1.0\] must be a number or an array"
    yield {"scale": np.ones(2)}, ValueError, r"scale has shape \(2,\); expected one element"
    yield {"scale": np.ones(1, np.float16)}, TypeError, "scale has dtype float16; expected FLOAT or DOUBLE"
    yield {"amax": 0.0}, TypeError, "amax=0.0 must be an array of one FLOAT"
    yield {"amax": np.float32(0)}, TypeError, "amax=.* must be an array of one FLOAT"
    yield {"amax": np.zeros(1)}, TypeError, "amax has dtype float64; expected FLOAT"
    yield {"amax": np.ma.zeros(1, np.float32)}, TypeError, "amax is a masked array, whose mask would be lost"
    yield {"amax": np.zeros(0, np.float32)}, ValueError, r"amax has shape \(0,\); expected one element"
    yield {"amax": frozen}, ValueError, "amax is read-only or of foreign byte order"
    yield {"amax": one.astype(">f4")}, ValueError, "amax is read-only or of foreign byte order"


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_wrong_keywords(warm: bool) -> None:
    x = np.ones(4, np.float32)
    plans.forget()
    for keywords in ({"scale": 2.0}, {"amax": np.zeros(1, np.float32)}, {"rounding": "stochastic", "seed": 1}):
        if warm:
            gpucast.cast(x, "FLOAT16", **keywords)
    for keywords, error, message in wrong_keywords():
        with pytest.raises(error, match=f"^cast: {message}"):
            gpucast.cast(x, "FLOAT16", **keywords)
        with pytest.raises(error, match=f"^cast_like: {message}"):
            gpucast.cast_like(x, np.empty(0, np.float16), **keywords)
    for to in ("INT8", "FLOAT", "DOUBLE", "FLOAT8E8M0", "BOOL"):
        with pytest.raises(ValueError, match=f"^cast: rounding='stochastic' does not apply to {to}"):
            gpucast.cast(x, to, rounding="stochastic", seed=1)
    for source, to in ((x, "STRING"), (["1"], "FLOAT")):
        with pytest.raises(ValueError, match="^cast: scale= does not apply to text"):
            gpucast.cast(source, to, scale=2)
        with pytest.raises(ValueError, match="^cast: amax= does not apply to text"):
            gpucast.cast(source, to, amax=np.zeros(1, np.float32))
    with pytest.raises(TypeError, match="^cast: source=FLOAT8E5M2 entered at opset 19"):
        gpucast.cast(np.ones(1, ml_dtypes.float8_e5m2), "FLOAT", scale=2, opset=13)
    out = np.empty(4, np.float32)
    with pytest.raises(ValueError, match="^cast: out shares memory with amax; expected separate memory"):
        gpucast.cast(x, "FLOAT", amax=out[:1], out=out)
    with pytest.raises(ValueError, match="^cast: amax shares memory with x; expected separate memory"):
        gpucast.cast(out, "FLOAT16", amax=out[3:])


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_wrong_keywords_on_a_device(warm: bool, driver: HostDriver) -> None:
    x, one = np.ones(4, np.float32), np.ones(1, np.float32)
    with driver.on(1):
        far = upload(one, 1)
    there, single, odd = upload(x), upload(one), upload(np.zeros(8, np.uint8))[1:5].view(np.float32)
    if warm:
        for source, amax in ((x, one), (there, single)):
            gpucast.cast(source, "FLOAT8E4M3FN", scale=2.0, amax=amax)
            gpucast.cast(source, "FLOAT8E4M3FN", amax=amax)
        driver.launched.clear()
    for source, keywords, message in (
        (x, {"scale": upload(one)}, "scale is on cuda:0; x is on the host"),
        (x, {"amax": upload(one)}, "amax is on cuda:0; x is on the host"),
        (there, {"scale": far}, "scale is on cuda:1; x is on cuda:0"),
        (there, {"amax": one}, "amax is on the host; x is on cuda:0"),
        (there, {"amax": odd}, "amax begins at an odd address; expected a multiple of 4 bytes"),
        (there, {"amax": single, "scale": single}, "amax shares memory with scale; expected separate memory"),
        (there, {"amax": there[2:3]}, "amax shares memory with x; expected separate memory"),
    ):
        with pytest.raises(ValueError, match=f"^cast: {message}"):
            gpucast.cast(source, "FLOAT8E4M3FN", **keywords)
    assert not driver.launched


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_subclasses_of_ndarray_as_scale_and_amax() -> None:
    """Of a matrix no element can be had by reshaping."""
    amax, scale, finite = (np.matrix([[x]]) for x in (np.float32(0), 2.0, np.uint8(1)))
    assert gpucast.cast(np.float32([1.5, -3]), "FLOAT16", scale=scale, amax=amax).tolist() == [3, -6]
    gpucast.cast_many([np.float32([np.inf])], "FLOAT16", scale=scale, finite=finite)
    assert (amax.tolist(), finite.tolist()) == ([[3]], [[0]])
