# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers with 8-bit states: the bits of dequantizing, NumPy's arithmetic and quantizing, on both sides."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from gpucast.quantization import dequantize_state, optimizer_step, quantize_state
from host_driver import DEVICES, HostDriver, device_array, download, installed, on_gpu, upload

Array = np.ndarray[Any, Any]
BOOKS = {"m": "torchao-dynamic8", "v": "torchao-dynamic8-unsigned"}
ADAMW = """
    m = m + 0.1 * (g - m) if ok > 0 else m
    v = v + 0.001 * (g * g - v) if ok > 0 else v

    p = p - lr * (0.01 * p + m / c1 / (sqrt(v / c2) + 1e-8)) if ok > 0 else p
    w = p
"""
SHAPE = (267, 256)


def adamw() -> Any:
    return optimizer_step(ADAMW, **BOOKS, p="FLOAT", w="BFLOAT16")


def arrays(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = {name: (rng.standard_normal(SHAPE) * 10.0 ** rng.integers(-9, 3, SHAPE)).astype(np.float32) for name in "mvpg"}
    x["g"][1, :3], x["g"][2, 5], x["p"][3, :2] = [np.nan, np.inf, -np.inf], 1e-44, [np.nan, -0.0]
    states = {name: quantize_state(abs(x[name]) if name == "v" else x[name], book) for name, book in BOOKS.items()}
    # The gradient is BFLOAT16 in another order, the rate one number on the device, the flag a byte for each row.
    g = np.asfortranarray(x["g"].astype(ml_dtypes.bfloat16))
    flags = (np.arange(SHAPE[0]) % 5 > 0)[:, None]
    w = np.full(SHAPE, 7, ml_dtypes.bfloat16)
    return {**states, "p": x["p"], "w": w, "g": g, "lr": np.float32([1e-3]), "ok": flags, "c1": 0.1, "c2": 0.001}


def model(m: Any, v: Any, p: Array, g: Array, lr: Array, ok: Array, **_: Any) -> dict[str, Any]:
    """Whole arrays, one operation after the other."""
    one = np.float32
    with np.errstate(all="ignore"):
        moments = {"m": dequantize_state(*m, BOOKS["m"]), "v": dequantize_state(*v, BOOKS["v"])}
        g = g.astype(np.float32)
        first = moments["m"] + one(0.1) * (g - moments["m"])
        second = moments["v"] + one(0.001) * (g * g - moments["v"])
        moments = {"m": np.where(ok, first, moments["m"]), "v": np.where(ok, second, moments["v"])}
        step = moments["m"] / one(0.1) / (np.sqrt(moments["v"] / one(0.001)) + one(1e-8))
        p = np.where(ok, p - lr * (one(0.01) * p + step), p)
    p[np.isnan(p)] = np.nan
    return {name: quantize_state(moments[name], book) for name, book in BOOKS.items()} | {
        "p": p, "w": gpucast.reference.cast(p, "BFLOAT16")
    }  # fmt: skip


def bytes_of(found: dict[str, Any]) -> list[bytes]:
    parts = (*found["m"], *found["v"], found["p"], found["w"])
    return [(part if isinstance(part, np.ndarray) else download(part)).tobytes() for part in parts]


@pytest.mark.parametrize("place", DEVICES)
def test_one_pass_has_the_bits_of_many(place: str) -> None:
    given = arrays()
    wanted = bytes_of(model(**given))
    driver = HostDriver()
    with on_gpu() if place == "gpu" else installed(driver):
        there = {
            name: tuple(map(upload, x)) if isinstance(x, tuple) else x if isinstance(x, float) else upload(x)
            for name, x in given.items()
        }
        # In the order of the columns, as on the host.
        there["g"] = upload(given["g"].T).T
        step = adamw()
        assert step(**there) is None
        assert bytes_of(there) == wanted
        assert place == "gpu" or len(driver.launched) == 1
    step(**given)
    assert bytes_of(given) == wanted
    step(**given)
    assert bytes_of(given) != wanted


def test_states_alone_and_results_that_are_not_read() -> None:
    x = np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32)
    state = quantize_state(np.zeros_like(x))
    y = np.zeros(x.shape, np.float16)
    # A line sees the number before it is quantized.
    optimizer_step("s = x * 2\ny = s", s=BOOKS["m"], y="FLOAT16")(s=state, y=y, x=x)
    wanted = quantize_state(x * 2)
    assert [part.tobytes() for part in state] == [part.tobytes() for part in wanted]
    assert np.array_equal(y, (x * 2).astype(np.float16))
    optimizer_step("y = 0 * y", y="FLOAT")(y=np.ones((0, 256), np.float32))
    # Names are those of Python, which knows a ligature by its letters.
    optimizer_step("\ufb01 = 0 * \ufb01", fi="FLOAT")(fi=y.astype(np.float32))


def test_what_a_device_refuses() -> None:
    """Kernels take 10 dimensions, and nothing is loaded while a graph is captured."""
    step = optimizer_step("p = p + a", p="FLOAT")
    with installed(HostDriver()) as driver:
        a = upload(np.zeros((3,) * 11, np.float32))[(slice(2),) * 11]
        p = upload(np.zeros((2,) * 11, np.float32))
        with pytest.raises(ValueError, match="optimizer_step: a has 11 dimensions .*; a kernel takes 10"):
            step(p=p, a=a)
        with pytest.raises(ValueError, match="quantize_state: x has 11 dimensions .*; a kernel takes 10"):
            quantize_state(a)
        driver.capture = True
        with pytest.raises(RuntimeError, match="^gpucast: gpucast_optimizer_step_.* is not loaded yet"):
            step(p=p, a=1)


@pytest.mark.parametrize("place", ["cpu", "device"])
def test_steps_without_states(place: str) -> None:
    """They write whole blocks, too. Flags and NumPy's arrays of shape () are numbers, rounded once."""
    numbers = [True, np.bool_(True), np.array(1.0), np.array(True), 2**60 + 2**36 + 1, np.int64(2**60 + 2**36 + 1)]
    p, step = np.zeros(512, np.float32), optimizer_step("p = p + a", p="FLOAT")
    with installed(HostDriver()):
        there = p if place == "cpu" else upload(p)
        for number in numbers:
            step(p=there, a=number)
        with pytest.raises(ValueError, match="optimizer_step: p: 100 elements are no multiple of 256"):
            step(p=there[:100], a=1)
        found = there if place == "cpu" else download(there)
    assert np.array_equal(found, np.full(512, 2 * np.float32(2**60 + 2**37)))


@pytest.mark.parametrize(
    ("text", "kinds", "words"),
    [
        (7, {"p": "FLOAT"}, "text=7 must be a str"),
        ("p = p + 1", {}, r"lines give values to p, and \[\] are to be written"),
        ("p = p + 1", {"p": "FLOAT", "m": "FLOAT"}, r"lines give values to p, and \['p', 'm'\]"),
        ("", {}, "lines give values to nothing"),
        ("p + 1", {"p": "FLOAT"}, "is not an expression"),
        ("p.x = p + 1", {"p": "FLOAT"}, "'p.x' is no name"),
        (
            "m = m * 1\nthe scales of m = m",
            {"m": BOOKS["m"], "the scales of m": "FLOAT"},
            "'the scales of m' is no name",
        ),
        ("p = exp(p)", {"p": "FLOAT"}, r"has 'exp\(p\)'; expected names"),
        ("p = p + 1", {"p": "torchao"}, "p=.*'torchao' is not a dtype"),
        ("p = p + 1", {"p": "INT8"}, "p='INT8' is neither one of .* nor a floating type of whole bytes"),
        ("p = a + b + c + d + e + f + g + h + i + j", {"p": "FLOAT"}, "11 names; a kernel takes 10"),
    ],
)
def test_bad_text(text: Any, kinds: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"optimizer_step: .*{words}"):
        optimizer_step(text, **kinds)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lr": None}, "optimizer_step: lr: x is None"),
        ({"m": (None, np.zeros(3, np.float32))}, "optimizer_step: m: x is None"),
        ({"g": np.zeros(SHAPE, np.complex64)}, "optimizer_step: g: 'complex64' is complex"),
        ({"m": np.zeros(SHAPE, np.uint8)}, "m=ndarray must be a pair"),
        ({"m": (np.zeros(SHAPE, np.uint8), np.zeros(3, np.float32))}, r"the scales of m has shape \(3,\)"),
        ({"p": None}, "p is NoneType; expected an array that can be written"),
        ({"p": np.zeros(SHAPE)}, "p has dtype float64; expected FLOAT"),
        ({"p": np.zeros((1, 256), np.float32)}, r"p has shape \(1, 256\); expected"),
        ({"g": np.zeros(3, np.float32)}, r"g has shape \(3,\), which does not broadcast to \(267, 256\)"),
        (
            {"g": gpucast.PackedArray.pack(np.zeros(256, np.int8), "INT4")},
            "g has dtype INT4; expected numbers of whole",
        ),
        ({"g": device_array(SHAPE, np.float32)}, "g is on cuda:0; expected cpu"),
        ({"x": 1.0}, "got .*, x; expected m, v, p, w, ok, g, lr, c1, c2"),
    ],
)
def test_bad_arrays_change_nothing(changed: dict[str, Any], words: str) -> None:
    given = arrays()
    before = bytes_of(given)
    with pytest.raises((TypeError, ValueError), match=words):
        adamw()(**given | changed)
    assert bytes_of(given) == before
    with pytest.raises(ValueError, match="p shares memory with g"):
        adamw()(**given | {"g": given["p"]})
