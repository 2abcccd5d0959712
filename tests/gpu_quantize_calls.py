# SPDX-License-Identifier: Apache-2.0
"""What tests/quantization/test_gpu_quantization.py quantizes, as data: `bench.gpu_kernels` compiles the kernels of it
ahead.

Every format is tried from one source, drawn by a seed, and those that people use from FLOAT and BFLOAT16 too; from
every source with --exhaustive. All of them together have 1,840 kernels, which take one processor 750 s to compile; so
there are 650. The siblings on the host (tests/quantization/test_quantization_device.py) run them all with --exhaustive
as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import gpucast
from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import SOURCES
from gpucast.quantization import FORMATS, quantize
from quantization_cases import ALL, LENGTH, matrix

SEED = 20
#: Formats that are tried from both of these sources.
USED = ("float8e4m3fn_tensor", "float8e4m3fn_1x128", "float8e4m3fn_128x128", "mxfp8e4m3", "mxfp4", "nvfp4")
USUAL = ("FLOAT", "BFLOAT16")

RANDOM_DATA = ("float8e4m3fn_tensor", "float8e4m3fn_128x128", "mxfp8e4m3", "mxfp4", "nvfp4", "int4_128")
QUOTIENTS = ("float8e4m3fn_axis", "float8e5m2_axis", "int8_axis", "int4_axis", "int2_axis")
QUOTIENT_SOURCES = ("FLOAT", "BFLOAT16", "FLOAT16")
MANY_TILES = ("mxfp8e4m3", "mxfp6e3m2", "mxfp4", "nvfp4", "float8e4m3fn_1x128", "int4_zp_128")
#: What is tried on the edges of blocks.
EDGES = (*FORMATS, "mxfp8e4m3_even", "mxfp4_even", "int4_32_full_range", "int8_64_no_clipping")
BOTH_WAYS = tuple(name for name in FORMATS if "axis" not in name)
AT_RANDOM = ("mxfp6e3m2", "nvfp4", "float8e4m3fn_1x128")


class QuantizeCall(NamedTuple):
    """Of `quantize` on the device. `back`: the type that the result is dequantized to."""

    x: Any
    keywords: dict[str, Any]
    back: str = ""


def sources(name: str, exhaustive: bool) -> list[DType]:
    """The types that a format is tried from."""
    if exhaustive:
        return list(SOURCES)
    drawn = random.Random(f"{SEED} {name}").choice(SOURCES)
    return [src for src in SOURCES if src is drawn or (name in USED and src.name in USUAL)]


def edges(name: str, src: DType) -> Iterator[QuantizeCall]:
    x = matrix(ALL[name], src.name)
    for view, axis in ((x, 1), (x.T, 0), (x[:, : LENGTH // 128 * 128], 1)):
        yield QuantizeCall(view, {"axis": axis}, src.name)


def directions(name: str, src: DType) -> Iterator[QuantizeCall]:
    """Both results at once, the plain one and the transposed one, along each axis."""
    x = matrix(ALL[name], src.name)[:, : LENGTH - 1]
    for axis in (-1, -2):
        for transpose in ("both", True, False):
            yield QuantizeCall(x, {"axis": axis, "transpose": transpose})


def random_data(name: str, source: str) -> Iterator[QuantizeCall]:
    x = np.random.default_rng(1).standard_normal((1000, 4096)).astype(np.float32)
    yield QuantizeCall(gpucast.cast(x, source), {})


def tiles(name: str, source: str) -> Iterator[QuantizeCall]:
    """Whole tiles, ragged ones, and rows that are not aligned."""
    x = np.zeros((0, 0), np.float32)
    for shape in ((1024, 2048), (3, 200, 328), (1000, 250)):
        x = gpucast.cast(np.random.default_rng(1).standard_normal(shape).astype(np.float32), source)
        yield QuantizeCall(x, {"transpose": "both"})
        yield QuantizeCall(x, {"axis": -2})
    if ALL[name].element.family == "float":
        yield QuantizeCall(x, {"transpose": "both", "rounding": "stochastic", "seed": 3, "offset": 5})


def others() -> Iterator[tuple[str, QuantizeCall]]:
    """Given scales, rounding at random, layouts of scales, odd addresses: one array stands for all of a kind."""
    for name in QUOTIENTS:
        for source in QUOTIENT_SOURCES:
            x = np.zeros((4, 256), dtype(source).numpy)
            yield name, QuantizeCall(x, {"axis": 0, "scale": np.ones(4, np.float32)}, source)
    for source in USUAL:
        yield "nvfp4", QuantizeCall(np.zeros((4, 256), dtype(source).numpy), {"scale": np.float32(1.0)})
    x = np.zeros((130, 256), np.float32)
    for name in AT_RANDOM:
        yield name, QuantizeCall(x, {"rounding": "stochastic", "seed": 3, "offset": 5})
    yield "mxfp4", QuantizeCall(x, {"scale_layout": "linear", "transpose": "both"})
    yield "mxfp4", QuantizeCall(x, {"scale_layout": "128x4"})
    yield "nvfp4", QuantizeCall(x[:, :64], {}, "FLOAT")


def every(exhaustive: bool = False) -> Iterator[Callable[[], object]]:
    """All calls, ready to be made on the device, the most important first."""
    for name, call in others():
        yield _ready(name, call)
    for names, calls in ((RANDOM_DATA, random_data), (MANY_TILES, tiles)):
        for name in names:
            for source in USUAL:
                yield from (_ready(name, call) for call in calls(name, source))
    for names, of in ((EDGES, edges), (BOTH_WAYS, directions)):
        for name in names:
            for src in sources(name, exhaustive):
                yield from (_ready(name, call) for call in of(name, src))


def _ready(name: str, call: QuantizeCall) -> Callable[[], object]:
    def make() -> None:
        q = quantize(call.x, name, device="cuda", **call.keywords)
        if call.back:
            q.dequantize(call.back)

    return make
