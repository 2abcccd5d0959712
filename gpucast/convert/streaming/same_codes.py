# SPDX-License-Identifier: Apache-2.0
"""Holds the codes of a piece against the reference without quantizing each number again.

The scale of a block depends on its lowest and largest number alone, so that the reference gives all scales from these.
A number divided by its scale is one IEEE 754 operation, here as there. For narrow floats the reference says, by
bisection, which quotients have which code; integers are rounded by IEEE 754's roundToIntegralTiesToEven.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.convert.streaming.intervals import Intervals
from gpucast.convert.streaming.pieces import Quantizer, by_reference
from gpucast.convert.streaming.pieces import lengths as lengths_of
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import Options, resolve
from gpucast.files.tensor import NDArray
from gpucast.quantization.formats import Format, Parts
from gpucast.quantization.steps import evaluate
from gpucast.reference import cast


def are_same(quantizer: Quantizer, x: NDArray, codes: NDArray, parts: Parts) -> bool:
    """Whether the reference gives these codes and scales of a matrix. False where it takes the reference itself to
    tell."""
    format, scale, shared = quantizer.format, quantizer.scale, quantizer.shared
    steps, source = format.steps, dtype(x.dtype)
    # Where each number counts for the scale, or quotients round to the type of the array before they become codes.
    is_known = format.rule != "4over6" and (steps is None or not steps.rounds_codes or source is dtype("FLOAT"))
    if not is_known or quantizer.random is not None or not np.isfinite(x).all():
        return False
    ends = _extremes(x, format) if shared is None else shared[:2].reshape(1, 2).astype(x.dtype)
    known = by_reference(ends, replace(format, name="ends", block=(2,)), axis=-1, scale=scale)
    pairs = ((known.scales, parts.scales), (known.zero_points, parts.zero_points))
    if not all(same_bytes(one, other) for one, other in pairs if one is not None):
        return False
    with np.errstate(all="ignore"):
        q = _quotients(x, ends, known, format, scale)
        if format.element.family == "float":
            return not _intervals(dtype(q.dtype), format.element).suspects(q.reshape(-1), codes.reshape(-1)).size
        zero = 0 if known.zero_points is None else _wide(known.zero_points.astype(np.float64), x.shape, format)
        first, last = float(format.element.min), float(format.element.max)
        wanted = np.clip(np.rint(q) + zero, first, last).astype(np.int16) & np.int16(format.element.code_mask)
    return bool((wanted.astype(np.uint8) == codes.view(np.uint8)).all())


def _quotients(x: NDArray, ends: NDArray, known: Parts, format: Format, scale: Any) -> NDArray:
    steps = format.steps
    if steps is None:
        g = np.float64(1) if known.global_scale is None else np.float64(known.global_scale)
        by = np.asarray(cast(known.scales, "DOUBLE")) * g
        return np.asarray(x.astype(np.float64) / _wide(by, x.shape, format))
    # As in `gpucast.quantization.exact_quantize`, step 8.
    source = dtype(x.dtype)
    low, high = np.minimum(ends[:, 0], 0).astype(np.float64), np.maximum(ends[:, 1], 0).astype(np.float64)
    a = np.abs(cast(np.maximum(-low * format.negative_weight, high), "FLOAT"))
    u = np.asarray(np.float32(1) if scale is None else cast(scale, "FLOAT"))
    values = {"a": a, "s": cast(known.scales, "FLOAT").reshape(a.shape), "u": u}
    factor = evaluate(steps.factor, values, source, lambda p: cast(cast(p, source), "FLOAT"))
    wide = _wide(np.broadcast_to(factor, a.shape), x.shape, format)
    numbers = x.astype(np.float32)
    return np.asarray(numbers * wide if steps.multiplies else numbers / wide)


def _extremes(x: NDArray, format: Format) -> NDArray:
    """The lowest and the largest number of each block, in the order of the scales."""
    given, x = x.dtype, x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    places = [range(0, size, length) for size, length in zip(x.shape, lengths_of(format, x.shape), strict=True)]
    found = []
    for of in (np.minimum, np.maximum):
        one = x
        for i, starts in enumerate(places):
            if len(starts) < x.shape[i]:
                one = of.reduceat(one, list(starts), i)
        found.append(one.reshape(-1))
    return np.stack(found, 1).astype(given)


def _wide(by_block: NDArray, shape: tuple[int, ...], format: Format) -> NDArray:
    """What belongs to blocks, for each of their elements."""
    if by_block.size == 1:
        return by_block.reshape(1, 1)
    lengths = lengths_of(format, shape)
    wide = by_block.reshape([-(-size // length) for size, length in zip(shape, lengths, strict=True)])
    for i, (size, length) in enumerate(zip(shape, lengths, strict=True)):
        # A length that covers all is broadcast.
        if 1 < length < size:
            wide = np.repeat(wide, length, i)[(slice(None),) * i + (slice(size),)]
    return wide


def same_bytes(wanted: NDArray, actual: NDArray) -> bool:
    return wanted.dtype == actual.dtype and wanted.tobytes() == actual.tobytes()


@lru_cache(8)
def _intervals(source: DType, element: DType) -> Intervals:
    return Intervals(resolve(source, element, Options()))
