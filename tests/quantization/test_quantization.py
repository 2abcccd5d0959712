# SPDX-License-Identifier: Apache-2.0
"""Quantizing gives the reference's bits: every format, every edge of a block, on the host and on a device.

The device's kernels run as host code (see host_driver), or on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import host_driver
from codes import codes_of
from gpucast import PackedArray, cast
from gpucast.core.dtypes import dtype
from gpucast.parity import host_build
from gpucast.quantization import Quantized, block_loops, exact_quantize, quantize
from gpucast.quantization.formats import FORMATS, SOURCES, Format, Parts
from host_driver import DEVICES, HostDriver, elements, installed, on_gpu, rehearsed, upload
from quantization_cases import ALL, LENGTH, NDArray, beside_midpoints, compare, matrix, same

NAMES = [row.name for row in SOURCES]
#: The first format of each element; a format of each kind of block and arithmetic.
FIRST = {format.element: name for name, format in reversed(ALL.items())}
SHAPED = {(row.block, row.element.family, row.scale, row.zero_points): name for name, row in ALL.items()}
FLOATS = [name for name, format in ALL.items() if format.element.is_float]
#: A format of every way through the kernels; those that are tried with the other sources too, and at random.
SOME = (
    "float8e4m3fn_tensor float8e4m3fn_axis float8e4m3fn_1x128 float8e4m3fn_128x128 float8e5m2_1x128 mxfp8e4m3 "
    "mxfp6e2m3_up mxfp6e3m2 mxfp4 mxfp4_up nvfp4 int8_axis int8_64 int4_zp_32 uint4_zp_tensor int2_128 uint2_zp_128 "
    "mxfp8e5m2_even mxfp4_even int8_axis_full_range int4_32_full_range int2_tensor_full_range int8_64_no_clipping "
    "int4_32_full_range_bfloat16 uint4_zp_32_bfloat16 float8e4m3fn_128x128_bfloat16"
).split()
MORE = ("float8e4m3fn_1x128", "mxfp8e4m3", "mxfp4_even", "nvfp4", "int4_zp_32", "int2_128_no_clipping")
STOCHASTIC = ("float8e4m3fn_1x128", "mxfp6e3m2", "nvfp4")
AT_RANDOM = {"rounding": "stochastic", "seed": 2**63 + 1, "offset": 2**64 - 9}

#: Brings an array to the place of a test, perhaps some bytes behind an aligned address.
Put = Callable[..., Any]


def on_host(x: NDArray, offset: int = 0) -> NDArray:
    return x


def matrix_of(on_host: Any, on_device: Any) -> Any:
    """Runs a test with these formats on the host, and with those on devices."""
    cases = [pytest.param("host", name, id=f"host-{name}") for name in on_host]
    for place in (pytest.param(DEVICES[0]), *DEVICES[1:]):
        where = place.values[0]
        cases += [pytest.param(where, name, id=f"{where}-{name}", marks=place.marks) for name in on_device]
    return pytest.mark.parametrize(("put", "name"), cases, indirect=["put"])


@pytest.fixture
def put(request: pytest.FixtureRequest) -> Iterator[Put]:
    if request.param == "host":
        yield on_host
    elif request.param == "gpu":
        with on_gpu():
            yield upload
    else:
        with installed(request.getfixturevalue("shared")):
            yield upload


@pytest.fixture(scope="module")
def shared() -> HostDriver:
    """Builds what is tried here together, which is quicker."""
    calls = [(name, "FLOAT", {}) for name in SOME] + [(name, row, {}) for name in MORE for row in NAMES]
    calls += [(name, "FLOAT", AT_RANDOM) for name in STOCHASTIC]
    return rehearsed(
        lambda x=x, axis=axis, name=name, more=more: quantize(upload(x), ALL[name], axis=axis, **more).dequantize()
        for name, source, more in calls
        for x, axis in edges(ALL[name], source)
    )


def check(
    put: Put, x: NDArray, name: str, axis: int = -1, *, given: Any = None, to: str = "", **keywords: Any
) -> Parts:
    """Quantize x, or `given`, which has its numbers in the place of the test; and back."""
    format, given = ALL[name], put(x) if given is None else given
    expected = exact_quantize.quantize(x, format, axis=axis, **keywords)
    what = f"{name} {x.dtype} {x.shape} axis={axis}"
    # On the host then by the plan of the first call, into new parts and into those.
    q: Any = None
    for turn in range(3 if put is on_host else 1):
        with np.errstate(all="raise"):
            q = quantize(given, format, axis=axis, **keywords, out=q if turn == 2 else None)
            backs = [q.dequantize(to or q.dtype.name) for _ in range(2 if put is on_host else 1)]
        compare(q, expected, what)
        assert isinstance(q.scales, np.ndarray) == isinstance(backs[0], np.ndarray) == (put is on_host)
    wanted = exact_quantize.dequantize(expected, format, to or q.dtype.name, axis=axis)
    assert all(same(elements(back), wanted) for back in backs), (what, to)
    return expected


def check_back(put: Put, parts: Parts, format: Format, axis: int, to: str) -> NDArray:
    """Dequantize parts that no quantizing gave."""
    data = PackedArray.pack(parts.data) if format.element.packed else parts.data
    if isinstance(data, PackedArray):
        data = PackedArray(put(data.data), data.dtype, data.shape)
    else:
        data = put(data)
    others = {name: None if part is None else put(part) for name, part in vars(parts).items() if name != "data"}
    with np.errstate(all="raise"):
        back = elements(Quantized(data, format=format, axis=axis, **others).dequantize(to))
    assert same(back, exact_quantize.dequantize(parts, format, to, axis=axis)), (format, axis, to)
    return back


def edges(format: Format, source: str) -> Iterator[tuple[NDArray, int]]:
    """Everything that a block can meet, in whole and ragged blocks along every axis."""
    x = matrix(format, source)
    yield from ((x, -1), (x.T, 0), (x[:, : LENGTH // 128 * 128], -1), (np.stack([x, x[::-1]]), 1))
    if isinstance(format.block, str):
        yield from ((row if format.block == "tensor" else row.reshape(19, 7), 0) for row in x)


#: To be read: a block (the rest of its 32 numbers is 0), its codes, and those of scales, zero point and global scale.
LITERALS: dict[str, list[tuple[list[float], list[int], list[int]]]] = {
    "mxfp4": [
        # The scale is 2^0, because 6 is 1.5 * 2^2, and 2^2 the largest power of two of FLOAT4E2M1.
        ([6, 3, -1, 0.25, -0.75, 5, 2.5], [0x7, 0x5, 0xA, 0x0, 0xA, 0x6, 0x4], [0x7F]),
        ([7, 12.5, -1], [0x6, 0x7, 0x9], [0x80]),
        ([float("nan"), 1], [0x0, 0x0], [0xFF]),
    ],
    "mxfp4_up": [([6, 1], [0x7, 0x2], [0x7F]), ([7, 1], [0x6, 0x1], [0x80])],
    "mxfp4_even": [([6.9, 1], [0x7, 0x2], [0x7F]), ([7, 1], [0x6, 0x1], [0x80])],
    "mxfp8e4m3": [([448, 1, -2.5, 17, 2**-9], [0x7E, 0x38, 0xC2, 0x58, 0x01], [0x7F]), ([-2], [0xF8], [0x78])],
    # The block of the largest number has the scale 448, the other one 1, and both are multiplied with 1.
    "nvfp4": [([2688, -448] + [0] * 14 + [6, 1.25], [0x7, 0xA] + [0x0] * 14 + [0x7, 0x2], [0x7E, 0x38, 0x3F800000])],
    "int8_64": [([127, -127, 0.5, 1.5, -2.5], [127, 129, 0, 2, 254], [0x3F800000])],
    "int4_zp_32": [([-5, 10, 0.5, 1.5], [0x8, 0x7, 0xD, 0xF], [0x3F800000, 0xFD])],
    "uint4_zp_tensor": [([-5, 10, 0.5, 1.5], [0, 15, 5, 7], [0x3F800000, 5])],
    "float8e4m3fn_tensor": [([448, 1, -2.5], [0x7E, 0x38, 0xC2], [0x3F800000]), ([-56, 1], [0xFE, 0x50], [0x3E000000])],
}


@matrix_of(LITERALS, LITERALS)
def test_literal_blocks(put: Put, name: str) -> None:
    for numbers, codes, others in LITERALS[name]:
        x = np.zeros((1, 32), np.float32)
        x[0, : len(numbers)] = numbers
        found = codes_in(quantize(put(x), ALL[name]))
        assert (found[0][: len(codes)], found[1]) == ([*map(hex, codes)], [*map(hex, others)])


def codes_in(q: Quantized) -> tuple[list[str], list[str]]:
    """The codes of the elements; those of scales, zero points and the global scale."""
    data, *others = (np.ravel(elements(part)) for part in q.parts().values())
    return in_hex(data), [code for part in others for code in in_hex(part)]


def in_hex(x: NDArray) -> list[str]:
    return [*map(hex, codes_of(x, dtype(x.dtype)).tolist())]


@matrix_of(ALL, SOME)
def test_edges_of_blocks(put: Put, name: str) -> None:
    # The half types differ from FLOAT in how they become FLOAT.
    on_host_too = ("FLOAT", "DOUBLE") if FIRST[ALL[name].element] != name else NAMES
    for source in on_host_too if put is on_host else NAMES if name in MORE else ("FLOAT",):
        for x, axis in edges(ALL[name], source):
            check(put, x, name, axis)
    x = matrix(ALL[name], "FLOAT")[:, :128]
    check(put, x, name, given=put(x, offset=4))
    if put is on_host and ALL[name].min_ndim < 2:
        check(put, np.stack([x, x[::-1]]), name, 1, to="BFLOAT16")


def test_every_format_and_source_on_a_device(exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("test_edges_of_blocks takes some of them; all with --exhaustive")
    with installed(HostDriver()):
        for name, format in ALL.items():
            for source in NAMES:
                for x, axis in edges(format, source):
                    check(upload, x, name, axis)
                if format.element.is_float:
                    check(upload, matrix(format, source), name, **AT_RANDOM)


@matrix_of(SHAPED.values(), SOME)
def test_sizes(put: Put, name: str) -> None:
    """Odd sizes, single elements, empty arrays, every axis, strides and byte order."""
    format = ALL[name]
    rng = np.random.default_rng(1)
    for shape in ((1, 1), (0, 4), (4, 0), (3, 1), (1, 33), (17, 2), (2, 3, 5)):
        x = rng.standard_normal(shape).astype(np.float32)
        for axis in range(x.ndim - 2 if format.min_ndim == 2 else 0, x.ndim):
            check(put, x, name, axis, to="DOUBLE" if put is on_host else "")
    x = rng.standard_normal((6, 70)).astype(np.float32)
    check(put, x[::-2, ::3], name, given=put(x)[::-2, ::3])
    if put is on_host:
        check(put, x.astype(">f8")[::-2, ::2], name, to="FLOAT")
    if format.block == "tensor":
        check(put, np.array(1.25, np.float32), name, 0)
    if format.min_ndim == 1:
        check(put, rng.standard_normal((4, 256)).astype(np.float32), name)


@pytest.mark.parametrize("name", ["float8e4m3fn_128x128", "float8e5m2_1x128", "mxfp4", "nvfp4", "int4_zp_128"])
def test_blocks_longer_than_a_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls for a few elements cut blocks, along rows and across them."""
    x = np.random.default_rng(2).standard_normal((131, 150)).astype(np.float32)
    x[7, 9], x[130, 149] = np.nan, np.inf
    monkeypatch.setattr(block_loops, "_PIECE", 50)
    for axis in (0, 1):
        check(on_host, x, name, axis)


#: Others have no midpoints below half of their divisor.
WITH_MIDPOINTS = [name for name, format in FORMATS.items() if float(format.element.max) > 1]


@matrix_of(WITH_MIDPOINTS, ["nvfp4"])
def test_beside_every_midpoint(put: Put, name: str) -> None:
    """Where division as FLOAT gives the wrong side: the floats around all midpoints times the scale of their block."""
    for axis in range(2 if put is on_host else 1):
        x, scales = beside_midpoints(ALL[name], axis)
        assert same(check(put, x, name, axis).scales, scales)
        for source in ("BFLOAT16", "FLOAT16") if put is on_host else ():
            check(put, cast(x, source, overflow="saturate"), name, axis, to="DOUBLE")


@pytest.mark.parametrize("name", ["mxfp8e4m3", "mxfp6e2m3", "mxfp4", "nvfp4", "int4_32", "uint2_zp_64"])
@pytest.mark.parametrize("columns", [128, 640, 4096 + 128])
def test_as_many_blocks_as_are_worked_on_together_and_some_more(name: str, columns: int) -> None:
    x = np.random.default_rng(5).standard_normal((9, columns)).astype(np.float32) * np.float32(1e-3)
    x[3, ::7] = 0
    check(on_host, x, name)


@matrix_of(["nvfp4"], ["nvfp4"])
def test_both_roundings_of_a_quotient_count(put: Put, name: str) -> None:
    """The scale times the global scale is no FLOAT: rounded to one, then divided by, it passes the midpoint 1.75."""
    g, s = np.float32(1.4735876321792603), 1.375
    x = np.array([6 * s * float(g)] + [3.5458202] * 15).astype(np.float32)
    d = np.float32(s * float(g))
    assert x[1] / d > 1.75 and float(x[1]) < 1.75 * s * float(g)
    parts = check(put, x, name, 0, scale=g)
    assert parts.scales.astype(np.float32).tolist() == [s]
    assert parts.data.astype(np.float32).tolist() == [6.0] + [1.5] * 15


@matrix_of(["nvfp4"], ["nvfp4"])
def test_products_of_scales_below_the_normal_floats(put: Put, name: str) -> None:
    """As FLOAT they would have lost bits; the numbers are the midpoints as near as FLOAT's subnormals come to them."""
    g = np.float32(1.7 * 2.0**-126)
    x = np.zeros((33, 16))
    x[0] = 6 * 448 * float(g)
    for i in range(1, 33):
        x[i] = np.resize([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], 16) * (i * 2.0**-9 * float(g))
    check(put, x.astype(np.float32), name)
    check(put, x.astype(np.float32), name, scale=g)


@matrix_of(FLOATS, STOCHASTIC)
def test_rounding_at_random(put: Put, name: str) -> None:
    for source in ("FLOAT", "DOUBLE") if put is on_host else ("FLOAT",):
        x = matrix(ALL[name], source)
        for view in (x[:, :70], x[:, :128]):
            check(put, view, name, **AT_RANDOM)
        check(put, x[:, :70], name, 0, rounding="stochastic", seed=1)


#: Scales for a matrix of 20 rows of 133 numbers: one, or one for each block.
PER_BLOCK = np.random.default_rng(2).random((20, 3)).astype(np.float32) + np.float32(0.1)
GIVEN: dict[str, tuple[Any, ...]] = {
    "int8_64": (0.25, PER_BLOCK, np.float64([1.1, 1 / 3, 7])),
    "int8_axis": (0.25, 2.0**-140),
    "float8e4m3fn_tensor": (3.0, 0.01, 2.0**-140),
    "float8e5m2_axis": (0.01,),
    "float8e4m3fn_1x128": (2.0**-140, PER_BLOCK[:, :2]),
    "nvfp4": (1e-3, 2.0**-140),
}


@matrix_of(GIVEN, [name for name in GIVEN if name != "float8e5m2_axis"])
def test_given_scales(put: Put, name: str) -> None:
    x = matrix(ALL[name], "FLOAT")
    for scale in GIVEN[name]:
        parts = check(put, x, name, scale=scale)
        if not (ALL[name].nan_in_scale or ALL[name].global_scale):
            assert same(parts.scales, np.broadcast_to(np.float32(scale), parts.scales.shape).copy())
        there = put(np.array(scale))
        compare(quantize(put(x), ALL[name], scale=there), exact_quantize.quantize(x, ALL[name], scale=scale), name)
        assert same(elements(there), np.array(scale)), "what is given is not written to"


@matrix_of(["mxfp8e5m2", "nvfp4", "float8e4m3fn_axis", "int8_zp_64"], ["nvfp4", "float8e4m3fn_axis"])
def test_any_codes_and_scales_come_back(put: Put, name: str) -> None:
    """NaN and infinite scales, NaN elements with signs."""
    format = ALL[name]
    rng = np.random.default_rng(3)
    shape = (4, LENGTH)
    grid = format.scales_shape(shape, 1)

    def codes(row: Any, shape: tuple[int, ...]) -> NDArray:
        return rng.integers(0, 2**row.bits - 1, shape, endpoint=True).astype(row.code_numpy).view(row.numpy)

    zero = None if format.zero_point is None else codes(format.zero_point, grid)
    g = np.asarray(2.5, np.float32) if format.global_scale else None
    parts = Parts(codes(format.element, shape), codes(format.scale, grid), zero, g)
    for to in NAMES if put is on_host else ("FLOAT",):
        check_back(put, parts, format, 1, to)


NEVER = ["nvfp4", "float8e4m3fn_axis", "float8e5m2_axis", "int8_zp_64"]


@matrix_of(NEVER, NEVER[1:2])
@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan, -np.nan, -2.0, 0.0, -0.0, 1e-45, 3e38])
def test_scales_that_quantizing_never_gives(put: Put, name: str, scale: float) -> None:
    """Parts from elsewhere: the NaN that comes of them has no processor's sign."""
    format = ALL[name]
    codes = np.arange(256, dtype=np.uint8).reshape(1, 256) & format.element.code_mask
    parts = exact_quantize.quantize(np.ones((1, 256), np.float32), format, axis=1)
    if format.global_scale:
        parts = replace(parts, global_scale=np.asarray(scale, np.float32))
    else:
        parts = replace(parts, scales=np.full_like(parts.scales, scale))
    parts = replace(parts, data=codes.view(format.element.numpy))
    for to in NAMES:
        back = check_back(put, parts, format, 1, to)
        if to == "FLOAT" and np.isinf(scale) and format.element.is_float:
            assert (back.reshape(-1)[[0, format.element.sign_code]].view(np.uint32) == 0x7FC00000).all()


@pytest.mark.parametrize("toward", ["0.0f", "INFINITY * a"])
def test_the_last_bit_of_a_reciprocal_does_not_show(toward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ptx::rcp` alone may differ from device to device, by one unit in the last place."""
    exact = "canonical(1 / a)"
    text = host_build.shim()
    assert text.count(exact) == 1
    other = text.replace(exact, f"canonical(std::nextafterf(1 / a, {toward}))")
    monkeypatch.setattr(host_build, "shim", lambda arch: other)
    monkeypatch.setattr(host_driver, "_BUILT", {})
    # A format of each kind of scales.
    cases = [(x, name, axis) for name in MORE[::2] + MORE[3:4] for x, axis in edges(ALL[name], "FLOAT")]
    calls = (lambda case=case: quantize(upload(case[0]), ALL[case[1]], axis=case[2]).dequantize() for case in cases)
    with installed(rehearsed(calls)):
        for case in cases:
            check(upload, *case)
