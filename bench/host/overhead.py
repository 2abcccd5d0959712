# SPDX-License-Identifier: Apache-2.0
"""The overhead of a call: `gpucast.cast` of one element, in processor time.

On the host it is beside NumPy. Of a device it is our own part: CUDA's functions and CuPy's allocation do nothing, so
that it needs no GPU (``python -m bench`` times complete calls). Last comes what the first call of a pair waits for: the
compilation of its kernel, beside one that does nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpucast
from bench import idle_cuda
from bench.timing.times import quickest
from gpucast.codegen.cast_kernel import SHAPES, kernel_source
from gpucast.compile import nvrtc, nvrtc_search
from gpucast.compile.cache import Cache
from gpucast.compile.compiler import Compiler
from gpucast.compile.nvrtc_search import NvrtcCopy
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import resolve
from gpucast.parity.cases import NUMERIC

Call = Callable[[], object]

#: Consecutive calls, and how many such rounds.
CALLS, ROUNDS = 500, 40
#: Pairs whose kernels are compiled.
COMPILED = 20
_AT_RANDOM: tuple[str, dict[str, Any]] = ("stochastic", {"rounding": "stochastic", "seed": 1})


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    del arguments
    rows = _measured("host", _host_calls())
    if importlib.util.find_spec("cupy") is None:
        print("overhead: CuPy is not installed; only the host is measured")
    else:
        with idle_cuda.idle():
            rows += _measured("device, our own part", _device_calls())
    compiled = {name: 1e6 * seconds for name, seconds in _compilations().items()}
    rows.append({"where": "NVRTC", "what": "compilation", "microseconds": compiled})
    for row in rows:
        best = ", ".join(f"{name} {microseconds:.2f}" for name, microseconds in row["microseconds"].items())
        print(f"{row['where']}: {row['what']}: {best} us")
    return {"rows": rows}


def _measured(where: str, calls: dict[str, dict[str, Call]]) -> list[dict[str, Any]]:
    """A row for each call: microseconds by contender."""
    rows = []
    for what, sides in calls.items():
        best = quickest(sides, ROUNDS, calls=CALLS, clock=time.thread_time)
        rows.append({"where": where, "what": what, "microseconds": {name: 1e6 * best[name] for name in best}})
    return rows


def _compilations() -> dict[str, float]:
    """Median processor seconds of NVRTC for kernels of pairs that a seed draws, in each shape that a pair has; the
    empty kernel has no options, as anyone would compile it."""
    try:
        found = nvrtc_search.find()
    except DeviceUnavailable as error:
        print(f"overhead: nothing is compiled: {error}")
        return {}
    library = found.loaded or nvrtc.load(str(found.path))
    options = Compiler(NvrtcCopy(None, library), Cache("", limit=0)).options
    taken: dict[str, list[float]] = {}
    for src, dst in random.Random(7).sample([*itertools.product(NUMERIC, NUMERIC)], COMPILED):
        shapes = SHAPES if min(src.bits, dst.bits) >= 8 else SHAPES[:2]
        sources = [kernel_source(resolve(src, dst), shape) for shape in shapes]
        kernels = [
            *((source.shape, source.text, source.name, options) for source in sources),
            ("an empty kernel", 'extern "C" __global__ void k() {}', "k", ()),
        ]
        for name, text, function, flags in kernels:
            begin = time.thread_time()
            library.compile(text, function, "sm_90", flags)
            taken.setdefault(name, []).append(time.thread_time() - begin)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def _host_calls() -> dict[str, dict[str, Call]]:
    calls: dict[str, dict[str, Call]] = {}
    for src, dst in (("FLOAT", "FLOAT16"), ("FLOAT", "FLOAT8E4M3FN"), ("INT32", "INT8"), ("BFLOAT16", "FLOAT")):
        row = gpucast.dtype(dst)
        x, out = np.zeros(1, gpucast.dtype(src).numpy), np.zeros(1, row.numpy)
        calls[f"{src} to {dst}"] = {"gpucast": _new(x, dst), "astype": _astype(x, row.numpy)}
        calls[f"{src} to {dst}, out="] = {"gpucast": _into(x, dst, out), "copyto": _copyto(out, x)}
    x, amax = np.zeros(1, np.float32), np.zeros((), np.float32)
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("scale=", {"scale": 0.5}),
        ("scale=, amax=", {"scale": 0.5, "amax": amax}),
        _AT_RANDOM,
    ]
    for what, keywords in kinds:
        calls[f"FLOAT to FLOAT8E4M3FN, {what}"] = {"gpucast": _new(x, "FLOAT8E4M3FN", **keywords)}
    return calls


def _device_calls() -> dict[str, dict[str, Call]]:
    make = idle_cuda.array
    x, square = make((1,), np.float32), make((4, 4), np.float32).T
    half, halves = make((1,), np.float16), make((4, 4), np.float16)
    scale, amax = make((), np.float32), make((), np.float32)
    calls = {
        "FLOAT to FLOAT16, out=": _into(x, "FLOAT16", half),
        "FLOAT to FLOAT16": _new(x, "FLOAT16"),
        "FLOAT to FLOAT8E4M3FN, saturate=False": _new(x, "FLOAT8E4M3FN", saturate=False),
        "FLOAT to INT4, a PackedArray": _new(x, "INT4"),
        "FLOAT to FLOAT16, 4 x 4 transposed, out=": _into(square, "FLOAT16", halves),
        "FLOAT to FLOAT16, scale=, amax= (arrays), out=": _new(x, "FLOAT16", scale=scale, amax=amax, out=half),
        f"FLOAT to FLOAT16, {_AT_RANDOM[0]}": _new(x, "FLOAT16", **_AT_RANDOM[1]),
    }
    return {what: {"gpucast": call} for what, call in calls.items()}


def _new(x: Any, to: str, **attributes: Any) -> Call:
    cast = gpucast.cast
    return lambda: cast(x, to, **attributes)


def _into(x: Any, to: str, out: Any) -> Call:
    cast = gpucast.cast
    return lambda: cast(x, to, out=out)


def _astype(x: Any, kind: Any) -> Call:
    return lambda: x.astype(kind)


def _copyto(out: Any, x: Any) -> Call:
    return lambda: np.copyto(out, x, casting="unsafe")
