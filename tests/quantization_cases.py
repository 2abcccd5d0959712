# SPDX-License-Identifier: Apache-2.0
"""Arrays to quantize: a row for every kind of block content."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType, dtype
from gpucast.quantization import exact_quantize
from gpucast.quantization.formats import FORMATS, Format, Parts, find
from host_driver import elements

NDArray = npt.NDArray[Any]

#: The formats of the table, and for each element those with its further rules.
ALL = FORMATS | {
    name: find(name, "tests")
    for name in (
        "mxfp8e4m3_even mxfp8e5m2_even mxfp6e2m3_even mxfp6e3m2_even mxfp4_even int8_axis_full_range "
        "int4_32_full_range int2_tensor_full_range int8_64_no_clipping int4_axis_no_clipping int2_128_no_clipping"
    ).split()
}
#: And with scales of BFLOAT16.
ALL |= {
    f"{name}_bfloat16": replace(ALL[name], name=f"{name}_bfloat16", scale=dtype("BFLOAT16"))
    for name in ("int4_32_full_range", "int8_axis", "uint4_zp_32", "float8e4m3fn_128x128", "float8e5m2_tensor")
}

#: And what the table does not have, of columns that go together all the same.
ALL |= {
    name: Format(name, dtype(element), dtype(scale), block, rule, False, has_global)
    for name, element, scale, block, rule, has_global in (
        ("integers with powers", "INT8", "FLOAT8E8M0", (32,), "floor", False),
        ("integers with powers up", "INT4", "FLOAT8E8M0", (16,), "up", False),
        ("integers with narrow scales", "INT8", "FLOAT8E4M3FN", (16,), "amax", False),
        ("integers of two levels", "INT8", "FLOAT8E4M3FN", (16,), "amax", True),
        ("floats of one level", "FLOAT4E2M1", "FLOAT8E4M3FN", (16,), "amax", False),
        ("floats of two levels", "FLOAT6E3M2", "FLOAT8E4M3FN", "axis", "amax", True),
        ("no NaN", "FLOAT6E2M3", "FLOAT", (2, 3), "amax", False),
    )
}

#: Two blocks of 128 and more of the others, the last ones ragged.
LENGTH = 133


def rows(format: Format, source: DType) -> dict[str, NDArray]:
    """Rows of LENGTH numbers of a type by what is in them."""
    rng = np.random.default_rng(7)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        top, tiny = float(source.max), float(source.value(1))
        normal = rng.standard_normal(LENGTH)
        found = {
            "zeros": np.zeros(LENGTH),
            "negative zeros": np.where(normal < 0, -0.0, 0.0),
            "normal": normal,
            "positive": np.abs(normal) + 1,
            "negative": -np.abs(normal) - 1,
            "constant": np.full(LENGTH, 0.7),
            "one huge": np.where(np.arange(LENGTH) == 5, top, normal),
            "largest": np.where(normal < 0, -top, top),
            "subnormal": tiny * np.round(normal * 5),
            "smallest": np.where(np.arange(LENGTH) % 9 == 0, tiny, 0.0),
            "wide": normal * 2.0 ** rng.integers(-60, 60, LENGTH),
            "NaN": np.where(np.arange(LENGTH) == 40, np.nan, normal),
            "negative NaN": np.where(np.arange(LENGTH) == 70, -np.nan, normal),
            "infinity": np.where(np.arange(LENGTH) == 3, np.inf, normal),
            "negative infinity": np.where(np.arange(LENGTH) == LENGTH - 1, -np.inf, normal),
            "nothing finite": np.where(np.arange(LENGTH) % 3 == 0, np.nan, np.inf),
            "ties": _ties(format, 1.0),
            "scaled ties": _ties(format, 1.5),
            "near ties": _ties(format, 1.2345678),
        }
        found["beside ties"] = np.nextafter(found["near ties"].astype(np.float32), np.float32(np.inf))
        return {name: row.astype(source.numpy) for name, row in found.items()}


def _ties(format: Format, scale: float) -> NDArray:
    """The midpoints of the elements, in their order, times a scale that the largest element sets."""
    element = format.element
    if element.family == "int":
        middle = np.arange(int(element.min), int(element.max)) + 0.5
    else:
        values = np.array([float(element.value(code)) for code in range(element.max_code + 1)])
        middle = (values[1:] + values[:-1]) / 2
    middle = np.resize(np.random.default_rng(3).permutation(middle), LENGTH)
    middle[::2] *= -1
    middle[::16] = format.divisor
    return middle * scale


def matrix(format: Format, source: str) -> NDArray:
    """All rows, one below the other."""
    return np.stack(list(rows(format, dtype(source)).values()))


def same(one: NDArray | None, other: NDArray | None) -> bool:
    """Equal in type, shape and bits."""
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def bytes_of(q: Any) -> list[bytes]:
    """What the parts of a `Quantized` of the host hold."""
    return [part.data.tobytes() if hasattr(part, "codes") else part.tobytes() for part in q.parts().values()]


def compare(q: Any, expected: Parts, what: object = "") -> None:
    """What quantizing gave, wherever it is, has the bits of these parts."""
    for part in ("scales", "zero_points", "global_scale", "data"):
        one, other = getattr(expected, part), getattr(q, part)
        other = other if other is None else elements(other)
        if not same(one, other):
            where = np.argwhere(np.atleast_1d(_codes(one) != _codes(other)))[:1].tolist()
            raise AssertionError(f"{what}: {part} differs, first at {where}")


def _codes(x: NDArray) -> NDArray:
    return x.view(f"u{x.itemsize}")


def beside_midpoints(format: Format, axis: int) -> tuple[NDArray, NDArray]:
    """A matrix of FLOATs around all midpoints times the scale of their block, where division as FLOAT may give the
    wrong side; the scales, which are those of some extremes that it has too."""
    rng = np.random.default_rng(17)
    x = rng.standard_normal((64, 128)).astype(np.float32)
    first = exact_quantize.quantize(x, format, axis=axis)
    lengths, grid = format.lengths(x.shape, axis), format.grid(x.shape, axis)
    rows_, cols = (index // length for index, length in zip(np.indices(x.shape), lengths, strict=True))
    d = first.scales.astype(np.float64).reshape(grid)[rows_, cols]
    if first.global_scale is not None:
        d = d * float(first.global_scale)
    middles = np.abs(rows(format, dtype("DOUBLE"))["ties"])
    middles = middles[middles < format.divisor / 2]
    near = (rng.choice(middles, x.shape) * d).astype(np.float32)
    near = (near.view(np.int32) + rng.integers(-2, 3, x.shape, dtype=np.int32)).view(np.float32)
    low, high = np.full(grid, np.inf), np.full(grid, -np.inf)
    np.minimum.at(low, (rows_, cols), x)
    np.maximum.at(high, (rows_, cols), x)
    low, high = low[rows_, cols], high[rows_, cols]
    return np.where((x == low) | (x == high), x, np.clip(near, low, high)).astype(np.float32), first.scales
