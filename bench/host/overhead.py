# SPDX-License-Identifier: Apache-2.0
"""The overhead of a call: `gpucast.cast` of one element, in processor time, on the host and on a device.

Of a device it is our own part: CUDA's functions and CuPy's allocation do nothing, so that it needs no GPU
(``python -m bench`` times complete calls, ``--host`` those of NumPy beside ours). Last comes what the first call of a
pair waits for: the compilation of its kernel, beside one that does nothing.
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
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import resolve
from gpucast.kernel import nvrtc, nvrtc_search
from gpucast.kernel.cache import Cache
from gpucast.kernel.cast_kernel import SHAPES
from gpucast.kernel.compiler import Compiler
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.nvrtc_search import NvrtcCopy
from gpucast.parity.cases import NUMERIC

#: Consecutive calls, and how many such rounds.
CALLS, ROUNDS = 500, 40
#: Pairs whose kernels are compiled.
COMPILED = 20


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    del arguments
    rows = _measured("host", _calls(np.zeros))
    if importlib.util.find_spec("cupy") is None:
        print("overhead: CuPy is not installed; only the host is measured")
    else:
        with idle_cuda.idle():
            rows += _measured("device, our own part", _calls(idle_cuda.array))
    rows.append({"where": "NVRTC", "what": "compilation", "microseconds": _compilations()})
    for row in rows:
        best = ", ".join(f"{name} {microseconds:.2f}" for name, microseconds in row["microseconds"].items())
        print(f"{row['where']}: {row['what']}: {best} us")
    return {"rows": rows}


def _measured(where: str, calls: dict[str, Callable[[], object]]) -> list[dict[str, Any]]:
    best = quickest(calls, ROUNDS, calls=CALLS, clock=time.thread_time)
    return [{"where": where, "what": what, "microseconds": {"gpucast": 1e6 * best[what]}} for what in calls]


def _calls(make: Callable[[tuple[int, ...], Any], Any]) -> dict[str, Callable[[], object]]:
    """Calls of one element, and of a few that lie apart; `make` gives an array of a shape and a dtype."""
    x, half = make((1,), np.float32), make((1,), np.float16)
    scale, amax = make((), np.float32), make((), np.float32)
    square, halves = make((4, 4), np.float32).T, make((4, 4), np.float16)
    return {
        "FLOAT to FLOAT16, out=": lambda: gpucast.cast(x, "FLOAT16", out=half),
        "FLOAT to FLOAT16": lambda: gpucast.cast(x, "FLOAT16"),
        "FLOAT to FLOAT8E4M3FN, saturate=False": lambda: gpucast.cast(x, "FLOAT8E4M3FN", saturate=False),
        "FLOAT to INT4": lambda: gpucast.cast(x, "INT4"),
        "FLOAT to FLOAT16, 4 x 4 transposed, out=": lambda: gpucast.cast(square, "FLOAT16", out=halves),
        "FLOAT to FLOAT16, scale=, amax=, out=": lambda: gpucast.cast(x, "FLOAT16", scale=scale, amax=amax, out=half),
        "FLOAT to FLOAT16, stochastic": lambda: gpucast.cast(x, "FLOAT16", rounding="stochastic", seed=1),
    }


def _compilations() -> dict[str, float]:
    """Median processor microseconds of NVRTC for kernels of pairs that a seed draws, in each shape that a pair has; the
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
        casts = [(shape, cast_kernel(resolve(src, dst), shape)) for shape in shapes]
        kernels = [
            *((shape, kernel.text, kernel.name, options) for shape, kernel in casts),
            ("an empty kernel", 'extern "C" __global__ void k() {}', "k", ()),
        ]
        for name, text, function, flags in kernels:
            begin = time.thread_time()
            library.compile(text, function, "sm_90", flags)
            taken.setdefault(name, []).append(time.thread_time() - begin)
    return {name: 1e6 * statistics.median(seconds) for name, seconds in taken.items()}
