# SPDX-License-Identifier: Apache-2.0
"""Files of tensors with scales, for the tests: made, converted, looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import gpucast
from gpucast import files
from gpucast.checkpoints.scales import scaling
from gpucast.cli import main
from gpucast.core.dtypes import dtype


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-3, 4, shape))).astype(np.float32)


def convert(*argv: str) -> int:
    return main(["convert", *argv, "--overwrite", "--quiet"])


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert convert(*argv) == 1
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    return printed.err


def quantized(x: Any, to: str, scale: str) -> gpucast.Quantized:
    format = scaling.formats(dtype(to))[scale]
    return gpucast.quantize(x, format, axis=0 if format.block == "axis" else -1)


def header(path: str) -> dict[str, tuple[str, list[int]]]:
    """The types and shapes, as the safetensors package tells them."""
    with safe_open(path, "numpy") as file:
        return {name: (part.get_dtype(), part.get_shape()) for name in file.keys() for part in [file.get_slice(name)]}


def save(path: str, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    files.save(path, tensors, metadata)


NAMES = {
    "l.weight": numbers(264, 256),
    "l.bias": np.ones(264, np.float32),
    "model.embed_tokens.weight": numbers(10, 256),
}
