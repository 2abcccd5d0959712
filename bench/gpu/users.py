# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --users``: what users write, beside what they would write without gpucast.

Single arrays of PyTorch, CuPy and JAX, from 2^10 to 2^28 elements: new results and given ones, side streams, graphs of
casts and of quantizations, and round trips through DLPack. A small array stays in the cache, as in a user's loop. First
results are compared with the reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpucast
from bench.cases.buffers import CONTIGUOUS, Sets, moved_bytes, sets_of, source_codes
from bench.cases.check import compare
from bench.cases.contenders import CUPY_TYPES, CupyAstype, TorchTo
from bench.gpu.calls import Call, Line, measure_calls
from bench.peers.rivals import JaxJit
from bench.timing.machine import Machine
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.parity.compare import wanted_codes

#: Source, destination, and the format to which the source is quantized, too.
PAIRS = (
    ("FLOAT", "FLOAT16", "int8_axis"),
    ("BFLOAT16", "FLOAT8E4M3FN", "mxfp8e4m3"),
    ("FLOAT", "BFLOAT16", "nvfp4"),
    ("FLOAT8E4M3FN", "BFLOAT16", ""),
    ("FLOAT", "INT8", "float8e4m3fn_tensor"),
)
SIZES = (1 << 20, 1 << 10, 1 << 24, 1 << 28, 1 << 13, 1 << 16)
#: Results compared with the reference, and the columns of what is quantized.
CHECKED, COLUMNS = 1 << 14, 1 << 9
#: The others' ways to cast.
OTHERS = ("torch .to", "CuPy astype", "jax.jit astype")

Ways = Iterator[tuple[str, Call | Callable[[], Call]]]


@dataclass(frozen=True)
class UserCase:
    library: str
    src: str
    dst: str
    format: str
    n: int

    def __str__(self) -> str:
        return f"{self.library}: {self.src} to {self.dst}, {self.n:,}"


CASES = tuple(UserCase(library, *pair, n) for library in ("PyTorch", "CuPy", "JAX") for n in SIZES for pair in PAIRS)


def measure_case(machine: Machine, case: UserCase) -> list[Line]:
    src, dst = dtype(case.src), dtype(case.dst)
    sets = sets_of(machine, src, dst, case.n, CONTIGUOUS, source_codes(src), 1)
    ways = {"PyTorch": _of_torch, "CuPy": _of_cupy, "JAX": _of_jax}[case.library]
    # A library that is not there, or cannot use the GPU.
    with contextlib.suppress(ImportError):
        return measure_calls(
            machine, str(case), dict(ways(machine, sets, case.format)), int(moved_bytes(src, dst, case.n)), OTHERS
        )
    return []


def _check(of: Any, sets: Sets, exact: bool = True) -> Callable[[Any], str]:
    """Compares a result, whose codes `of` can read, with the reference."""
    count = min(sets.n, CHECKED)
    codes = sets.taken(np.arange(count))
    wanted = wanted_codes(resolve(sets.src, sets.dst), codes)

    def check(result: Any) -> str:
        found = compare(of.codes(result, sets.dst, count), codes, wanted, sets.src, sets.dst, exact)
        return f"{found.wrong:,} differ: {found.first}" if found.wrong else ""

    return check


def _of_torch(machine: Machine, sets: Sets, format: str) -> Ways:
    of = TorchTo(machine)
    torch, to = of.torch, sets.dst
    x, y = of.flat(sets.sources[0], sets.src), of.flat(sets.outs[0], to)
    kind, right, rough = y.dtype, _check(of, sets), _check(of, sets, False)

    def into() -> Any:
        return gpucast.cast(x, to, out=y)

    yield "gpucast, torch tensor", Call(lambda: gpucast.cast(x, to), right)
    yield "torch .to", Call(lambda: x.to(kind), rough)
    yield "gpucast, torch tensor, out=", Call(into, right)
    yield "torch copy_", Call(lambda: y.copy_(x), rough)
    quantized = x.view(-1, COLUMNS) if format else x
    if format:
        yield f"gpucast.quantize, {format}", Call(lambda: gpucast.quantize(quantized, format))
    if machine.stream is None:
        return
    side = torch.cuda.Stream()

    def on_side() -> Any:
        with torch.cuda.stream(side):
            return into()

    yield "gpucast, torch tensor, side stream", Call(on_side, right, lambda result: side.synchronize())

    def captured(run: Callable[[], Any], check: Callable[[Any], str]) -> Callable[[], Call]:
        def make() -> Call:
            graph = torch.cuda.CUDAGraph()
            # What is compiled and loaded cannot be captured.
            run()
            with torch.cuda.graph(graph):
                run()
            machine.fill(sets.outs[0], 0xA5)
            return Call(graph.replay, check)

        return make

    yield "gpucast, torch tensor, captured", captured(into, lambda result: right(y))
    yield "torch copy_, captured", captured(lambda: y.copy_(x), lambda result: rough(y))
    if format:
        yield (
            f"gpucast.quantize, {format}, captured",
            captured(lambda: gpucast.quantize(quantized, format), lambda result: ""),
        )


def _of_cupy(machine: Machine, sets: Sets, format: str) -> Ways:
    if machine.stream is None or not {sets.src.numpy_name, sets.dst.numpy_name} <= CUPY_TYPES:
        return
    of = CupyAstype(machine)
    x, kind = sets.source_arrays()[0], sets.dst.numpy
    yield "gpucast, CuPy array", Call(lambda: gpucast.cast(x, sets.dst), _check(of, sets))
    yield "CuPy astype", Call(lambda: x.astype(kind), _check(of, sets, False))
    if "bfloat16" in (sets.src.numpy_name, sets.dst.numpy_name):
        return
    torch = TorchTo(machine)
    tensor = torch.flat(sets.sources[0], sets.src)

    def round_trip() -> Any:
        return torch.torch.from_dlpack(gpucast.cast(of.cupy.from_dlpack(tensor), sets.dst))

    yield "gpucast, by DLPack and back", Call(round_trip, _check(torch, sets))


def _of_jax(machine: Machine, sets: Sets, format: str) -> Ways:
    of = JaxJit(machine)
    if not of.supports(sets.src, sets.dst):
        return
    (x,), wait, right = of.arrays(sets), of.wait, _check(of, sets)
    compiled = of.jax.jit(lambda x: gpucast.cast(x, sets.dst))
    theirs = of.prepare(sets)
    yield "gpucast, JAX array", Call(lambda: gpucast.cast(x, sets.dst), right, wait)
    yield "gpucast, in jax.jit", Call(lambda: compiled(x), right, wait)
    yield "jax.jit astype", Call(lambda: theirs(0), _check(of, sets, False), wait)
