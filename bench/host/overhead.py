# SPDX-License-Identifier: Apache-2.0
"""The overhead of a call: `gpucast.cast` of one element compared with its rivals.

On a GPU it measures complete calls, enqueued without waiting for the previous ones. Without a GPU (device: none) it
measures only our own part: CUDA's functions and CuPy's allocation do nothing, and there is no rival. On the host it
compares with NumPy.
Last comes what the first call of a pair waits for: the compilation of its kernel, beside one that does nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import gpucast
from bench import idle_cuda
from bench.timing.times import Times
from gpucast.codegen.cast_kernel import SHAPES, kernel_source
from gpucast.compile import nvrtc, nvrtc_search
from gpucast.compile.cache import Cache
from gpucast.compile.compiler import Compiler
from gpucast.compile.nvrtc_search import NvrtcCopy
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import resolve
from gpucast.gpu import devices
from gpucast.parity.cases import NUMERIC

Call = Callable[[], object]

#: Consecutive calls, fewer than a stream's queue holds, and how many such series.
CALLS, ROWS = 500, 40
#: Pairs whose kernels are compiled.
COMPILED = 20
_AT_RANDOM: tuple[str, dict[str, Any]] = ("stochastic", {"rounding": "stochastic", "seed": 1})


@dataclass(frozen=True)
class CallCost:
    """Seconds per call, by contender."""

    what: str
    where: str
    times: dict[str, Times]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    del arguments
    problem = devices.unavailable()
    results = list(_measure(_host_calls(), "host", time.thread_time, _at_once))
    where = "none"
    if importlib.util.find_spec("cupy") is None:
        print("overhead: CuPy is not installed; only the host is measured")
    elif problem is not None:
        print(f"overhead: {problem[0]}: our own part of a call, without CUDA's (device: none)")
        with idle_cuda.idle():
            calls = _device_calls(idle_cuda.array, rivals=False)
            results += _measure(calls, "device, our own part", time.thread_time, _at_once)
    else:
        import cupy

        where = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        calls = _device_calls(cupy.zeros, rivals=True)
        results += _measure(calls, where, time.perf_counter, cupy.cuda.Device().synchronize)
    results += _compilations()
    for result in results:
        best = ", ".join(f"{name} {_text(times)}" for name, times in result.times.items())
        print(f"{result.where}: {result.what}: {best} us")
    return {"device": where, "rows": [asdict(result) for result in results]}


def _compilations() -> Iterator[CallCost]:
    """Processor seconds of NVRTC for kernels of pairs that a seed draws, in each shape that a pair has; the empty
    kernel has no options, as anyone would compile it."""
    try:
        found = nvrtc_search.find()
    except DeviceUnavailable as error:
        print(f"overhead: nothing is compiled: {error}")
        return
    library = found.loaded or nvrtc.load(str(found.path))
    options = Compiler(NvrtcCopy(None, library), Cache("", limit=0)).options
    taken: dict[str, list[float]] = {name: [] for name in (*SHAPES, "an empty kernel")}
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
            taken[name].append(time.thread_time() - begin)
    yield CallCost("compilation", "NVRTC", {name: Times.of(rows, 1) for name, rows in taken.items()})


def _text(times: Times) -> str:
    return f"{times.median * 1e6:.2f} ({times.p5 * 1e6:.2f} to {times.p95 * 1e6:.2f})"


def _at_once() -> None:
    """The work is done when the call returns."""


def _measure(
    calls: dict[str, dict[str, Call]], where: str, now: Callable[[], float], synchronize: Call
) -> Iterator[CallCost]:
    for what, contenders in calls.items():
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for call in contenders.values():
            for _ in range(CALLS):
                call()
        for _ in range(ROWS):
            for name, call in contenders.items():
                synchronize()
                begin = now()
                for _ in range(CALLS):
                    call()
                synchronize()
                taken[name].append(now() - begin)
        yield CallCost(what, where, {name: Times.of(rows, CALLS) for name, rows in taken.items()})


def _host_calls() -> dict[str, dict[str, Call]]:
    calls: dict[str, dict[str, Call]] = {}
    for src, dst in (("FLOAT", "FLOAT16"), ("FLOAT", "FLOAT8E4M3FN"), ("INT32", "INT8"), ("BFLOAT16", "FLOAT")):
        row = gpucast.dtype(dst)
        x, out = np.zeros(1, gpucast.dtype(src).numpy), np.zeros(1, row.numpy)
        calls[f"{src} to {dst}"] = {"gpucast": _new(x, dst), "astype": _method(x.astype, row.numpy)}
        calls[f"{src} to {dst}, out="] = {"gpucast": _into(x, dst, out), "copyto": _copy(np.copyto, out, x)}
    x, amax = np.zeros(1, np.float32), np.zeros((), np.float32)
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("scale=", {"scale": 0.5}),
        ("scale=, amax=", {"scale": 0.5, "amax": amax}),
        _AT_RANDOM,
    ]
    for what, keywords in kinds:
        calls[f"FLOAT to FLOAT8E4M3FN, {what}"] = {"gpucast": _new(x, "FLOAT8E4M3FN", **keywords)}
    return calls


def _device_calls(make: Callable[..., Any], rivals: bool) -> dict[str, dict[str, Call]]:
    x, square = make((1,), np.float32), make((4, 4), np.float32).T
    half, halves = make((1,), np.float16), make((4, 4), np.float16)
    calls = {
        "FLOAT to FLOAT16, out=": {"gpucast": _into(x, "FLOAT16", half)},
        "FLOAT to FLOAT16": {"gpucast": _new(x, "FLOAT16")},
        "FLOAT to FLOAT8E4M3FN, saturate=False": {"gpucast": _new(x, "FLOAT8E4M3FN", saturate=False)},
        "FLOAT to INT4, a PackedArray": {"gpucast": _new(x, "INT4")},
        "FLOAT to FLOAT16, 4 x 4 transposed, out=": {"gpucast": _into(square, "FLOAT16", halves)},
        "FLOAT to FLOAT16, scale=, amax= (arrays), out=": {
            "gpucast": _new(x, "FLOAT16", scale=make((), np.float32), amax=make((), np.float32), out=half)
        },
        f"FLOAT to FLOAT16, {_AT_RANDOM[0]}": {"gpucast": _new(x, "FLOAT16", **_AT_RANDOM[1])},
    }
    if rivals:
        import cupy

        calls["FLOAT to FLOAT16, out="]["CuPy copyto"] = _copy(cupy.copyto, half, x)
        calls["FLOAT to FLOAT16"]["CuPy astype"] = _method(x.astype, np.float16)
        calls["FLOAT to FLOAT16, 4 x 4 transposed, out="]["CuPy copyto"] = _copy(cupy.copyto, halves, square)
        with contextlib.suppress(ImportError):
            import torch

            tensor = torch.zeros(1, device="cuda")
            narrow = tensor.half()
            calls["FLOAT to FLOAT16, out="]["torch copy_"] = lambda: narrow.copy_(tensor)
            calls["FLOAT to FLOAT16"]["torch to"] = lambda: tensor.to(torch.float16)
    return calls


def _new(x: Any, to: str, **attributes: Any) -> Call:
    cast = gpucast.cast
    return lambda: cast(x, to, **attributes)


def _into(x: Any, to: str, out: Any) -> Call:
    cast = gpucast.cast
    return lambda: cast(x, to, out=out)


def _method(method: Callable[[Any], object], dtype: Any) -> Call:
    return lambda: method(dtype)


def _copy(copy: Callable[..., object], out: Any, x: Any) -> Call:
    return lambda: copy(out, x, casting="unsafe")
