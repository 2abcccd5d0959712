# SPDX-License-Identifier: Apache-2.0
"""The quantization error of each format of `gpucast.quantize`: ``python -m bench.peers.quantization_error``.

The signal-to-quantization-noise ratio, 10 log10(sum x^2 / sum (x - y)^2) in dB, of random FLOAT matrices whose rows are
quantized along the last axis (formats "..._axis": a scale per column). The numbers do not depend on the machine. They
are written to bench/results/quantization-error.json; docs/pictures.py draws them.
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.quantization_error", description=__doc__)
    parser.add_argument("--out", default=str(RESULT), metavar="FILE", help="the figures (default: %(default)s)")
    out = Path(parser.parse_args(arguments).out)
    figures = measured()
    out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
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


if __name__ == "__main__":
    raise SystemExit(main())
