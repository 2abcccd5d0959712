# SPDX-License-Identifier: Apache-2.0
"""Finds the recipe by which a quantized tensor was made from the original: by trying each one on some rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from gpucast.arrays.packed import PackedArray
from gpucast.convert.difference.numbers import PIECE, code_pieces, unequal
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.files import Tensor
from gpucast.files.tensor import Array
from gpucast.quantization import RECIPES, quantize
from gpucast.quantization.formats import FORMATS, SOURCES, Format

#: About so many elements are quantized by each recipe, in whole rows of the largest blocks.
_ELEMENTS, _ROWS = 1 << 18, 128


@dataclass(frozen=True)
class Explanation:
    """A recipe, and how many codes and scales of some rows it has otherwise than the checkpoint."""

    recipe: str
    codes: int
    scales: int
    of: int

    @property
    def is_exact(self) -> bool:
        return not self.codes and not self.scales


@dataclass
class Original:
    """A tensor that others were made from. It is read once for all of them."""

    tensor: Tensor

    @cached_property
    def rows(self) -> tuple[int, Array]:
        """How many of its first rows there are, and these. Where these are not all, one more stands for the rest: it
        has the largest magnitude of all."""
        columns, top = self.tensor.shape[1], 0.0
        rows = min(self.tensor.shape[0], max(_ROWS, _ELEMENTS // columns // _ROWS * _ROWS))
        kept: list[Array] = []
        missing = rows * columns
        for chunk in self.tensor.chunks():
            kept.append(chunk[:missing])
            missing -= kept[-1].size
            magnitudes = np.abs(chunk[np.isfinite(chunk)])
            top = max(top, float(magnitudes.max(initial=0)))
        last = np.zeros(columns, kept[0].dtype)
        last[0] = top
        return rows, np.concatenate(kept if rows == self.tensor.shape[0] else [*kept, last]).reshape(-1, columns)


def explanations(tensor: Tensor, original: Original) -> list[Explanation]:
    """The recipes that fit a quantized tensor's form, the best first. Empty for a tensor that is not quantized, and for
    an original that is quantized itself or not of a type to quantize."""
    made_from = original.tensor
    if not isinstance(tensor, Dequantized) or isinstance(made_from, Dequantized):
        return []
    if made_from.dtype not in SOURCES or made_from.shape != tensor.shape:
        return []
    stored = tensor.detected.stored
    assert stored is not None
    if stored.transposed or len(tensor.shape) != 2 or not tensor.size:
        return []
    rows, x = original.rows
    n = rows * x.shape[1]
    codes = np.concatenate(list(islice(code_pieces(tensor), -(-n // PIECE))))[:n].reshape(rows, -1)
    parts = tensor.all_scales()
    found = []
    for name, format, axis in _candidates(x, stored.format):
        given = _leading(parts.scales.reshape(format.scales_shape(tensor.shape, axis)), format, rows)
        tries = []
        for scale in (None, _passed(format, parts.global_scale)) if format.global_scale else (None,):
            q = quantize(x, format, axis=axis, scale=scale)
            own = q.data.get() if isinstance(q.data, PackedArray) else q.data
            own_scales = _leading(q.scales, format, rows)
            if q.scales.size and own_scales.shape == given.shape:
                differ, scales_differ = (
                    int(unequal(*pair).sum()) for pair in ((own[:rows], codes), (own_scales, given))
                )
                tries.append(Explanation(name, differ, scales_differ, codes.size))
        found += sorted(tries, key=_badness)[:1]
    return sorted(found, key=_badness)


def _badness(one: Explanation) -> tuple[int, int]:
    return one.codes + one.scales, one.codes


def _passed(format: Format, global_scale: Any) -> float | None:
    """The scale that `quantize` takes for a stored global scale, which may be that of several joined weights."""
    divides = format.steps is not None and format.steps.global_scale == "1/u"
    with np.errstate(all="ignore"):
        found = np.float32(1 / np.float64(global_scale) if divides else global_scale)
    return float(found) if 0 < found < np.inf else None


def _candidates(x: Array, stored: Format) -> Iterator[tuple[str, Format, int]]:
    """The names, formats and axes whose blocks fit the stored tensor."""
    kind = next(one.name for one in SOURCES if one.numpy == x.dtype)
    known = {name: row.format for name, row in RECIPES.items() if kind in row.sources} | FORMATS
    for name, format in known.items():
        alike = format.element is stored.element and format.zero_points == stored.zero_points
        if not alike or format.global_scale != stored.global_scale:
            continue
        axis = 0 if format.block == "axis" else 1
        wanted = stored.lengths(x.shape, 0 if stored.block == "axis" else 1)
        if format.lengths(x.shape, axis) == wanted:
            yield name, format, axis


def _leading(scales: Array, format: Format, rows: int) -> Array:
    """The scales of the first rows."""
    if format.block == "tensor":
        return scales.reshape(1)
    per = format.block[0] if isinstance(format.block, tuple) and len(format.block) == 2 else 1
    return scales[: -(-rows // per)]
