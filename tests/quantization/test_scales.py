# SPDX-License-Identifier: Apache-2.0
"""The orders of scales that other libraries read, and the scales of tiny blocks."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast import quantize
from gpucast.casting import plans
from gpucast.quantization import Format, Quantized, engine, swizzle
from gpucast.reference import exact_cast
from host_driver import HostDriver, elements, installed, upload
from quantization_cases import ALL, NDArray


def _scales(rows: int, columns: int, kind: Any = np.uint8) -> Any:
    return np.arange(1, rows * columns + 1).astype(kind).reshape(rows, columns)


def test_8x4_is_the_order_of_vllm() -> None:
    """Its tests read it back so (vllm/tests/kernels/quantization/nvfp4_utils.py)."""
    scales = _scales(20, 10)
    moved = swizzle.swizzle(scales, layout="8x4")
    tiles = moved.reshape(3, 3, 8, 4).transpose(0, 2, 1, 3).reshape(24, 12)
    assert moved.shape == (24 * 12,) and np.array_equal(tiles[:20, :10], scales) and not tiles[20:].any()


def test_mn_major_is_the_order_of_deepgemm() -> None:
    """INT32 words of four scales of a row, one column of words after the other, of a multiple of 4 rows."""
    scales = _scales(6, 10)
    words = swizzle.swizzle(scales, layout="mn_major").view("<u4").reshape(3, 8)
    padded = np.pad(scales, ((0, 2), (0, 2)))
    assert np.array_equal(words, np.ascontiguousarray(padded).view("<u4").T)
    floats = swizzle.swizzle(_scales(6, 10, np.float32), layout="mn_major").reshape(10, 8)
    assert np.array_equal(floats[:, :6], _scales(6, 10, np.float32).T) and not floats[:, 6:].any()


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (129, 5), (300, 9), (2, 70, 3), (7,), (0, 3), (3, 0)])
def test_128x4_is_the_order_of_cublas(shape: tuple[int, ...]) -> None:
    scales = np.random.default_rng(0).integers(1, 255, shape).astype(np.uint8)
    flat = swizzle.swizzle(scales)
    matrix = scales.reshape(-1, shape[-1]) if scales.size else np.zeros((0, 0), np.uint8)
    for row, col in np.ndindex(*matrix.shape):
        tile = row // 128 * -(-shape[-1] // 4) + col // 4
        # cuBLAS documentation, "1D Block Scaling Factors Layout".
        assert flat[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + col % 4] == matrix[row, col]
    assert flat.shape == (swizzle.size(shape),) and np.count_nonzero(flat) == matrix.size
    assert np.array_equal(swizzle.unswizzle(flat, shape), scales)


@pytest.mark.parametrize("layout", swizzle.LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1), (130, 9), (8, 4), (128, 4)])
def test_the_way_back(layout: Any, shape: tuple[int, int]) -> None:
    scales = _scales(*shape)
    assert np.array_equal(swizzle.unswizzle(swizzle.swizzle(scales, layout=layout), shape, layout=layout), scales)


#: Formats by the ways through the kernels: rows of blocks, both results in tiles, squares, blocks of other lengths,
#: scales that one more kernel finishes, transforms, two scales that are tried, and a global scale for each row.
CASES: list[tuple[Any, Any, Any, dict[str, Any]]] = [
    ("mxfp8e4m3", "8x4", False, {}),
    ("mxfp8e4m3", "128x4", "both", {}),
    ("deepgemm-ue8m0", "mn_major", False, {}),
    ("deepgemm", "mn_major", False, {}),
    ("deepgemm-ue8m0-128x128", "mn_major", True, {}),
    ("tilekernels", "mn_major", False, {}),
    (Format("mine", "INT8", "FLOAT8E8M0", (80,), "floor"), "128x4", False, {}),
    ("nvfp4", "128x4", False, {"hadamard": 16}),
    ("nvfp4", "8x4", "both", {"hadamard": 32}),
    (Format("mine", "INT8", "FLOAT8E8M0", (80,), "floor"), "128x4", False, {"hadamard": 32}),
    ("nvfp4_4over6", "mn_major", True, {}),
    ("nvfp4", "128x4", False, {"amax": np.linspace(0.5, 9, 66, dtype=np.float32)}),
    (Format("mine", "FLOAT4E2M1", "FLOAT8E4M3FN", (10,), "amax", global_scale=True), "8x4", False,
     {"amax": np.linspace(0.5, 9, 66, dtype=np.float32)}),
]  # fmt: skip


@pytest.mark.parametrize(("format", "layout", "transpose", "more"), CASES)
def test_quantizing_in_an_order(format: Any, layout: Any, transpose: Any, more: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((66, 640) if transpose is False else (640, 384)).astype(np.float32)
    x[3] = 0
    linear, found = (
        _as_list(gpucast.quantize(x, format, scale_layout=o, transpose=transpose, **more)) for o in ("linear", layout)
    )
    with installed(HostDriver()) as driver:
        there = gpucast.cast(x, "FLOAT", device="cuda:0")
        result = gpucast.quantize(there, format, scale_layout=layout, transpose=transpose, **more)
        # Padding too is written anew.
        for q in _as_list(result):
            ctypes.memset(q.scales.data.ptr, 0xFF, q.scales.nbytes)
        gpucast.quantize(there, format, scale_layout=layout, transpose=transpose, out=result, **more)
        assert not any("swizzle" in name for name, _ in driver.launched)
        on_device = [q.get() for q in _as_list(result)]
    for plain, q, other in zip(linear, found, on_device, strict=True):
        assert np.array_equal(q.linear_scales(), plain.scales) and np.array_equal(q.dequantize(), plain.dequantize())
        assert plain.with_layout(layout).scales.tobytes() == q.scales.tobytes() == other.scales.tobytes()
        assert np.array_equal(other.dequantize(), q.dequantize())


def test_given_scales_and_long_arrays_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given scales are linear, and one more kernel moves them. It moves those of very long arrays, too."""
    x = np.random.default_rng(1).standard_normal((66, 256)).astype(np.float32)
    with installed(HostDriver()) as driver:
        there = gpucast.cast(x, "FLOAT", device="cuda:0")
        given, own = (
            gpucast.quantize(one, "float8e4m3fn_1x128", scale=0.5, scale_layout="mn_major") for one in (there, x)
        )
        again = gpucast.quantize(there, "float8e4m3fn_1x128", scale=0.5, scale_layout="mn_major", out=given)
        assert again is given and "swizzle" in driver.launched[-1][0]
        assert given.get().scales.tobytes() == own.scales.tobytes()
        # 66 rows are padded to 128.
        for longest, moved in ((128 * 256, False), (128 * 256 - 1, True)):
            monkeypatch.setattr(engine, "_LONGEST", longest)
            # Those of the first round would go on as they did.
            plans.forget()
            q = gpucast.quantize(there, "mxfp8e4m3", scale_layout="128x4")
            assert ("swizzle" in driver.launched[-1][0]) is moved
            assert q.get().scales.tobytes() == gpucast.quantize(x, "mxfp8e4m3", scale_layout="128x4").scales.tobytes()


def _as_list(q: Any) -> list[Quantized]:
    return list(q) if isinstance(q, tuple) else [q]


@pytest.mark.parametrize(
    ("format", "layout", "shape"),
    [("deepgemm", "8x4", (4, 128)), ("int8_axis", "mn_major", (4, 128)), ("deepgemm", "mn_major", (2, 4, 128))],
)
def test_formats_without_that_order(format: str, layout: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"scale_layout='{layout}' is for"):
        gpucast.quantize(np.ones(shape, np.float32), format, scale_layout=layout)


# ---- tiny blocks, where FLOAT's subnormal numbers begin and below ----

# Every way to their scales gives what the rule says; no way rounds twice there. The host and the reference divide as
# DOUBLE, which is exact enough for every FLOAT (see the reference's step 4). Kernels take powers of two from exponents;
# for a subnormal amax they find a power below the smallest one, and so does the rule, as all divisors are above 1.
# Other scales are no smaller than 2^-126, so that a quotient which matters is a normal FLOAT, with an exact remainder.

#: A format for every divisor and rule, with blocks of one element: its scale is that of the element.
DIVISORS = {
    (format.divisor, format.scale, format.rule): replace(format, name=f"{name} by itself", block=(1,))
    for name, format in ALL.items()
    if not format.zero_points and not format.global_scale
}
#: The subnormal numbers, and as many binades above as a divisor may bring to them.
SUBNORMAL, END = 1 << 23, 20 << 23
PART = 1 << 20


def codes(format: Format, exhaustive: bool) -> Iterator[NDArray]:
    """Codes of positive FLOATs: all subnormal ones and the next binade, or some, and what is beside powers of two and
    their products with the divisor."""
    near = np.arange(-3, 4)
    near = [
        np.float32(number * 2.0**power).view(np.uint32).astype(np.int64) + near
        for power in range(-149, -100)
        for number in (1, format.divisor, 1 / format.divisor)
        if number * 2.0**power >= 2.0**-149
    ]
    some = [np.arange(64), np.arange(SUBNORMAL - 64, SUBNORMAL + 64), np.arange(0, END, 16381)]
    yield np.unique(np.concatenate([*near, *some]).clip(0, None)).astype(np.uint32)
    for start in range(0, 2 * SUBNORMAL if exhaustive else 0, PART):
        yield np.arange(start, start + PART, dtype=np.uint32)


def scales(amax: NDArray, format: Format) -> NDArray:
    """The rule, as the reference states it."""
    wanted = amax.astype(np.float64) / format.divisor
    mode = {"round_mode": "down" if format.rounds_down else "up"} if format.scale.family == "e8m0" else {}
    found = exact_cast.cast(wanted, format.scale, **mode)
    least = exact_cast.cast(np.array(format.smallest_scale), format.scale)
    return np.maximum(found.view(format.scale.code_numpy), least.view(format.scale.code_numpy))


@pytest.mark.parametrize("format", DIVISORS.values(), ids=str)
@pytest.mark.parametrize("place", ["host", "kernels"])
def test_scales_of_single_elements(place: str, format: Format, exhaustive: bool) -> None:
    if place == "kernels" and not (exhaustive or (format.rule == "up" and format.divisor == 6)):
        pytest.skip("that of mxfp4_up runs here, all formats on the host; all kernels with --exhaustive")
    with installed(HostDriver()):
        for part in codes(format, exhaustive):
            x = part.view(np.float32)
            found = quantize(x[None] if place == "host" else upload(x[None]), format, axis=0).scales
            assert np.array_equal(elements(found).view(format.scale.code_numpy)[0], scales(x, format))


def test_every_divisor_brings_the_subnormal_numbers_below_the_smallest_power() -> None:
    """What the kernels' way by exponents rests on (where the exponent of the divisor is 0 they take another)."""
    powers = [divisor for divisor, scale, _ in DIVISORS if scale.family == "e8m0"]
    assert powers and all(math.frexp(divisor)[1] - 1 >= 1 for divisor in powers)


def test_arrays_are_no_words() -> None:
    x, words = np.ones((128, 128), np.float32), np.array(["linear", "stochastic"])
    for name in ("scale_layout", "rounding"):
        with pytest.raises(ValueError, match=f"^quantize: {name}=array"):
            gpucast.quantize(x, "mxfp8e4m3", **{name: words})
    offsets = np.array([128], np.int32)
    with pytest.raises(ValueError, match="^quantize_grouped: scale_layout=array"):
        gpucast.quantize_grouped(x, offsets, "mxfp8e4m3", scale_layout=words)
