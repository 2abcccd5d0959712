# SPDX-License-Identifier: Apache-2.0
"""Ten calls on large arrays, each three times, for a profiler to look at: ``ncu ... python -m bench.gpu.profiled``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import gpucast
from bench.gpu.families import Put, of_gpu
from gpucast.core.dtypes import dtype

#: Two dimensions of arrays; 2^26 elements fill the caches several times.
ROWS, COLUMNS = 1 << 14, 1 << 12
TIMES = 3


def calls(put: Put, rows: int = ROWS, columns: int = COLUMNS) -> Mapping[str, Callable[[], Any]]:
    """The calls by name; with `out`, so that nothing but their kernels runs."""
    drawn = np.random.default_rng(0).standard_normal((min(rows, 128), columns)).astype(np.float32)
    numbers = np.resize(drawn, (rows, columns))
    x, half = put(numbers, 0), put(gpucast.cast(numbers, "BFLOAT16"), 0)
    narrow = put(gpucast.cast(numbers, "FLOAT8E4M3FN"), 0)
    ends, amax = put(np.array([rows // 3, rows], np.int32), 0), put(np.array([6], np.float32), 0)

    def cast(source: Any, to: str) -> Callable[[], Any]:
        out = put(np.zeros((rows, columns), dtype(to).numpy), 0)
        return lambda: gpucast.cast(source, to, out=out)

    def quantize(format: str, **keywords: Any) -> Callable[[], Any]:
        out = gpucast.quantize(half, format, **keywords)
        return lambda: gpucast.quantize(half, format, out=out, **keywords)

    q = gpucast.quantize(half, "mxfp8e4m3")
    back, groups = put(np.zeros((rows, columns), np.float32), 0), gpucast.quantize_grouped(half, ends, "mxfp8e4m3")
    return {
        "FLOAT to FLOAT16": cast(x, "FLOAT16"),
        "FLOAT to FLOAT8E4M3FN": cast(x, "FLOAT8E4M3FN"),
        "FLOAT8E4M3FN to BFLOAT16": cast(narrow, "BFLOAT16"),
        "mxfp8": quantize("mxfp8e4m3"),
        "nvfp4": quantize("nvfp4", amax=amax),
        "mxfp8 both ways": quantize("mxfp8e4m3", transpose="both"),
        "nvfp4 both ways, transformed": quantize("nvfp4", transpose="both", hadamard=16, amax=amax),
        "4over6": quantize("nvfp4_4over6", amax=amax),
        "mxfp8 back": lambda: gpucast.dequantize(q, out=back),
        "mxfp8 of groups": lambda: gpucast.quantize_grouped(half, ends, "mxfp8e4m3", out=groups),
    }


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m bench.gpu.profiled", description=__doc__).parse_args(argv)
    put, get = of_gpu()
    for name, call in calls(put).items():
        print(name, flush=True)
        for _ in range(TIMES):
            call()
    # Waits for all.
    get(put(np.zeros(1, np.uint8), 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
