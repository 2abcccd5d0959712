# SPDX-License-Identifier: Apache-2.0
"""The quantization error of each format of `gpucast.quantize`: ``python -m bench.peers.quantization_error``.

The signal-to-quantization-noise ratio, 10 log10(sum x^2 / sum (x - y)^2) in dB, of random FLOAT matrices whose rows are
quantized along the last axis (formats "..._axis": a scale per column). The numbers do not depend on the machine. They
are written to bench/results/quantization-error.json, and drawn in docs/static/quantization-error.svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gpucast
from bench.revision import ROOT
from gpucast.quantization import FORMATS, Format

RESULT = ROOT / "bench" / "results" / "quantization-error.json"
PICTURE = ROOT / "docs" / "static" / "quantization-error.svg"

Array = npt.NDArray[Any]
SHAPE = (512, 2048)
SEED = 2026
#: All with mean 0; the width has no influence. Student's t with 3 degrees of freedom has outliers like activations.
DATA: dict[str, Callable[[np.random.Generator], Array]] = {
    "uniform": lambda rng: rng.uniform(-1, 1, SHAPE),
    "normal": lambda rng: rng.standard_normal(SHAPE),
    "Laplace": lambda rng: rng.laplace(size=SHAPE),
    "Student t3": lambda rng: rng.standard_t(3, SHAPE),
}
_COLOURS = dict(zip(DATA, ("#8fb8ca", "#1c5f7d", "#f0a868", "#c2410c"), strict=True))
_MARKERS = dict(zip(DATA, "s^Do", strict=True))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.quantization_error", description=__doc__)
    parser.add_argument("--out", default=str(RESULT), metavar="FILE", help="the figures (default: %(default)s)")
    parser.add_argument("--picture", default=str(PICTURE), metavar="FILE", help="the picture (default: %(default)s)")
    asked = parser.parse_args(arguments)
    figures = measured()
    Path(asked.out).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    draw(figures, asked.picture)
    print(table(figures))
    return 0


def measured(formats: dict[str, Format] = FORMATS) -> dict[str, Any]:
    """The figures as they are stored: for every format its bits per number and the ratio by kind of data, in dB."""
    rows: dict[str, dict[str, Any]] = {name: {"bits": format.bits, "sqnr": {}} for name, format in formats.items()}
    for kind, draw_numbers in DATA.items():
        x = draw_numbers(np.random.default_rng(SEED)).astype(np.float32)
        for name, format in formats.items():
            y = gpucast.quantize(x, format).dequantize()
            rows[name]["sqnr"][kind] = round(ratio(x, y), 2)
    return {"gpucast": gpucast.__version__, "shape": SHAPE, "seed": SEED, "formats": rows}


def ratio(x: Array, y: Array) -> float:
    """Signal to noise, in dB."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(10 * np.log10(np.sum(x * x) / np.sum((x - y) ** 2)))


def table(figures: dict[str, Any]) -> str:
    """Markdown: a row for every format."""
    lines = [f"| Format | Bits | {' | '.join(DATA)} |", "| --- |" + " ---: |" * (1 + len(DATA))]
    for name, row in figures["formats"].items():
        numbers = " | ".join(f"{row['sqnr'][kind]:.1f}" for kind in DATA)
        lines.append(f"| `{name}` | {row['bits']:.4g} | {numbers} |")
    return "\n".join(lines)


def draw(figures: dict[str, Any], path: str | Path) -> None:
    """A row for every format, a mark for every kind of data."""
    import matplotlib
    from matplotlib.figure import Figure

    # Signed and unsigned integers with zero points give the same numbers: the unsigned ones stand for both.
    rows = {
        name: row
        for name, row in figures["formats"].items()
        if not (FORMATS[name].zero_points and FORMATS[name].element.signed)
    }
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gpucast", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(8.2, 0.21 * len(rows) + 1.6), layout="constrained")
        axes = figure.add_subplot()
        heights, height, family = [], 0.0, ""
        for name in rows:
            element = FORMATS[name].element.name + str(FORMATS[name].zero_points) + FORMATS[name].scale.name
            height += 1.0 if element == family or not family else 1.7
            family = element
            heights.append(height)
        for kind in DATA:
            values = [row["sqnr"][kind] for row in rows.values()]
            axes.scatter(values, heights, s=22, color=_COLOURS[kind], marker=_MARKERS[kind], label=kind, zorder=3)
        labels = [f"{name}  {row['bits']:.4g} bits" for name, row in rows.items()]
        axes.set_yticks(heights, labels, fontsize=7.5, family="DejaVu Sans Mono")
        axes.set_ylim(max(heights) + 0.8, min(heights) - 0.8)
        axes.set_xlim(left=min(0, *(value for row in rows.values() for value in row["sqnr"].values())) - 1)
        axes.set_xlabel("signal to quantization noise (dB); more is better")
        axes.grid(axis="both", color="#e5e5e5", linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
        figure.legend(loc="outside upper center", ncols=len(DATA), frameon=False, fontsize=9)
        size = " x ".join(map(str, figures["shape"]))
        axes.set_title(f"Error of the formats on {size} random FLOAT numbers (seed {figures['seed']})", fontsize=10)
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
