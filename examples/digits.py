# SPDX-License-Identifier: Apache-2.0
"""The demonstration: what gpucast does that others do not, and what narrow types cost a trained network.

1. Three casts by NumPy and ml_dtypes, and by gpucast.
2. A small network learns the handwritten digits that ship with scikit-learn; ``gpucast convert`` casts its file to one
   type after another, and each model classifies the test images again.
3. The same matrices in 4 bits with scales, by ``gpucast.quantize``.
4. Every cast weight beside the exact reference.

All of it is also on one HTML page, whose path is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import demo_page
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import gpucast
from gpucast import cli, files, reference

TYPES = (
    "FLOAT", "BFLOAT16", "FLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT6E2M3", "FLOAT6E3M2",
    "FLOAT4E2M1", "INT4",
)  # fmt: skip
#: Four bits for each number, and a scale for 32, 16 or 32 of them.
SCALED = ("mxfp4", "nvfp4", "int4_32")
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Images:
    pixels: np.ndarray
    labels: np.ndarray

    def accuracy(self, weights: Weights) -> float:
        hidden = np.maximum(self.pixels @ weights["layer0.weight"] + weights["layer0.bias"], 0)
        return float(np.mean(np.argmax(hidden @ weights["layer1.weight"] + weights["layer1.bias"], 1) == self.labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out = Path(__file__).resolve().parents[1] / "build" / "demo"
    parser.add_argument("--out", type=Path, default=out, help="folder of the page and the models (default: build/demo)")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)

    print("1. The same cast, by NumPy with ml_dtypes and by gpucast\n")
    compared = three_casts()
    print_rows(("cast", "NumPy", "gpucast", "why"), compared)

    weights, test = trained()
    device = "cpu" if gpucast.device.unavailable() else "cuda"
    size = sum(x.size for x in weights.values())
    print(f"\n2. A network of {size:,} weights, {test.labels.size} test images; casts run on device {device!r}\n")
    plain, differing, count = cast_plainly(weights, test, folder, device)
    heads = ("type", "bytes", "accuracy", "median error")
    print_rows(heads, plain)

    print("\n3. 4 bits again, now with a scale for each block of 16 or 32 weights (gpucast.quantize)\n")
    scaled = [quantized(name, weights, test) for name in SCALED]
    print_rows(heads, scaled)

    exact = f"{differing:,} of {count:,} values differ from the reference"
    print(f"\n4. {exact}")
    page = folder / "demo.html"
    page.write_text(demo_page.page(compared, heads, plain, scaled, exact), encoding="utf-8")
    print(f"\nThe page with pictures: {page}")


def cast_plainly(weights: Weights, test: Images, folder: Path, device: str) -> tuple[list[tuple[str, ...]], int, int]:
    """A row for each type; how many values differ from the reference; how many there are."""
    source = folder / "digits.safetensors"
    save_file(weights, source)
    rows, differing, count = [], 0, 0
    for name in TYPES:
        target = folder / f"digits.{name.lower()}.safetensors"
        summary = convert(source, target, name, device)
        codes = files.load(str(target))
        back = {key: gpucast.cast(x, "FLOAT") for key, x in codes.items()}
        rows.append(measured(name, summary["bytes_out"], weights, back, test))
        for key, x in weights.items():
            wanted = reference.cast(x, name)
            differing += int(np.count_nonzero(codes[key].view(np.uint8) != wanted.view(np.uint8)))
            count += x.size
    return rows, differing, count


def three_casts() -> list[tuple[str, ...]]:
    """Of each: the cast, what NumPy with ml_dtypes gives, what gpucast gives, and why they differ."""
    double, text, large = np.float64([4.015625000000001]), "1.000000059604644775390626", np.float32([500])
    return [
        ("4.015625000000001 (float64) to bfloat16", shown(double.astype(ml_dtypes.bfloat16)),
         shown(gpucast.cast(double, "BFLOAT16")), "rounded once, not twice"),
        (f"the text {text} to float32", shown(np.array([text]).astype(np.float32)),
         shown(gpucast.cast([text], "FLOAT")), "rounded once, not twice"),
        ("500 (float32) to float8_e4m3fn", shown(large.astype(ml_dtypes.float8_e4m3fn)),
         shown(gpucast.cast(large, "FLOAT8E4M3FN")), "clamped as ONNX says; saturate=False gives NaN"),
    ]  # fmt: skip


def shown(x: np.ndarray) -> str:
    return f"{float(x[0]):.8g}"


def trained() -> tuple[Weights, Images]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.3, random_state=0)
    model = MLPClassifier((64,), max_iter=1000, tol=1e-3, random_state=0).fit(train_x, train_y)
    weights = {}
    for i, (matrix, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        weights[f"layer{i}.weight"] = np.ascontiguousarray(matrix, np.float32)
        weights[f"layer{i}.bias"] = np.ascontiguousarray(bias, np.float32)
    return weights, Images(test_x, test_y)


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


def quantized(format: str, weights: Weights, test: Images) -> tuple[str, ...]:
    """The matrices in blocks along their inputs; the biases, which are few, stay as they are."""
    back, size = dict(weights), sum(x.nbytes for x in weights.values() if x.ndim == 1)
    for name, x in weights.items():
        if x.ndim == 2:
            q = gpucast.quantize(x, format, axis=0)
            back[name] = q.dequantize()
            size += q.data.nbytes + q.scales.nbytes
    return measured(format, size, weights, back, test)


def measured(name: str, size: int, weights: Weights, back: Weights, test: Images) -> tuple[str, ...]:
    """A row: name, bytes, accuracy, and the median of the relative errors of all weights that are not 0."""
    errors = [np.abs(back[key] - x)[x != 0] / np.abs(x[x != 0]) for key, x in weights.items()]
    return name, f"{size:,}", f"{test.accuracy(back):.1%}", f"{np.median(np.concatenate(errors)):.2%}"


def print_rows(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        print("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
