# SPDX-License-Identifier: Apache-2.0
"""Calls of the host that are one of the module where they repeat: with given scales, between two scales, transformed,
transposed, and with scales in another order. Each gives what the reference does, the first time and later; and what a
call refuses leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpucast
from bench.entered import functions
from gpucast.casting import plans
from gpucast.core.dtypes import dtype
from gpucast.core.extension import MODULE
from gpucast.quantization import exact_hadamard, exact_quantize, quantize_on_host, swizzle
from gpucast.quantization.formats import Format, Hadamard, find
from gpucast.quantization.option_checks import resolve_hadamard
from gpucast.quantization.recipes import RECIPES
from gpucast.quantization.steps import Steps
from quantization_cases import ALL, bytes_of, compare, matrix, same

pytestmark = pytest.mark.skipif(MODULE is None, reason="the extension module is missing")

SOURCES = ("FLOAT", "FLOAT16", "BFLOAT16")
#: Those whose scales a call may give.
GIVEN = [name for name, format in ALL.items() if format.scale.name == "FLOAT" and not format.zero_points]
FOUR = find("nvfp4_4over6", "tests")
FORMATS = ALL | {FOUR.name: FOUR}
RNG = np.random.default_rng(23)


@pytest.fixture(autouse=True)
def no_plans() -> Iterator[None]:
    plans.forget()
    yield
    plans.forget()


def numbers(format: Format, source: str, *, finite: bool = True) -> np.ndarray:
    """Rows of 128."""
    x = matrix(format, source)[:, :128]
    return np.ascontiguousarray(x[np.isfinite(x.astype(np.float64)).all(axis=1)] if finite else x)


def is_one_call(call: Callable[[], Any]) -> bool:
    """Whether no more than the module's plan is entered."""
    return len(functions(call)) <= 2


def native_bytes(q: gpucast.Quantized) -> list[bytes]:
    """What the parts hold, of whatever library."""
    parts = [part for part in vars(q.native("tests")).values() if part is not None]
    return [(part.data if isinstance(part, gpucast.PackedArray) else part).tobytes() for part in parts]


def scales_for(format: Format, shape: tuple[int, ...]) -> np.ndarray:
    """From such as numbers have to the smallest and largest that there are."""
    scales = 2.0 ** RNG.uniform(-4, 4, format.scales_shape(shape, len(shape) - 1))
    flat = scales.reshape(-1)
    flat[1::5], flat[2::7] = 2.0**-149, 3e38
    return scales.astype(np.float32)


# ---- given scales ----


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", GIVEN)
def test_given_scales(name: str, source: str) -> None:
    format = FORMATS[name]
    for finite in (True, False):
        x = numbers(format, source, finite=finite)
        usual = np.ones(format.scales_shape(x.shape, 1), np.float32)
        for scale in (usual, usual * np.float32(0.3), scales_for(format, x.shape)):
            expected = exact_quantize.quantize(x, format, scale=scale)
            out = None
            for _ in range(3):
                # At another address.
                out = gpucast.quantize(x.copy(), format, scale=scale.copy(), out=out)
                compare(out, expected, (name, source, finite))
                compare(gpucast.quantize(x.copy(), format, scale=scale.copy()), expected, (name, source, finite))


@pytest.mark.parametrize("name", ["int8_32", "int4_32_full_range", "int8_64_no_clipping", "float8e4m3fn_1x128"])
def test_given_scales_take_one_call(name: str) -> None:
    format, x = FORMATS[name], RNG.standard_normal((16, 128)).astype(np.float32)
    scale = np.full(format.scales_shape(x.shape, 1), 0.01, np.float32)
    out = gpucast.quantize(x, format, scale=scale)
    for keywords in ({"scale": scale}, {"scale": scale, "out": out}, {"scale": 0.01}, {"scale": 0.01, "out": out}):
        gpucast.quantize(x, format, **keywords)
        assert is_one_call(lambda keywords=keywords: gpucast.quantize(x, format, **keywords)), keywords


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32, ">f4"])
def test_scales_of_another_type_are_no_floats(kind: Any) -> None:
    """Of the same bytes the module would make other numbers."""
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    scale = np.full((4, 2), 3).astype(kind)
    expected = exact_quantize.quantize(x, FORMATS["int8_32"], scale=np.full((4, 2), 3, np.float32))
    gpucast.quantize(x, "int8_32", scale=np.full((4, 2), 3, np.float32))
    for _ in range(3):
        compare(gpucast.quantize(x, "int8_32", scale=scale), expected)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 2), (4, 1), (1, 1)])
def test_scales_that_stand_for_several(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    scale = RNG.uniform(0.01, 0.02, shape).astype(np.float32)
    whole = np.broadcast_to(scale, (4, 2))
    for _ in range(3):
        compare(
            gpucast.quantize(x, "int8_32", scale=whole.copy()),
            exact_quantize.quantize(x, FORMATS["int8_32"], scale=whole),
        )
        compare(
            gpucast.quantize(x, "int8_32", scale=scale), exact_quantize.quantize(x, FORMATS["int8_32"], scale=whole)
        )


def _wrong_scales() -> dict[str, Any]:
    ones = np.ones((4, 2), np.float32)
    wrong = {name: ones.copy() for name in ("zero", "negative", "NaN", "infinity")}
    for one, value in zip(wrong.values(), (0, -1, np.nan, np.inf), strict=True):
        one[3, 1] = value
    # As many elements in another shape.
    return wrong | {"shape": ones.reshape(2, 4), "flat": ones.reshape(-1), "number": -1.0, "none": float("nan")}


@pytest.mark.parametrize("wrong", _wrong_scales().values(), ids=_wrong_scales())
def test_wrong_scales_write_nothing(wrong: Any) -> None:
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    out = gpucast.quantize(x, "int8_32", scale=np.ones((4, 2), np.float32))
    gpucast.quantize(x, "int8_32", scale=0.5, out=out)
    before = bytes_of(out)
    for _ in range(2):
        for keywords in ({}, {"out": out}):
            with pytest.raises(ValueError, match="quantize: scale="):
                gpucast.quantize(-x, "int8_32", scale=wrong, **keywords)
        assert bytes_of(out) == before


def test_the_scales_of_a_result_as_given_ones() -> None:
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    out = gpucast.quantize(x, "int8_32")
    expected = exact_quantize.quantize(2 * x, FORMATS["int8_32"], scale=out.scales.copy())
    gpucast.quantize(x, "int8_32", scale=out.scales.copy())
    for _ in range(3):
        compare(gpucast.quantize(2 * x, "int8_32", scale=out.scales), expected)
        compare(gpucast.quantize(2 * x, "int8_32", scale=out.scales, out=out), expected)


def test_formats_that_take_no_scales_refuse_them_later() -> None:
    x = np.ones((4, 64), np.float32)
    for name in ("mxfp8e4m3", "uint4_zp_32"):
        gpucast.quantize(x, name)
        for scale in (0.5, np.ones((4, 2), np.float32)):
            with pytest.raises(ValueError, match="scale= is for formats with FLOAT scales"):
                gpucast.quantize(x, name, scale=scale)


# ---- two scales ----


@pytest.mark.parametrize("source", [*SOURCES, "DOUBLE"])
def test_the_better_of_two_scales(source: str) -> None:
    x = np.concatenate([numbers(FOUR, source), *(RNG.standard_normal((40, 128)).astype(dtype(source).numpy),)])
    beyond = numbers(FOUR, source, finite=False)
    for given in (x, x[:1], beyond, np.tile(x, (60, 1))):
        for own in ({}, {"scale": np.float32(0.02)}, {"amax": np.float32(7)}, {"rounding": "stochastic", "seed": 5}):
            expected = exact_quantize.quantize(given, FOUR, **own)
            out = None
            for _ in range(3):
                out = gpucast.quantize(given.copy(), FOUR, out=out, **own)
                compare(out, expected, (source, own))
                compare(gpucast.quantize(given.copy(), FOUR, **own), expected, (source, own))


def test_the_better_of_two_scales_takes_one_call() -> None:
    x = RNG.standard_normal((16, 128)).astype(np.float32)
    out = gpucast.quantize(x, FOUR)
    for keywords in ({}, {"out": out}, {"scale": 0.5}, {"amax": 3.0}):
        gpucast.quantize(x, FOUR, **keywords)
        assert is_one_call(lambda keywords=keywords: gpucast.quantize(x, FOUR, **keywords)), keywords


# ---- formulas of other libraries ----


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(name: str) -> None:
    recipe = RECIPES[name]
    format = recipe.format
    for source in map(dtype, recipe.sources):
        usual = RNG.standard_normal((12, 256)).astype(source.numpy)
        for x in (numbers(format, source.name), numbers(format, source.name, finite=False), usual, usual[:1] * 0):
            given = [{}]
            if format.global_scale:
                given += [{"scale": np.float32(0.37)}, {"amax": np.float32(3.3)}]
            for own in given:
                expected = exact_quantize.quantize(x, format, **own)
                out = None
                for _ in range(3):
                    out = gpucast.quantize(x.copy(), name, out=out, **own)
                    compare(out, expected, (name, source, own))
                    compare(gpucast.quantize(x.copy(), name, **own), expected, (name, source, own))
        gpucast.quantize(usual, name)
        # Products that are rounded once more have no loop.
        has_loop = quantize_on_host.loop_of(source, format) is not None
        assert is_one_call(lambda usual=usual: gpucast.quantize(usual, name)) is has_loop, (name, source)
        assert has_loop or (source.name != "FLOAT" and format.steps.multiplies and format.steps.rounds_codes)


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.format.global_scale])
def test_recipes_both_ways(name: str) -> None:
    """Each result begins with a number of its own, which is not the global scale that another one has."""
    format = RECIPES[name].format
    x = (RNG.standard_normal((64, 48)) * 3).astype(np.float32)
    expected = [exact_quantize.quantize(one, format) for one in (x, np.ascontiguousarray(x.T))]
    out = None
    for _ in range(3):
        both = gpucast.quantize(x, name, transpose="both")
        out = gpucast.quantize(x, name, transpose="both", out=out)
        for results in (both, out):
            for q, parts in zip(results, expected, strict=True):
                compare(q, parts, name)


@pytest.mark.parametrize(
    ("scale", "code"), [("-a / 448", "x / s"), ("a / 448", "x * (-1 / s)"), ("-a / 9", "T(x / s)")]
)
@pytest.mark.parametrize("element", ["FLOAT8E4M3FN", "FLOAT4E2M1", "FLOAT6E3M2", "INT8"])
def test_formulas_of_negative_numbers(element: str, scale: str, code: str) -> None:
    """In blocks of every kind of loop."""
    steps: Any = Steps(scale, code, zero="1")
    blocks: list[Any] = [(16,), (24,), (32,), (48,), (16, 16), "tensor"]
    for block in blocks:
        name = f"{element} {scale} {code} {block}"
        format = Format(name, dtype(element), dtype("FLOAT"), block, "amax", steps=steps)
        for source in SOURCES:
            x = RNG.standard_normal((32, 48)).astype(dtype(source).numpy)
            x[3], x[4] = 0, -0.0
            for axis in (0, 1):
                expected = exact_quantize.quantize(x, format, axis=axis)
                for _ in range(2):
                    compare(gpucast.quantize(x, format, axis=axis), expected, (format, source, axis))


@pytest.mark.parametrize(
    ("scale", "code"),
    [
        ("max(a, tiny) / 448", "x / s"),
        ("T(a * (1 / 448))", "T(x / max(s, eps))"),
        ("power(a + a / 3 - tiny)", "x * (1 / s)"),
        ("pick(a, a / 448, 1)", "x * pick(a - a, 7, 1 / s)"),
        ("min(a, largest) / 448", "x * (min(-1, -s) * -1 / (s * s))"),
        ("a / a", "x / s"),
        ("+".join(["a / 448 / 64"] * 64), "x / s"),
    ],
)
def test_formulas(scale: str, code: str) -> None:
    """Each operation, a scale that is NaN for zeros, and a formula that is too long for the module."""
    for stored in ("FLOAT", "FLOAT8E8M0", "FLOAT8E4M3FN"):
        rule = "up" if stored == "FLOAT8E8M0" else "amax"
        steps = Steps(scale, code if stored == "FLOAT" or "a" not in code.replace("max", "") else "x / s", zero="eps")
        format = Format(f"mine {scale[:20]} {stored}", "FLOAT8E4M3FN", stored, (32,), rule, False, False, steps)
        for source in SOURCES:
            x = np.concatenate([numbers(format, source), np.zeros((2, 128), dtype(source).numpy)])
            expected = exact_quantize.quantize(x, format)
            for _ in range(3):
                compare(gpucast.quantize(x.copy(), format), expected, (scale, code, source))
                part = x[4:7].copy()
                compare(gpucast.quantize(part, format), exact_quantize.quantize(part, format), (scale, code, source))


# ---- transforms, transposes and orders of scales ----

ORDERED = [("mxfp8e4m3", "128x4"), ("mxfp8e4m3", "8x4"), ("nvfp4", "128x4"), ("nvfp4_4over6", "8x4")]
#: Rows and columns by blocks of 32, so that words and tiles of scales are whole or not.
SHAPES = [(1, 128), (8, 128), (131, 96), (130, 160), (3, 5, 64), (257, 32)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "layout"), [*ORDERED, ("float8e4m3fn_1x128", "mn_major"), ("mxfp4", "mn_major")])
def test_orders_of_scales(name: str, layout: Any, shape: tuple[int, ...]) -> None:
    if layout == "mn_major" and len(shape) > 2:
        shape = (15, 64)
    if name == "float8e4m3fn_1x128":
        shape = (shape[0], 384)
    x, format = RNG.standard_normal(shape).astype(np.float32), FORMATS[name]
    linear = exact_quantize.quantize(x, format)
    expected = replace(linear, scales=swizzle.swizzle(linear.scales, layout=layout))
    back = exact_quantize.dequantize(linear, format)
    out, numbers = None, None
    for _ in range(3):
        q = gpucast.quantize(x.copy(), name, scale_layout=layout)
        out = gpucast.quantize(x.copy(), name, scale_layout=layout, out=out)
        numbers = gpucast.dequantize(out, out=numbers)
        for one in (q, out):
            compare(one, expected, (name, layout))
        assert same(numbers, back)
        assert same(gpucast.dequantize(q), back)
    assert is_one_call(lambda: gpucast.quantize(x, name, scale_layout=layout, out=out))
    assert is_one_call(lambda: gpucast.dequantize(out))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["mxfp8e4m3", "nvfp4", "int4_128", "float8e4m3fn_tensor", "nvfp4_4over6", "int8_axis"])
def test_transposed(name: str, source: str) -> None:
    for shape in ((128, 96), (256, 17), (2, 128, 33), (128, 1)):
        x = RNG.standard_normal(shape).astype(dtype(source).numpy)
        turned = np.ascontiguousarray(x.swapaxes(-1, -2))
        expected = exact_quantize.quantize(turned, FORMATS[name])
        out = None
        for _ in range(3):
            compare(gpucast.quantize(x.copy(), name, transpose=True), expected, (name, source, shape))
            out = gpucast.quantize(x.copy(), name, transpose=True, out=out)
            compare(out, expected, (name, source, shape))
            # An array that is itself a transpose.
            compare(gpucast.quantize(turned.swapaxes(-1, -2), name, transpose=True), expected, (name, source, shape))
        if shape == (128, 96):
            assert is_one_call(lambda x=x: gpucast.quantize(x, name, transpose=True))


SIGNS = [1, -1] * 8
#: The keywords of a transform, and the same as the reference has it.
TRANSFORMS: list[tuple[dict[str, Any], Hadamard]] = [
    (own, resolve_hadamard(own["hadamard"], own.get("signs"), own.get("seed"), "tests"))
    for own in (
        {"hadamard": 16}, {"hadamard": 16, "signs": SIGNS}, {"hadamard": 16, "signs": [-1] * 16},
        {"hadamard": 32, "seed": 0}, {"hadamard": 32, "seed": 2**64 - 1}, {"hadamard": 32},
        {"hadamard": 128, "seed": 3},
    )
]  # fmt: skip


@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"])
@pytest.mark.parametrize("name", ["mxfp8e4m3", "nvfp4", "int8_32", "uint4_zp_32", "nvfp4_4over6"])
def test_transforms_there_and_back(name: str, to: str) -> None:
    """In turn, so that none is taken for another."""
    format, x = FORMATS[name], RNG.standard_normal((6, 128)).astype(np.float32)
    for turn in range(3):
        for own, how in TRANSFORMS:
            expected = exact_quantize.quantize(exact_hadamard.transform(x, how), format)
            q = gpucast.quantize(x.copy(), name, **own)
            compare(q, expected, (name, own, turn))
            floats = exact_hadamard.transform(exact_quantize.dequantize(expected, format), how, inverse=True)
            back = gpucast.reference.cast(floats, to)
            assert same(gpucast.dequantize(q, to, **own), back), (name, own, turn)
            out = np.zeros_like(back)
            assert gpucast.dequantize(q, to, out=out, **own) is out
            assert same(out, back), (name, own, turn)
    assert is_one_call(lambda: gpucast.quantize(x, name, **own))
    assert is_one_call(lambda: gpucast.dequantize(q, to, **own))


def test_signs_of_other_classes_go_the_checked_way() -> None:
    """Equal numbers are not the same signs where a call refuses them."""
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    q = gpucast.quantize(x, "mxfp8e4m3", hadamard=32, seed=1)
    gpucast.dequantize(q, hadamard=32, seed=1)
    for call in (
        lambda **own: gpucast.quantize(x, "mxfp8e4m3", hadamard=32, **own),
        lambda **own: gpucast.dequantize(q, hadamard=32, **own),
    ):
        for _ in range(2):
            with pytest.raises(TypeError):
                call(seed=1.0)
            for wrong in ([1] * 31, [1] * 31 + [2], [1] * 31 + [0]):
                with pytest.raises(ValueError):
                    call(signs=wrong)


def test_numbers_that_are_not_finite_come_later() -> None:
    x = RNG.standard_normal((4, 128)).astype(np.float32)
    how = resolve_hadamard(32, None, None, "tests")
    for value in (np.nan, np.inf, -np.inf, 0.0):
        for keywords, made in (
            ({"hadamard": 32}, lambda x: exact_hadamard.transform(x, how)),
            ({"transpose": False, "scale_layout": "linear"}, lambda x: x),
            ({"scale_layout": "8x4"}, lambda x: x),
        ):
            out = gpucast.quantize(x, "mxfp8e4m3", **keywords)
            y = x.copy()
            y[1, 7] = value
            with np.errstate(all="ignore"):
                expected = exact_quantize.quantize(made(y), FORMATS["mxfp8e4m3"])
            if keywords.get("scale_layout") == "8x4":
                expected = replace(expected, scales=swizzle.swizzle(expected.scales, layout="8x4"))
            for _ in range(2):
                compare(gpucast.quantize(y, "mxfp8e4m3", **keywords), expected, (value, keywords))
                compare(gpucast.quantize(y, "mxfp8e4m3", out=out, **keywords), expected, (value, keywords))


def test_an_out_that_shares_memory_with_x_is_refused_later() -> None:
    memory = np.zeros(64 * 64 * 4 + 64, np.uint8)
    x = memory[: 64 * 64 * 4].view(np.float32).reshape(64, 64)
    for keywords in ({"hadamard": 32}, {"transpose": True}, {"scale_layout": "128x4"}):
        out = gpucast.quantize(x, "mxfp8e4m3", **keywords)
        gpucast.quantize(x, "mxfp8e4m3", out=out, **keywords)
        within = replace(out, data=memory[64 : 64 + 4096].view(out.data.dtype).reshape(out.data.shape))
        before = memory.copy()
        for _ in range(2):
            with pytest.raises(ValueError, match="memory"):
                gpucast.quantize(x, "mxfp8e4m3", out=within, **keywords)
            assert (memory == before).all()


# ---- tensors ----


@pytest.mark.peers
@pytest.mark.parametrize("name", ["mxfp8e4m3", "nvfp4", "int8_32", "nvfp4_4over6"])
def test_of_tensors(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = RNG.standard_normal((128, 128)).astype(np.float32)
    rows: list[dict[str, Any]] = [{}, {"transpose": True}, {"hadamard": 16}, {"hadamard": 16, "signs": SIGNS}]
    if name != "int8_32":
        rows += [{"scale_layout": "128x4"}]
    if name == "int8_32":
        rows += [{"scale": np.full((128, 4), 0.02, np.float32)}, {"scale": 0.25}]
    for keywords in rows:
        expected = gpucast.quantize(x, name, **keywords)
        of_tensors = {
            key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for key, value in keywords.items()
        }
        for given in (torch.from_numpy(x), torch.from_numpy(x).requires_grad_(), torch.from_numpy(x.T.copy()).T):
            out = None
            for _ in range(3):
                q = gpucast.quantize(given.detach(), name, **of_tensors)
                out = gpucast.quantize(given.detach(), name, out=out, **of_tensors)
                for one in (q, out):
                    assert native_bytes(one) == native_bytes(expected), (name, keywords)
                back = {key: value for key, value in keywords.items() if key in ("hadamard", "signs")}
                assert same(gpucast.dequantize(out, **back).numpy(), gpucast.dequantize(expected, **back))
