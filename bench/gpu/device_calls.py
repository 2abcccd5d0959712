# SPDX-License-Identifier: Apache-2.0
"""The public calls that run on a device, by family, for arrays at any place: the host, or any address of a device.

Each call takes its arrays from a `Place`, those for its results among them. The same call on the host gives the bits
that are wanted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import gpucast
from bench.gpu.places import DeviceCall, NDArray, Place, both, empty, like, placed
from gpucast import PackedArray, mixed
from gpucast.core.dtypes import dtype
from gpucast.quantization import Quantized, swizzle

ROWS, COLUMNS = 32, 256
X: NDArray = np.random.default_rng(11).standard_normal((ROWS, COLUMNS)).astype(np.float32)
X[3] = 0
#: Where groups of rows end.
ENDS: NDArray = np.array([7, 7, 20, 29], np.int32)


# ---- casts ----

_PAIRS = (
    ("FLOAT", "FLOAT16"), ("FLOAT", "FLOAT8E4M3FN"), ("FLOAT16", "FLOAT"), ("BFLOAT16", "FLOAT8E5M2"),
    ("FLOAT", "INT4"), ("INT4", "FLOAT16"), ("FLOAT8E4M3FN", "BFLOAT16"), ("FLOAT6E2M3", "FLOAT"),
    ("DOUBLE", "FLOAT6E3M2"), ("INT2", "INT64"), ("FLOAT", "DOUBLE"), ("FLOAT", "FLOAT"), ("INT8", "BOOL"),
)  # fmt: skip
_LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "strided": lambda x: x[:, ::2],
    "transposed": lambda x: x.T,
}


def _source(src: str) -> Any:
    """X as a type: a PackedArray for types below one byte."""
    codes = gpucast.reference.cast(X, src)
    return PackedArray.pack(codes) if dtype(src).packed else codes


def _plain(place: Place, src: str, dst: str, layout: str) -> Any:
    x = _LAYOUTS[layout](placed(place, "x", _source(src)))
    return both(place, partial(gpucast.cast, x, dst), empty(place, "out", dst, x.shape))


def _fused(place: Place, dst: str, scale: Any = None, measures: bool = False, rounding: Any = None) -> Any:
    amax = place("amax", np.zeros((), np.float32), whole=True) if measures else None
    given = place("scale", scale, whole=True) if isinstance(scale, np.ndarray) else scale
    seed, out = 5 if rounding else None, empty(place, "out", dst, X.shape)
    return gpucast.cast(place("x", X), dst, scale=given, amax=amax, rounding=rounding, seed=seed, out=out), amax


#: Casts by every attribute, and by every word of `rounding`.
_ASKED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("FLOAT", "FLOAT8E4M3FN", {"saturate": False}), ("FLOAT", "FLOAT8E8M0", {"round_mode": "nearest"}),
    ("FLOAT", "INT8", {"overflow": "saturate"}), ("DOUBLE", "FLOAT16", {"overflow": "saturate"}),
    ("FLOAT", "FLOAT8E4M3FNUZ", {"opset": 23}), ("FLOAT", "FLOAT8UE5M3", {}),
    *(("FLOAT", "INT16", {"rounding": word}) for word in ("nearest_even", "nearest_away")),
    *(("FLOAT", "FLOAT8E5M2", {"rounding": word}) for word in ("nearest_away", "toward_zero", "upward")),
    *(("DOUBLE", "BFLOAT16", {"rounding": word}) for word in ("downward", "odd")),
)  # fmt: skip


def _by(place: Place, src: str, dst: str, asked: dict[str, Any]) -> Any:
    return gpucast.cast(placed(place, "x", _source(src)), dst, out=empty(place, "out", dst, X.shape), **asked)


def _report(place: Place) -> str:
    return repr(gpucast.cast_report(place("x", X), "FLOAT8E4M3FN"))


def _cast_calls() -> Iterator[DeviceCall]:
    for (src, dst), layout in itertools.product(_PAIRS, _LAYOUTS):
        if layout == "whole" or not dtype(src).packed:
            yield DeviceCall("cast", f"{src} to {dst}, {layout}", partial(_plain, src=src, dst=dst, layout=layout))
    for src, dst, asked in _ASKED:
        yield DeviceCall("cast", f"{src} to {dst}{_words(asked)}", partial(_by, src=src, dst=dst, asked=asked))
    for dst in ("FLOAT8E4M3FN", "FLOAT16", "FLOAT4E2M1"):
        for scale in (None, 0.5, np.array(0.5, np.float32), np.array(3, np.float64)):
            call = partial(_fused, dst=dst, scale=scale, measures=True)
            yield DeviceCall("cast", f"FLOAT to {dst}, scale {getattr(scale, 'dtype', scale)}, amax", call)
        call = partial(_fused, dst=dst, rounding="stochastic")
        yield DeviceCall("cast", f"FLOAT to {dst}, rounding stochastic", call)
    yield DeviceCall("cast", "report", _report)


#: What lists are cast with: scales, `amax` and `finite` as arrays, and keywords.
_FUSES: dict[str, tuple[dict[str, NDArray], dict[str, Any]]] = {
    "": ({}, {}),
    "scales": ({"scale": np.array([0.5, 2, 3], np.float32)}, {}),
    "amax": ({"amax": np.zeros(3, np.float32)}, {}),
    "scales, amax": ({"scale": np.array([0.5, 2, 3], np.float32), "amax": np.zeros(3, np.float32)}, {}),
    "scale, finite": ({"finite": np.array(True)}, {"scale": 0.375}),
    "wide scale, one amax": ({"scale": np.array(0.1), "amax": np.zeros((), np.float32)}, {}),
    "random": ({}, {"rounding": "stochastic", "seed": 9, "offset": 2**64 - 2 * X.size}),
}
#: How the second array of a list lies.
_SECOND: dict[str, Callable[[Any], Any]] = {
    "": _LAYOUTS["whole"],
    "strided": _LAYOUTS["strided"],
    "transposed": _LAYOUTS["transposed"],
    "empty": lambda x: x[:0],
}


def _many(place: Place, dst: str, fuse: str, second: str) -> Any:
    """Twice: the later call goes by the plan of the first one, if it can have one."""
    kinds = ("FLOAT", "BFLOAT16", "FLOAT8E5M2")
    arrays = [place(f"x{i}", gpucast.reference.cast(X[i:], kind)) for i, kind in enumerate(kinds)]
    arrays[1] = _SECOND[second](arrays[1])
    out = [empty(place, f"out{i}", dst, one.shape) for i, one in enumerate(arrays)]
    given, keywords = _FUSES[fuse]
    there = {name: place(name, x, whole=True) for name, x in given.items()}
    call = partial(gpucast.cast_many, arrays, dst, **there, **keywords)
    found = [both(place, call, out) for _ in range(1 if place.once else 2)]
    return found, there.get("amax"), there.get("finite")


def _computed(place: Place, dst: str) -> Any:
    amax, half = place("amax", np.zeros((), np.float32), whole=True), place("b", gpucast.reference.cast(X, "FLOAT16"))
    f, out = gpucast.ufunc("a * b + c", dst), empty(place, "out", dst, X.shape)
    return f(place("a", X), half, place("c", X[0]), amax=amax, out=out), amax


def _many_calls() -> Iterator[DeviceCall]:
    for dst, fuse, second in itertools.product(("FLOAT16", "FLOAT8E4M3FN", "INT4"), _FUSES, _SECOND):
        # Integers are not rounded at random, and one type tries what the launches of the others have in common.
        if (dst == "INT4" and fuse == "random") or (dst != "FLOAT16" and second):
            continue
        name = ", ".join(filter(None, (f"to {dst}", fuse, second and f"the second {second}")))
        yield DeviceCall("cast_many", name, partial(_many, dst=dst, fuse=fuse, second=second))
    for dst in ("FLOAT8E4M3FN", "INT4", "DOUBLE"):
        yield DeviceCall("cast_many", f"ufunc to {dst}", partial(_computed, dst=dst))


# ---- quantization ----

#: Formats by the ways through the kernels, with keywords.
_QUANTIZED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mxfp8e4m3", {}), ("mxfp8e5m2", {"scale_layout": "128x4"}), ("mxfp4", {}), ("mxfp6e2m3", {}), ("nvfp4", {}),
    ("nvfp4", {"scale_layout": "128x4"}), ("nvfp4", {"scale_layout": "8x4"}), ("float8e4m3fn_1x128", {}),
    ("float8e4m3fn_1x128", {"scale_layout": "mn_major"}), ("float8e5m2_128x128", {}), ("float8e4m3fn_tensor", {}),
    ("int8_tensor", {}), ("float8e4m3fn_axis", {}), ("int8_axis", {}), ("int8_axis", {"axis": 0}), ("int8_64", {}),
    ("int4_32", {}), ("int4_zp_32", {}), ("uint8_zp_axis", {}), ("uint4_zp_64", {"axis": 0}), ("int2_128", {}),
    ("mxfp8e4m3", {"axis": 0}), ("int4_32", {"axis": 0}), ("nvfp4_16x16", {}),
    ("mxfp8e4m3", {"rounding": "stochastic", "seed": 3}), ("deepgemm", {}), ("te-float8-current", {}),
    ("torchao-nvfp4", {}), ("vllm-fp8-token", {}), ("compressed-tensors-int4-128", {}), ("te-nvfp4", {}),
)  # fmt: skip
#: The other ones, from one type.
_QUANTIZED_ONCE = (
    "mxfp8e4m3_up", "mxfp8e5m2_up", "mxfp6e2m3_up", "mxfp6e3m2", "mxfp6e3m2_up", "mxfp4_up", "nvfp4_ue5m3",
    "int8_zp_32", "int2_zp_64", "uint2_zp_tensor",
)  # fmt: skip
_TRANSPOSED = (
    "mxfp8e4m3", "mxfp4", "nvfp4", "float8e4m3fn_1x128", "float8e5m2_128x128", "float8e4m3fn_tensor", "int8_64",
)  # fmt: skip


def _words(more: dict[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in more.items())


def _quantized(place: Place, x: NDArray, format: str, more: dict[str, Any], given: dict[str, Any]) -> Any:
    made = gpucast.quantize(x, format, **more, **given)
    keywords = {**more, **{name: place(name, array) for name, array in given.items()}}
    out, there = like(place, "out", made), place("x", x)
    return both(place, partial(gpucast.quantize, there, format, **keywords), out)


def _quantizing(
    family: str,
    src: str,
    format: str,
    more: dict[str, Any],
    given: dict[str, Any] | None = None,
    numbers: NDArray = X,
    what: str = "",
) -> DeviceCall:
    """A call with `out`, and one without. `given`: arrays by keyword; `what`: a word for the numbers."""
    name = f"{src} to {format}{_words(more)}{''.join(f', given {name}' for name in given or ())}{what and f', {what}'}"
    x = gpucast.reference.cast(numbers, src)
    return DeviceCall(family, name, partial(_quantized, x=x, format=format, more=more, given=given or {}))


def _quantize_calls() -> Iterator[DeviceCall]:
    for (format, more), src in itertools.product(_QUANTIZED, ("FLOAT", "BFLOAT16")):
        yield _quantizing("quantize", src, format, more)
    for format in _QUANTIZED_ONCE:
        yield _quantizing("quantize", "BFLOAT16", format, {})
    yield _quantizing("quantize", "DOUBLE", "mxfp8e4m3", {})
    for format, transpose in itertools.product(_TRANSPOSED, (True, "both")):
        yield _quantizing("quantize", "FLOAT", format, {"transpose": transpose})
    yield from _tiles_that_follow()
    one, of_rows = np.array([0.01], np.float32), np.full(ROWS, 0.01, np.float32)
    given: tuple[tuple[str, dict[str, Any]], ...] = (
        ("nvfp4", {"scale": one}), ("nvfp4", {"amax": one * 400}), ("nvfp4", {"scale": of_rows}),
        ("nvfp4", {"amax": of_rows * 400}), ("float8e4m3fn_tensor", {"scale": one}), ("int8_tensor", {"scale": one}),
        ("int8_axis", {"scale": np.full(COLUMNS, 0.03, np.float32)}),
        ("float8e4m3fn_1x128", {"scale": np.full((ROWS, 2), 0.01, np.float32)}),
    )  # fmt: skip
    for format, arrays in given:
        yield _quantizing("quantize", "FLOAT", format, {}, arrays)
    # A global scale for each row, which may have any shape and ragged blocks; of the columns of a transpose.
    by_rows, by_columns = ({"scale": np.geomspace(1e-4, 60, n).astype(np.float32)} for n in (ROWS, COLUMNS))
    deep = X[:, :40].reshape(4, 8, 40)
    of_deep = {"scale": by_rows["scale"].reshape(4, 8)}
    for src, format, more, arrays, numbers in (
        ("BFLOAT16", "nvfp4", {"transpose": True}, by_columns, X),
        ("BFLOAT16", "nvfp4", {"rounding": "stochastic", "seed": 9}, of_deep, deep),
        ("BFLOAT16", "nvfp4", {"hadamard": 16, "signs": [1, -1] * 8}, by_rows, X),
        ("BFLOAT16", "te-nvfp4", {}, {"amax": np.abs(X).max(axis=1)}, X),
        ("BFLOAT16", "nvfp4_4over6", {}, {"amax": np.abs(X).max(axis=1)}, X),
    ):
        yield _quantizing("quantize", src, format, more, arrays, numbers, "by rows")


def _tiles_that_follow() -> Iterator[DeviceCall]:
    """Arrays of 16 bits with several tiles for each block, whole and partly filled ones, on and off multiples of 16."""
    numbers = np.random.default_rng(7).standard_normal(160 * 288).astype(np.float32)
    numbers[::977], numbers[5::5003] = 0, np.nan
    whole, others = (160, 288), ((132, 268), (2, 72, 144))
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        *((format, {"transpose": "both"}) for format in ("mxfp8e4m3", "nvfp4", "int4_32", "int8_64", "mxfp6e2m3")),
        *((format, {"transpose": True}) for format in ("mxfp8e5m2", "mxfp4")),
        ("mxfp8e4m3", {"axis": -2}), ("int8_axis", {"axis": -1}), ("nvfp4_16x16", {"transpose": "both"}),
        ("mxfp8e4m3", {"transpose": "both", "scale_layout": "128x4"}), ("int8_zp_32", {"axis": -2}),
        ("int8_zp_32", {"transpose": "both"}),
        ("mxfp8e4m3", {"transpose": "both", "rounding": "stochastic", "seed": 3}),
    )  # fmt: skip
    for number, (format, more) in enumerate(asked):
        odd = number % 2 == 1 and "scale_layout" not in more
        src, shape = ("FLOAT16", others[number % 4 // 2]) if odd else ("BFLOAT16", whole)
        some = numbers[: math.prod(shape)].reshape(shape)
        yield _quantizing("quantize", src, format, more, numbers=some, what=f"{shape}")
    # Several matrices from one tile of a block to the next.
    few = numbers[: 7 * 72 * 40].reshape(7, 72, 40)
    for format in ("mxfp8e4m3", "nvfp4"):
        yield _quantizing("quantize", "BFLOAT16", format, {"transpose": "both"}, numbers=few, what="small matrices")


def _back(place: Place, q: Quantized, to: str, length: int | None = None) -> Any:
    there, out = placed(place, "q", q), empty(place, "out", to, q.shape)
    return both(place, partial(gpucast.dequantize, there, to, hadamard=length), out)


def _swizzled(place: Place, scales: NDArray, layout: Any) -> Any:
    other = swizzle.swizzle(scales, layout=layout)
    out, back = like(place, "out", other), like(place, "back", scales)
    return (
        swizzle.swizzle(place("scales", scales), layout=layout, out=out),
        swizzle.unswizzle(place("other", other), scales.shape, layout=layout, out=back),
    )


def _dequantize_calls() -> Iterator[DeviceCall]:
    for format, more in _QUANTIZED:
        if "rounding" in more:
            continue
        q = gpucast.quantize(X, format, **more)
        for to in ("FLOAT", "BFLOAT16", "DOUBLE") if format in ("mxfp8e4m3", "nvfp4") else ("FLOAT",):
            yield DeviceCall("dequantize", f"{format} to {to}{_words(more)}", partial(_back, q=q, to=to))
    rows = gpucast.quantize(X, "nvfp4", scale=np.full(ROWS, 0.01, np.float32))
    yield DeviceCall("dequantize", "nvfp4 by rows", partial(_back, q=rows, to="FLOAT"))
    turned = gpucast.quantize(X, "mxfp8e4m3", hadamard=32)
    for to in ("FLOAT", "FLOAT16"):
        yield DeviceCall("dequantize", f"transformed back to {to}", partial(_back, q=turned, to=to, length=32))
    scales = gpucast.quantize(X, "mxfp4").scales
    for layout in ("128x4", "8x4", "mn_major"):
        yield DeviceCall("dequantize", f"swizzle {layout}", partial(_swizzled, scales=scales, layout=layout))


def _transformed(place: Place, length: int, src: str, to: str, axis: int, inverse: bool) -> Any:
    # Runs along the first axis have as many numbers as it.
    numbers = X if axis else X.reshape(-1, ROWS)
    x, out = place("x", gpucast.reference.cast(numbers, src)), empty(place, "out", to, numbers.shape)
    return gpucast.hadamard(x, length, axis=axis, to=to, inverse=inverse, seed=2, out=out)


def _hadamard_calls() -> Iterator[DeviceCall]:
    for length, src, to, axis, inverse in (
        (16, "FLOAT", "FLOAT", -1, False), (32, "BFLOAT16", "FLOAT", 0, False), (64, "FLOAT16", "FLOAT16", -1, True),
        (128, "FLOAT", "BFLOAT16", -1, False), (16, "DOUBLE", "DOUBLE", 0, True),
        (16, "BFLOAT16", "BFLOAT16", -1, False), (64, "FLOAT", "FLOAT", 0, True),
        (128, "BFLOAT16", "FLOAT16", 0, False), (128, "FLOAT16", "FLOAT", -1, True), (32, "FLOAT", "DOUBLE", -1, False),
    ):  # fmt: skip
        yield DeviceCall(
            "hadamard",
            f"{length} of {src} to {to}, axis {axis}{', inverse' * inverse}",
            partial(_transformed, length=length, src=src, to=to, axis=axis, inverse=inverse),
        )
    for format, transpose, length in itertools.product(
        ("nvfp4", "mxfp8e4m3", "int4_32"), (False, True, "both"), (16, 32)
    ):
        keywords = {"transpose": transpose, "hadamard": length, "seed": 2}
        yield _quantizing("hadamard", "BFLOAT16" if length == 16 else "FLOAT", format, keywords)
    square = np.concatenate([X, -3 * X]).reshape(-1, 128)
    for format, src, length in (("nvfp4", "BFLOAT16", 128), ("mxfp8e4m3", "FLOAT", 64), ("int8_64", "BFLOAT16", 128)):
        for transpose in (False, True, "both"):
            keywords = {"transpose": transpose, "hadamard": length, "seed": 2}
            yield _quantizing("hadamard", src, format, keywords, numbers=X if transpose is False else square)
    yield _quantizing("hadamard", "BFLOAT16", "nvfp4", {"transpose": "both", "hadamard": (None, 16)})
    yield _quantizing("hadamard", "FLOAT", "mxfp8e4m3", {"hadamard": 32, "axis": 0})
    yield _quantizing("hadamard", "BFLOAT16", "nvfp4", {"hadamard": 16, "scale_layout": "128x4"})
    # More parts of a thread than are on their way at a time, the last ones of some threads alone.
    long = np.tile(X, (5, 1))[: -ROWS + 2]
    for src, format, length in (("BFLOAT16", "nvfp4", 16), ("FLOAT16", "mxfp8e4m3", 128)):
        yield _quantizing("hadamard", src, format, {"hadamard": length, "seed": 2}, numbers=long, what="many parts")


def _four_over_six_calls() -> Iterator[DeviceCall]:
    for src, transpose in itertools.product(("FLOAT", "BFLOAT16", "DOUBLE"), (False, True, "both")):
        yield _quantizing("4over6", src, "nvfp4_4over6", {"transpose": transpose})
    yield _quantizing("4over6", "BFLOAT16", "nvfp4_4over6", {"scale_layout": "128x4"})
    yield _quantizing("4over6", "BFLOAT16", "nvfp4_4over6", {"hadamard": 16, "transpose": "both"})
    yield _quantizing("4over6", "FLOAT16", "nvfp4_4over6", {})
    at_random = {"transpose": "both", "hadamard": 16, "rounding": "stochastic", "seed": 9}
    yield _quantizing("4over6", "BFLOAT16", "nvfp4_4over6", at_random)
    of_rows: dict[str, Any] = {"scale": np.full(ROWS, 0.01, np.float32)}
    yield _quantizing("4over6", "BFLOAT16", "nvfp4_4over6", {}, of_rows)
    for what, numbers in _hard_numbers().items():
        for src, scale in (("FLOAT", None), ("BFLOAT16", 0.25), ("BFLOAT16", 1e-4)):
            given = {} if scale is None else {"scale": np.array([scale], np.float32)}
            yield _quantizing(
                "4over6", src, "nvfp4_4over6", {}, given, numbers, f"{what}{'' if scale is None else f' by {scale}'}"
            )


def _hard_numbers() -> dict[str, NDArray]:
    """Numbers of which the choice of a scale is close, codes are midpoints, or blocks are not finite."""
    random = np.random.default_rng(3)
    midpoints = random.integers(-28, 29, (ROWS, COLUMNS)).astype(np.float32) / 4
    not_finite = X.copy()
    not_finite[::3, ::40] = np.nan
    not_finite[1::3, ::50] = np.inf
    return {"midpoints": midpoints, "not finite": not_finite, "large": X * np.float32(1e30)}


def _quantized_groups(
    place: Place, src: str, format: str, more: dict[str, Any], scale: NDArray | None, times: int = 1
) -> Any:
    """`times`: so often as many rows, and groups."""
    x = gpucast.reference.cast(np.tile(X, (times, 1)), src)
    offsets = np.concatenate([ENDS + ROWS * i for i in range(times)]).astype(np.int32)
    given: dict[str, Any] = {} if scale is None else {"scale": scale}
    made = gpucast.quantize_grouped(x, offsets, format, **more, **given)
    ends, out, there = place("offsets", offsets), like(place, "out", made), place("x", x)
    given = {name: place(name, array) for name, array in given.items()}
    return both(place, partial(gpucast.quantize_grouped, there, ends, format, **more, **given), out)


def _cast_groups(place: Place, src: str, to: str, pad: int) -> Any:
    x, ends, each = gpucast.reference.cast(X, src), ENDS.astype(np.int64), np.arange(1, 5, dtype=np.float32)
    out = like(place, "out", gpucast.cast_grouped(x, ends, to, scale=each, pad=pad))
    there = place("x", x), place("offsets", ends)
    return gpucast.cast_grouped(*there, to, scale=place("scale", each), pad=pad, out=out)


def _grouped_calls() -> Iterator[DeviceCall]:
    each = np.arange(1, 5, dtype=np.float32) / 100
    of_formats: tuple[tuple[str, str, dict[str, Any], NDArray | None], ...] = (
        ("BFLOAT16", "mxfp8e4m3", {}, None), ("FLOAT", "mxfp8e4m3", {"scale_layout": "128x4"}, None),
        ("BFLOAT16", "nvfp4", {"scale_layout": "128x4"}, each), ("FLOAT", "float8e4m3fn_1x128", {"pad": 4}, None),
        ("FLOAT", "float8e4m3fn_1x128", {"pad": 4, "scale_layout": "mn_major"}, None),
        ("FLOAT16", "mxfp4", {"pad": 16}, None), ("FLOAT", "nvfp4", {"pad": 1}, each[:1]),
        ("BFLOAT16", "mxfp8e4m3", {"rounding": "stochastic", "seed": 1}, None), ("DOUBLE", "mxfp6e2m3", {}, None),
        ("DOUBLE", "mxfp4", {}, None),
    )  # fmt: skip
    for src, format, more, scale in of_formats:
        name = f"{src} to {format}{_words(more)}{', scale' * (scale is not None)}"
        call = partial(_quantized_groups, src=src, format=format, more=more, scale=scale)
        yield DeviceCall("grouped", name, call)
    # More tiles than blocks that stay on one SM.
    for src, format, more in (("BFLOAT16", "mxfp8e4m3", {"scale_layout": "128x4"}), ("FLOAT", "mxfp4", {"pad": 32})):
        call = partial(_quantized_groups, src=src, format=format, more=more, scale=None, times=6)
        yield DeviceCall("grouped", f"{src} to {format}{_words(more)}, many tiles", call)
    for src, to, pad in (
        ("FLOAT", "FLOAT8E4M3FN", 16), ("BFLOAT16", "FLOAT16", 1), ("FLOAT", "FLOAT4E2M1", 1),
        ("DOUBLE", "FLOAT6E2M3", 4), ("DOUBLE", "FLOAT4E2M1", 1),
    ):  # fmt: skip
        yield DeviceCall("grouped", f"cast {src} to {to}", partial(_cast_groups, src=src, to=to, pad=pad))


# ---- steps of a training ----


def _unscaled(place: Place, bad: bool) -> Any:
    scale = mixed.DynamicLossScale(8.0, period=1)
    grads = [gpucast.reference.cast(X, "FLOAT16"), gpucast.reference.cast(X[1:], "BFLOAT16")]
    if bad:
        grads[1][0, 0] = np.inf
    out = [empty(place, f"out{i}", "FLOAT", one.shape) for i, one in enumerate(grads)]
    finite, there = place("finite", np.array(True)), [place(f"x{i}", one) for i, one in enumerate(grads)]
    scale.unscale(there, out=out, finite=finite)
    scale.adjust(finite)
    return out, finite, scale.loss_scale, scale.counter


def _selected(place: Place, chosen: bool, kind: str) -> Any:
    codes = [gpucast.reference.cast(x, kind) for x in (X, -X)]
    arrays = [PackedArray.pack(one) if dtype(kind).packed else one for one in codes]
    new, old = (placed(place, name, one) for name, one in zip(("new", "old"), arrays, strict=True))
    return mixed.select_tree(place("finite", np.array(chosen)), [new], [old], out=[like(place, "out", arrays[0])])


def _delayed(place: Place, dst: str) -> Any:
    scaling = mixed.DelayedScaling(dst, tensors=2, history=2)
    out, x, y = [empty(place, f"out{i}", dst, X.shape) for i in range(2)], place("x", X), place("y", X * 3)
    for _ in range(2):
        scaling.cast(x, 1, out=out[1])
        scaling.cast_many([x, y], out=out)
        scaling.update()
    return out, scaling.scale, scaling.inverse, scaling.amax


def _mixed_calls() -> Iterator[DeviceCall]:
    for flag in (False, True):
        yield DeviceCall("mixed", f"unscale{', not finite' * flag}", partial(_unscaled, bad=flag))
        for kind in ("FLOAT", "BFLOAT16", "INT4"):
            yield DeviceCall("mixed", f"select {kind}, {flag}", partial(_selected, chosen=flag, kind=kind))
    for dst in ("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT16"):
        yield DeviceCall("mixed", f"delayed scales, {dst}", partial(_delayed, dst=dst))


#: In the order in which a first run tries them.
FAMILIES: dict[str, Callable[[], Iterator[DeviceCall]]] = {
    "quantize": _quantize_calls,
    "dequantize": _dequantize_calls,
    "grouped": _grouped_calls,
    "hadamard": _hadamard_calls,
    "4over6": _four_over_six_calls,
    "mixed": _mixed_calls,
    "cast": _cast_calls,
    "cast_many": _many_calls,
}
