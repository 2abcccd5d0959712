# SPDX-License-Identifier: Apache-2.0
"""Whether a written file holds what the specification of record gives for its source."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.planning.tensors import Request, TensorPlan, TensorPlanner
from gpucast.core.options import Options
from gpucast.core.rule import resolve
from gpucast.files import FileError, Tensor, TensorFile
from gpucast.files.tensor import Array, StoredTensor
from gpucast.reference import casting as reference

#: Elements of a piece, and those of it that are compared when not all are: what a tensor of any size can afford.
_PIECE, _SAMPLE = 1 << 20, 1 << 10


def verify(source_path: str, written: str, file: FilePlan, plan: ConversionPlan, everything: bool, name: str) -> int:
    """Compare a finished file with its source; how many elements were compared. FileError names the first that differs.

    Of tensors that are cast all elements are compared with `gpucast.reference`, or a sample; kept ones byte by byte.
    `name` is what messages call the file.
    """
    compared = 0
    with TensorFile(source_path) as before, TensorFile(written) as after:
        planner = TensorPlanner(before, plan.request, alone=plan.single, scales=file.scales)
        sources = {tensor.name: tensor for tensor in planner.tensors}
        found = {tensor.name: tensor for tensor in after.tensors}
        by_place = list(after.tensors)
        wanted = [written_name for tensor in file.tensors or () for written_name in tensor.names]
        if len(by_place) != len(wanted):
            raise FileError(f"{name}: verify: holds {len(by_place)} tensors; expected {len(wanted)}")
        for tensor in file.tensors or ():
            source = sources[tensor.name]
            scaled = planner.scaled(source) if tensor.dtype is not None else None
            if scaled is not None:
                parts = {written_name: _get(found, written_name, name) for written_name in tensor.names}
                compared += scaled.verify(parts, everything, f"{name}: verify")
                continue
            target = found.get(tensor.name)
            if target is None:
                # Formats of one tensor name it after the file; a model's converted initializers have new names.
                target = by_place[wanted.index(tensor.name)]
            compared += _compare(tensor, source, target, plan.request, everything, name)
    return compared


def _get(found: Mapping[str, Tensor], wanted: str, name: str) -> Tensor:
    if wanted not in found:
        raise FileError(f"{name}: verify: tensor {wanted!r} is missing")
    return found[wanted]


def _compare(plan: TensorPlan, source: Tensor, target: Tensor, request: Request, everything: bool, name: str) -> int:
    caller = f"{name}: verify: tensor {plan.name!r}"
    expected_row = source.dtype if plan.dtype is None else plan.dtype
    if target.shape != source.shape or target.dtype is not expected_row:
        raise FileError(f"{caller} is {target.kind} {target.shape}; expected {expected_row} {source.shape}")
    if source.dtype is None or expected_row is None:
        if isinstance(source, StoredTensor) and isinstance(target, StoredTensor):
            for one, other in itertools.zip_longest(source.blocks(), target.blocks()):
                if one != other:
                    raise FileError(f"{caller} was to be kept, and its bytes differ")
        return source.size
    rule = resolve(source.dtype, expected_row, Options(**request.attributes)) if plan.dtype is not None else None
    random = request.random(plan.name)
    start = compared = 0
    chance = np.random.default_rng(source.size)
    for x, y in zip(source.pieces(_PIECE), target.pieces(_PIECE), strict=True):
        chosen: Any = slice(None)
        if rule is not None and not everything and x.size > _SAMPLE:
            chosen = np.sort(chance.choice(x.size, _SAMPLE, replace=False))
        before, after = x[chosen], y[chosen]
        wanted = before
        if rule is not None:
            words = None
            if random is not None:
                words = reference.random_words_at(random, start + np.arange(x.size)[chosen])
            wanted = reference.apply(before, rule, words)
        different = _differences(np.asarray(wanted), after)
        if different.size:
            place = int(different[0])
            index = start + (place if isinstance(chosen, slice) else int(chosen[place]))
            raise FileError(
                f"{caller}: element {index} is {after[place]}; expected {np.asarray(wanted)[place]} from "
                f"{before[place]}"
            )
        start += x.size
        compared += before.size
    return compared


def _differences(wanted: Array, found: Array) -> Array:
    if wanted.dtype == object or wanted.dtype.kind in "USO":
        return np.flatnonzero(wanted.astype(object) != found.astype(object))
    codes = np.dtype(f"u{wanted.dtype.itemsize}")
    return np.flatnonzero(wanted.view(codes) != found.view(codes))
