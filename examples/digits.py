# SPDX-License-Identifier: Apache-2.0
"""Cast a trained model to every narrow float type and see what it costs.

A small network learns the handwritten digits that ship with scikit-learn; its weights are saved as a safetensors file;
``gpucast convert`` casts the file to one type after another; each cast model classifies the test images again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import gpucast
from gpucast import cli, files

TYPES = (
    "FLOAT", "BFLOAT16", "FLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT6E2M3", "FLOAT6E3M2",
    "FLOAT4E2M1", "INT4",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep the files in this folder")
    out = parser.parse_args().out
    with contextlib.ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        run(folder)


def run(folder: Path) -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.3, random_state=0)
    model = MLPClassifier((64,), max_iter=1000, tol=1e-3, random_state=0).fit(train_x, train_y)
    weights = {}
    for i, (matrix, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        weights[f"layer{i}.weight"] = np.ascontiguousarray(matrix, np.float32)
        weights[f"layer{i}.bias"] = np.ascontiguousarray(bias, np.float32)
    source = folder / "digits.safetensors"
    save_file(weights, source)

    device = "cpu" if gpucast.device.unavailable() else "cuda"
    print(f"{test_y.size} test images; casts run on device {device!r}\n")
    print(f"{'to':16}{'bytes':>8}{'accuracy':>10}{'zeroed':>8}{'clamped':>9}{'worst error':>13}")
    for name in TYPES:
        target = folder / f"digits.{name.lower()}.safetensors"
        summary = convert(source, target, name, device)
        accuracy = np.mean(classify(load(target), test_x) == test_y)
        print(
            f"{name:16}{summary['bytes_out']:>8}{accuracy:>10.1%}{summary['underflowed']:>8}"
            f"{summary['saturated'] + summary['wrapped']:>9}{summary['max_relative_error']:>13.2g}"
        )
    print("\nA plain cast to INT4 keeps whole numbers only: weights that small need scales first.")


def convert(source: Path, target: Path, to: str, device: str) -> dict[str, Any]:
    """``gpucast convert SOURCE TARGET --to TO``; without scales and with --allow-loss: the loss is what we look at."""
    arguments = ["convert", str(source), str(target), "--to", to, "--scale", "none", "--allow-loss"]
    arguments += ["--device", device, "--json", "--overwrite"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = cli.main(arguments)
    if code:
        raise SystemExit(code)
    summary: dict[str, Any] = json.loads(output.getvalue())["total"]
    return summary


def load(path: Path) -> dict[str, np.ndarray]:
    return {name: gpucast.cast(tensor, "FLOAT") for name, tensor in files.load(str(path)).items()}


def classify(weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ weights["layer0.weight"] + weights["layer0.bias"], 0)
    return np.argmax(hidden @ weights["layer1.weight"] + weights["layer1.bias"], axis=1)


if __name__ == "__main__":
    main()
