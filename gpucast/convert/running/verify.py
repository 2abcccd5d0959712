# SPDX-License-Identifier: Apache-2.0
"""Compares a written file with the results of the specification of record."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache

import numpy as np

from gpucast.convert.planning.plan import ConversionPlan, FilePlan
from gpucast.convert.planning.planner import opened
from gpucast.convert.planning.tensor_plan import TensorPlan
from gpucast.convert.scales.request import Request
from gpucast.convert.streaming.intervals import Intervals
from gpucast.convert.streaming.prefetch import Prefetcher
from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.files import FileError, Tensor, TensorFile
from gpucast.files.tensor import NDArray, StoredTensor
from gpucast.reference import exact_cast

#: Elements of a piece, and those of it that are compared when not all are: what a tensor of any size can afford.
_PIECE, _SAMPLE = 1 << 20, 1 << 10


def verify(
    written: str,
    file: FilePlan,
    plan: ConversionPlan,
    everything: bool,
    name: str,
    prefetcher: Prefetcher,
    advance: Callable[[int], object] = lambda done: None,
) -> int:
    """Compare a finished file with its sources. Returns the number of compared elements. FileError names one that
    differs.

    For cast tensors all elements, or a sample, are compared with `gpucast.reference`. Kept tensors are compared byte by
    byte. Messages use `name` for the file. `advance` takes the bytes of sources that are done.
    """
    compared, many = 0, dict[DType | None, int]()
    for _, one in plan.converted if everything else ():
        many[one.dtype] = many.get(one.dtype, 0) + math.prod(one.shape)
    with opened(file, plan.request, plan.single) as before, TensorFile(written) as after:
        found = {tensor.name: tensor for tensor in after.tensors}
        by_place = list(after.tensors)
        wanted = [written_name for tensor in file.tensors or () for written_name in tensor.names]
        if len(by_place) != len(wanted):
            raise FileError(f"{name}: verify: holds {len(by_place)} tensors; expected {len(wanted)}")
        for tensor, source, planner in zip(file.tensors or (), before.tensors, before.planners, strict=True):
            scaled = planner.scaled(source) if tensor.dtype is not None else None
            done = _by_elements(source, advance)
            if scaled is not None:
                if missing := next((one for one in tensor.names if one not in found), ""):
                    raise FileError(f"{name}: verify: tensor {missing!r} is missing")
                compared += scaled.verify(found, everything, f"{name}: verify", prefetcher, done)
                continue
            target = found.get(tensor.name)
            if target is None:
                # Formats of one tensor name it after the file; a model's converted initializers have new names.
                target = by_place[wanted.index(tensor.name)]
            compared += _compare(tensor, source, target, plan.request, everything, name, prefetcher, done, many)
    return compared


def _by_elements(source: Tensor, advance: Callable[[int], object]) -> Callable[[int], object]:
    """Takes elements of a tensor that are done, and advances by their bytes."""
    return lambda elements: advance(source.nbytes * elements // max(1, source.size))


def _compare(
    plan: TensorPlan,
    source: Tensor,
    target: Tensor,
    request: Request,
    everything: bool,
    name: str,
    prefetcher: Prefetcher,
    advance: Callable[[int], object],
    many: Mapping[DType | None, int],
) -> int:
    caller = f"{name}: verify: tensor {plan.name!r}"
    expected_row = source.dtype if plan.dtype is None else plan.dtype
    if target.shape != source.shape or target.dtype is not expected_row:
        raise FileError(f"{caller} is {target.kind} {target.shape}; expected {expected_row} {source.shape}")
    if source.dtype is None or expected_row is None:
        if isinstance(source, StoredTensor) and isinstance(target, StoredTensor):
            for one, other in itertools.zip_longest(source.blocks(), target.blocks()):
                if one != other:
                    raise FileError(f"{caller} was to be kept, and its bytes differ")
        advance(source.size)
        return source.size
    rule = resolve(source.dtype, expected_row, Options(**request.attributes)) if plan.dtype is not None else None
    random = request.random(plan.name)
    intervals = _intervals(rule) if rule is not None and everything and _are_worth_it(rule, plan, many) else None

    def work(piece: tuple[int, NDArray, NDArray]) -> int:
        start, x, y = piece
        size, places = int(x.size), None
        if intervals is not None:
            places = intervals.suspects(x, y)
            x, y = x[places], y[places]
        wanted = x
        if rule is not None:
            words = None if random is None else exact_cast.random_words_at(random, start + np.arange(x.size))
            wanted = exact_cast.apply(x, rule, words)
        different = _differences(np.asarray(wanted), y)
        if different.size:
            place = int(different[0])
            at = start + (place if places is None else int(places[place]))
            raise FileError(
                f"{caller}: element {at} is {y[place]}; expected {np.asarray(wanted)[place]} from {x[place]}"
            )
        return size

    compared, left = 0, source.size
    with closing(prefetcher.in_order(work, _pieces(source, target, everything or rule is None))) as done:
        for size in done:
            compared += size
            advance(min(_PIECE, left))
            left -= min(_PIECE, left)
    return compared


def _are_worth_it(rule: CastRule, plan: TensorPlan, many: Mapping[DType | None, int]) -> bool:
    """Whether the reference alone would take longer than the search for intervals, for all tensors of that type."""
    cost = Intervals.cost(rule)
    return cost is not None and many.get(plan.dtype, 0) > 2 * cost


@lru_cache(4)
def _intervals(rule: CastRule) -> Intervals:
    return Intervals(rule)


def _pieces(source: Tensor, target: Tensor, everything: bool) -> Iterator[tuple[int, NDArray, NDArray]]:
    """Pieces of both tensors with the index of their first element: all elements, or some of each piece."""
    chance = np.random.default_rng(source.size)
    sizes = [min(_PIECE, source.size - start) for start in range(0, source.size, _PIECE)]
    # A run of elements, which begins on a byte.
    runs = [(0, n) if everything else (int(chance.integers(max(0, n - _SAMPLE) // 4 + 1)) * 4, _SAMPLE) for n in sizes]
    places = [index * _PIECE for index in range(len(sizes))]
    if not everything and source.part(0, 1) is not None and target.part(0, 1) is not None:
        for place, size, (first, count) in zip(places, sizes, runs, strict=True):
            parts = [tensor.part(place + first, min(count, size - first)) for tensor in (source, target)]
            x, y = (part.read() for part in parts if part is not None)
            yield place + first, x, y
        return
    for place, (first, count), x, y in zip(places, runs, source.pieces(_PIECE), target.pieces(_PIECE), strict=True):
        chosen = slice(first, first + count)
        yield place + first, x[chosen], y[chosen]


def _differences(wanted: NDArray, found: NDArray) -> NDArray:
    if wanted.dtype == object or wanted.dtype.kind in "USO":
        return np.flatnonzero(wanted.astype(object) != found.astype(object))
    codes = np.dtype(f"u{wanted.dtype.itemsize}")
    return np.flatnonzero(wanted.view(codes) != found.view(codes))
