# SPDX-License-Identifier: Apache-2.0
"""From differing results to a few kinds of difference, each with its types, its count and one example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

import gpucast
from gpucast.core.dtypes import DTYPES, DType
from sidebyside.inputs import sweep
from sidebyside.systems import Array, Setting, System, UnsupportedError

NUMERIC = tuple(row for row in DTYPES if row.family != "string")
FLOAT, DOUBLE = gpucast.dtype("FLOAT"), gpucast.dtype("DOUBLE")
#: Ends the name of a kind whose results ONNX leaves undefined, or whose bits depend on the processor.
VARIES = " †"
TWICE = "rounded twice, by way of FLOAT"


@dataclass
class Difference:
    """One kind of difference: the casts where it occurs, how often, and an example."""

    kind: str
    cases: int = 0
    #: All results of these casts, differing or not.
    tried: int = 0
    sources: list[DType] = field(default_factory=list)
    destinations: list[DType] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    #: Source, destination, setting, then one element each of input, gpucast's result and the other result.
    example: tuple[DType, DType, Setting, Array, Array, Array] | None = None

    def add(self, other: Difference) -> None:
        self.cases += other.cases
        self.tried += other.tried
        self.sources += [row for row in other.sources if row not in self.sources]
        self.destinations += [row for row in other.destinations if row not in self.destinations]
        self.settings += [setting for setting in other.settings if setting not in self.settings]
        self.example = self.example or other.example


@dataclass
class Comparison:
    system: System
    pairs: int
    tried: int
    differences: list[Difference]
    refused: dict[DType, list[DType]]


def compare(system: System) -> Comparison:
    """Cast everything with both, and sort out what differs."""
    pairs = tried = 0
    found: dict[tuple[object, ...], Difference] = {}
    refused: dict[DType, list[DType]] = {}
    for src in NUMERIC:
        x = sweep(src)
        for dst in NUMERIC:
            try:
                results = [(setting, system.cast(x, src, dst, setting)) for setting in system.settings(src, dst)]
            except UnsupportedError:
                refused.setdefault(src, []).append(dst)
                continue
            pairs += 1
            tried += x.size * len(results)
            for setting, theirs in results:
                ours = setting.cast(x, dst)
                for kind, mask in _kinds(x, src, dst, setting, ours, theirs):
                    here = found.setdefault((kind, _group(kind, dst, setting), src), Difference(kind))
                    one = _plainest(x, mask) if here.example is None else slice(0)
                    example = (src, dst, setting, x[one], ours[one], theirs[one])
                    here.add(Difference(kind, int(mask.sum()), x.size, [src], [dst], [setting], example))
    return Comparison(system, pairs, tried, _merged(found), refused)


def _merged(found: dict[tuple[object, ...], Difference]) -> list[Difference]:
    """Sources with the same destinations and settings share a row; where results vary anyway, all sources do."""
    rows: dict[tuple[object, ...], Difference] = {}
    for (kind, group, _), difference in found.items():
        exact = (*difference.destinations, *difference.settings)
        key = (kind, group) if difference.kind.endswith(VARIES) else (kind, group, exact)
        rows.setdefault(key, Difference(difference.kind)).add(difference)
    return list(rows.values())


def _group(kind: str, dst: DType, setting: Setting) -> str:
    """What else tells rows of a table apart."""
    if kind == TWICE:
        return ""
    if dst.family == "e8m0":
        return f"{dst.name} {setting.saturate}"
    if dst.saturate_applies:
        return dst.specials
    return dst.name if dst.family == "bool" else f"{'small' if dst.bits < 8 else 'wide'} {dst.family}"


def _plainest(x: Array, mask: Array) -> slice:
    """Where the value with the shortest text is, of those the smallest: the easiest example to read."""
    at = np.flatnonzero(mask)
    at = at[:: max(1, len(at) // 4096)]
    texts = gpucast.cast(x[at], "STRING").tolist()
    values = np.abs(gpucast.cast(x[at], DOUBLE)).tolist()
    best = int(at[min(range(len(at)), key=lambda i: (len(texts[i]), values[i], i))])
    return slice(best, best + 1)


def codes_of(x: Array, row: DType) -> Array:
    codes: Array = np.ascontiguousarray(x).view(row.code_numpy) & row.code_numpy.type(row.code_mask)
    return codes


def _kinds(
    x: Array, src: DType, dst: DType, setting: Setting, ours: Array, theirs: Array
) -> Iterator[tuple[str, Array]]:
    """Name what differs: each differing element is in exactly one of the masks."""
    rest = codes_of(ours, dst) != codes_of(theirs, dst)
    for kind, mask in _tests(x, src, dst, setting, ours, theirs) if rest.any() else ():
        found = rest & mask
        if found.any():
            yield kind, found
        rest &= ~mask


def _tests(
    x: Array, src: DType, dst: DType, setting: Setting, ours: Array, theirs: Array
) -> Iterator[tuple[str, Array]]:
    """The kinds in the order in which they are tried."""
    value = gpucast.cast(x, DOUBLE)
    nan, infinite = np.isnan(value), np.isinf(value)
    everything = np.ones(value.shape, bool)
    if src is dst:
        yield "same type", everything
    if dst.family == "int":
        whole = np.trunc(value)
        yield f"NaN to integer{VARIES}", nan
        yield f"infinity to integer{VARIES}", infinite
        yield f"out of range to integer{VARIES}", (whole < float(dst.min)) | (whole > float(dst.max))
        yield "fraction to integer", whole != value
    if dst.family == "bool":
        yield "negative zero to BOOL", (value == 0) & np.signbit(value)
        yield "non-zero to BOOL", value != 0
    if dst.is_float:
        nans = nan & np.isnan(gpucast.cast(theirs, DOUBLE))
        yield "sign of NaN", nans & (codes_of(ours, dst) ^ codes_of(theirs, dst) == dst.sign_code)
        yield f"payload of NaN{VARIES}" if dst.bits > 8 else "code of NaN", nans
        yield "NaN", nan
        # Differs only where the source is wider than FLOAT.
        twice = codes_of(setting.cast(gpucast.cast(x, FLOAT), dst), dst)
        yield TWICE, codes_of(theirs, dst) == twice
        yield "infinity", infinite
    if dst.family == "e8m0":
        yield "negative", value < 0
        yield "zero", value == 0
        yield "0 < x < 2^-127", value < dst.min
        yield "x > 2^127", value > dst.max
        yield "2^-127 <= x < 2^-126", value < 2.0**-126
    if dst.is_float:
        yield "above the largest value", np.abs(value) > dst.max
    yield "other", everything
