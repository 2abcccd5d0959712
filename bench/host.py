# SPDX-License-Identifier: Apache-2.0
"""The host path compared with ``x.astype(dst)``: all numeric pairs, on in-range data and with 1 % special values.

Both sides allocate their result. In each round every side runs once, and the fastest round counts, so that a neighbour
on the machine disturbs all sides alike. Times are processor time of the one thread that does all the work: on an idle
machine that is the time that passes. Ratios are our time over astype's: below 1 is quicker.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import gpucast
from bench import strings
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.rule import CastRule, resolve
from gpucast.cpu import lanes
from gpucast.reference import casting as reference

Array = npt.NDArray[Any]

KINDS = ("in range", "1 % special")
#: Elements made once per pair and repeated to the required length; larger than the caches of a core.
BLOCK = 1 << 20
#: Results that are compared with the reference before a pair is timed.
CHECKED = 1 << 14
#: The goals of the project.
MEDIAN, EACH, FLOAT_TO_INTEGER, TABLE_RATE = 1.0, 1.5, 2.0, 400.0


@dataclass(frozen=True)
class HostMeasurement:
    """Speeds in millions of elements per second; 0 if astype does not support the pair."""

    src: str
    dst: str
    kind: str
    cast: float
    astype: float
    #: With `out`; 0 for pairs that are not table-driven.
    cast_out: float
    float_to_integer: bool

    @property
    def ratio(self) -> float:
        return self.astype / self.cast

    @property
    def limit(self) -> float:
        return FLOAT_TO_INTEGER if self.float_to_integer else EACH


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    numeric = [row for row in DTYPES if row.family != "string"]
    sources = [gpucast.dtype(name) for name in arguments.src] or numeric
    targets = [gpucast.dtype(name) for name in arguments.dst] or numeric
    rows = list(_rows(sources, targets, arguments.elements, arguments.repeats))
    _print_ratios(rows, sources, targets)
    summary = _summary(rows)
    for line in summary["text"]:
        print(line)
    figures = {"elements": arguments.elements, "repeats": arguments.repeats, "rows": [asdict(row) for row in rows]}
    figures |= summary
    if not (arguments.src or arguments.dst):
        figures["strings"] = _strings(arguments.elements)
    return figures


def _rows(sources: list[DType], targets: list[DType], elements: int, repeats: int) -> Iterator[HostMeasurement]:
    rng = np.random.default_rng(2)
    for src, dst in _progress([(src, dst) for src in sources for dst in targets]):
        rule = resolve(src, dst)
        block = _in_range(src, dst, rng)
        for kind in KINDS:
            if kind != KINDS[0]:
                _sprinkle(block, rule, rng)
            _check(block[-CHECKED:], rule)
            yield _time(np.resize(block, elements), rule, kind, repeats)


def _progress(pairs: list[tuple[DType, DType]]) -> Iterable[tuple[DType, DType]]:
    try:
        from tqdm import tqdm
    except ImportError:
        return pairs
    return tqdm(pairs, unit="pair", leave=False)  # type: ignore[no-any-return]


# ---- data ----


def _in_range(src: DType, dst: DType, rng: np.random.Generator) -> Array:
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


def _sprinkle(x: Array, rule: CastRule, rng: np.random.Generator) -> None:
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


def _check(x: Array, rule: CastRule) -> None:
    result = np.asarray(gpucast.cast(x, rule.dst))
    wanted = reference.apply(x, rule)
    wrong = np.flatnonzero(result.view(rule.dst.code_numpy) != wanted.view(rule.dst.code_numpy))
    if wrong.size:
        i = wrong[0]
        raise SystemExit(f"bench: {rule} is wrong at {x[i]!r}: got {result[i]!r}, expected {wanted[i]!r}")


def _time(x: Array, rule: CastRule, kind: str, repeats: int) -> HostMeasurement:
    kind_of_result = rule.dst.numpy
    sides: dict[str, Callable[[], Any]] = {"cast": lambda: gpucast.cast(x, rule.dst)}
    with np.errstate(all="ignore"):
        try:
            x[:1].astype(kind_of_result)
            sides["astype"] = lambda: x.astype(kind_of_result)
        except TypeError:  # ml_dtypes lacks the pair.
            pass
        if lanes.table_driven(rule):
            out = np.empty(x.shape, kind_of_result)
            sides["cast_out"] = lambda: gpucast.cast(x, rule.dst, out=out)
        best = dict.fromkeys(sides, float("inf"))
        for _ in range(repeats):
            for side, call in sides.items():
                begin = time.thread_time()
                call()
                best[side] = min(best[side], time.thread_time() - begin)
    speed = {side: round(x.size / seconds / 1e6, 1) for side, seconds in best.items()}
    float_to_integer = rule.src.is_float and rule.dst.family == "int"
    cast, astype, cast_out = (speed.get(side, 0.0) for side in ("cast", "astype", "cast_out"))
    return HostMeasurement(rule.src.name, rule.dst.name, kind, cast, astype, cast_out, float_to_integer)


# ---- printing ----


def _print_ratios(rows: list[HostMeasurement], sources: list[DType], targets: list[DType]) -> None:
    """One line per source: the larger ratio of both kinds of data, or, if astype fails, our speed with an M."""
    worst: dict[tuple[str, str], HostMeasurement] = {}
    for row in rows:
        key = row.src, row.dst
        if key not in worst or (row.ratio, -row.cast) > (worst[key].ratio, -worst[key].cast):
            worst[key] = row
    print("Time over astype's, the worse of two kinds of data (no astype: M elements/s)")
    width = max(len(row.name) for row in sources)
    print(" " * width, *(f"{_short(row):>6}" for row in targets))
    for src in sources:
        cells = (worst[src.name, dst.name] for dst in targets)
        print(f"{src.name:{width}}", *(f"{row.ratio:6.2f}" if row.astype else f"{row.cast:5.0f}M" for row in cells))


def _short(row: DType) -> str:
    name = row.name.replace("FLOAT", "F").replace("UINT", "U").replace("INT", "I")
    return name.removeprefix("F8") if len(name) > 6 else name


def _summary(rows: list[HostMeasurement]) -> dict[str, Any]:
    compared = [row for row in rows if row.astype]
    table = [row for row in rows if row.cast_out]
    text, figures = [], dict[str, Any]()
    if compared:
        median = statistics.median(row.ratio for row in compared)
        over = sorted((row for row in compared if row.ratio > row.limit), key=lambda row: -row.ratio)
        figures |= {"median_ratio": median, "over_limit": len(over), "compared": len(compared)}
        text.append(f"median ratio {median:.2f} (goal: under {MEDIAN}) over {len(compared)} measurements")
        text.append(f"over the limit of {EACH} ({FLOAT_TO_INTEGER} for float to integer): {len(over)}")
        text += [f"  {row.src} -> {row.dst}, {row.kind}: {row.ratio:.2f}" for row in over]
    if table:
        for name, what in (("cast", "allocating"), ("cast_out", "out= given")):
            slowest = min(table, key=lambda row: getattr(row, name))
            below = sum(getattr(row, name) < TABLE_RATE for row in table)
            figures |= {f"table_{name}_below_goal": below, f"table_{name}_slowest": getattr(slowest, name)}
            text.append(
                f"table-driven, {what}: {below} of {len(table)} below {TABLE_RATE:.0f} M/s; "
                f"slowest {getattr(slowest, name):.0f} M/s ({slowest.src} -> {slowest.dst}, {slowest.kind})"
            )
    return {"text": text, **figures}


def _strings(elements: int) -> list[tuple[str, float]]:
    """Elements per second; the texts of more than a million numbers would fill the memory of a small machine."""
    rows = strings.rows(min(elements, 1 << 20))
    print("\nstrings, M/s")
    for name, speed in rows:
        print(f"  {name}: {speed / 1e6:.2f}")
    return rows
