# SPDX-License-Identifier: Apache-2.0
"""The cost of a repeated call of each kind: ``python -m bench.host.calls``.

Times are multiples of ``t.to(torch.float16)`` of the same tensor in the same process (of arrays of JAX of their own
``astype``), with PyTorch's default settings but one thread; those of devices are microseconds of our own part, because
CUDA's functions do nothing (`idle_cuda`). Beside them stand the Python functions of gpucast that a call enters, and in
how many files. Last comes what the first call of a pair waits for: the compilation of its kernel, beside one that does
nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import gpucast
from bench import idle_cuda
from bench.entered import entered
from bench.revision import FOLDER, machine
from bench.timing.times import quickest
from gpucast import PackedArray
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import resolve
from gpucast.kernel import nvrtc, nvrtc_search
from gpucast.kernel.cache import Cache
from gpucast.kernel.cast_kernel import SHAPES
from gpucast.kernel.compiler import Compiler
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.nvrtc_search import NvrtcCopy
from gpucast.mixed import fake_cast
from gpucast.parity.cases import NUMERIC

#: Elements of an array, and of each of those of a list.
SIZE, EACH, LIST = 1024, 64, 100
CALLS, ROUNDS = 50, 40
#: Pairs whose kernels are compiled.
COMPILED = 20
Call = Callable[[], object]


def host() -> dict[str, tuple[Call, Call]]:
    """Calls, and beside each the one whose time is 1."""
    t = torch.randn(SIZE)
    x, half, into = t.numpy(), torch.float16, torch.empty(SIZE, dtype=torch.float16)
    gradient, apart = torch.randn(SIZE, requires_grad=True), torch.randn(64, 2 * SIZE // 64)[:, ::2]
    away, amax, x_amax, x_into = x.reshape(64, -1)[:, ::2], torch.zeros(()), np.zeros((), np.float32), into.numpy()
    lists = [torch.randn(EACH) for _ in range(LIST)], [torch.empty(EACH, dtype=half) for _ in range(LIST)]
    arrays = [one.numpy() for one in lists[0]], [one.numpy() for one in lists[1]]
    to, numbers, tensor = (lambda: t.to(half)), np.empty(SIZE, np.float32), torch.empty(SIZE)
    cast, quantize, dequantize, many = gpucast.cast, gpucast.quantize, gpucast.dequantize, gpucast.cast_many
    rows: dict[str, tuple[Call, Call]] = {
        "tensor": (lambda: cast(t, "FLOAT16"), to),
        "tensor, out=": (lambda: cast(t, "FLOAT16", out=into), to),
        "tensor, gradient": (lambda: cast(gradient, "FLOAT16"), lambda: gradient.to(half)),
        "tensor, strided": (lambda: cast(apart, "FLOAT16"), lambda: apart.to(half)),
        "tensor, scale=": (lambda: cast(t, "FLOAT16", scale=2.0), to),
        "tensor, scale=, amax=": (lambda: cast(t, "FLOAT16", scale=2.0, amax=amax), to),
        "tensor, stochastic": (lambda: cast(t, "FLOAT16", rounding="stochastic", seed=1), to),
        "NumPy": (lambda: cast(x, "FLOAT16"), to),
        "NumPy, out=": (lambda: cast(x, "FLOAT16", out=x_into), to),
        "NumPy, strided": (lambda: cast(away, "FLOAT16"), to),
        "NumPy, scale=, amax=": (lambda: cast(x, "FLOAT16", scale=2.0, amax=x_amax), to),
    }
    for name in ("mxfp8e4m3", "nvfp4", "int4_128"):
        q, p = quantize(x, name), quantize(t, name)
        rows |= {
            f"{name}": (partial(quantize, x, name), to),
            f"{name}, out=": (partial(quantize, x, name, out=q), to),
            f"{name} of a tensor": (partial(quantize, t, name), to),
            f"{name} of a tensor, out=": (partial(quantize, t, name, out=p), to),
            f"{name}, dequantize": (partial(dequantize, q), to),
            f"{name}, dequantize out=": (partial(dequantize, q, out=numbers), to),
            f"{name} of a tensor, dequantize out=": (partial(dequantize, p, out=tensor), to),
        }
    rows |= _more(t, to)
    rows["hadamard"] = (lambda: gpucast.hadamard(x, 16), to)
    rows |= _of_weights(to)
    for kind, (given, outs) in (("tensors", lists), ("arrays", arrays)):
        one_by_one = partial(_each, given, outs)
        rows[f"{LIST} {kind}, out="] = (partial(many, given, "FLOAT16", out=outs), one_by_one)
        rows[f"{LIST} {kind}"] = (partial(many, given, "FLOAT16"), one_by_one)
    return rows


def _more(t: torch.Tensor, to: Call) -> dict[str, tuple[Call, Call]]:
    """Groups, packed elements, layouts, transforms, and arrays of JAX where it is installed."""
    m, quantize, groups = t.reshape(16, -1), gpucast.quantize, gpucast.quantize_grouped
    x, ends = m.numpy(), torch.tensor([5, 16], dtype=torch.int32)
    packed = PackedArray.pack(gpucast.cast(x, "FLOAT4E2M1"))
    rows: dict[str, tuple[Call, Call]] = {
        "packed elements": (lambda: gpucast.cast(packed, "FLOAT16"), to),
        "packed elements to such": (lambda: gpucast.cast(packed, "INT4"), to),
    }
    for name, of, ends_of in (("", x, ends.numpy()), (" of a tensor", m, ends)):
        into = groups(of, ends_of, "mxfp8e4m3", pad=4)
        rows |= {
            f"mxfp8e4m3, groups{name}": (partial(groups, of, ends_of, "mxfp8e4m3", pad=4), to),
            f"mxfp8e4m3, groups{name}, out=": (partial(groups, of, ends_of, "mxfp8e4m3", pad=4, out=into), to),
            f"groups cast{name}": (partial(gpucast.cast_grouped, of, ends_of, "FLOAT8E4M3FN", scale=2.0), to),
            f"mxfp8e4m3, hadamard={name}": (partial(quantize, of, "mxfp8e4m3", hadamard=32), to),
            f"mxfp8e4m3, scale_layout={name}": (partial(quantize, of, "mxfp8e4m3", scale_layout="128x4"), to),
            f"mxfp8e4m3, transpose={name}": (partial(quantize, of, "mxfp8e4m3", transpose=True), to),
            f"tensor-wise{name}": (partial(quantize, of, "float8e4m3fn_tensor"), to),
            f"tiles{name}": (partial(quantize, of, "float8e4m3fn_128x128"), to),
        }
        scale, q = quantize(of, "int8_32").scales, quantize(of, "mxfp8e4m3", hadamard=32)
        ordered = quantize(of, "mxfp8e4m3", scale_layout="128x4")
        rows |= {
            f"int8_32, an array as scale={name}": (partial(quantize, of, "int8_32", scale=scale), to),
            f"nvfp4_4over6{name}": (partial(quantize, of, "nvfp4_4over6"), to),
            f"mxfp8e4m3, dequantize hadamard={name}": (partial(gpucast.dequantize, q, hadamard=32), to),
            f"mxfp8e4m3, scale_layout=, dequantize{name}": (partial(gpucast.dequantize, ordered), to),
        }
    if importlib.util.find_spec("jax") is not None:
        import jax

        there = jax.numpy.asarray(x)
        q, astype = quantize(there, "mxfp8e4m3"), partial(there.astype, np.float16)
        theirs = jax.numpy.asarray(ends.numpy())
        rows |= {
            "JAX": (lambda: gpucast.cast(there, "FLOAT16"), astype),
            "JAX, mxfp8e4m3": (lambda: quantize(there, "mxfp8e4m3"), astype),
            "JAX, mxfp8e4m3, dequantize": (lambda: gpucast.dequantize(q), astype),
            "JAX to FLOAT4E2M1": (lambda: gpucast.cast(there, "FLOAT4E2M1"), astype),
            "JAX, mxfp8e4m3, groups": (lambda: groups(there, theirs, "mxfp8e4m3", pad=4), astype),
            # What each result of JAX takes by itself.
            "JAX, device_put of an array": (partial(jax.device_put, x, there.device), astype),
        }
    return rows


def _of_weights(to: Call) -> dict[str, tuple[Call, Call]]:
    """As a step of training has them."""
    weight = torch.nn.Parameter(torch.randn(16, SIZE // 16))
    weights = [torch.nn.Parameter(torch.randn(EACH)) for _ in range(LIST)]
    detached = [one.detach() for one in weights]

    def without_gradient() -> None:
        with torch.no_grad():
            gpucast.quantize(weight, "mxfp8e4m3")

    return {
        "mxfp8e4m3 of a weight, no_grad": (without_gradient, to),
        "mxfp8e4m3 there and back, gradient": (lambda: fake_cast(weight, "mxfp8e4m3"), to),
        f"{LIST} weights, gradient": (
            lambda: gpucast.cast_many(weights, "FLOAT16"),
            lambda: [gpucast.cast(one, "FLOAT16") for one in detached],
        ),
    }


def _each(given: list[Any], outs: list[Any]) -> None:
    for x, y in zip(given, outs, strict=True):
        gpucast.cast(x, "FLOAT16", out=y)


def device() -> dict[str, Call]:
    x, half = idle_cuda.array((SIZE,), np.float32), idle_cuda.array((SIZE,), np.float16)
    scale, amax = idle_cuda.array((), np.float32), idle_cuda.array((), np.float32)
    square, halves = idle_cuda.array((32, 32), np.float32).T, idle_cuda.array((32, 32), np.float16)
    given = [idle_cuda.array((EACH,), np.float32) for _ in range(LIST)]
    outs = [idle_cuda.array((EACH,), np.float16) for _ in range(LIST)]
    numbers = idle_cuda.array((SIZE,), np.float32)
    with idle_cuda.idle(allocate=idle_cuda.fresh):
        q, n = gpucast.quantize(x, "mxfp8e4m3"), gpucast.quantize(x, "nvfp4")
    cast = gpucast.cast
    return {
        "CuPy, out=": lambda: cast(x, "FLOAT16", out=half),
        "CuPy": lambda: cast(x, "FLOAT16"),
        "CuPy, transposed, out=": lambda: cast(square, "FLOAT16", out=halves),
        "CuPy, scale=, out=": lambda: cast(x, "FLOAT16", scale=2.0, out=half),
        "CuPy, scale=, amax=, out=": lambda: cast(x, "FLOAT16", scale=scale, amax=amax, out=half),
        "CuPy, stochastic": lambda: cast(x, "FLOAT16", rounding="stochastic", seed=1),
        "CuPy, nvfp4": lambda: gpucast.quantize(x, "nvfp4"),
        "CuPy, nvfp4, out=": lambda: gpucast.quantize(x, "nvfp4", out=n),
        "CuPy, nvfp4, a number as scale=": lambda: gpucast.quantize(x, "nvfp4", scale=0.5),
        "CuPy, mxfp8e4m3": lambda: gpucast.quantize(x, "mxfp8e4m3"),
        "CuPy, mxfp8e4m3, out=": lambda: gpucast.quantize(x, "mxfp8e4m3", out=q),
        "CuPy, dequantize": lambda: gpucast.dequantize(q),
        "CuPy, dequantize out=": lambda: gpucast.dequantize(q, out=numbers),
        f"{LIST} of CuPy, out=": lambda: gpucast.cast_many(given, "FLOAT16", out=outs),
    }


def compilations(pairs: int = COMPILED) -> dict[str, float]:
    """Median processor microseconds of NVRTC for kernels of pairs that a seed draws, in each shape that a pair has; the
    empty kernel has no options, as anyone would compile it. DeviceUnavailable without NVRTC."""
    found = nvrtc_search.find()
    library = found.loaded or nvrtc.load(str(found.path))
    options = Compiler(NvrtcCopy(None, library), Cache("", limit=0)).options
    taken: dict[str, list[float]] = {}
    for src, dst in random.Random(7).sample([*itertools.product(NUMERIC, NUMERIC)], pairs):
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


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.host.calls", description="The cost of repeated calls.")
    parser.add_argument("--keep", action="store_true", help="write the figures to bench/results/calls-DATE.json")
    keep = parser.parse_args(argv).keep
    torch.set_num_threads(1)
    print(f"{'call':40} {'time':>9}  functions/files")
    rows: dict[str, str] = {}
    for what, (ours, theirs) in host().items():
        best = quickest({"ours": ours, "theirs": theirs}, ROUNDS, calls=CALLS, clock=time.thread_time)
        rows[what] = f"{best['ours'] / best['theirs']:.2f}x"
        _show(what, rows[what], ours)
    rooms = itertools.cycle([idle_cuda.array((1 << 16,), np.uint8).data for _ in range(16)])
    with idle_cuda.idle(allocate=lambda nbytes: next(rooms)):
        for what, ours in device().items():
            [seconds] = quickest({what: ours}, ROUNDS, calls=CALLS, clock=time.thread_time).values()
            rows[what] = f"{1e6 * seconds:.2f} us"
            _show(what, rows[what], ours)
    if keep:
        where = machine() | {"torch": torch.__version__}
        figures = {"machine": where, "size": SIZE, "calls": rows}
        path = FOLDER / f"calls-{where['date']}.json"
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    try:
        for what, microseconds in compilations().items():
            print(f"{f'compilation, {what}':40} {microseconds:6.0f} us")
    except DeviceUnavailable as error:
        print(f"nothing is compiled: {error}")


def _show(what: str, cost: str, call: Call) -> None:
    functions, files = min(entered(call) for _ in itertools.repeat(None, 3))
    print(f"{what:40} {cost:>9}  {functions}/{files}")


if __name__ == "__main__":
    main()
