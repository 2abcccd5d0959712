# SPDX-License-Identifier: Apache-2.0
"""Compare what a library gave for a table with every convention that the table has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cast_conformance.conventions import CLASSES, FAULTS, OTHER, Convention, conventions
from cast_conformance.numbers import codes_dtype, is_nan, shown, value
from cast_conformance.reader import TABLES, manifest, read

NDArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One differing result."""

    src: str
    dst: str
    code: int
    got: int
    wanted: int

    def __str__(self) -> str:
        rows = manifest()["types"]
        src, dst = rows[self.src], rows[self.dst]
        came, owed = shown(self.got, dst), shown(self.wanted, dst)
        return f"{self.src} {shown(self.code, src)} to {self.dst} gives {came}, not {owed}"


@dataclass
class Verdict:
    """The convention that a pair follows, or the nearest one with what differs from it."""

    convention: str
    cases: int
    wrong: int = 0
    #: What happened, by the names of `FAULTS` and `OTHER` ("other" for the rest), with the number of cases.
    faults: dict[str, int] = field(default_factory=dict)
    #: For each of these the easiest case to read.
    worst: dict[str, Case] = field(default_factory=dict)


class Table:
    """A pair's arrays in NumPy."""

    def __init__(self, src: str, dst: str) -> None:
        rows = manifest()["types"]
        self.src, self.dst, self.row = src, dst, rows[dst]
        # NumPy has two types of 64 bits; libraries look for the one with a size in its name.
        arrays = read(TABLES / f"{src}-{dst}.cct").items()
        self.arrays = {name: np.asarray(array).view(f"u{array.itemsize}") for name, array in arrays}
        self.kinds = self.arrays["class"]
        every = np.arange(self.kinds.size, dtype=codes_dtype(rows[src]))
        self.input: NDArray = self.arrays.get("input", every)

    def expected(self, convention: Convention) -> NDArray:
        """The codes of a convention; a column that is missing is equal to `onnx`."""
        return self.arrays.get(convention.column, self.arrays["onnx"])

    def wrong(self, got: NDArray, convention: Convention) -> NDArray:
        """Which results the convention does not allow."""
        wanted = self.expected(convention)
        wrong = (got != wanted) & (self.kinds & convention.mask == 0)
        if convention.any_nan and wrong.any():
            wrong &= ~(is_nan(wanted, self.row) & is_nan(got, self.row))
        return np.asarray(wrong)

    def verdict(self, got: NDArray, asked: str | None = None) -> Verdict:
        """Compare codes with the conventions, or with the one that was asked for."""
        chosen = [
            each for each in conventions(self.row) if (asked in (each.name, *each.answers) if asked else not each.asked)
        ]
        best, least = chosen[0], self.wrong(got, chosen[0])
        for each in chosen[1:]:
            if not least.any():
                break
            wrong = self.wrong(got, each)
            if wrong.sum() < least.sum():
                best, least = each, wrong
        found = Verdict(best.name, got.size, int(least.sum()))
        wanted = self.expected(best)
        for name, mask in self._faults(got, least):
            found.faults[name] = int(mask.sum())
            at = self._plainest(np.flatnonzero(mask))
            found.worst[name] = Case(self.src, self.dst, int(self.input[at]), int(got[at]), int(wanted[at]))
        return found

    def _faults(self, got: NDArray, wrong: NDArray) -> Iterator[tuple[str, NDArray]]:
        """Name what is wrong; each case belongs to one name."""
        rest = wrong.copy()
        special = self.kinds & (CLASSES["nan"] | CLASSES["infinite"]) != 0
        for name in FAULTS:
            if name in self.arrays:
                changed = self.arrays[name] != self.arrays["onnx"]
                mask = rest & changed & (got == self.arrays[name]) & ~special
                if mask.any():
                    yield name, mask
                rest &= ~mask
        for name in OTHER:
            mask = rest & (self.kinds & CLASSES[name] != 0)
            if mask.any():
                yield name, mask
            rest &= ~mask
        if rest.any():
            yield "other", rest

    def _plainest(self, at: NDArray) -> int:
        """The case with the shortest number, of the first thousand."""
        row = manifest()["types"][self.src]
        return int(min(at[:: max(1, at.size // 1000)], key=lambda i: (len(repr(value(int(self.input[i]), row))), i)))
