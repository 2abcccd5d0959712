# SPDX-License-Identifier: Apache-2.0
"""The public calls: what they take, what they give back, and how they refuse."""

from __future__ import annotations

import enum
import warnings
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same, codes_of, random_codes
from gpucast import PackedArray
from gpucast.casting import plans
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.errors import SlowHostWarning
from gpucast.core.rule import resolve
from gpucast.host import loops

X = np.array([[0.0, -0.0, 1.5], [-2.5, np.inf, np.nan]], np.float32)


def bits(x: np.ndarray) -> list[Any]:
    return codes_of(x, gpucast.dtype(x.dtype)).reshape(-1).tolist()


@pytest.mark.parametrize("x", [1.5, np.float32(1.5), [1.5], [[1.5, 2]], (1, 2), True, 3, "1.5", ["1", "2"], b"1", []])
def test_scalars_and_lists_are_taken_as_asarray_takes_them(x: Any) -> None:
    result = gpucast.cast(x, "FLOAT16")
    assert isinstance(result, np.ndarray)
    assert_same(result, gpucast.reference.cast(np.asarray(x), "FLOAT16"))


def test_copy_false_returns_x_itself_only_where_nothing_changes() -> None:
    for row in DTYPES:
        x = gpucast.reference.cast(np.array([0, 1, 1, 0, 1]), row)
        assert gpucast.cast(x, row, copy=False) is x
        assert not np.shares_memory(gpucast.cast(x, row), x)
        assert gpucast.cast(x, "INT64" if row.name != "INT64" else "INT32", copy=False) is not x
        if row.packed:
            packed = PackedArray.pack(x)
            assert gpucast.cast(packed, row, copy=False) is packed
            assert gpucast.cast(packed, row).tobytes() == packed.tobytes()
    dirty = np.array([0, 1, 7], np.uint8).view(bool)
    assert bits(gpucast.cast(dirty, "BOOL", copy=False)) == [0, 1, 1]
    nibbles = np.array([0x1F, 0x02], np.uint8).view(ml_dtypes.int4)
    assert bits(gpucast.cast(nibbles, "INT4", copy=False)) == [0xF, 2]
    packed = PackedArray(np.array([0xF1], np.uint8), "UINT4", (1,))
    assert gpucast.cast(packed, "UINT4", copy=False).tobytes() == b"\x01"
    assert gpucast.cast(np.array([b"1"], object), "STRING", copy=False).tolist() == ["1"]


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_subclasses_of_ndarray() -> None:
    for to in ("BOOL", "FLOAT8E4M3FN", "STRING", "INT32"):
        matrix = np.matrix(np.arange(300 * 300, dtype=np.float64).reshape(300, 300))
        assert_same(gpucast.cast(matrix, to), gpucast.cast(np.asarray(matrix), to))
    out = np.matrix(np.zeros((300, 300), np.float16))
    assert gpucast.cast(matrix, "FLOAT16", out=out) is out
    assert_same(np.asarray(out), gpucast.cast(np.asarray(matrix), "FLOAT16"))
    assert gpucast.cast(np.matrix([["1", "2"]]), "FLOAT").tolist() == [[1, 2]]
    masked = np.ma.masked_array(np.zeros(2, np.float16), [True, False])
    for call in (lambda: gpucast.cast([1.0, 2.0], "FLOAT16", out=masked), lambda: PackedArray.pack(masked, "INT4")):
        with pytest.raises(TypeError, match="is a masked array, whose mask would be lost"):
            call()


class Choice(str, enum.Enum):
    A = "1.5"


def test_subclasses_of_str_are_read_as_the_text_that_they_are() -> None:
    x = np.array([Choice.A, "2"], object)
    for cast in (gpucast.cast, gpucast.reference.cast):
        assert cast(x, "FLOAT").tolist() == [1.5, 2]
        assert cast(x, "STRING").tolist() == ["1.5", "2"]
        assert {type(text) for text in cast(x, "STRING").tolist()} == {str}


@pytest.mark.parametrize(
    ("x", "keywords", "error", "match"),
    [
        (X.astype(np.complex64), {"to": "FLOAT"}, TypeError, r"^cast: x\.dtype='complex64' is complex"),
        (X.astype(np.longdouble), {"to": "FLOAT"}, TypeError, r"^cast: x\.dtype=.*is not a dtype"),
        (np.zeros(2, "V1"), {"to": "FLOAT"}, TypeError, r"^cast: x\.dtype=.*is not a dtype"),
        (object(), {"to": "FLOAT"}, TypeError, "x is of type object; expected an array"),
        (X, {"to": "FLOAT16", "device": 0}, TypeError, "device=0 is not a device"),
        (np.ma.masked_array([1.0], [True]), {"to": "INT8"}, TypeError, "masked array"),
    ],
)
def test_bad_calls(x: Any, keywords: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        gpucast.cast(x, **keywords)


def test_cuda_without_a_gpu_says_why_and_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucast.kernel.driver, "unavailable", lambda: ("the GPU sleeps", "wake it"))
    for device in ("cuda", "cuda:1"):
        for call in (lambda d: gpucast.cast(X, "FLOAT16", device=d), lambda d: gpucast.empty(3, "INT4", device=d)):
            with pytest.raises(gpucast.DeviceUnavailable, match="the GPU sleeps; wake it"):
                call(device)
    assert_same(gpucast.cast(X, "FLOAT16", device="cpu"), gpucast.cast(X, "FLOAT16"))


def test_cast_like() -> None:
    for row in DTYPES:
        like = np.empty((0,), row.numpy)
        assert_same(gpucast.cast_like(X[:1] * 0, like), gpucast.cast(X[:1] * 0, row))
    assert gpucast.cast_like(X, PackedArray.pack(np.zeros(1, np.uint8), "INT4")).dtype == ml_dtypes.int4
    assert gpucast.cast_like(X, 1.0).dtype == np.float64
    e8m0 = np.empty(0, ml_dtypes.float8_e8m0fnu)
    assert bits(gpucast.cast_like([1.25], e8m0, round_mode="down")) == [127]
    with pytest.raises(TypeError, match="^cast_like: to=FLOAT6E2M3 entered at opset 28; opset=28 has version 25"):
        gpucast.cast_like(X, np.empty(0, ml_dtypes.float6_e2m3fn), opset=28)
    with pytest.raises(ValueError, match="^cast_like: opset=14 is not supported; expected 15 to 28"):
        gpucast.cast_like(X, X, opset=14)
    with pytest.raises(TypeError, match=r"^cast_like: like\.dtype='complex128' is complex"):
        gpucast.cast_like(X, 1j)
    for like in (np.dtype("float16"), gpucast.dtype("FLOAT16"), None, np.float16):
        with pytest.raises(TypeError, match="^cast_like: "):
            gpucast.cast_like(X, like)


def test_a_large_packed_array_is_cast_in_chunks() -> None:
    packed = PackedArray.pack(random_codes(gpucast.dtype("FLOAT6E3M2"), 200_003), "FLOAT6E3M2")
    unpacked = packed.get()
    for to in ("FLOAT", "FLOAT4E2M1", "INT2"):
        result = gpucast.cast(packed, to)
        assert_same(result.get() if isinstance(result, PackedArray) else result, gpucast.reference.cast(unpacked, to))


def test_a_type_that_numpy_lacks_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a row is in the table and the module has its loops; arrays of the type have one field of codes."""
    row = DType("FLOAT8E2M5", None, "float", 8, 1, 2, 5, 1, "none", None, "float8_e2m5", None)
    known = resolve(gpucast.dtype("FLOAT"), gpucast.dtype("UINT8"))
    monkeypatch.setattr(plans, "loops", SimpleNamespace(plain=lambda rule: loops.plain(known)))
    monkeypatch.setattr(plans, "DTYPES", (*DTYPES, row))
    with gpucast.dtype.registered(row), warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowHostWarning)
        x = np.float32([0.1, 2])
        y = gpucast.cast(x, row)
        assert gpucast.cast(y, "FLOAT").tolist() == [0.09375, 2]
        assert gpucast.cast_many([x], row)[0].tobytes() == y.tobytes()
