# SPDX-License-Identifier: Apache-2.0
"""NVFP4 with a global scale for each row: each row has the bits that it has alone with its scale, on both sides."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.core.rule import CastRule
from gpucast.quantization import exact_quantize, recipes
from gpucast.quantization.cuda.source import quantize_kernel
from host_driver import HostDriver, elements, installed, upload
from quantization_cases import compare, same

NDArray = np.ndarray[Any, Any]
NVFP4, FOUR = (recipes.find(name, "tests") for name in ("nvfp4", "nvfp4_4over6"))
ROWS = 12
RNG = np.random.default_rng(5)
SCALES = (2.0 ** RNG.uniform(-12, 6, ROWS)).astype(np.float32)
#: As an array of three axes has them.
SHAPE = (3, 4)


def numbers(columns: int, source: str = "BFLOAT16", rows: int = ROWS) -> NDArray:
    x = RNG.standard_normal((rows, columns)) * 2.0 ** RNG.integers(-9, 9, (rows, 1))
    x[1, 3], x[2, 5], x[3] = np.nan, -np.inf, 0
    found: NDArray = gpucast.cast(x, source)
    return found


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_4over6", "te-nvfp4"])
@pytest.mark.parametrize(
    ("rows", "columns", "source"), [(4096, 256, "FLOAT"), (ROWS, 48, "DOUBLE"), (ROWS, 48, "FLOAT16")]
)
def test_each_row_is_quantized_as_if_alone(name: str, rows: int, columns: int, source: str, exhaustive: bool) -> None:
    rows = rows if exhaustive or rows == ROWS else 64
    source = "BFLOAT16" if (name, source) == ("te-nvfp4", "DOUBLE") else source
    x, scales = numbers(columns, source, rows), np.resize(SCALES, rows)
    q = gpucast.quantize(x, name, scale=scales)
    for i, row in enumerate(x):
        alone = gpucast.quantize(row, name, scale=scales[i])
        assert q.global_scale[i] == alone.global_scale
        assert same(elements(q.data)[i], elements(alone.data)) and same(q.scales[i], alone.scales)
        assert same(q.dequantize(source)[i], alone.dequantize(source))
    # Blocks along the last axis of any shape, ragged ones too.
    if name != "nvfp4_4over6":
        ragged = x[:, :40].reshape(rows // 4, 4, 40)
        given = scales.reshape(rows // 4, 4)
        wanted = exact_quantize.quantize(ragged, recipes.find(name, "tests"), scale=given)
        compare(gpucast.quantize(ragged, name, scale=given[..., None]), wanted, name)


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_4over6", "te-nvfp4"])
def test_scales_come_from_the_amax_of_each_row(name: str) -> None:
    x = numbers(64)
    amax = np.float32([gpucast.cast(row[np.isfinite(row)], "FLOAT").__abs__().max(initial=0) for row in x])
    amax[3] = 1
    q = gpucast.quantize(x, name, amax=amax)
    assert q.global_scale.tolist() == [float(gpucast.quantize(x, name, amax=a).global_scale) for a in amax]
    compare(q, exact_quantize.quantize(x, recipes.find(name, "tests"), amax=amax), name)


@pytest.fixture(scope="module")
def driver() -> Any:
    kinds: list[Any] = [
        quantize_kernel(CastRule(gpucast.dtype("FLOAT"), NVFP4.element), one, "globals") for one in (NVFP4, FOUR)
    ]
    rule = CastRule(gpucast.dtype("BFLOAT16"), NVFP4.element)
    kinds += [quantize_kernel(rule, NVFP4, "rows", block=16, row_scaled=True)]
    made = HostDriver(arch=100)
    made.prepare(kinds)
    with installed(made):
        yield made


def test_a_graph_captures_a_call_with_scales_of_rows(driver: HostDriver) -> None:
    """In one launch after that of the scales, into the memory of the result; other calls: tests/parity."""
    x, amax = numbers(64), upload(np.abs(SCALES))
    q = gpucast.quantize(upload(x), "nvfp4", amax=amax)
    driver.capture = True
    assert gpucast.quantize(upload(x), "nvfp4", amax=amax, out=q) is q
    driver.capture = False
    compare(q, exact_quantize.quantize(x, NVFP4, amax=SCALES), "out")


def test_zeros_have_the_references_bits(driver: HostDriver) -> None:
    # Without an amax other than 0, some libraries have a global scale of 0 or infinity, and NaN as the scales of zeros.
    x = gpucast.cast(RNG.standard_normal((4, 64)) * [[1], [0], [1], [2.0**-130]], "BFLOAT16")
    amax = np.float32([3.1, 0, 2.0**-140, 2.0**-126])
    names = [name for name, one in recipes.RECIPES.items() if one.format.rows_shape(x.shape, 1) and one.format.steps]
    assert len(names) == 10
    rule = CastRule(gpucast.dtype("BFLOAT16"), NVFP4.element)
    kernels = [quantize_kernel(rule, recipes.find(name, "tests"), "rows", block=16, row_scaled=True) for name in names]
    driver.prepare(kernels)
    nan = []
    for name in names:
        wanted = exact_quantize.quantize(x, recipes.find(name, "tests"), amax=amax)
        compare(gpucast.quantize(x, name, amax=amax), wanted, name)
        compare(gpucast.quantize(upload(x), name, amax=upload(amax)), wanted, name)
        # Of one number too formulas may depend on the type of x.
        g = gpucast.quantize(upload(x), name, amax=upload(amax[:1])).global_scale
        assert elements(g) == gpucast.quantize(x, name, amax=amax[0]).global_scale == wanted.global_scale[0]
        zeros = np.zeros_like(x)
        compare(gpucast.quantize(zeros, name), exact_quantize.quantize(zeros, recipes.find(name, "tests")), name)
        nan += [name] * bool(np.isnan(wanted.scales[1].astype(np.float32)).all())
    # torch.clamp and torch.where keep NaN, and conversions to FLOAT8E4M3FN.
    assert nan == ["torchao-nvfp4", "torchao-nvfp4-cuda", "modelopt-nvfp4", "modelopt-nvfp4-cuda", "vllm-nvfp4",
                   "flashinfer-nvfp4"]  # fmt: skip


def test_memory_of_a_call_is_on_the_device_of_x(driver: HostDriver) -> None:
    x, scale = upload(numbers(128), device=1), upload(np.ones((ROWS, 1), np.float32), device=1)
    q = gpucast.quantize(x, "float8e4m3fn_1x128", scale=scale, scale_layout="mn_major")
    gpucast.quantize(x, "float8e4m3fn_1x128", scale=scale, scale_layout="mn_major", out=q)
    q.dequantize(out=upload(np.empty(q.shape, np.float32), device=1))
    kept = q.workspace("tests")
    # It allocates nothing here: these are the arrays of the calls.
    driver.capture = True
    found = [kept.array(name, q.scales_shape, q.format.scale) for name in ("scales 0", "scales")]
    driver.capture = False
    assert [one.device.id for one in found] == [1, 1] and driver.current() == 0


@pytest.mark.parametrize("of_one", [np.ones(1, np.float32), [1.0], np.ones((1, 1)), 1.0])
def test_the_scale_of_a_single_row_is_that_of_the_matrix(of_one: Any) -> None:
    x = numbers(64)[:1]
    q = gpucast.quantize(x, "nvfp4")
    for keywords in ({"scale": of_one}, {"amax": of_one}):
        assert gpucast.quantize(x, "nvfp4", out=q, **keywords) is q
        made = gpucast.quantize(x, "nvfp4", **keywords)
        assert made.global_scale.shape == () and same(made.dequantize(), q.dequantize())
        assert replace(made, global_scale=made.global_scale.reshape(1)).global_scale.shape == ()
        assert same(gpucast.quantization.repack(made, "nvfp4").dequantize(), made.dequantize())


def test_scales_of_a_result_are_written_in_place_only(driver: HostDriver) -> None:
    x = numbers(64)
    q = gpucast.quantize(upload(x), "nvfp4", scale=upload(SCALES))
    in_place = gpucast.quantize(upload(x), "nvfp4", scale=q.global_scale, out=q)
    compare(in_place, exact_quantize.quantize(x, NVFP4, scale=SCALES), "in place")
    for keywords in ({"scale": q.global_scale[::-1]}, {"amax": q.global_scale}):
        with pytest.raises(ValueError, match=f"out.global_scale shares memory with {next(iter(keywords))}"):
            gpucast.quantize(upload(x), "nvfp4", out=q, **keywords)


def test_files_and_layouts_keep_the_scales(tmp_path: Any) -> None:
    q = gpucast.quantize(numbers(64), "nvfp4", scale=SCALES, scale_layout="128x4")
    gpucast.save(tmp_path / "q.safetensors", {"q": q})
    again = gpucast.load(tmp_path / "q.safetensors")["q"]
    assert same(again.global_scale, SCALES) and same(again.dequantize(), q.with_layout("linear").dequantize())
    with pytest.raises(ValueError, match="repack: q has a global scale for each row"):
        gpucast.quantization.repack(q.with_layout("linear"), "float8e4m3fn_1x128")


X = np.ones((ROWS, 48), np.float32)
FOR_ALL = "scale= has shape (12,); the scales have ()"


@pytest.mark.parametrize(
    ("format", "keywords", "message"),
    [
        ("nvfp4", {"scale": SCALES[:5]}, "has shape (5,); the scales have (), or one for each row, shape (12,)"),
        ("nvfp4", {"amax": SCALES[None]}, "has shape (1, 12); expected one element, or one for each row, shape (12,)"),
        ("nvfp4", {"scale": SCALES, "transpose": "both"}, FOR_ALL),
        ("nvfp4_16x16", {"scale": SCALES}, FOR_ALL),
        ("nvfp4", {"scale": SCALES, "axis": 0}, FOR_ALL),
        ("nvfp4", {"scale": SCALES - SCALES}, "must be finite and above 0"),
        ("nvfp4", {"amax": -SCALES}, "must be finite and not below 0"),
        ("nvfp4", {"scale": SCALES, "out": ()}, "out has global scales of shape (); expected (12,)"),
    ],
)
def test_refused(format: str, keywords: dict[str, Any], message: str) -> None:
    if "out" in keywords:
        keywords = keywords | {"out": gpucast.quantize(X, format)}
    with pytest.raises(ValueError) as caught:
        gpucast.quantize(X, format, **keywords)
    assert message in str(caught.value)


def test_parts_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("global_scale has shape (5,); expected () or (12,)")):
        replace(gpucast.quantize(X, "nvfp4"), global_scale=SCALES[:5])
