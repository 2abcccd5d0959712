# SPDX-License-Identifier: Apache-2.0
"""Casts on the host beside ``x.astype``, ``np.copyto`` and PyTorch's ``t.to``, from 1 element to 16 million, as a user
meets them: a fresh process, default settings.

Allocating and into ``out=``, on data in range and with 1 % of special values; tensors hold the same numbers. Everyday
types also as 300 small arrays in one `cast_many` beside a loop of ``astype``, with every second element, and into a
transposed ``out=``. In each round every side runs once, short casts several times in a row, and the fastest round
counts, so that a neighbour on the machine disturbs all sides alike. The threads of PyTorch wait for work on all cores
for 8 ms after each cast of 32,768 elements: long tensors are cast after a rest, by either side several times.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import gpucast
from bench.host import strings
from bench.report import host_tables
from bench.report.host_tables import EVERYDAY, HostMeasurement
from bench.timing.times import quickest
from gpucast.cli.progress import progress_bar
from gpucast.core import extension
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.rule import CastRule, resolve
from gpucast.reference import exact_cast

try:
    import torch
except ImportError:
    torch = None

NDArray = npt.NDArray[Any]
Sides = dict[str, Callable[[], object]]

SIZES = (1, 1_000, 100_000, 1_000_000, 16_000_000)
#: Longer arrays are cast between everyday types alone.
LONG = 1_000_000
KINDS = ("in range", "1 % special")
#: Arrays of a list, and the kinds of what is measured for everyday types alone.
MANY = 300
MANY_ARRAYS, EVERY_SECOND, TRANSPOSED = "300 arrays", "every second element", "transposed, out="
#: Elements made once per pair and repeated to the required length; larger than the caches of a core.
BLOCK = 1 << 20
#: Results that are compared with the reference before a pair is timed.
CHECKED = 1 << 14
#: Calls in a row, and the most elements of arrays that are cast so.
CALLS, SHORT = 20, 1_000
#: Seconds after which PyTorch's threads sleep, and the casts of a tensor behind each such rest.
REST, TURNS = 0.01, 10
#: Rounds go on for so many seconds at least.
SECONDS = 0.02


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    numeric = [row for row in DTYPES if row.family != "string"]
    sources = [gpucast.dtype(name) for name in arguments.src] or numeric
    targets = [gpucast.dtype(name) for name in arguments.dst] or numeric
    all_types = not (arguments.src or arguments.dst)
    sizes = arguments.elements or SIZES
    rows: list[HostMeasurement] = []
    with progress_bar(len(sources) * len(targets), True, "pairs") as advance:
        for src, dst in itertools.product(sources, targets):
            everyday = {src.name, dst.name} <= set(EVERYDAY)
            rows += _measured(src, dst, [n for n in sizes if n <= LONG or everyday or not all_types], arguments.repeats)
            if everyday and src is not dst:
                rows += _other_forms(src, dst, arguments.repeats, [LONG for n in sizes if n >= LONG][:1])
            advance(1)
    for line in (host_tables.table(rows), "", *host_tables.all_pairs(rows)):
        print(line)
    versions = {"level": extension.status()} | ({} if torch is None else {"torch": torch.__version__})
    figures = {"repeats": arguments.repeats, **versions, "rows": [asdict(row) for row in rows]}
    if all_types:
        figures["strings"] = _strings(max(sizes))
    return figures


# ---- data ----


def in_range(src: DType, dst: DType, rng: np.random.Generator) -> NDArray:
    """Values that both types can hold: uniform where one is an integer, else normal."""
    if "bool" in (src.family, dst.family):
        values = rng.integers(0, 2, BLOCK).astype(np.float64)
    else:
        low, high = float(max(src.min, dst.min)), float(min(src.max, dst.max))
        if src.is_float and dst.is_float:
            values = rng.standard_normal(BLOCK) * min(1.0, high / 4)
            values = np.clip(np.abs(values) if low >= 0 else values, low, high)
        else:
            # Less than the limit, so that rounding in the source stays in range.
            values = rng.uniform(low, high * 15 / 16, BLOCK)
    return np.asarray(gpucast.cast(values, src))


def _sprinkle(x: NDArray, rule: CastRule, rng: np.random.Generator) -> None:
    """Put 1 % of NaN, infinities, limits, numbers out of the destination's range, and subnormals into x."""
    src, dst = rule.src, rule.dst
    numbers = [0.0, float(src.min), float(src.max), 4 * float(dst.max), 3 * float(dst.min)]
    if src.is_float:
        numbers += [np.nan, -np.nan, np.inf, -np.inf, gpucast.finfo(src).smallest_subnormal]
    if dst.is_float:
        numbers.append(gpucast.finfo(dst).smallest_subnormal)
    overflow: Literal["saturate"] | None = "saturate" if src.family == "int" else None
    specials = np.asarray(gpucast.cast(np.array(numbers), src, overflow=overflow))
    count = x.size // 100
    x[rng.choice(x.size, count, replace=False)] = rng.choice(specials.view(src.code_numpy), count).view(src.numpy)


# ---- measuring ----


def _measured(src: DType, dst: DType, sizes: Iterable[int], repeats: int) -> Iterator[HostMeasurement]:
    rng = np.random.default_rng(2)
    rule = resolve(src, dst)
    block = in_range(src, dst, rng)
    for kind in KINDS:
        if kind != KINDS[0]:
            _sprinkle(block, rule, rng)
        check(block[-CHECKED:], rule)
        for size in sizes:
            x, calls = np.resize(block, size), CALLS if size <= SHORT else 1
            best = _best(_sides(x, rule), calls, repeats)
            if _has_tensors(rule):
                turns, rest = (1 if size > LONG else TURNS, REST) if size > SHORT else (1, 0.0)
                best |= _best(_tensor_sides(x, rule), calls, repeats, turns, rest)
                # Arrays are next.
                time.sleep(rest)
            yield HostMeasurement(src.name, dst.name, kind, size, best)


def _other_forms(src: DType, dst: DType, repeats: int, long: Sequence[int]) -> Iterator[HostMeasurement]:
    """Lists of small arrays, and arrays with strides."""
    block, to = in_range(src, dst, np.random.default_rng(2)), dst.numpy
    arrays = [block[64 * i : 64 * i + 64].copy() for i in range(MANY)]
    try:
        block[:1].astype(to)
    except TypeError:
        return
    sides: Sides = {
        "cast_many": lambda: gpucast.cast_many(arrays, dst), "astype": lambda: [x.astype(to) for x in arrays],
    }  # fmt: skip
    yield HostMeasurement(src.name, dst.name, MANY_ARRAYS, 64 * MANY, _best(sides, 1, repeats))
    for size in long:
        every_second, square = np.resize(block, 2 * size)[::2], np.resize(block, (1000, 1000)).T
        out = np.empty(square.shape, to)
        yield HostMeasurement(src.name, dst.name, EVERY_SECOND, size, _best(_allocating(every_second, dst), 1, repeats))
        yield HostMeasurement(src.name, dst.name, TRANSPOSED, size, _best(_into(square, dst, out), 1, repeats))


def _allocating(x: NDArray, dst: DType) -> Sides:
    return {"cast": lambda: gpucast.cast(x, dst), "astype": lambda: x.astype(dst.numpy)}


def _into(x: NDArray, dst: DType, out: NDArray) -> Sides:
    return {"cast": lambda: gpucast.cast(x, dst, out=out), "astype": lambda: np.copyto(out, x, casting="unsafe")}


def check(x: NDArray, rule: CastRule) -> None:
    result = np.asarray(gpucast.cast(x, rule.dst))
    wanted = exact_cast.apply(x, rule)
    wrong = np.flatnonzero(result.view(rule.dst.code_numpy) != wanted.view(rule.dst.code_numpy))
    if wrong.size:
        i = wrong[0]
        raise SystemExit(f"bench: {rule} is wrong at {x[i]!r}: got {result[i]!r}, expected {wanted[i]!r}")


def _sides(x: NDArray, rule: CastRule) -> Sides:
    dst = rule.dst
    out = np.empty(x.shape, dst.numpy)
    sides: Sides = {"cast": lambda: gpucast.cast(x, dst), "cast, out=": lambda: gpucast.cast(x, dst, out=out)}
    with np.errstate(all="ignore"), contextlib.suppress(TypeError):
        x[:1].astype(out.dtype)  # TypeError: ml_dtypes lacks the pair.
        sides |= {"astype": lambda: x.astype(out.dtype), "copyto": lambda: np.copyto(out, x, casting="unsafe")}
    return sides


def _tensor_sides(x: NDArray, rule: CastRule) -> Sides:
    given, to = tensor(x), getattr(torch, rule.dst.numpy_name)
    # A tensor that has the type already would be returned as it is.
    copy = {"copy": True} if rule.src is rule.dst else {}
    return {"tensor": lambda: gpucast.cast(given, rule.dst), "to": lambda: given.to(to, **copy)}


def _has_tensors(rule: CastRule) -> bool:
    return torch is not None and {rule.src.name, rule.dst.name} <= set(EVERYDAY)


def tensor(x: NDArray) -> Any:
    """The same numbers as a tensor of PyTorch, which has the types of ml_dtypes by the same names."""
    return torch.from_numpy(x.view(f"u{x.itemsize}")).view(getattr(torch, gpucast.dtype(x.dtype).numpy_name))


def _best(sides: Sides, calls: int, repeats: int, turns: int = 1, rest: float = 0.0) -> dict[str, float]:
    """Microseconds of a call of each side."""
    best = quickest(sides, repeats, calls=calls, turns=turns, rest=rest, least=SECONDS)
    return {side: round(seconds * 1e6, 3) for side, seconds in best.items()}


def _strings(elements: int) -> list[tuple[str, float]]:
    """Elements per second; the texts of more than a million numbers would fill the memory of a small machine."""
    rows = strings.rows(min(elements, 1 << 20))
    print("\nstrings, M/s")
    for name, speed in rows:
        print(f"  {name}: {speed / 1e6:.2f}")
    return rows
