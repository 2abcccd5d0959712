# SPDX-License-Identifier: Apache-2.0
"""Holds every recipe against its library: ``python -m bench.peers.recipes``.

It quantizes hard matrices (ties and their neighbours, every exponent, subnormal numbers, blocks of zeros, largest
magnitudes at the ends of a scale) by `gpucast.quantize`, by the models of `recipe_models`, and, where a package is
installed or a checkout of it named, by the library itself. Codes and scales are compared by value, so that zeros of
both signs are equal. The counts are written to bench/results/recipes.json, which docs/which-recipe.md shows.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import gpucast
from bench.peers import recipe_packages
from bench.peers.recipe_models import Found, models
from bench.revision import ROOT
from gpucast.quantization import RECIPES, Quantized

NDArray = npt.NDArray[Any]
RESULT = ROOT / "bench" / "results" / "recipes.json"
SOURCES: tuple[Any, ...] = (np.float32, ml_dtypes.bfloat16, np.float16)
_SEED, _ROWS, _COLUMNS = 20261124, 128, 256


def hard(kind: Any, rng: np.random.Generator, wide: bool, rows: int = _ROWS, columns: int = _COLUMNS) -> NDArray:
    """A matrix whose rows are hard in different ways; all its numbers are finite. `wide`: rows of all magnitudes."""
    finfo: Any = ml_dtypes.finfo
    info = finfo(kind)
    lowest, highest = np.log2(float(info.smallest_subnormal)), np.log2(float(info.max)) - 2
    # Rows around a magnitude of their own: most near 1, some anywhere.
    middle = np.where(
        rng.random((rows, 1)) < (0.6 if wide else 1),
        rng.normal(0, 3 if wide else 1, (rows, 1)),
        rng.uniform(lowest, highest, (rows, 1)),
    )
    x = rng.standard_normal((rows, columns)) * 2.0 ** np.clip(middle, lowest, highest)
    of_rows = np.array_split(rng.permutation(rows), 6)
    # Halves between codes of 1 to 4 bits after the point, times a scale that the largest number gives, and neighbours.
    ties = rng.integers(1, 255, (rows, columns)) * 2.0 ** rng.integers(-9, 1, (rows, columns))
    ends = rng.choice([448.0, 57344.0, 6.0, 7.0, 7.5, 127.5, 256.0, 4.0], (rows, 1))
    most = 2.0 ** np.round(np.clip(middle, lowest, highest - 9)) * rng.choice([1, 1, 1 + 2.0**-7, 1.3, 1.9], (rows, 1))
    for part, unit in ((of_rows[0], most), (of_rows[1], most * 3 / 7), (of_rows[2], most / 448)):
        x[part] = (rng.choice([-1, 1], x.shape) * ties * unit)[part]
        x[part, ::16] = (ends * unit)[part]
    x[of_rows[3], ::16] = (ends * most)[of_rows[3]]
    # Every exponent in a row, and zeros.
    far = rng.uniform(lowest, np.maximum(np.log2(np.abs(x).max(1, keepdims=True) + 1e-300), lowest), x.shape)
    if wide:
        x[of_rows[4]] = (np.sign(x) * 2.0**far)[of_rows[4]]
    x[of_rows[5][::4]] = 0
    x[:, rng.random(columns // 16).repeat(16) < 0.02] = 0
    found = np.clip(x, float(info.min), float(info.max)).astype(kind)
    code = found.view(np.uint32 if found.itemsize == 4 else np.uint16)
    # The next number in some places, and the one before in others; code 0 has none here.
    step = rng.choice([0, 0, 0, 0, 1, -1], x.shape) * (found != 0)
    code += step.astype(code.dtype)
    return np.where(np.isfinite(found.astype(np.float32)), found, kind(1))


def ours(name: str, x: NDArray) -> Found:
    """What gpucast finds, as the models give it."""
    return _as_found(gpucast.quantize(x, name))


def _as_found(q: Quantized) -> Found:
    codes = q.data.get() if isinstance(q.data, gpucast.PackedArray) else q.data
    return codes, q.scales, 1 if q.global_scale is None else q.global_scale


def differing(one: Found, other: Found) -> tuple[int, int, str]:
    """How many codes and how many scales differ, and the first of them as text."""
    counts, first = [], ""
    for what, a, b in zip(("code", "scale"), one[:2], other[:2], strict=True):
        x, y = (np.asarray(part).astype(np.float64) for part in (a, b))
        y = y.reshape(x.shape)
        unequal = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        if unequal.any() and not first:
            at = tuple(int(i) for i in np.argwhere(unequal)[0])
            first = f"{what} {at}: {x[at]} for {y[at]}"
        counts.append(int(unequal.sum()))
    if np.float32(one[2]) != np.float32(other[2]):
        counts[1] += 1
        first = first or f"global scale: {float(one[2])!r} for {float(other[2])!r}"
    return counts[0], counts[1], first


def compared(
    name: str, reference: Callable[[NDArray], Found], elements: int, ours: Callable[[str, NDArray], Found] = ours
) -> dict[str, Any]:
    """The counts of a recipe over hard matrices of all its sources."""
    sources = [kind for kind in SOURCES if gpucast.dtype(kind).name in RECIPES[name].sources]
    found: dict[str, Any] = {"elements": 0, "codes": 0, "scales": 0, "first": ""}
    rng = np.random.default_rng(_SEED)
    while found["elements"] < elements:
        for kind in sources:
            x = hard(kind, rng, wide=found["elements"] // (_ROWS * _COLUMNS) % 2 == 0)
            x = np.where(np.abs(x.astype(np.float32)) <= RECIPES[name].limit, x, kind(1))
            with np.errstate(all="ignore"):
                expected = reference(x)
            codes, scales, first = differing(ours(name, x), expected)
            found["codes"] += codes
            found["scales"] += scales
            found["first"] = found["first"] or (first and f"{np.dtype(kind).name} {first}")
            found["elements"] += x.size
    return found


def nonfinite(name: str, reference: Callable[[NDArray], Found]) -> dict[str, str]:
    """What a library makes of a NaN and of an infinity in one block, where it is not what the recipe gives: for the
    element itself, the rest of its block, and all other blocks. "" where it is the same."""
    kind = next(kind for kind in SOURCES if gpucast.dtype(kind).name == RECIPES[name].sources[-1])
    clean = np.random.default_rng(_SEED).standard_normal((_ROWS, _COLUMNS)).astype(kind)
    found = {}
    for what, value in (("NaN", np.nan), ("infinity", np.inf)):
        x = clean.copy()
        x[0, 0] = value
        with np.errstate(all="ignore"):
            own, theirs, usual = (_numbers(*found) for found in (ours(name, x), reference(x), reference(clean)))
        block = np.isnan(own)
        parts = {"itself": np.zeros_like(block), "its block": block.copy(), "others": ~block}
        parts["itself"][0, 0], parts["its block"][0, 0] = True, False
        texts = (
            f"{part} {text}"
            for part, where in parts.items()
            if (text := _described(theirs[where], usual[where])) != ("unchanged" if part == "others" else "NaN")
        )
        found[what] = ", ".join(texts) if block.any() else ""
    return found


def _numbers(*parts: Any) -> NDArray:
    """The numbers for which codes, scales and the global scale of a matrix stand."""
    codes, scales, global_scale = (np.asarray(part).astype(np.float64) for part in parts)
    if scales.ndim < 2:
        scales = scales.reshape((-1, 1) if scales.size == codes.shape[0] else (1, 1))
    block = (codes.shape[0] // scales.shape[0], codes.shape[1] // scales.shape[1])
    return np.asarray(codes * scales.repeat(block[0], 0).repeat(block[1], 1) * global_scale)


def _described(numbers: NDArray, usual: NDArray) -> str:
    """Numbers in a word, beside those without a NaN or infinity nearby."""
    if np.isnan(numbers).all() and numbers.size:
        return "NaN"
    if (numbers == usual).all():
        return "unchanged"
    if np.isinf(numbers).all():
        return "infinity"
    words = {"NaN": np.isnan(numbers), "0": numbers == 0, "infinity": np.isinf(numbers)}
    some = [word for word, where in words.items() if where.mean() > 0.02]
    rest = [] if np.any(list(words.values()), axis=0).mean() > 0.98 else ["finite"]
    return " or ".join(some + rest)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.recipes", description=__doc__)
    parser.add_argument("--elements", type=int, default=10**6, help="of each recipe (default: %(default)s)")
    parser.add_argument("--only", default="", help="recipes whose names begin so")
    parser.add_argument("--models", action="store_true", help="only the models, without the libraries")
    parser.add_argument("--out", metavar="FILE", help=f"the counts, such as {RESULT.relative_to(ROOT)}")
    args = parser.parse_args(arguments)
    packages = {} if args.models else dict(recipe_packages.available())
    rows: dict[str, dict[str, Any]] = {}
    for name, model in models().items():
        if name.startswith(args.only):
            row: dict[str, Any] = {"model": compared(name, model, args.elements)}
            if name in packages:
                row["package"] = compared(name, packages[name], args.elements)
                row["package"]["nonfinite"] = nonfinite(name, packages[name])
            rows[name] = row | {"date": f"{datetime.date.today()}"}
            print(name, {by: (n["codes"], n["scales"], n["first"]) for by, n in row.items()}, flush=True)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(json.dumps(rows, indent=1) + "\n")
    counts = [row[by] for row in rows.values() for by in ("model", "package") if by in row]
    return int(any(found["codes"] or found["scales"] for found in counts))


if __name__ == "__main__":
    raise SystemExit(main())
