# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike as layers: forward, backward, the rule of the scaled way back on the host and in its kernel."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same, random_codes
from foreign_arrays import Speaker
from gpucast import PackedArray, layers
from gpucast.core.dtypes import DType, dtype
from gpucast.parity.cases import NUMERIC
from host_driver import HostDriver, download, upload

FLOATS = [row for row in NUMERIC if row.is_float]


@pytest.mark.parametrize("src", FLOATS, ids=str)
def test_backward_with_coefficient_1_is_a_cast(src: DType) -> None:
    for dst in FLOATS:
        layer = layers.Cast(dst)
        layer.forward(np.ones((3, 5), src.numpy))
        # A gradient may be of any type of numbers.
        for kind in (dst, dtype("INT8")):
            dy = random_codes(kind, (3, 5)).view(kind.numpy)
            assert_same(layer.backward(dy), gpucast.cast(dy, src))


@pytest.mark.parametrize("other", [dtype("INT64"), dtype("UINT2"), dtype("BOOL")], ids=str)
def test_casts_from_and_to_integers_have_no_gradient(other: DType) -> None:
    dy = np.ones(3, np.float32)
    layer, like = layers.Cast(other, name="c1"), layers.CastLike()
    layer.forward(dy)
    with pytest.raises(TypeError, match=f"^layers.Cast.backward of 'c1': y was {other}, which has no gradient; only"):
        layer.backward(dy)
    like.forward(np.ones(3, other.numpy), dy)
    with pytest.raises(TypeError, match=f"^layers.CastLike.backward: x was {other}, which has no gradient; only casts"):
        like.backward(dy)


def test_forward_is_cast() -> None:
    x = np.array([[1e6, 1.25], [-np.inf, np.nan]], np.float32)
    for keywords in ({}, {"saturate": False}, {"round_mode": "down"}):
        for to in ("FLOAT8E5M2", "FLOAT8E8M0"):
            wanted = gpucast.cast(x, to, **keywords)
            assert_same(layers.Cast(to, **keywords).forward(x), wanted)
            assert_same(layers.Cast(to, training=False, **keywords)(x), wanted)
            like = np.empty(3, wanted.dtype)
            assert_same(layers.CastLike(**keywords).forward(x, like), wanted)
            assert_same(layers.CastLike(**keywords)(x, like), wanted)
    assert layers.Cast("STRING")([1.5]).tolist() == ["1.5"]


def test_backward_gives_the_scaled_gradient_in_the_type_of_x() -> None:
    layer = layers.Cast(ml_dtypes.float8_e4m3fn, lda_coeff=0.1, name="c1")
    assert (layer.to, layer.lda_coeff, layer.name, layer.training) == (dtype("FLOAT8E4M3FN"), 0.1, "c1", True)
    layer.forward(np.ones((2, 2), np.float16))
    dy = np.array([[1.0, -3.0], [1e-7, 1e6]], np.float32)
    dx = layer.backward(dy)
    assert_same(dx, gpucast.cast(dy.astype(np.float64) * 0.1, "FLOAT16"))
    # Asked again it answers again, and follows the coefficient; -0.0 and 1 are coefficients like any other.
    assert_same(layer.backward(dy), dx)
    layer.lda_coeff = -0.0
    assert np.signbit(layer.backward(np.ones((2, 2)))).all()
    layer.lda_coeff = 1
    assert_same(layer.backward(dy[:, :]), gpucast.cast(dy, "FLOAT16"))
    # The last forward counts.
    layer.forward(np.ones(3, ml_dtypes.bfloat16))
    assert layer.backward(np.ones(3, np.float32)).dtype == ml_dtypes.bfloat16


def test_shapes_and_kinds_of_dy() -> None:
    layer = layers.Cast("FLOAT", lda_coeff=2)
    for shape in ((), (0,), (2, 3), (2, 0, 3)):
        layer.forward(np.ones(shape, np.float16))
        assert_same(layer.backward(np.full(shape, 1.5, np.float32)), np.full(shape, 3, np.float16))
    layer.forward([1.0, 2.0])
    assert_same(layer.backward([0.5, 1.5]), np.array([1.0, 3.0]))
    # Objects with DLPack alone tell no dtype.
    assert_same(layer.forward(Speaker(np.ones(2, np.float16))), np.ones(2, np.float32))
    assert_same(layer.backward(Speaker(np.float32([0.5, 1.5]))), np.float16([1, 3]))
    assert_same(layers.CastLike().forward(Speaker(np.ones(2, np.float16)), np.empty(0)), np.ones(2))
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)
    for view in (wide.T, wide[::-1, ::2], np.asfortranarray(wide), wide.astype(">f4")):
        layer.forward(view)
        dx = layer.backward(view)
        assert_same(dx, (view * 2).astype(np.float32))
        assert dx.strides == gpucast.cast(view, "FLOAT").strides
    layer.forward(np.ones(5, ml_dtypes.float4_e2m1fn))
    packed = PackedArray.pack(np.array([1, 2, 3, 4, -1], ml_dtypes.int4))
    dx = layer.backward(packed)
    assert isinstance(dx, PackedArray)
    assert dx.get().astype(np.float32).tolist() == [2, 4, 6, 6, -2]


def test_states_that_have_no_backward() -> None:
    dy = np.ones(2, np.float32)
    with pytest.raises(RuntimeError, match="^layers.Cast.backward of 'c1': nothing went forward yet; call forward"):
        layers.Cast("FLOAT", name="c1").backward(dy)
    for layer in (layers.Cast("FLOAT", training=False), layers.CastLike(training=False)):
        layer.forward(dy, *[dy] * isinstance(layer, layers.CastLike))
        with pytest.raises(RuntimeError, match=r"^layers.Cast(Like)?.backward: the layer is not training; make"):
            layer.backward(dy)
    layer = layers.Cast("FLOAT")
    layer.training = False
    layer.forward(dy)
    layer.training = True
    with pytest.raises(RuntimeError, match="nothing went forward yet"):
        layer.backward(dy)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"to": "float7"}, TypeError, "layers.Cast: to='float7' is not a dtype"),
        ({"saturate": "yes"}, TypeError, "layers.Cast: saturate='yes' must be True or False"),
        ({"round_mode": "sideways"}, ValueError, "layers.Cast: round_mode='sideways' is not legal"),
        ({"training": 1}, TypeError, "layers.Cast: training=1 must be True or False"),
        ({"lda_coeff": "1"}, TypeError, "layers.Cast: lda_coeff='1' must be a number"),
        ({"lda_coeff": True}, TypeError, "layers.Cast: lda_coeff=True must be a number"),
        ({"lda_coeff": 1j}, TypeError, "layers.Cast: lda_coeff=1j must be a number"),
        ({"lda_coeff": math.nan}, ValueError, "layers.Cast: lda_coeff=nan must be finite"),
        ({"lda_coeff": -math.inf}, ValueError, "layers.Cast: lda_coeff=-inf must be finite"),
        ({"lda_coeff": 10**400}, ValueError, "layers.Cast: lda_coeff=10+ must be finite, as a DOUBLE"),
        ({"name": None}, TypeError, "layers.Cast: name=None must be a string"),
        ({"opset": 14, "saturate": False}, ValueError, "layers.Cast: (opset=14 is not|saturate=False needs opset)"),
        ({"to": "INT4", "opset": 19}, TypeError, "layers.Cast: to=INT4 entered at opset 21; opset=19"),
    ],
)
def test_bad_attributes(keywords: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        layers.Cast(**{"to": "FLOAT", **keywords})
    if "to" not in keywords:
        with pytest.raises(error, match=f"^{message.replace('Cast', 'CastLike')}"):
            layers.CastLike(**keywords)


def test_bad_gradients() -> None:
    layer = layers.Cast("FLOAT", lda_coeff=0.5)
    layer.forward(np.ones((2, 3), np.float16))
    with pytest.raises(ValueError, match=r"^layers.Cast.backward: dy has shape \(3, 2\); y had \(2, 3\)"):
        layer.backward(np.ones((3, 2)))
    with pytest.raises(TypeError, match=r"^layers.Cast.backward: dy is STRING, which is no gradient"):
        layer.backward(np.full((2, 3), "1"))
    with pytest.raises(TypeError, match=r"^layers.Cast.backward: dy.dtype=.*complex128"):
        layer.backward(np.ones((2, 3), complex))
    layer.lda_coeff = math.inf
    with pytest.raises(ValueError, match="lda_coeff=inf must be finite"):
        layer.backward(np.ones((2, 3)))
    layer = layers.Cast("FLOAT")
    layer.forward(["1.5"])
    with pytest.raises(TypeError, match=r"^layers.Cast.backward: x was STRING, which has no gradient"):
        layer.backward([1.0])


# ---- opsets ----


def test_the_newest_rules_differ_and_are_the_default() -> None:
    x = np.array([np.inf], np.float32)
    assert np.isnan(layers.Cast("FLOAT8E4M3FNUZ", opset=23).forward(x).astype(np.float32))
    for opset in (None, 24, 28):
        assert layers.Cast("FLOAT8E4M3FNUZ", opset=opset).forward(x).astype(np.float32) == 240
    # The way back follows the opset, too, with any coefficient.
    for coefficient in (1, 2.0):
        layer = layers.Cast("FLOAT", opset=19, lda_coeff=coefficient)
        layer.forward(np.ones(1, ml_dtypes.float8_e4m3fnuz))
        assert np.isnan(layer.backward(x).astype(np.float32))


def test_repr_shows_changed_parameters() -> None:
    assert repr(layers.Cast("bf16")) == "layers.Cast('BFLOAT16')"
    layer = layers.Cast("FLOAT8E4M3FN", saturate=False, opset=19, lda_coeff=0.5, name="c1", training=False)
    assert repr(layer) == (
        "layers.Cast('FLOAT8E4M3FN', saturate=False, opset=19, training=False, lda_coeff=0.5, name='c1')"
    )
    assert eval(repr(layer)).__dict__ == layer.__dict__
    assert repr(layers.CastLike()) == "layers.CastLike()"
    assert repr(layers.CastLike(round_mode="down")) == "layers.CastLike(round_mode='down')"


# ---- on a device ----


def test_backward_on_a_device_is_one_launch(driver: HostDriver) -> None:
    host = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    x, dy = upload(host.astype(np.float16)), upload(host)
    with driver.on(1):
        far = upload(host, 1)
    layer, reference = layers.Cast("FLOAT", lda_coeff=0.1), layers.Cast("FLOAT", lda_coeff=0.1)
    layer.forward(x)
    reference.forward(download(x))
    driver.launched.clear()
    assert_same(download(layer.backward(dy)), reference.backward(host))
    assert_same(download(layer.backward(dy.T[::-1].T)), reference.backward(host[:, ::-1]))
    assert [name for name, _ in driver.launched] == [
        "gpucast_float32_to_float16_scaled_wide",
        "gpucast_float32_to_float16_scaled_wide_strided",
    ]
    dx = layer.backward(far)
    assert dx.device.id == 1
    assert driver.launched[-1][1] == driver.streams[1]
    layer.lda_coeff = 1
    assert_same(download(layer.backward(dy)), host.astype(np.float16))
    assert driver.launched[-1][0] == "gpucast_float32_to_float16"
