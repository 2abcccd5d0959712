# SPDX-License-Identifier: Apache-2.0
"""What users write, beside what they would write without gpucast.

Single arrays of PyTorch, CuPy and JAX, from 2^10 to 2^28 elements: new results and given ones, side streams, graphs of
casts and of quantizations, and round trips through DLPack. A small array stays in the cache, as in a user's loop. First
results are compared with the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gpucast
from bench.cases.buffers import CONTIGUOUS, Sets, sets_of, source_codes
from bench.cases.case import Call, Case
from bench.cases.check import Check, check_windows
from bench.cases.contenders import CUPY_TYPES, Contender, CupyAstype, JaxJit, TorchTo
from bench.timing.machine import Machine
from gpucast.core.dtypes import dtype

#: Source, destination, and the format to which the source is quantized, too.
PAIRS = (
    ("FLOAT", "FLOAT16", "int8_axis"),
    ("BFLOAT16", "FLOAT8E4M3FN", "mxfp8e4m3"),
    ("FLOAT", "BFLOAT16", "nvfp4"),
    ("FLOAT8E4M3FN", "BFLOAT16", ""),
    ("FLOAT", "INT8", "float8e4m3fn_tensor"),
)
SIZES = (1 << 20, 1 << 10, 1 << 24, 1 << 28, 1 << 13, 1 << 16)
#: The columns of what is quantized.
COLUMNS = 1 << 9

Ways = Iterator[tuple[str, Callable[[], Call]]]


def cases() -> Iterator[Case]:
    for library, ways in (("PyTorch", _of_torch), ("CuPy", _of_cupy), ("JAX", _of_jax)):
        for n in SIZES:
            for src, dst, format in PAIRS:
                yield _case(library, ways, n, src, dst, format)


def _case(library: str, ways: Callable[[Machine, Sets, str], Ways], n: int, src: str, dst: str, format: str) -> Case:
    def made(machine: Machine) -> tuple[float, Mapping[str, Callable[[], Call]]]:
        kind = dtype(src)
        sets = sets_of(machine, kind, dtype(dst), n, CONTIGUOUS, source_codes(kind), 1)
        try:
            return sets.moved, dict(ways(machine, sets, format))
        except ImportError:  # The library is not there, or cannot use the GPU.
            return sets.moved, {}

    # The other libraries' ways to cast.
    others = ("torch .to", "CuPy astype", "jax.jit astype")
    return Case("users", f"users: {library}: {src} to {dst}, {n:,}", made, yardstick=others)


def _check(of: Contender, sets: Sets, exact: bool = True) -> Callable[[Any], Check]:
    return lambda result: check_windows(of, sets, result, exact)


def _of_torch(machine: Machine, sets: Sets, format: str) -> Ways:
    of = TorchTo(machine)
    torch, to = of.torch, sets.dst
    x, y = of.flat(sets.sources[0], sets.src), of.flat(sets.outs[0], to)
    kind, right, rough = y.dtype, _check(of, sets), _check(of, sets, False)

    def into() -> Any:
        return gpucast.cast(x, to, out=y)

    yield "gpucast, torch tensor", lambda: Call(lambda i: gpucast.cast(x, to), check=right)
    yield "torch .to", lambda: Call(lambda i: x.to(kind), check=rough)
    yield "gpucast, torch tensor, out=", lambda: Call(lambda i: into(), check=right)
    yield "torch copy_", lambda: Call(lambda i: y.copy_(x), check=rough)
    side = torch.cuda.Stream()

    def on_side(i: int) -> Any:
        with torch.cuda.stream(side):
            return into()

    def captured(run: Callable[[], Any], check: Callable[[Any], Check]) -> Call:
        graph = torch.cuda.CUDAGraph()
        # What is compiled and loaded cannot be captured.
        run()
        with torch.cuda.graph(graph):
            run()
        machine.fill(sets.outs[0], 0xA5)
        return Call(lambda i: graph.replay(), check=check)

    waits = side.synchronize
    yield "gpucast, torch tensor, side stream", lambda: Call(on_side, check=right, wait=lambda result: waits())
    yield "gpucast, torch tensor, captured", lambda: captured(into, lambda result: right(y))
    yield "torch copy_, captured", lambda: captured(lambda: y.copy_(x), lambda result: rough(y))
    if format:
        matrix = x.view(-1, COLUMNS)
        given = gpucast.quantize(matrix, format)

        def quantized() -> Any:
            return gpucast.quantize(matrix, format, out=given)

        yield f"gpucast.quantize, {format}", lambda: Call(lambda i: gpucast.quantize(matrix, format))
        yield f"gpucast.quantize, {format}, out=", lambda: Call(lambda i: quantized())
        yield f"gpucast.quantize, {format}, captured", lambda: captured(quantized, lambda result: Check())


def _of_cupy(machine: Machine, sets: Sets, format: str) -> Ways:
    if not {sets.src.numpy_name, sets.dst.numpy_name} <= CUPY_TYPES:
        return
    of = CupyAstype(machine)
    x, kind = sets.source_arrays()[0], sets.dst.numpy
    yield "gpucast, CuPy array", lambda: Call(lambda i: gpucast.cast(x, sets.dst), check=_check(of, sets))
    yield "CuPy astype", lambda: Call(lambda i: x.astype(kind), check=_check(of, sets, False))
    if "bfloat16" in (sets.src.numpy_name, sets.dst.numpy_name):
        return

    def by_dlpack() -> Call:
        torch = TorchTo(machine)
        tensor = torch.flat(sets.sources[0], sets.src)
        there, back = of.cupy.from_dlpack, torch.torch.from_dlpack
        return Call(lambda i: back(gpucast.cast(there(tensor), sets.dst)), check=_check(torch, sets))

    yield "gpucast, by DLPack and back", by_dlpack


def _of_jax(machine: Machine, sets: Sets, format: str) -> Ways:
    of = JaxJit(machine)
    if not of.supports(sets.src, sets.dst):
        return
    (x,), wait, right = of.arrays(sets), of.wait, _check(of, sets)
    compiled = of.jax.jit(lambda x: gpucast.cast(x, sets.dst))
    theirs = of.prepare(sets)
    yield "gpucast, JAX array", lambda: Call(lambda i: gpucast.cast(x, sets.dst), check=right, wait=wait)
    yield "gpucast, in jax.jit", lambda: Call(lambda i: compiled(x), check=right, wait=wait)
    yield "jax.jit astype", lambda: Call(theirs, check=_check(of, sets, False), wait=wait)
