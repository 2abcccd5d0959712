# SPDX-License-Identifier: Apache-2.0
"""gpucast.mixed: loss scales and the choice between trees, on the host and over the stand-in for a device."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from gpucast import PackedArray
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES
from gpucast.mixed import DynamicLossScale, LossScale, NoOpLossScale, StaticLossScale, select_tree
from gpucast.mixed.cuda.kernels import ADJUST, select_kernel
from host_driver import HostDriver, download, installed, upload

PROBLEM = gpucast.kernel.devices.unavailable()


# ---- scales ----


def model(finite: list[bool], scale: float, period: int, factor: float, least: float) -> list[tuple[float, int]]:
    """The scale and the counter after each step, in FLOAT, as the docstring of jmp's DynamicLossScale has them."""
    now, factor32, counter, seen = np.float32(scale), np.float32(factor), 0, []
    for ok in finite:
        if ok:
            counter += 1
            if counter == period:
                counter = 0
                with np.errstate(over="ignore"):
                    now = now * factor32 if np.isfinite(now * factor32) else now
        else:
            counter = 0
            now = max(np.float32(least), now / factor32)
        seen.append((float(now), counter))
    return seen


def scripts() -> Iterator[tuple[dict[str, Any], list[bool]]]:
    """Settings and runs: many overflows, few, none, scales at both ends of their range."""
    rng = np.random.default_rng(6)
    for i in range(60):
        least = float(rng.choice([1.0, 2.0**-126, 0.3]))
        settings = {
            "loss_scale": max(least, float(rng.choice([2.0**15, 2.0**127, 3e38, 1.0, 12345.678, 2.0**-120]))),
            "period": int(rng.integers(1, 6)),
            "factor": float(rng.choice([2.0, 1.1, 1024.0, 3.0])),
            "min_loss_scale": least,
        }
        yield settings, list(rng.random(100) < (0.05, 0.5, 0.95, 1.0)[i % 4])


def after(scale: DynamicLossScale) -> tuple[float, int]:
    state = scale.state_dict()
    return state["loss_scale"], state["counter"]


def test_the_scales_of_scripted_runs_are_those_of_the_model() -> None:
    for settings, finite in scripts():
        scale = DynamicLossScale(**settings)
        seen = [after(scale.adjust(ok)) for ok in finite]
        least = settings["min_loss_scale"]
        assert seen == model(finite, settings["loss_scale"], settings["period"], settings["factor"], least)


def test_the_defaults_are_those_of_jmp_and_apex() -> None:
    scale = DynamicLossScale()
    assert scale.state_dict() == {
        "loss_scale": 32768.0, "period": 2000, "factor": 2.0, "backoff": 2.0, "min_loss_scale": 1.0, "counter": 0,
    }  # fmt: skip
    for _ in range(1999):
        assert scale.adjust(True) is scale
    assert after(scale) == (32768.0, 1999)
    assert after(scale.adjust(np.True_)) == (65536.0, 0)
    assert after(scale.adjust(np.array([0], np.uint8))) == (32768.0, 0)
    assert (float(scale.loss_scale), int(scale.counter)) == (32768.0, 0)
    settings = "loss_scale=32768.0, period=2000, factor=2.0, backoff=2.0, min_loss_scale=1.0, counter=0"
    assert repr(scale) == f"DynamicLossScale({settings})"


def test_state_is_saved_and_restored() -> None:
    scale = DynamicLossScale(8.0, period=3, factor=4, min_loss_scale=0.5)
    scale.adjust(False).adjust(True)
    state = json.loads(json.dumps(scale.state_dict()))
    other = DynamicLossScale()
    other.load_state_dict(state)
    assert other.state_dict() == scale.state_dict()
    for ok in (True, True, False, True):
        assert after(scale.adjust(ok)) == after(other.adjust(ok))
    assert after(pickle.loads(pickle.dumps(scale))) == after(scale)
    static = StaticLossScale(1.0)
    static.load_state_dict(StaticLossScale(1024).state_dict())
    assert static.state_dict() == {"loss_scale": 1024.0}
    NoOpLossScale().load_state_dict(NoOpLossScale().state_dict())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"loss_scale": math.inf}, ValueError),
        ({"loss_scale": "8"}, TypeError),
        ({"counter": 3}, ValueError),
        ({"counter": -1}, ValueError),
        ({"period": 2.0}, TypeError),
        ({"more": 1}, ValueError),
    ],
)
def test_a_bad_state_changes_nothing(change: dict[str, Any], error: type[Exception]) -> None:
    scale = DynamicLossScale(8.0, period=3)
    before = scale.state_dict()
    with pytest.raises(error, match="^DynamicLossScale"):
        scale.load_state_dict({**before, **change})
    with pytest.raises(ValueError, match="has the keys .*; expected"):
        scale.load_state_dict({"loss_scale": 8.0})
    with pytest.raises(TypeError, match="expected a dict"):
        scale.load_state_dict([8.0])  # type: ignore[arg-type]
    assert scale.state_dict() == before


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: DynamicLossScale(-1.0), ValueError, "loss_scale=-1.0 must be finite and 2^-126 or more"),
        (lambda: DynamicLossScale(math.nan), ValueError, "loss_scale=nan"),
        (lambda: DynamicLossScale(1e39), ValueError, "loss_scale=1e+39"),
        (lambda: DynamicLossScale(0.5), ValueError, "loss_scale=0.5 is below min_loss_scale=1.0"),
        (lambda: DynamicLossScale(True), TypeError, "loss_scale=True must be a number"),
        (lambda: DynamicLossScale(factor=1.0), ValueError, "factor=1.0 must be above 1"),
        (lambda: DynamicLossScale(factor=1 + 1e-9), ValueError, "must be above 1, as a FLOAT"),
        (lambda: DynamicLossScale(factor=math.inf), ValueError, "factor=inf must be finite"),
        (lambda: DynamicLossScale(period=0), ValueError, "period=0 must be from 1"),
        (lambda: DynamicLossScale(period=1.5), TypeError, "period=1.5 must be an integer"),
        (lambda: DynamicLossScale(min_loss_scale=0.0), ValueError, "min_loss_scale=0.0 must be finite and 2^-126"),
        (lambda: StaticLossScale(0), ValueError, "StaticLossScale: loss_scale=0 must be"),
        (lambda: StaticLossScale(10**400), ValueError, "must be finite and 2^-126 or more"),
        (lambda: StaticLossScale("8"), TypeError, "StaticLossScale: loss_scale='8' must be a number"),
        (lambda: DynamicLossScale().adjust(1.0), TypeError, "adjust: finite is float; expected a bool"),
        (lambda: DynamicLossScale().adjust(np.float32(1)), TypeError, "adjust: finite is FLOAT; expected a bool"),
        (lambda: NoOpLossScale().adjust(np.ones(2, bool)), ValueError, "finite has shape (2,); expected one element"),
        (lambda: NoOpLossScale().scale(1.0, to="float7"), TypeError, "scale: to='float7' is not a dtype"),
        (
            lambda: NoOpLossScale().unscale({"w": np.ones(2)}, out={"v": np.ones(2)}),
            ValueError,
            "unscale: out lacks 'w'",
        ),
        (
            lambda: NoOpLossScale().unscale([np.ones(2)], out=[np.ones(2)]),
            TypeError,
            "out has dtype float64; expected float32",
        ),
    ],
)
def test_bad_use(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize("scale", [NoOpLossScale(), StaticLossScale(1000.0), DynamicLossScale(1000.0)], ids=repr)
@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16", "DOUBLE"])
def test_unscale_multiplies_with_the_inverse_and_rounds_once(scale: LossScale, to: str) -> None:
    inverse = np.float64(np.float32(1) / np.float32(scale.loss_scale))
    rng = np.random.default_rng(0)
    grads = {
        "half": rng.standard_normal(100).astype(np.float16),
        "single": rng.standard_normal((3, 5)).astype(np.float32).T,
        "count": np.arange(3),
        "brain": rng.standard_normal(7).astype(ml_dtypes.bfloat16),
    }
    got, finite = scale.unscale(grads, to=to)
    assert (finite.shape, finite.dtype, bool(finite)) == ((), bool, True)
    assert got["count"] is grads["count"]
    for name in ("half", "single", "brain"):
        expected = gpucast.cast(grads[name].astype(np.float64) * inverse, to)
        assert (got[name].dtype, got[name].tobytes()) == (expected.dtype, expected.tobytes())
    out = {name: np.zeros_like(leaf) for name, leaf in got.items()}
    again, _ = scale.unscale(grads, to=to, out=out)
    assert again is out
    assert all(np.array_equal(out[name], got[name]) for name in ("half", "single", "brain"))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("src", ["FLOAT16", "FLOAT", "BFLOAT16", "FLOAT8E5M2", "DOUBLE"])
def test_finiteness_is_judged_in_the_source(src: str, bad: float) -> None:
    """FLOAT8E4M3FN saturates: its results are finite. What only the result loses is no overflow of the source."""
    good = gpucast.cast(np.array([1.0, 30000.0]), src)
    grads = [good, gpucast.cast(np.array([[0.0, bad, 1.0]]), src, saturate=False)]
    scale = StaticLossScale(2.0)
    results, finite = scale.unscale(grads, to="FLOAT8E4M3FN")
    assert not finite
    assert np.isfinite(results[1].astype(np.float32)[0, 1]) == (not np.isnan(bad))
    assert scale.unscale(good, to="FLOAT8E4M3FN", finite=finite)[1] is finite
    assert not finite, "and-ed with what was before"
    assert scale.unscale(good, to="FLOAT8E4M3FN")[1]
    assert scale.unscale([])[1]
    assert scale.unscale({"step": 3, "none": None}) == ({"step": 3, "none": None}, np.True_)
    (loss, _), finite = scale.unscale((np.inf, 1))
    assert (loss.dtype, float(loss), bool(finite)) == (np.float32, np.inf, False)
    assert float(StaticLossScale(4).unscale([2.0])[0][0]) == 0.5


def test_a_loss_scale_is_rounded_once() -> None:
    # As DOUBLEs all three are midway between two FLOATs.
    for more, wanted in ((-1, 0), (0, 0), (1, 2**37)):
        assert StaticLossScale(2**60 + 2**36 + more).loss_scale == 2**60 + wanted


def test_scale_multiplies_the_loss() -> None:
    scale = DynamicLossScale(1024.0)
    x = np.array([0.1, np.nan, 100.0], np.float16)
    loss, start, step = scale.scale((0.1, x, 7))
    assert (loss.dtype, float(loss)) == (np.float32, float(np.float32(0.1)) * 1024)
    expected = gpucast.cast(x.astype(np.float64) * 1024, "FLOAT16")
    assert (start.dtype, start.tobytes()) == (np.float16, expected.tobytes())
    assert step == 7
    assert scale.scale(x, to="FLOAT").tobytes() == gpucast.cast(x.astype(np.float64) * 1024, "FLOAT").tobytes()
    assert float(StaticLossScale(3).scale(np.float32(2))) == 6.0
    assert NoOpLossScale().scale(x) is x
    # A NumPy scalar is no Python number, though its class is one of float's.
    double = scale.scale(np.float64(0.1))
    assert (double.dtype, float(double)) == (np.float64, 0.1 * 1024)


# ---- one of two trees ----


def test_select_tree_on_the_host() -> None:
    new, old = {"w": np.ones(3), "n": [2]}, {"w": np.zeros(3), "n": [1]}
    assert select_tree(True, new, old) is new
    assert select_tree(np.asarray(False), new, old) is old
    out = {"w": np.full(3, 7.0), "n": [1]}
    with pytest.raises(
        ValueError, match=r"the leaf \['n'\]\[0\] is 2 in new and 1 in old; expected arrays, or what is"
    ):
        select_tree(True, new, old, out=out)
    new["n"] = [1]
    with pytest.raises(ValueError, match=r"out\['[vw]'\] shares memory with new\['[vw]'\]; expected separate memory"):
        select_tree(
            True, {"v": old["w"], "w": new["w"]}, {"v": old["w"], "w": old["w"]}, out={"v": new["w"], "w": old["w"]}
        )
    assert new["w"].tolist() == [1.0, 1.0, 1.0]
    assert select_tree(True, new, old, out=old) is old
    assert old["w"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("new", "old", "more", "error", "words"),
    [
        ({"w": np.ones(3)}, {"v": np.ones(3)}, {}, ValueError, "select_tree: old lacks 'w'"),
        ([np.ones(3)], [np.ones(4)], {}, ValueError, "the leaf [0] has shape (3,) in new and (4,) in old"),
        (np.ones(3), np.ones(3, np.float32), {}, TypeError, "the leaf is DOUBLE in new and FLOAT in old"),
        (np.ones(3), np.ones(3), {"out": np.ones(4)}, ValueError, "out has shape (4,); expected (3,)"),
        (np.ones(3), np.ones(3), {"out": [np.ones(3)]}, ValueError, "select_tree: out is a list of 1"),
        (np.ones(3), 1.0, {}, ValueError, "in old; expected arrays, or what is equal"),
        (
            np.ones(3, complex),
            np.ones(3, complex),
            {"out": np.ones(3, complex)},
            ValueError,
            "expected arrays, or what",
        ),
    ],
)
def test_trees_that_cannot_be_selected_from(
    new: Any, old: Any, more: dict[str, Any], error: type[Exception], words: str
) -> None:
    for finite in (True, False):
        with pytest.raises(error) as caught:
            select_tree(finite, new, old, **more)
        assert words in str(caught.value)
    with pytest.raises(TypeError, match="select_tree: finite is int"):
        select_tree(1, new, new)


# ---- on a device ----

SELECT = select_kernel(ARGUMENT_BYTES[0]).kernel.name


@pytest.fixture(scope="module")
def shared() -> HostDriver:
    driver = HostDriver()
    driver.prepare([ADJUST])
    return driver


@pytest.fixture
def driver(shared: HostDriver) -> Iterator[HostDriver]:
    shared.launched.clear()
    shared.copied = 0
    with installed(shared):
        yield shared


def names(driver: HostDriver) -> list[str]:
    return [name for name, _ in driver.launched]


def test_a_scale_on_a_device_is_adjusted_there(driver: HostDriver) -> None:
    for settings, finite in list(scripts())[::4]:
        scale = DynamicLossScale(**settings)
        flags = [upload(np.array(flag)) for flag in (False, True)]
        scale.adjust(flags[int(finite[0])])
        driver.launched.clear()
        driver.copied = 0
        for ok in finite[1:]:
            scale.adjust(flags[int(ok)])
        assert (driver.copied, names(driver)) == (0, ["gpucast_adjust_loss_scale"] * (len(finite) - 1))
        least = settings["min_loss_scale"]
        assert after(scale) == model(finite, settings["loss_scale"], settings["period"], settings["factor"], least)[-1]
        inverse = download(scale._state)[:2].view(np.float32)[1]
        assert inverse == np.float32(1) / np.float32(after(scale)[0])


def test_a_state_moves_with_its_gradients(driver: HostDriver) -> None:
    scale = DynamicLossScale(8.0, period=2)
    scale.adjust(upload(np.array(True), device=1))
    assert scale._state.device.id == 1
    address = scale._state.data.ptr
    # A flag of the host, or of another device, comes to the state; loading fills the same memory.
    assert after(scale.adjust(True)) == (16.0, 0)
    scale.load_state_dict(DynamicLossScale(4.0, period=5).state_dict())
    assert (scale._state.data.ptr, scale.period, after(scale)) == (address, 5, (4.0, 0))
    scale.adjust(upload(np.array(False)))
    assert (scale._state.device.id, after(scale)) == (0, (2.0, 0))
    scale.unscale([np.ones(2, np.float16)])
    assert isinstance(scale._state, np.ndarray)


def test_unscale_on_a_device_is_one_launch_and_waits_for_nothing(driver: HostDriver) -> None:
    rng = np.random.default_rng(2)
    host = {
        "half": [rng.standard_normal(shape).astype(np.float16) for shape in ((3, 5), (70,))],
        "single": rng.standard_normal(33).astype(np.float32),
        "step": 4,
    }
    grads = {"half": [upload(x) for x in host["half"]], "single": upload(host["single"]), "step": 4}
    scale, on_host = DynamicLossScale(1000.0), DynamicLossScale(1000.0)
    scale.unscale(grads)
    for bad in (False, True):
        driver.launched.clear()
        driver.copied = 0
        if bad:
            host["single"][-1] = np.nan
            grads["single"] = upload(host["single"])
        results, finite = scale.unscale(grads)
        # The new flag is all that is copied, to the device; nothing comes back.
        assert (len(driver.launched), driver.copied) == (1, 1)
        assert (finite.shape, finite.dtype, finite.device.id) == ((), bool, 0)
        expected, _ = on_host.unscale(host)
        assert results["step"] == 4
        for result, wanted in zip(
            (*results["half"], results["single"]), (*expected["half"], expected["single"]), strict=True
        ):
            assert (result.dtype, download(result).tobytes()) == (np.float32, wanted.tobytes())
        assert bool(download(finite)) != bad
        assert after(scale.adjust(finite)) == after(on_host.adjust(not bad))
    # The gradient to start from, times the scale, and the scale itself: where the state is.
    assert download(scale.scale(grads["single"])).tobytes() == on_host.scale(host["single"]).tobytes()
    assert download(scale.loss_scale) == download(scale.scale(1.0)) == on_host.loss_scale
    # With room for all of it a graph can be captured.
    driver.capture = True
    driver.copied = 0
    try:
        assert scale.unscale(grads, out=results, finite=finite) == (results, finite)
        scale.adjust(finite)
    finally:
        driver.capture = False
    assert (driver.copied, after(scale)) == (0, after(on_host.adjust(False)))


def test_gradients_in_two_places(driver: HostDriver) -> None:
    x = np.ones(3, np.float32)
    for other in (x, upload(x, device=1)):
        with pytest.raises(ValueError, match="^unscale: scale is on cuda:0; x is on (the host|cuda:1)"):
            DynamicLossScale().unscale([upload(x), other])


@pytest.mark.parametrize("ok", [True, False])
def test_select_tree_on_a_device(ok: bool, driver: HostDriver) -> None:
    rng = np.random.default_rng(1)
    hosts = [
        {
            "long": rng.standard_normal((100, 7)).astype(np.float32),
            "narrow": rng.standard_normal(13).astype(ml_dtypes.float8_e4m3fn),
            "one": rng.standard_normal(()),
            "empty": np.empty((0, 3), np.float32),
            "strided": rng.integers(0, 1 << 16, (3, 5), dtype=np.uint16),
        }
        for _ in range(2)
    ]
    packed = [rng.integers(0, 256, 5, dtype=np.uint8) for _ in range(2)]
    new, old = ({name: upload(leaf, offset=8) for name, leaf in tree.items()} for tree in hosts)
    for tree, data in zip((new, old), packed, strict=True):
        tree["strided"] = tree["strided"].T
        tree["packed"] = PackedArray(upload(data), "FLOAT4E2M1", (9,))
        tree["step"] = 3
    flag = upload(np.array(ok))
    result = select_tree(flag, new, old)
    copies = ["gpucast_uint16_to_uint16_strided"] * 2
    assert (names(driver), driver.copied) == ([*copies, SELECT], 0)
    chosen = hosts[0] if ok else hosts[1]
    chosen["strided"] = chosen["strided"].T
    assert result["step"] == 3
    assert download(result["packed"].data).tobytes() == (packed[0] if ok else packed[1]).tobytes()
    for name, leaf in chosen.items():
        assert (result[name].dtype, result[name].shape) == (leaf.dtype, leaf.shape)
        assert download(result[name]).tobytes() == leaf.tobytes()
        assert result[name] is not new[name]
        assert result[name] is not old[name]
    # Into the old tree, as a step does in place; a graph can be captured, unless copies are needed.
    del new["strided"], old["strided"], chosen["strided"]
    driver.capture = True
    try:
        assert select_tree(flag, new, old, out=old) is old
    finally:
        driver.capture = False
    for name, leaf in chosen.items():
        assert download(old[name]).tobytes() == leaf.tobytes()


def test_what_a_flag_on_a_device_cannot_select(driver: HostDriver) -> None:
    flag, x = upload(np.array(True)), upload(np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"the leaf \['w'\] is not on cuda:0, where finite is; bool\(finite\) reads"):
        select_tree(flag, {"w": np.ones(3)}, {"w": np.ones(3)})
    with pytest.raises(ValueError, match="is not on cuda:0"):
        select_tree(flag, x, upload(np.ones(3, np.float32), device=1))
    with pytest.raises(ValueError, match="out is on .*; the result belongs on "):
        select_tree(flag, x, x, out=np.ones(3, np.float32))
    assert names(driver) == []


@pytest.mark.gpu
@pytest.mark.skipif(PROBLEM is not None, reason=f"the tests above run it on host memory: {PROBLEM}")
def test_a_step_on_a_gpu_is_captured_and_replayed() -> None:
    import cupy

    finite = [True, True, False, True, False, False, True, True, True]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        scale, flag = DynamicLossScale(1024.0, period=2), cupy.ones((), bool)
        grads = [cupy.ones((100, 7), np.float16), cupy.ones(13, np.float32)]
        params = [cupy.zeros(x.shape, np.float32) for x in grads]
        room, _ = scale.unscale(grads)

        def step() -> None:
            flag.fill(True)
            scale.unscale(grads, out=room, finite=flag)
            select_tree(flag, room, params, out=params)
            scale.adjust(flag)

        step()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        for ok in finite:
            grads[0][-1, -1] = 1 if ok else np.inf
            before = [x.get() for x in params]
            inverse = 1 / float(scale.loss_scale)
            graph.launch()
            for x, y in zip(params, before, strict=True):
                assert np.array_equal(x.get(), np.full(y.shape, inverse, np.float32) if ok else y)
        assert after(scale) == model([True, *finite], 1024.0, 2, 2.0, 1.0)[-1]
