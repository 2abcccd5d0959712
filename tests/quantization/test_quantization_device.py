# SPDX-License-Identifier: Apache-2.0
"""Quantizing on a device gives the reference's bits: the very kernels, as host code (see host_driver)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
import pytest

import gpucast
import host_driver
from gpucast import PackedArray
from gpucast.codegen.cast_kernel import KernelSource
from gpucast.core.dtypes import dtype
from gpucast.core.formats import LENGTHS, SOURCES, Format, Parts
from gpucast.core.rule import CastRule
from gpucast.parity import host_build
from gpucast.quantization import Quantized, quantize, swizzle
from gpucast.quantization.gpu.source import WARP, Kind, QuantizeSpec
from gpucast.quantization.gpu.tile_source import TileSpec
from gpucast.reference import exact_quantize
from host_driver import DEVICES, HostDriver, device_array, download, elements, installed, on_gpu, upload
from quantization_cases import ALL, LENGTH, matrix, same

#: A format of every way through the kernels.
SOME = (
    "float8e4m3fn_tensor float8e4m3fn_axis float8e4m3fn_1x128 float8e4m3fn_128x128 float8e5m2_1x128 mxfp8e4m3 "
    "mxfp6e2m3_up mxfp6e3m2 mxfp4 mxfp4_up nvfp4 int8_axis int8_64 int4_zp_32 uint4_zp_tensor int2_128 uint2_zp_128 "
    "mxfp8e5m2_even mxfp4_even int8_axis_full_range int4_32_full_range int2_tensor_full_range int8_64_no_clipping "
    "int4_32_full_range_bfloat16 uint4_zp_32_bfloat16 float8e4m3fn_128x128_bfloat16"
).split()
#: What is tried with the other sources too.
MORE = ("float8e4m3fn_1x128", "mxfp8e4m3", "mxfp4_even", "nvfp4", "int4_zp_32", "int2_128_no_clipping")
STOCHASTIC = ("float8e4m3fn_1x128", "mxfp6e3m2", "nvfp4")
#: In the names of kernels, behind "tiles".
_OF_TILES = "same swapped nothing along down square everywhere given stochastic whole".split()
KINDS: tuple[Kind, ...] = ("extremes", "columns", "scales", "elements")


def kernels(format: Format, source: str, *, random: bool = False) -> Iterator[KernelSource]:
    """All that quantizing and dequantizing may launch."""
    rule = CastRule(dtype(source), format.element)
    block = format.block[-1] if isinstance(format.block, tuple) and format.min_ndim == 1 else 0
    single = format.block == "tensor"
    for kind in KINDS:
        for lanes in (1, WARP) if kind == "extremes" else (1,):
            elements = kind == "elements"
            yield QuantizeSpec(rule, format, kind, random and elements, lanes, single=single and elements).source()
    if block in LENGTHS:
        yield QuantizeSpec(rule, format, "rows", random, block=block).source()
        for run in ("along", "down"):
            yield TileSpec(rule, format, block, run, stochastic=random).source()
    elif format.min_ndim == 2:
        yield TileSpec(rule, format, 128, "square").source()
    if format.block == "axis":
        yield TileSpec(rule, format, 64, "down", stochastic=random, whole_columns=True).source()
    if format.scale is dtype("FLOAT") and not format.zero_points and format.nan_in_scale:
        yield QuantizeSpec(rule, format, "kept").source()
    if format.global_scale:
        yield QuantizeSpec(rule, format, "top", lanes=WARP).source()
        yield QuantizeSpec(rule, format, "global").source()
    back = CastRule(format.element, dtype(source))
    yield QuantizeSpec(back, format, "back", single=single).source()
    if block in LENGTHS:
        yield QuantizeSpec(back, format, "back", block=block).source()


@pytest.fixture(scope="module")
def shared() -> HostDriver:
    driver = HostDriver()
    driver.prepare(
        [
            *(source for name in SOME for source in kernels(ALL[name], "FLOAT")),
            *(source for name in MORE for row in SOURCES for source in kernels(ALL[name], row.name)),
            *(source for name in STOCHASTIC for source in kernels(ALL[name], "FLOAT", random=True)),
        ]
    )
    return driver


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the kernels run."""
    if request.param == "gpu":
        with on_gpu():
            yield
    else:
        request.getfixturevalue("driver")
        yield


@pytest.fixture
def driver(shared: HostDriver) -> Iterator[HostDriver]:
    shared.loaded.clear()
    shared.launched.clear()
    shared.capture = False
    with installed(shared):
        yield shared


def check(
    x: np.ndarray, name: str, axis: int = -1, *, unaligned: int = 0, back: str = "", **keywords: Any
) -> Quantized:
    """Quantize and dequantize on a device and by the reference."""
    return check_view(upload(x, offset=unaligned), x, name, axis, back=back, **keywords)


def check_view(given: Any, x: np.ndarray, name: str, axis: int = -1, *, back: str = "", **keywords: Any) -> Quantized:
    """`given`, on a device, has the numbers of x."""
    format = ALL[name]
    expected = exact_quantize.quantize(x, format, axis=axis, **keywords)
    q = quantize(given, format, axis=axis, **keywords)
    assert all(isinstance(part, (cupy.ndarray, PackedArray)) for part in q.parts().values())
    compare(q, expected, f"{name} {x.dtype} {x.shape} axis={axis}")
    to = back or q.dtype.name
    assert same(download(q.dequantize(to)), exact_quantize.dequantize(expected, format, to, axis=axis)), (
        name,
        to,
        axis,
    )
    return q


def compare(q: Quantized, expected: Parts, what: str) -> None:
    for part in ("scales", "zero_points", "global_scale", "data"):
        one, other = getattr(expected, part), getattr(q, part)
        other = other if other is None else elements(other)
        if not same(one, other):
            where = np.argwhere(np.atleast_1d(codes(one) != codes(other)))[:1].tolist()
            raise AssertionError(f"{what}: {part} differs, first at {where}")


def codes(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.itemsize}")


def kinds(driver: HostDriver) -> list[str]:
    """Of the kernels that were launched since the last call."""
    names = [name for name, _ in driver.launched]
    driver.launched.clear()
    return [
        next(
            part if part.isalpha() else "tiles"
            for part in reversed(name.split("_"))
            if part.startswith("tiles") or (part.isalpha() and part not in _OF_TILES)
        )
        for name in names
    ]


def edges(name: str, source: str) -> None:
    """Everything that a block can meet, in whole and ragged blocks along every axis."""
    format = ALL[name]
    x = matrix(format, source)
    check(x, name)
    check(x.T, name, 0)
    whole = x[:, : LENGTH // 128 * 128]
    check(whole, name)
    check(whole, name, unaligned=x.itemsize)
    check(np.stack([x, x[::-1]]), name, 1, back="FLOAT" if source == "DOUBLE" else "")
    if isinstance(format.block, str):
        for row in x:
            check(row if format.block == "tensor" else row.reshape(19, 7), name, 0)


@pytest.mark.parametrize("name", SOME)
def test_edges_of_blocks(device: None, name: str) -> None:
    edges(name, "FLOAT")


@pytest.mark.parametrize("source", ["FLOAT16", "BFLOAT16", "DOUBLE"])
@pytest.mark.parametrize("name", MORE)
def test_edges_of_other_sources(device: None, name: str, source: str) -> None:
    edges(name, source)


def test_every_format_and_source(exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("long: run with --exhaustive")
    driver = HostDriver()
    with installed(driver):
        for name, format in ALL.items():
            random = format.element.family == "float"
            for row in SOURCES:
                driver.prepare(source for more in {False, random} for source in kernels(format, row.name, random=more))
                edges(name, row.name)
                if random:
                    check(matrix(format, row.name), name, rounding="stochastic", seed=5, offset=2**40 + 3)


@pytest.mark.parametrize("name", SOME)
def test_sizes(device: None, name: str) -> None:
    """Odd sizes, single elements, empty arrays, strides."""
    format = ALL[name]
    rng = np.random.default_rng(1)
    for shape in ((1, 1), (0, 4), (4, 0), (1, 33), (17, 2), (2, 3, 5)):
        x = rng.standard_normal(shape).astype(np.float32)
        for axis in range(x.ndim - 2 if format.min_ndim == 2 else 0, x.ndim):
            check(x, name, axis)
    x = rng.standard_normal((6, 64)).astype(np.float32)
    check_view(upload(x)[::-2, ::3], x[::-2, ::3], name)
    if format.block == "tensor":
        check(np.array(1.25, np.float32), name, 0)
    if format.min_ndim == 1:
        check(rng.standard_normal((4, 256)).astype(np.float32), name)


def test_blocks_longer_than_the_array(device: None) -> None:
    """Lengths that 32 bits, or 64, do not hold: one block for all."""
    x = np.random.default_rng(6).standard_normal((4, 100)).astype(np.float32)
    for length in (2**32 + 7, 2**64):
        format = Format("mine", "INT8", "FLOAT", (length,), "amax")
        for axis in (0, 1):
            expected = exact_quantize.quantize(x, format, axis=axis)
            q = quantize(upload(x), format, axis=axis)
            compare(q, expected, f"{length} {axis}")
            assert same(download(q.dequantize()), exact_quantize.dequantize(expected, format, axis=axis))


def test_elements_at_odd_addresses(driver: HostDriver) -> None:
    """As in a file that was read in one piece: what a device would stop at is copied first."""
    x = np.random.default_rng(7).standard_normal((4, 64)).astype(np.float32)
    expected = exact_quantize.quantize(x, ALL["nvfp4"])
    q = quantize(upload(x, offset=1), "nvfp4")
    assert kinds(driver)[1:] == ["top", "global", "rows"]
    compare(q, expected, "odd")
    parts = q.parts() | {"global_scale": upload(expected.global_scale, offset=2)}
    back = Quantized(parts["data"], parts["scales"], "nvfp4", global_scale=parts["global_scale"]).dequantize()
    assert len(kinds(driver)) == 2
    assert same(download(back), exact_quantize.dequantize(expected, ALL["nvfp4"]))


@pytest.mark.parametrize("name", STOCHASTIC)
def test_rounding_at_random(device: None, name: str) -> None:
    x = matrix(ALL[name], "FLOAT")
    for view in (x, x[:, :128]):
        check(view, name, rounding="stochastic", seed=2**63 + 1, offset=2**64 - 9)
    check(x, name, 0, rounding="stochastic", seed=1)


def test_launches(driver: HostDriver) -> None:
    """Short blocks take one launch, along whichever axis; each of the others reads x twice."""
    x = upload(np.ones((8, 256), np.float32))
    quantize(x, "mxfp4")
    assert kinds(driver) == ["rows"]
    quantize(x, "nvfp4", scale=0.5)
    assert kinds(driver) == ["rows"]
    quantize(x, "nvfp4")
    assert kinds(driver) == ["top", "global", "rows"]
    quantize(x, "nvfp4", amax=np.float32(3))
    assert kinds(driver) == ["rows"]
    quantize(x, "nvfp4", amax=upload(np.float32(3)))
    assert kinds(driver) == ["top", "global", "rows"]
    quantize(x, "mxfp4", axis=0)
    assert kinds(driver) == ["tiles"]
    quantize(x, "int8_axis", axis=0)
    assert kinds(driver) == ["extremes", "scales", "elements"]
    quantize(x, "float8e4m3fn_tensor", scale=2)
    assert kinds(driver) == ["elements"]
    quantize(x, "int8_64", scale=np.float32(2))
    assert kinds(driver) == ["tiles"]
    quantize(x, "int8_axis", scale=np.float32(2))
    assert kinds(driver) == ["columns", "kept", "tiles"]
    quantize(upload(np.ones((8, 5), np.float32)), "int8_axis")
    assert kinds(driver) == ["extremes", "scales", "tiles"]
    quantize(x, "mxfp4").dequantize()
    assert kinds(driver) == ["rows", "back"]


def test_given_scales(device: None) -> None:
    x = matrix(ALL["int8_64"], "FLOAT")
    per_block = np.random.default_rng(2).random((20, 3)).astype(np.float32) + 0.1
    for name, scale in (
        ("int8_64", 0.25), ("int8_axis", 0.25), ("int8_64", per_block), ("int8_64", np.float64([1.1, 1 / 3, 7])),
        ("float8e4m3fn_tensor", 3.0), ("float8e4m3fn_1x128", per_block[:, :2]), ("nvfp4", 1e-3),
    ):  # fmt: skip
        check(x, name, scale=scale)
        on_device = upload(np.array(scale))
        expected = exact_quantize.quantize(x, ALL[name], scale=scale)
        compare(quantize(upload(x), name, scale=on_device), expected, name)
        # What is given is not written to.
        assert same(download(on_device), np.array(scale))
    for amax in np.float32([0, 2.0**-149, 7, 3e38]):
        expected = exact_quantize.quantize(x, ALL["nvfp4"], amax=amax)
        for given in (amax, float(amax), upload(amax)):
            compare(quantize(upload(x), "nvfp4", amax=given), expected, f"amax {amax}")
            compare(on_host_as_device(quantize(x, "nvfp4", amax=given)), expected, f"host, amax {amax}")
    with pytest.raises(TypeError, match="amax= has dtype float64; expected FLOAT on the device of x"):
        quantize(upload(x), "nvfp4", amax=upload(np.array(1.0)))
    with pytest.raises(ValueError, match="finite and above 0"):
        quantize(upload(x), "int8_64", scale=-1.0)
    on_host = quantize(x, "int8_64", scale=upload(per_block))
    compare(on_host_as_device(on_host), exact_quantize.quantize(x, ALL["int8_64"], scale=per_block), "host")


def on_host_as_device(q: Quantized) -> Quantized:
    data = PackedArray(upload(q.data.data), q.data.dtype, q.data.shape) if q.format.element.packed else upload(q.data)
    g = None if q.global_scale is None else upload(q.global_scale)
    return Quantized(data, upload(q.scales), q.format, global_scale=g, axis=q.axis)


@pytest.mark.parametrize("shape", [(20, 64), (130, 160), (3, 50, 32)])
def test_the_order_of_scales(device: None, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    q = quantize(upload(x), "mxfp4", scale_layout="128x4")
    expected = exact_quantize.quantize(x, ALL["mxfp4"])
    assert same(download(q.scales), swizzle.swizzle(expected.scales))
    assert same(download(q.linear_scales()), expected.scales)
    assert same(download(q.dequantize()), exact_quantize.dequantize(expected, ALL["mxfp4"]))
    assert same(download(q.with_layout("linear").with_layout("128x4").scales), download(q.scales))


def test_places(driver: HostDriver) -> None:
    x = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
    expected = exact_quantize.quantize(x, ALL["mxfp4"])
    q = quantize(x, "mxfp4", device="cuda")
    compare(q, expected, "to the device")
    there = q.get()
    assert there.device == "cpu" and same(there.scales, expected.scales)
    assert quantize(upload(x), "mxfp4", device="cpu").device == "cpu"
    on_second = quantize(upload(x, device=1), "mxfp4")
    assert on_second.data.data.device.id == 1
    compare(on_second, expected, "the second device")
    assert same(download(on_second.dequantize()), exact_quantize.dequantize(expected, ALL["mxfp4"]))


def test_bad_use(driver: HostDriver) -> None:
    x = device_array((4, 64), np.float32)
    with pytest.raises(TypeError, match="no type to quantize"):
        quantize(device_array((4,), np.int32), "mxfp4")
    with pytest.raises(ValueError, match="needs whole blocks"):
        quantize(x[:, :33], "mxfp4", scale_layout="128x4")
    with pytest.raises(ValueError, match="scale= has shape"):
        quantize(x, "int8_64", scale=device_array((3,), np.float32))
    assert not driver.launched
    driver.capture = True
    for call in (lambda: quantize(x, "mxfp4"), lambda: gpucast.quantize(x, "int8_axis", axis=0)):
        with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
            call()
    driver.capture = False
    q = quantize(x, "mxfp4")
    driver.capture = True
    with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
        q.dequantize()


@pytest.mark.parametrize("to", ["FLOAT", "BFLOAT16", "DOUBLE"])
def test_scales_that_quantizing_never_gives(device: None, to: str) -> None:
    """Parts from elsewhere: the NaN that comes of zeros times an infinite scale has no processor's sign."""
    format = ALL["float8e4m3fn_axis"]
    scales = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-45, 3e38, -2.0], np.float32)
    data = np.tile(np.arange(256, dtype=np.uint8), (len(scales), 1)).view(format.element.numpy)
    found = gpucast.dequantize(Quantized(upload(data), upload(scales), format, axis=0), to)
    assert same(download(found), exact_quantize.dequantize(Parts(data, scales), format, to, axis=0))


@pytest.mark.parametrize("toward", ["0.0f", "INFINITY * a"])
def test_the_last_bit_of_a_reciprocal_does_not_show(toward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ptx::rcp` alone may differ from device to device, by one unit in the last place."""
    exact = "canonical(1 / a)"
    text = host_build.shim()
    assert text.count(exact) == 1
    other = text.replace(exact, f"canonical(std::nextafterf(1 / a, {toward}))")
    monkeypatch.setattr(host_build, "shim", lambda arch: other)
    monkeypatch.setattr(host_driver, "_BUILT", {})
    driver = HostDriver()
    # A format of each kind of scales.
    names = MORE[::2] + MORE[3:4]
    driver.prepare(source for name in names for source in kernels(ALL[name], "FLOAT"))
    with installed(driver):
        for name in names:
            edges(name, "FLOAT")
