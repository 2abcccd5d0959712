# SPDX-License-Identifier: Apache-2.0
"""What devices add to quantizing: launches, one read for both orders of an array, places, graphs; as host code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast import PackedArray
from gpucast.quantization import Quantized, exact_quantize, quantize, swizzle
from gpucast.quantization.cuda import quantize as on_cuda
from gpucast.quantization.formats import SOURCES, Format
from host_driver import HostDriver, device_array, download, elements, installed, rehearsed, upload
from quantization_cases import ALL, LENGTH, NDArray, compare, matrix, same

Way = tuple[int, Any]
#: How results may be asked for: the axis of the blocks, and whether the array is transposed.
WAYS: tuple[Way, ...] = ((-1, False), (-2, False), (-1, True), (-2, True), (-1, "both"), (-2, "both"))
BOTH = WAYS[4:]
#: A format and a source of every way through the kernels that read tiles, and how it is asked for.
TILES: tuple[tuple[str, str, tuple[Way, ...]], ...] = (
    ("mxfp8e4m3", "FLOAT", WAYS),
    ("mxfp4", "BFLOAT16", ((-2, False), (-1, True), (-1, "both"))),
    ("mxfp6e3m2", "FLOAT16", BOTH),
    ("nvfp4", "FLOAT", BOTH),
    ("float8e4m3fn_1x128", "BFLOAT16", BOTH),
    ("float8e4m3fn_128x128", "FLOAT", ((-1, False), (-1, True), (-1, "both"))),
    ("float8e5m2_tensor", "BFLOAT16", ((-1, True), (-1, "both"))),
    ("int4_zp_128", "FLOAT", BOTH[:1]),
    ("uint2_zp_32", "FLOAT", BOTH[:1]),
    ("int8_64", "DOUBLE", BOTH[:1]),
    ("mxfp6e2m3_even", "BFLOAT16", BOTH[:1]),
    ("int4_32_full_range", "FLOAT", BOTH[:1]),
    ("int2_128_no_clipping", "FLOAT", BOTH[1:]),
    ("int4_32_full_range_bfloat16", "BFLOAT16", BOTH[:1]),
)
STOCHASTIC = (("mxfp8e4m3", BOTH), ("mxfp6e3m2", ((-1, False), (-2, False))), ("nvfp4", BOTH[1:]))
AT_RANDOM = {"rounding": "stochastic", "seed": 2**63 + 1, "offset": 2**64 - 9}
ONES = np.ones((96, 256), np.float32)
AMAX = upload(np.float32(3))
#: The kernels of a call: short blocks take one launch, along whichever axis and both ways; others read x twice.
#: A number of the host is in memory of its own, which is copied.
LAUNCHES: list[tuple[NDArray, str, dict[str, Any], list[str]]] = [
    *((ONES, "mxfp8e4m3", {"axis": axis, "transpose": swap}, ["tiles"]) for axis, swap in WAYS[1:]),
    *((ONES, "float8e4m3fn_128x128", {"transpose": swap}, ["tiles"]) for swap in (False, True, "both")),
    (ONES, "mxfp8e4m3", {}, ["rows"]),
    (ONES, "mxfp8e4m3", {"transpose": "both", "scale_layout": "128x4"}, ["tiles"]),
    (ONES, "nvfp4", {}, ["top", "rows"]),
    (ONES, "nvfp4", {"amax": AMAX}, ["globals", "rows"]),
    (ONES, "nvfp4", {"amax": np.float32(3)}, ["to", "rows"]),
    (ONES, "nvfp4", {"scale": 0.5}, ["to", "rows"]),
    (ONES, "nvfp4", {"transpose": "both"}, ["top", "tiles"]),
    (ONES, "nvfp4", {"transpose": "both", "scale": 0.5}, ["to", "tiles"]),
    (ONES, "int8_axis", {"axis": 0}, ["extremes", "scales", "elements"]),
    (ONES, "int8_axis", {"scale": np.float32(2)}, ["strided", "columns", "kept", "tiles"]),
    (ONES[:8, :5], "int8_axis", {}, ["extremes", "scales", "tiles"]),
    (ONES, "int8_64", {"scale": np.float32(2)}, ["strided", "tiles"]),
    (ONES, "float8e4m3fn_tensor", {"scale": 2}, ["to", "elements"]),
    (gpucast.cast(ONES, "BFLOAT16"), "float8e5m2_tensor", {"transpose": "both"}, ["entire", "tiles"]),
]
#: Its blocks fit no tile.
MINE = Format("mine", "INT4", "FLOAT", (24,), "amax")
#: In the names of kernels, behind "tiles".
_OF_TILES = "same swapped nothing along down square everywhere given stochastic whole".split()


def arrays(name: str, source: str) -> Iterator[NDArray]:
    """All that a block can meet, along rows and down columns, in whole and in ragged tiles; lines of odd lengths."""
    x = matrix(ALL[name], source)
    yield x[:, : LENGTH if ALL[name].element.bits == 8 else LENGTH - 1]
    tall = np.tile(x, (4, 2))[:68]
    tall[:20, 120:140] = x[:, :20].T
    yield tall[:, :144]
    yield np.ascontiguousarray(tall[:64, :128].T)


@pytest.fixture(scope="module")
def shared() -> HostDriver:
    cases = [(name, source, way, {}) for name, source, ways in TILES for way in ways]
    cases += [(name, "FLOAT", way, AT_RANDOM) for name, ways in STOCHASTIC for way in ways]
    calls: list[tuple[NDArray, Any, dict[str, Any]]] = [
        (x, ALL[name], {"axis": axis, "transpose": transpose} | more)
        for name, source, (axis, transpose), more in cases
        for x in arrays(name, source)
    ]
    calls += [(x, name, how) for x, name, how, _ in LAUNCHES]
    calls += [(ONES[:48, :96], MINE, {"transpose": "both"}), (ONES[:34, :33], "mxfp4", {"transpose": "both"})]
    return rehearsed(lambda call=call: quantize(upload(call[0]), call[1], **call[2]) for call in calls)


@pytest.fixture
def driver(shared: HostDriver) -> Iterator[HostDriver]:
    shared.launched.clear()
    shared.capture = False
    with installed(shared):
        yield shared


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


def check(x: NDArray, format: Any, way: Way = (-1, False), *, given: Any = None, **keywords: Any) -> Any:
    """As the reference, each of the results by itself. `given`: x on the device."""
    axis, transpose = way
    format = ALL.get(format, format)
    made = quantize(upload(x) if given is None else given, format, axis=axis, transpose=transpose, **keywords)
    turned = np.ascontiguousarray(x.swapaxes(-1, -2))
    views = {False: [x], True: [turned], "both": [x, turned]}[transpose]
    for q, view in zip(made if transpose == "both" else [made], views, strict=True):
        expected = exact_quantize.quantize(view, format, axis=axis, **keywords)
        compare(q, expected, f"{format} {x.dtype} {x.shape} {way} {keywords}")
    return made


# ---- one read, for blocks along any axis, transposed or both ways ----


@pytest.mark.parametrize(("name", "source", "ways"), TILES)
def test_tiles(driver: HostDriver, name: str, source: str, ways: tuple[Way, ...]) -> None:
    for x in arrays(name, source):
        for way in ways:
            check(x, name, way)


@pytest.mark.parametrize(("name", "ways"), STOCHASTIC)
def test_tiles_at_random(driver: HostDriver, name: str, ways: tuple[Way, ...]) -> None:
    x = matrix(ALL[name], "FLOAT")
    for view in (x[:, : LENGTH - 1], x[:, :72]):
        for way in ways:
            check(view, name, way, **AT_RANDOM)


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (3, 5), (2, 3, 7), (3, 1, 66), (2, 130, 4), (129, 131)])
def test_sizes_of_tiles(driver: HostDriver, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    for way in WAYS:
        check(x, "mxfp8e4m3", way)
    check(x, "float8e4m3fn_128x128", (-1, "both"))


def test_every_format_source_and_way(exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("test_tiles and test_tiles_at_random take some of them; all with --exhaustive")
    with installed(HostDriver()):
        for name, format in ALL.items():
            for source in SOURCES if format.block != "axis" else ():
                for x in arrays(name, source.name):
                    for way in WAYS:
                        check(x, name, way)
                        if format.element.is_float:
                            check(x, name, way, **AT_RANDOM)


@pytest.mark.parametrize(("x", "name", "how", "launched"), LAUNCHES, ids=[row[1] for row in LAUNCHES])
def test_launches(driver: HostDriver, x: NDArray, name: str, how: dict[str, Any], launched: list[str]) -> None:
    quantize(upload(x), name, **how)
    assert kinds(driver) == launched


def test_launches_of_transposes_and_back(driver: HostDriver) -> None:
    # An array that is a transpose is read as what it is the transpose of.
    quantize(upload(ONES).T, "mxfp8e4m3")
    assert kinds(driver) == ["tiles"]
    quantize(upload(ONES), "mxfp8e4m3").dequantize()
    assert kinds(driver) == ["rows", "back"]


def test_blocks_that_fit_no_tile(driver: HostDriver) -> None:
    """Blocks of other lengths, lines that end inside a byte, other axes, arrays with gaps: as ever."""
    rng = np.random.default_rng(3)
    check(rng.standard_normal((48, 96)).astype(np.float32), MINE, (-1, "both"))
    assert "tiles" not in kinds(driver)
    deep = rng.standard_normal((33, 4, 6)).astype(np.float32)
    check(deep, "mxfp8e4m3", (-1, "both"), given=upload(np.tile(deep, 2))[:, :, :6])
    assert kinds(driver)[-1] == "tiles"
    check(deep, "mxfp8e4m3", (0, "both"))
    driver.launched.clear()
    check(rng.standard_normal((34, 33)).astype(np.float32), "mxfp4", (-1, "both"))
    # The rows end inside a byte, the columns do not.
    assert kinds(driver) == ["extremes", "scales", "elements", "tiles"]
    # Many little matrices would leave most of their tiles empty.
    check(rng.standard_normal((300, 3, 5)).astype(np.float32), "mxfp8e4m3", (-2, False))
    assert "tiles" not in kinds(driver)
    # Lengths that 32 bits, or 64, do not hold: one block for all.
    x = rng.standard_normal((4, 100)).astype(np.float32)
    for length in (2**32 + 7, 2**64):
        for axis in (0, 1):
            check(x, Format("mine", "INT8", "FLOAT", (length,), "amax"), (axis, False))


def test_blocks_that_are_read_in_one_part(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of an array with blocks for all threads: to their last element, which is the largest here."""
    monkeypatch.setattr(on_cuda, "BUSY_THREADS", 1)
    check(np.arange(1, 34 * 32 + 1, dtype=np.float32).reshape(34, 32), "int8_axis")


def test_given_scales(driver: HostDriver, exhaustive: bool) -> None:
    x = matrix(ALL["int8_64"], "FLOAT")[:, :132]
    for axis, shape in ((1, (20, 3)), (0, (1, 132))):
        per_block = np.random.default_rng(2).random(shape).astype(np.float32) + 0.1
        for name in ("int8_64", "float8e4m3fn_1x128")[: 2 - axis]:
            expected = exact_quantize.quantize(x, ALL[name], axis=axis, scale=per_block)
            compare(quantize(upload(x), name, axis=axis, scale=upload(per_block)), expected, name)
    for name in ("int8_64", "float8e4m3fn_128x128", "int8_tensor")[: 3 if exhaustive else 1]:
        check(x, name, (-1, "both"), scale=0.3)
    for amax, name in ((0, "nvfp4"), (2.0**-149, "nvfp4"), (7, "nvfp4"), (3e38, "nvfp4"), (7, "nvfp4_16x16")):
        top = np.float32(amax)
        expected = exact_quantize.quantize(x, ALL[name], amax=top)
        for given in (top, float(top), upload(top)):
            for place in (upload(x), x):
                compare(quantize(place, name, amax=given), expected, f"{name}, amax {amax}")
    with pytest.raises(TypeError, match="amax= has dtype float64; expected FLOAT on the device of x"):
        quantize(upload(x), "nvfp4", amax=upload(np.array(1.0)))
    with pytest.raises(ValueError, match="finite and above 0"):
        quantize(upload(x), "int8_64", scale=-1.0)


# ---- places, addresses, orders ----


def test_elements_at_odd_addresses(driver: HostDriver) -> None:
    """As in a file that was read in one piece: what a device would stop at is copied first."""
    x = np.random.default_rng(7).standard_normal((4, 64)).astype(np.float32)
    expected = exact_quantize.quantize(x, ALL["nvfp4"])
    q = quantize(upload(x, offset=1), "nvfp4")
    assert kinds(driver)[1:] == ["top", "rows"]
    compare(q, expected, "odd")
    g = upload(expected.global_scale, offset=2)
    back = Quantized(q.data, q.scales, "nvfp4", global_scale=g).dequantize()
    assert len(kinds(driver)) == 2
    assert same(download(back), exact_quantize.dequantize(expected, ALL["nvfp4"]))


@pytest.mark.parametrize("shape", [(20, 64), (130, 160), (3, 50, 32)])
def test_the_order_of_scales(driver: HostDriver, shape: tuple[int, ...]) -> None:
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
    assert isinstance(q.data, PackedArray) and q.data.device.id == 0
    compare(q, expected, "to the device")
    there = q.get()
    assert there.device == "cpu" and same(there.scales, expected.scales)
    assert quantize(upload(x), "mxfp4", device="cpu").device == "cpu"
    on_second = quantize(upload(x, device=1), "mxfp4")
    assert on_second.data.data.device.id == 1
    compare(on_second, expected, "the second device")
    assert same(elements(on_second.dequantize()), exact_quantize.dequantize(expected, ALL["mxfp4"]))


def test_bad_use(driver: HostDriver) -> None:
    x = device_array((4, 64), np.float32)
    with pytest.raises(TypeError, match="must be one of FLOAT"):
        quantize(device_array((4,), np.int32), "mxfp4")
    with pytest.raises(ValueError, match="needs whole blocks"):
        quantize(x[:, :33], "mxfp4", scale_layout="128x4")
    with pytest.raises(ValueError, match="scale= has shape"):
        quantize(x, "int8_64", scale=device_array((3,), np.float32))
    assert not driver.launched
    q = quantize(x, "mxfp4")
    driver.capture = True
    for call in (lambda: quantize(x, "mxfp4"), lambda: gpucast.quantize(x, "int8_axis", axis=0), q.dequantize):
        with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
            call()
