# SPDX-License-Identifier: Apache-2.0
"""The names and texts of the kernels that each part of a run on a GPU launches, to compile them ahead, most needed
first.

Kernels of plain casts are derived from the rules. For all others the calls are made with a driver that does nothing
(`bench.gpu_dry`), so that the list cannot differ from what a part does. tests/bench/test_gpu_kernels.py runs the parts
on a stand-in and compares.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bench import gpu_dry, gpu_many, gpu_parity, gpu_quantize, gpu_sweeps
from bench.gpu_dry import DryKernel
from bench.revision import ROOT
from gpucast import cast, cast_many
from gpucast.benchmark.pairs import COMMON
from gpucast.benchmark.quick import PAIRS
from gpucast.codegen.cast import KernelSource, Shape, kernel_source
from gpucast.codegen.spec import CastSpec
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import resolve
from gpucast.parity.cases import NUMERIC, Case

Pair = tuple[DType, DType]
ALL: tuple[Pair, ...] = tuple(itertools.product(NUMERIC, NUMERIC))


def casts(pairs: Iterable[Pair], *shapes: Shape) -> Iterator[DryKernel]:
    """Plain casts by the default rule. Packed sources have no strides, and packed sides no transposed kernel."""
    for shape in shapes:
        for src, dst in pairs:
            if shape == "transposed" and (src.packed or dst.packed):
                continue
            if shape == "contiguous" or not src.packed:
                yield _kernel(kernel_source(resolve(src, dst), shape))


def rules(chosen: Iterable[Case]) -> Iterator[DryKernel]:
    """What the parity harness launches: contiguous arrays, by each of these rules."""
    for case in chosen:
        yield _kernel(CastSpec.of(case.rule).source())


def of_calls(calls: Iterable[Callable[[], object]]) -> Iterator[DryKernel]:
    """The kernels that these calls launch on device arrays, or with device="cuda"."""
    with gpu_dry.recorded() as found:
        given = 0
        for call in calls:
            call()
            new = list(found)[given:]
            given += len(new)
            yield from new


def tests() -> Iterator[DryKernel]:
    yield from casts(ALL, "contiguous", "strided")
    for kind in NUMERIC:
        if kind.packed:
            # These pack host arrays on the device.
            yield _kernel(kernel_source(resolve(kind, kind), unpacked=True))
    sys.path.append(str(ROOT / "tests"))
    yield from map(_kernel, importlib.import_module("fused_cases").SOURCES)
    yield from of_calls(importlib.import_module("gpu_quantize_calls").every())


def parity() -> Iterator[DryKernel]:
    yield from rules(gpu_parity.planned())


def layouts() -> Iterator[DryKernel]:
    yield from casts(ALL, "contiguous", "strided")


def sweeps() -> Iterator[DryKernel]:
    yield from rules(gpu_sweeps.planned())


def quick() -> Iterator[DryKernel]:
    yield from casts(PAIRS, "contiguous")


def many(
    cases: Sequence[gpu_many.BatchCase] = gpu_many.CASES, layers: int = 25, width: int = 1024
) -> Iterator[DryKernel]:
    yield from casts([(dtype(case.src), dtype(case.dst)) for case in cases], "contiguous")
    yield from of_calls(_many(case, layers, width) for case in cases)


def _many(case: gpu_many.BatchCase, layers: int, width: int) -> Callable[[], object]:
    def call() -> None:
        src, out = (
            [gpu_dry.array(shape, dtype(name).numpy) for shape in gpu_many.shapes(layers, width)]
            for name in (case.src, case.dst)
        )
        keywords, extra = dict[str, Any](), dict[str, Any]()
        if case.unscaled:
            keywords, extra = {"scale": gpu_dry.array((1,), "float32")}, {"finite": gpu_dry.array((1,), "uint8")}
        cast_many(src, case.dst, out=out, **keywords, **extra)
        cast(src[0], case.dst, out=out[0], **keywords)

    return call


def quantize(
    cases: Sequence[gpu_quantize.QuantizeCase] = gpu_quantize.CASES,
    rows: int = gpu_quantize.ROWS,
    columns: int = gpu_quantize.COLUMNS,
) -> Iterator[DryKernel]:
    yield from of_calls(_quantize(case, rows, columns) for case in cases)


def _quantize(case: gpu_quantize.QuantizeCase, rows: int, columns: int) -> Callable[[], object]:
    def call() -> None:
        x = gpu_dry.array((rows, columns), dtype(case.src).numpy)
        case(x[: gpu_quantize.DRAWN])
        case(x)
        for alternative in case.alternatives().values():
            alternative(x)

    return call


def bench() -> Iterator[DryKernel]:
    yield from casts(ALL, "contiguous")
    yield from casts(COMMON, "strided", "transposed")


#: The kernels of each part; parts that are not listed launch none.
OF_PARTS: dict[str, Callable[[], Iterator[DryKernel]]] = {
    "tests": tests,
    "parity": parity,
    "layouts": layouts,
    "sweeps": sweeps,
    "sanitizer": layouts,
    "quick": quick,
    "many": many,
    "quantize": quantize,
    "bench": bench,
}
#: Parts that time CuPy's casts, which compile too: the types that CuPy casts.
WITH_CUPY = ("quick", "bench")


def needed(parts: Iterable[str]) -> Iterator[DryKernel]:
    """The kernels of some parts, without duplicates."""
    met: set[DryKernel] = set()
    for kernel in itertools.chain.from_iterable(OF_PARTS[part]() for part in parts if part in OF_PARTS):
        if kernel not in met:
            met.add(kernel)
            yield kernel


def _kernel(source: KernelSource) -> DryKernel:
    return DryKernel(source.name, source.text)
