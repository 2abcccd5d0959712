# SPDX-License-Identifier: Apache-2.0
"""gpucast.mixed.DelayedScaling, on the host and over the stand-in for a device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from gpucast.mixed import DelayedScaling
from gpucast.mixed.cuda.kernels import RESCALE
from host_driver import HostDriver, download, elements, installed, upload

#: Magnitudes of some steps for five tensors: usual ones, zeros, extremes, an overflow and NaN.
STEPS = np.float32(
    [
        [1.0, 0.0, 1e-45, 3e38, math.inf],
        [0.3, 0.0, 1e-38, 1e38, 1.0],
        [0.1, 7.0, 0.0, 0.0, 2.0],
        [5.0, 0.0, 2.0**-140, 3.4e38, 0.5],
        [0.7, math.nan, 1.0, 1.0, 0.25],
    ]
    * 2
)
SETTINGS = [
    {"to": "FLOAT8E4M3FN", "history": 3},
    {"to": "FLOAT8E5M2", "history": 1, "margin": 3},
    {"to": "FLOAT4E2M1", "history": 4, "power_of_two": True},
    {"to": "FLOAT16", "history": 16, "margin": 64, "power_of_two": True},
]


def model(seen: list[np.ndarray[Any, Any]], largest: float, settings: dict[str, Any]) -> list[float]:
    """The scales after some steps, as the docstring has them, one tensor at a time."""
    scales = []
    for magnitudes in np.transpose(seen).tolist():
        scale = np.float32(1)
        for step in range(len(magnitudes)):
            window = magnitudes[max(0, step + 1 - settings["history"]) : step + 1]
            amax = np.float32(max(window))
            if any(map(math.isnan, window)) or not 0 < amax < math.inf:
                continue
            with np.errstate(over="ignore"):
                scale = np.float32(largest) / amax * np.float32(2.0 ** -settings.get("margin", 0))
            scale = np.clip(scale, np.float32(2.0**-126), np.finfo(np.float32).max)
            if settings.get("power_of_two"):
                scale = np.float32(2.0 ** (math.frexp(scale)[1] - 1))
        scales.append(float(scale))
    return scales


@pytest.fixture(scope="module")
def shared() -> HostDriver:
    driver = HostDriver()
    driver.prepare([RESCALE])
    return driver


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["to"])
def test_scales_are_those_of_the_model(settings: dict[str, Any], shared: HostDriver) -> None:
    """On the host, and by the kernel: no step waits, and the states are equal word by word."""
    largest = gpucast.finfo(settings["to"]).max
    on_host, on_device = (DelayedScaling(**settings, tensors=5) for _ in range(2))
    with installed(shared):
        on_device._move(0)
        for step, magnitudes in enumerate(STEPS):
            on_host.amax[...] = magnitudes
            download(on_device._state)  # The stand-in's memory is the host's.
            gpucast.cast(magnitudes, "FLOAT", out=on_device.amax, device="cuda")
            shared.launched.clear()
            shared.copied = 0
            on_host.update()
            on_device.update()
            assert ([name for name, _ in shared.launched], shared.copied) == (["gpucast_delayed_scaling"], 0)
            expected = model(list(STEPS[: step + 1]), largest, settings)
            assert on_host.scale.tolist() == expected
            assert on_host.inverse.tolist() == [float(np.float32(1) / np.float32(scale)) for scale in expected]
            assert not on_host.amax.any()
            np.testing.assert_array_equal(download(on_device._state), on_host._state)


def test_a_cast_scales_and_measures() -> None:
    rng = np.random.default_rng(3)
    scaling = DelayedScaling("FLOAT8E4M3FN", tensors=2)
    x, y = (rng.standard_normal(1000).astype(np.float32) * size for size in (1e-3, 40))
    scaling.cast(x, 0)
    scaling.cast(y, 1)
    assert scaling.amax.tolist() == [np.abs(x).max(), np.abs(y).max()]
    scaling.update()
    out = np.empty(1000, ml_dtypes.float8_e4m3fn)
    assert scaling.cast(y, 1, out=out) is out
    expected = (y.astype(np.float64) * float(scaling.scale[1])).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    assert np.abs(out.astype(np.float32)).max() == 448
    np.testing.assert_array_equal(out.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("place", ["host", "device"])
def test_many_are_cast_as_each_alone(place: str, shared: HostDriver) -> None:
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(n).astype(np.float32) * size for n, size in ((30, 1e-3), (500, 7), (33, 1e4))]
    together, alone = (DelayedScaling("FLOAT8E4M3FN", tensors=3, margin=1) for _ in range(2))
    with installed(shared):
        there = [upload(x) for x in arrays] if place == "device" else arrays
        for _ in range(3):
            shared.launched.clear()
            codes = together.cast_many({"a": there[:2], "b": there[2]})
            launches = [name for name, _ in shared.launched if "_many_" in name]
            assert len(launches) == (place == "device")
            for i, y in enumerate([*codes["a"], codes["b"]]):
                expected = alone.cast(arrays[i], i)
                np.testing.assert_array_equal(elements(y).view(np.uint8), expected.view(np.uint8))
            assert elements(together.amax).tolist() == alone.amax.tolist()
            together.update()
            alone.update()
            assert elements(together.scale).tolist() == alone.scale.tolist()


def test_the_state_follows_its_tensors_and_is_restored(shared: HostDriver) -> None:
    scaling = DelayedScaling("FLOAT8E5M2", history=2)
    with installed(shared):
        scaling.cast(upload(np.float32([3.0, -7.0])))
        assert scaling.amax.device.id == 0
        scaling.update()
        state = scaling.state_dict()
        address = scaling._state.data.ptr
        scaling.update().update()
        scaling.load_state_dict(state)
        assert scaling._state.data.ptr == address
        np.testing.assert_array_equal(scaling.state_dict()["state"], state["state"])
        other = DelayedScaling("FLOAT8E5M2", history=2)
        other.load_state_dict(state)
        assert (other.scale.tolist(), repr(other)) == ([8192.0], repr(scaling))
        scaling.cast(np.ones(1, np.float32))
        assert isinstance(scaling.scale, np.ndarray)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: DelayedScaling("INT8"), TypeError, "to is INT8; expected a float type of at most 16 bits"),
        (lambda: DelayedScaling("FLOAT"), TypeError, "to is FLOAT; expected a float type of at most 16 bits"),
        (lambda: DelayedScaling("FLOAT16", tensors=0), ValueError, "tensors=0 must be from 1 to 1048576"),
        (lambda: DelayedScaling("FLOAT16", history=True), TypeError, "DelayedScaling: history"),
        (lambda: DelayedScaling("FLOAT16", margin=-1), ValueError, "margin=-1 must be from 0 to 64"),
        (lambda: DelayedScaling("FLOAT16", power_of_two=2), TypeError, "power_of_two=2 must be True or False"),
        (lambda: DelayedScaling("FLOAT16").cast(np.ones(2), 1), IndexError, "tensor=1 must be from 0 to 0"),
        (lambda: DelayedScaling("FLOAT16").cast_many([]), ValueError, "0 arrays; expected 1"),
        (lambda: DelayedScaling("FLOAT16").load_state_dict([]), TypeError, "state is list; expected a dict"),
        (lambda: DelayedScaling("FLOAT16").load_state_dict({}), ValueError, "state has the keys []"),
        (lambda: restored(margin=1), ValueError, "state has margin=1; this object has 0"),
        (lambda: restored(state=np.zeros((20, 1), np.uint32)), ValueError, "scales or places that no step leaves"),
        (lambda: restored(state=np.zeros(3, np.uint32)), ValueError, "uint32 words of shape (3,); expected uint32"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


def restored(**wrong: Any) -> None:
    scaling = DelayedScaling("FLOAT16")
    scaling.load_state_dict(scaling.state_dict() | wrong)
