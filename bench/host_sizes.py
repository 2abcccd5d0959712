# SPDX-License-Identifier: Apache-2.0
"""Casts of NumPy arrays and CPU tensors from 1 element to 16 million: ``python -m bench.host_sizes``.

Everyday pairs, on one thread: ours with the compiled library and without it, allocating and into ``out=``, beside
``x.astype`` (of NumPy and ml_dtypes) and, where PyTorch is installed, ``t.to`` of the same numbers as a tensor. In each
round every side runs once, short casts in a row of several calls, and the fastest round counts, so that a neighbour on
the machine disturbs all sides alike.
Figures are ratios of times, ours over theirs: below 1 is quicker. docs/performance.md has the table that this prints.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

os.environ |= {"GPUCAST_NATIVE": "1", "GPUCAST_THREADS": "1"}

import gpucast
from bench.heatmap import heatmap
from gpucast.casting import plan_cache
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.cpu import compiled
from gpucast.native import cast as native_cast
from gpucast.native import library as host_native

try:
    import torch
except ImportError:
    torch = None

Array = npt.NDArray[Any]
Sides = dict[str, Callable[[], object]]

TYPES = (
    "FLOAT",
    "DOUBLE",
    "FLOAT16",
    "BFLOAT16",
    "FLOAT8E4M3FN",
    "FLOAT8E5M2",
    "INT8",
    "UINT8",
    "INT32",
    "INT64",
    "BOOL",
)
SIZES = (1, 1_000, 100_000, 1_000_000, 16_000_000)
#: A round is repeated this often at least, and for so many seconds of the processor.
ROUNDS, SECONDS = 4, 0.04
#: Calls in a row, and the most elements of arrays that are cast so.
CALLS, SHORT = 20, 1_000
#: The names of sides as the table has them: ours, and the other.
COLUMNS = (
    ("library", "astype"), ("library, out=", "copyto"), ("NumPy", "astype"), ("NumPy, out=", "copyto"),
    ("tensor", "to"),
)  # fmt: skip


class Ratio(NamedTuple):
    """The time of a call of ours over that of another's."""

    ratio: float
    pair: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.host_sizes", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, metavar="N", help="elements (default: all)")
    parser.add_argument("--all", action="store_true", help="all types, but only with the library")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="also list the N slowest pairs of a column")
    parser.add_argument("--heatmap", metavar="FILE", help="draw library / astype of every pair at the last size")
    asked = parser.parse_args(arguments)
    if torch is not None:
        torch.set_num_threads(1)
    types = [kind.name for kind in DTYPES if kind.family != "string"] if asked.all else TYPES
    columns = COLUMNS[:2] if asked.all else COLUMNS
    _compile(types)
    print("| Elements |" + "".join(f" {ours} / {other} |" for ours, other in columns))
    print("|---:|" + "---|" * len(columns))
    for size in asked.sizes:
        ratios: dict[tuple[str, str], list[Ratio]] = {column: [] for column in columns}
        for pair, best in _measured(size, types, set(itertools.chain(*columns))):
            for column in columns:
                if all(side in best for side in column):
                    ratios[column].append(Ratio(best[column[0]] / best[column[1]], pair))
        print(f"| {size:,} |" + "".join(f" {_text(found)} |" for found in ratios.values()), flush=True)
        for column, found in ratios.items():
            for one in sorted(found, reverse=True)[: asked.worst]:
                print(f"    {' / '.join(column)}: {one.pair} {one.ratio:.2f}")
    if asked.heatmap:
        _draw(asked.heatmap, ratios[COLUMNS[0]], types, asked.sizes[-1])
    return 0


def _draw(path: str, ratios: Sequence[Ratio], types: Sequence[str], size: int) -> None:
    known = {one.pair: one.ratio for one in ratios}
    values = [[known.get(f"{src} to {dst}", math.nan) for dst in types] for src in types]
    title = f"Casts on the host: time of the compiled library over astype's\n{size:,} elements, one thread"
    heatmap(path, types, types, values, title, "time / astype's time", low=0, middle=1, high=2, good="low")


def _text(ratios: list[Ratio]) -> str:
    """The median, and the worst pair."""
    if not ratios:
        return "-"
    worst = max(ratios)
    return f"{np.median([one.ratio for one in ratios]):.2f}, {worst.pair} {worst.ratio:.1f}"


def _compile(types: Sequence[str]) -> None:
    """Wait for the library of each type."""
    for i, src in enumerate(types):
        native_cast.find(resolve(dtype(src), dtype(types[i - 1])), 1)
        for thread in threading.enumerate():
            if thread.name == host_native.THREAD:
                thread.join()


def _measured(size: int, types: Sequence[str], names: set[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """The seconds of the sides with these names, for every pair that astype has."""
    values = np.random.default_rng(1).standard_normal(size) * 30
    for src, dst in itertools.permutations(types, 2):
        sides = _sides(gpucast.cast(values, src), src, dst)
        asked = {name: call for name, call in sides.items() if name in names}
        try:
            yield f"{src} to {dst}", _best(asked, resolve(dtype(src), dtype(dst)), CALLS if size <= SHORT else 1)
        except TypeError:
            # ml_dtypes has no such cast.
            continue


def _sides(x: Array, src: str, dst: str) -> Sides:
    result = np.empty(x.shape, dtype(dst).numpy)
    allocating, into = lambda: gpucast.cast(x, dst), lambda: gpucast.cast(x, dst, out=result)
    sides: Sides = {
        "astype": lambda: x.astype(result.dtype),
        "copyto": lambda: np.copyto(result, x, casting="unsafe"),
        "NumPy": allocating,
        "NumPy, out=": into,
    }
    if native_cast.find(resolve(dtype(src), dtype(dst))) is not None:
        sides |= {"library": allocating, "library, out=": into}
    if torch is not None and {src, dst} <= _TORCH.keys():
        tensor, to = _tensor(x, src), getattr(torch, _TORCH[dst])
        sides |= {"tensor": lambda: gpucast.cast(tensor, dst), "to": lambda: tensor.to(to)}
    return sides


def _tensor(x: Array, src: str) -> Any:
    """The same numbers as a tensor."""
    return torch.from_numpy(x.view(f"u{x.itemsize}")).view(getattr(torch, _TORCH[src]))


_TORCH = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT8": "int8",
    "FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E5M2": "float8_e5m2", "UINT8": "uint8", "INT32": "int32", "INT64": "int64",
    "BOOL": "bool",
}  # fmt: skip


def _best(sides: Sides, rule: CastRule, calls: int) -> dict[str, float]:
    best = dict.fromkeys(sides, math.inf)
    begin = time.process_time()
    rounds = 0
    with np.errstate(all="ignore"):
        while rounds < ROUNDS or time.process_time() - begin < SECONDS:
            rounds += 1
            for side, call in sides.items():
                with _without_library(rule) if side.startswith("NumPy") else contextlib.nullcontext():
                    start = time.perf_counter()
                    for _ in range(calls):
                        call()
                    best[side] = min(best[side], (time.perf_counter() - start) / calls)
    return best


@contextlib.contextmanager
def _without_library(rule: CastRule) -> Iterator[None]:
    finders, compiled.FINDERS[:] = compiled.FINDERS[:], []
    ready = compiled.READY.pop(rule, None)
    _plan(rule)
    try:
        yield
    finally:
        compiled.FINDERS[:] = finders
        if ready is not None:
            compiled.READY[rule] = ready
        _plan(rule)


def _plan(rule: CastRule) -> None:
    """Have the next call find a plan for what is ready now."""
    plan_cache.forget_rule(rule)
    gpucast.cast(np.empty(0, rule.src.numpy), rule.dst.name)


if __name__ == "__main__":
    raise SystemExit(main())
