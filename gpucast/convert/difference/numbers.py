# SPDX-License-Identifier: Apache-2.0
"""Compares two tensors of any forms in pieces: their numbers, and the codes and scales that stand for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gpucast.casting.cast import cast
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.convert.streaming.pieces import regroup
from gpucast.core.dtypes import DType, dtype
from gpucast.files import Tensor
from gpucast.files.tensor import LoadedTensor, NDArray, StoredTensor

#: Elements that are compared at a time.
PIECE = 1 << 20
_DOUBLE = dtype("DOUBLE")


@dataclass
class Count:
    """How many of some elements differ, and by how many ULPs at most, None where they are of two types."""

    of: int = 0
    differ: int = 0
    ulps: int | None = None

    def add(self, a: NDArray, b: NDArray) -> NDArray:
        """Count two flat arrays; returns where they differ by value."""
        found = a.view(_codes_of(a)) != b.view(_codes_of(b)) if a.dtype == b.dtype else np.ones(a.shape, bool)
        if found.any():
            found = unequal(a, b)
        self.of += a.size
        self.differ += int(np.count_nonzero(found))
        if a.dtype == b.dtype and found.any():
            kind = dtype(a.dtype)
            x, y = _ordered(a[found], kind), _ordered(b[found], kind)
            self.ulps = max(self.ulps or 0, int((np.maximum(x, y) - np.minimum(x, y)).max()))
        return np.asarray(found)


@dataclass
class Difference:
    """The comparison of two tensors with one name."""

    name: str
    kinds: tuple[str, str]
    shape: tuple[int, ...]
    values: Count = field(default_factory=Count)
    #: None where the two are not codes of one type, or scales of one grid.
    codes: Count | None = None
    scales: Count | None = None
    #: The root of the square of the difference over that of the first tensor's numbers; where both are finite.
    relative_error: float = 0.0
    #: The largest difference of two numbers; infinite where one alone is no finite number.
    largest: float = 0.0
    #: The rows of the first axis with the largest relative errors, and these.
    worst: tuple[tuple[int, float], ...] = ()
    problem: str = ""

    @property
    def sqnr_db(self) -> float | None:
        """The ratio of the first tensor's numbers to the difference, in decibels; None where it is not finite."""
        if not 0 < self.relative_error < math.inf:
            return None
        return -20 * math.log10(self.relative_error)

    @property
    def is_equal(self) -> bool:
        """Whether all numbers are equal."""
        return not self.problem and not self.values.differ


def compared(name: str, a: Tensor, b: Tensor, advance: Callable[[int], object]) -> Difference:
    """Compare two tensors in pieces. `advance` gets the bytes that were read."""
    found = Difference(name, (kind_of(a), kind_of(b)), a.shape)
    if a.shape != b.shape:
        found.problem = f"shapes {a.shape} and {b.shape}"
        return found
    rows = a.shape[0] if len(a.shape) > 1 else 1
    columns, errors, powers = max(1, a.size // max(1, rows)), np.zeros(rows), np.zeros(rows)
    start = 0
    for one, other in zip(_pieces(a), _pieces(b), strict=True):
        unequal = found.values.add(one, other)
        x, y = _doubles(one), _doubles(other)
        known = np.isfinite(x) & np.isfinite(y)
        with np.errstate(over="ignore"):
            gap = np.where(known, x, 0) - np.where(known, y, 0)
            if _is_wide(one, other):
                close = known & unequal & (np.minimum(np.abs(x), np.abs(y)) >= 2.0**53)
                gap[close] = [p - q for p, q in _integers(one[close], other[close])]
            error = np.where(unequal, np.square(gap), 0)
            found.largest = max(found.largest, float(np.abs(gap[unequal]).max(initial=0.0)))
            if (unequal & ~known).any():
                found.largest = math.inf
            power = np.square(np.where(known, x, 0))
        row = np.arange(start, start + x.size) // columns
        for totals, part in ((errors, error), (powers, power)):
            totals[row[0] : row[-1] + 1] += np.bincount(row - row[0], part)
        start += x.size
        advance(a.nbytes * x.size // a.size + b.nbytes * x.size // b.size)
    total, of = float(errors.sum()), float(powers.sum())
    # Infinite, too, where squares are beyond DOUBLE.
    found.relative_error = math.sqrt(total / of) if of and math.isfinite(total) else math.inf if total else 0.0
    if rows > 1 and total:
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(errors > 0, np.sqrt(errors / powers), 0)
        found.worst = tuple((int(i), float(relative[i])) for i in np.argsort(-relative, kind="stable")[:3])
    _compare_parts(found, a, b)
    return found


def kind_of(tensor: Tensor) -> str:
    assert tensor.dtype is not None
    return tensor.dtype.name if isinstance(tensor, StoredTensor | LoadedTensor) else tensor.kind


def _compare_parts(found: Difference, a: Tensor, b: Tensor) -> None:
    """Count codes and scales where both tensors have them in one form."""
    if not (isinstance(a, Dequantized) and isinstance(b, Dequantized)):
        return
    one, other = a.stored, b.stored
    if one.format.element is other.format.element and one.transposed == other.transposed:
        found.codes = Count()
        for pair in zip(code_pieces(a), code_pieces(b), strict=True):
            found.codes.add(*pair)
    scales = a.all_scales().scales.reshape(-1), b.all_scales().scales.reshape(-1)
    if scales[0].shape == scales[1].shape:
        found.scales = Count()
        found.scales.add(*scales)


def code_pieces(tensor: Dequantized) -> Iterator[NDArray]:
    """The codes of a tensor in row-major order, `PIECE` at a time."""
    return regroup(tensor.codes(), _sizes(tensor.size))


def _pieces(tensor: Tensor) -> Iterator[NDArray]:
    return regroup(tensor.chunks(), _sizes(tensor.size))


def _sizes(size: int) -> Iterator[int]:
    return (min(PIECE, size - first) for first in range(0, size, PIECE))


def _doubles(x: NDArray) -> NDArray:
    return x if x.dtype == np.float64 else np.asarray(cast(x, _DOUBLE))


def unequal(a: NDArray, b: NDArray) -> NDArray:
    """Where the numbers of two arrays differ. No two NaN do."""
    x, y = _doubles(a), _doubles(b)
    found = ~((x == y) | (np.isnan(x) & np.isnan(y)))
    if _is_wide(a, b):
        close = ~found & (np.abs(x) >= 2.0**53)
        found[close] = [p != q for p, q in _integers(a[close], b[close])]
    return np.asarray(found)


def _is_wide(a: NDArray, b: NDArray) -> bool:
    """Whether there are integers of 64 bits. Neighbours from 2^53 on may be one DOUBLE."""
    return any(part.dtype.kind in "iu" and part.dtype.itemsize == 8 for part in (a, b))


def _integers(a: NDArray, b: NDArray) -> Iterator[tuple[int, int]]:
    """Numbers from 2^53 on, of any type, as Python's integers."""
    return ((int(p), int(q)) for p, q in zip(a.tolist(), b.tolist(), strict=True))


def _codes_of(x: NDArray) -> np.dtype:
    return np.dtype(f"u{x.dtype.itemsize}")


def _ordered(x: NDArray, kind: DType) -> NDArray:
    """Codes as UINT64 in the order of their numbers, so that neighbours are one apart."""
    code, middle = x.view(_codes_of(x)).astype(np.uint64), np.uint64(1 << 63)
    if kind.family == "int" and x.dtype.kind == "u":
        return np.asarray(x, np.uint64)
    if kind.family == "int":
        return np.asarray(x.astype(np.int64).view(np.uint64) ^ middle)
    if not kind.is_float or not kind.sign_code:
        return code
    sign = np.uint64(kind.sign_code)
    return np.asarray(np.where(code & sign != 0, middle - (code & ~sign), middle + code))
