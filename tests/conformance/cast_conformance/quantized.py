# SPDX-License-Identifier: Apache-2.0
"""Run an adapter's block formats, and compare what comes out with the tables, by value: -0 is 0."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from cast_conformance.numbers import codes_dtype, value
from cast_conformance.reader import TABLES, manifest, read

NDArray = npt.NDArray[Any]


class Blocks:
    """A table of a block format: the input, a matrix of FLOAT, and what quantizing it gives."""

    def __init__(self, name: str) -> None:
        self.facts = manifest()["formats"][name]
        columns = {key: np.asarray(codes) for key, codes in read(TABLES / f"block-{name}.cct").items()}
        shape, grid = self.facts["shape"], self.facts["scales_shape"]
        self.input: NDArray = columns["input"].view(np.float32).reshape(shape)
        #: The numbers that the codes and the scales stand for.
        self.elements = _values(columns["codes"], self.facts["element"]).reshape(shape)
        self.scales = _values(columns["scales"], self.facts["scale"]).reshape(grid)
        self.global_scale = float(columns["global_scale"].view(np.float32)[0]) if "global_scale" in columns else 1.0

    @property
    def lengths(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        rows, columns = self.input.shape
        text = self.facts["block"]
        if text in ("tensor", "row"):
            return (rows, columns) if text == "tensor" else (1, columns)
        down, _, across = text.rpartition("x")
        return min(int(down or 1), rows), int(across)

    def spread(self, scales: NDArray) -> NDArray:
        """The scale of each element."""
        down, across = self.lengths
        rows, columns = self.input.shape
        return scales.reshape(rows // down, columns // across).repeat(down, axis=0).repeat(across, axis=1)

    def compare(self, got: Any) -> dict[str, Any]:
        """How many elements and scales differ; those of blocks with infinity or NaN are counted apart."""
        down, across = self.lengths
        rows = len(self.input)
        finite = np.asarray(np.isfinite(self.input).reshape(rows // down, down, -1, across).all(axis=(1, 3)))
        found: dict[str, Any] = {"cases": int(self.spread(finite).sum()), "special": None if finite.all() else False}
        if isinstance(got, tuple):
            elements, scales, global_scale = got
            parts = [
                ("codes", elements, self.elements, self.spread(finite)),
                ("scales", scales, self.scales, finite.reshape(self.scales.shape)),
            ]
            found["global"] = float(np.float32(global_scale)) == self.global_scale
        else:
            numbers = self.elements * self.spread(self.scales) * self.global_scale
            parts = [("numbers", got, numbers, self.spread(finite))]
        for what, given, wanted, counted in parts:
            with np.errstate(invalid="ignore"):
                one = np.asarray(given, np.float64).reshape(wanted.shape)
            wrong = ~((one == wanted) | (np.isnan(one) & np.isnan(wanted)))
            found[what] = int((wrong & counted).sum())
            if (wrong & ~counted).any():
                found["special"] = True
            if found[what] and "first" not in found:
                at = tuple(int(i) for i in np.argwhere(wrong & counted)[0])
                found["first"] = f"{what} {at}: {one[at]} for {wanted[at]}"
        return found


def _values(codes: NDArray, name: str) -> NDArray:
    row = manifest()["types"][name]
    if name == "FLOAT":
        return codes.view(np.float32).astype(np.float64)
    every = np.array([value(code, row) for code in range(1 << row["bits"])], np.float64)
    return np.asarray(every[codes.view(codes_dtype(row))])


def run_blocks(adapter: ModuleType, names: list[str]) -> dict[str, Any]:
    """The results of an adapter by format."""
    results = {}
    for name in names:
        blocks = Blocks(name)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = adapter.quantize(blocks.input.copy(), name)
        results[name] = blocks.compare(got)
    return results
