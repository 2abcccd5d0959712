# SPDX-License-Identifier: Apache-2.0
"""fouroversix's reference beside the format ``nvfp4_4over6``: a cause for each block that differs.

The arrays are those of its tests. Its arithmetic is FLOAT: scales and elements are products with rounded reciprocals,
and the errors of both scales are summed in the order of PyTorch. Here quotients are rounded once, and errors are summed
in the order of a block. A block may differ where the exact quotient is so near the midpoint of two codes, or both
errors are so near each other, that the rounding of FLOAT decides; and where all its numbers are 0.
"""

from __future__ import annotations

import sys
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import gpucast
from bench.peers.outcomes import NDArray, Outcome

#: The arrays of the tests: shapes, kinds and seeds.
_SHAPES, _KINDS, _SEEDS = ((1024, 1024), (1024, 512), (512, 1024)), ("zeros", "ones", "rand01", "randn"), range(10)
#: The most by which a few operations of FLOAT, each rounded, move a number.
_NEAR = 2.0**-21
_E4M3 = np.array([gpucast.dtype("FLOAT8E4M3FN").value(code) for code in range(256)])
_E2M1 = np.array([gpucast.dtype("FLOAT4E2M1").value(code) for code in range(16)])
_cast: Any = gpucast.cast


class Blocks(NamedTuple):
    """The blocks of an array: the codes of a scale each, and of 16 elements."""

    scales: NDArray
    codes: NDArray

    def at(self, chosen: NDArray) -> Blocks:
        return Blocks(self.scales[chosen], self.codes[chosen])

    @classmethod
    def of(cls, scales: Any, codes: Any) -> Blocks:
        import torch

        pairs = codes.view(torch.uint8).numpy().reshape(-1, 8)
        return cls(scales.view(torch.uint8).numpy().ravel(), np.stack([pairs & 15, pairs >> 4], -1).reshape(-1, 16))


def four_over_six(folder: Path, samples: int) -> Outcome:
    """Each block of the arrays of its tests, quantized by its reference and here."""
    import torch

    sys.path.insert(0, str(folder / "src"))
    known = metadata.version
    # A folder that was not installed has no metadata, which it asks for.
    with mock.patch.object(metadata, "version", lambda name: "0" if name == "fouroversix" else known(name)):
        from fouroversix.quantize.pytorch import reference
        from fouroversix.utils import DataType, RoundStyle, ScaleRule
    sys.path.pop(0)
    how = {"fp4_format": DataType.nvfp4, "round_style": RoundStyle.nearest, "scale_rule": ScaleRule.mse}
    found = Outcome("fouroversix's reference", "", "quantizers", licence="MIT")
    why = dict.fromkeys(CAUSES, 0)
    for shape, kind, seed in product(_SHAPES, _KINDS, _SEEDS):
        if seed and not kind.startswith("rand"):
            continue
        torch.manual_seed(seed)
        fill = {"zeros": torch.zeros, "ones": torch.ones, "randn": torch.randn}.get(kind)
        x = fill(*shape, dtype=torch.bfloat16) if fill else torch.randint(0, 2, shape).to(torch.bfloat16)
        codes, scales, _ = reference.quantize(x, use_blackwell_scale_layout=False, **how)
        q = gpucast.quantize(x, "nvfp4_4over6")
        theirs, ours = Blocks.of(scales, codes), Blocks.of(q.scales, q.data)
        differ = (theirs.scales != ours.scales) | (theirs.codes != ours.codes).any(1)
        rows = x.float().numpy().reshape(-1, 16)[differ].astype(np.float64)
        causes = causes_of(rows, float(q.global_scale), theirs.at(differ), ours.at(differ))
        for name in CAUSES:
            why[name] += int((causes == name).sum())
        legal = differ.copy()
        legal[differ] = causes != ""
        found.count(differ, range(differ.size), f"{kind} {shape}, seed {seed}, block", legal)
    found.why = "; ".join(f"{why[name]:,} {text}" for name, text in CAUSES.items() if why[name])
    return found


#: Why a block may differ, in the order in which it is asked.
CAUSES = {
    "zeros": "are zeros, whose scale is the smallest here and 0 there: the same numbers",
    "scale": "have a scale whose quotient is a tie but for the rounding of FLOAT",
    "element": "have an element whose quotient is such a tie",
    "error": "have the other one of two scales whose errors are equal but for the rounding of FLOAT",
}


def causes_of(rows: NDArray, g: float, theirs: Blocks, ours: Blocks) -> NDArray:
    """The cause for each block of `rows`, or "" where there is none."""
    found = np.full(len(rows), "", dtype="<U8")
    largest = np.abs(rows).max(1)
    zero = (largest == 0) & ~_E2M1[theirs.codes].any(1) & ~_E2M1[ours.codes].any(1)
    # Each side's scale is one of the two that there are, and each of its codes is next to the quotient.
    s, t = _E4M3[ours.scales], _E4M3[theirs.scales]
    exact, near = (_by_two(largest / g, where) for where in (0, _NEAR))
    is_scale = (near == t[:, None]).any(1) & (exact == s[:, None]).any(1)
    with np.errstate(all="ignore"):
        lawful = is_scale & _codes(rows / (t * g)[:, None], theirs.codes) & ~zero
        # At a tie the scale that ours may be there, and its codes.
        pair = np.where((exact[:, 0] == s)[:, None], near[:, :2], near[:, 2:])
        u = np.where(pair[:, 0] == s, pair[:, 1], pair[:, 0])
        codes = np.asarray(_cast(rows / (u * g)[:, None], "FLOAT4E2M1")).view(np.uint8)
    a, b, c = (_errors(rows / g, *side) for side in ((t, theirs.codes), (s, ours.codes), (u, codes)))
    # That of theirs is not larger by more than the roundings of FLOAT make it.
    equal, smaller = np.abs(a[0] - b[0]) <= a[1] + b[1], a[0] <= c[0] + a[1] + c[1]
    exactly = (exact == t[:, None]).any(1)
    found[lawful & (t == s)] = "element"
    found[lawful & (t != s) & (~exactly | ((u != s) & smaller))] = "scale"
    found[lawful & (t != s) & exactly & equal] = "error"
    found[zero] = "zeros"
    return found


def _by_two(largest: NDArray, near: float) -> NDArray:
    """The scales by 6 and by 4 that numbers have, which are so near the largest magnitudes."""
    moved = [largest / by * (1 + sign * near) for by in (6, 4) for sign in (-1, 1)]
    return np.stack([np.asarray(_cast(_cast(x, "FLOAT8E4M3FN"), "DOUBLE")) for x in moved], 1)


def _codes(quotients: NDArray, codes: NDArray) -> NDArray:
    """Whether all codes of a block are those of numbers so near the quotients."""
    given = _E2M1[codes]
    ends = [np.asarray(_cast(_cast(quotients * (1 + sign * _NEAR), "FLOAT4E2M1"), "DOUBLE")) for sign in (-1, 1)]
    return np.asarray(((given == ends[0]) | (given == ends[1])).all(1))


def _errors(y: NDArray, scales: NDArray, codes: NDArray) -> tuple[NDArray, NDArray]:
    """The squared errors of blocks, and by how much roundings of FLOAT move these."""
    rest = np.abs(y - _E2M1[codes] * scales[:, None])
    # Each difference by roundings of its terms, each square and sum by its own.
    moved = np.abs(y) * _NEAR
    return (rest**2).sum(1), (2 * rest * moved + moved**2).sum(1) + (rest**2).sum(1) * 16 * 2.0**-24
