# SPDX-License-Identifier: Apache-2.0
"""The error of quantizing random numbers by every format: ``python docs/quantization_error.py`` measures it again.

The signal-to-noise ratio is 10 log10(sum x^2 / sum (x - y)^2) in dB, for FLOAT matrices whose rows are quantized along
the last axis (formats "..._axis": a scale per column). The numbers do not depend on the machine. They are written to
bench/results/quantization-error.json, which docs/pictures.py draws and docs/quantization.md shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gpucast
from gpucast.quantization import FORMATS

RESULT = Path(__file__).resolve().parent.parent / "bench" / "results" / "quantization-error.json"
NDArray = npt.NDArray[Any]
SHAPE, SEED = (512, 2048), 2026
#: All with mean 0; the width has no influence. Student's t with 3 degrees of freedom has outliers like activations.
DATA: dict[str, Callable[[np.random.Generator], NDArray]] = {
    "uniform": lambda rng: rng.uniform(-1, 1, SHAPE),
    "normal": lambda rng: rng.standard_normal(SHAPE),
    "Laplace": lambda rng: rng.laplace(size=SHAPE),
    "Student t3": lambda rng: rng.standard_t(3, SHAPE),
}


def measured() -> dict[str, Any]:
    """For every format its bits per number and the ratio by kind of data, in dB."""
    numbers = {kind: draw(np.random.default_rng(SEED)).astype(np.float32) for kind, draw in DATA.items()}
    rows = {
        name: {
            "bits": format.bits,
            "sqnr": {kind: _ratio(x, gpucast.quantize(x, format).dequantize()) for kind, x in numbers.items()},
        }
        for name, format in FORMATS.items()
    }
    return {"gpucast": gpucast.__version__, "shape": SHAPE, "seed": SEED, "formats": rows}


def _ratio(x: NDArray, y: NDArray) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    return round(-10 * math.log10(float(np.sum((x - y) ** 2) / np.sum(x * x))), 2)


if __name__ == "__main__":
    RESULT.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
