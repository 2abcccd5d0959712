# SPDX-License-Identifier: Apache-2.0
"""A network trained on scanned digits, exported to ONNX and safetensors, converted, and run by onnxruntime."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import safetensors.numpy
from onnx import helper, numpy_helper

import gpucast
from codes import assert_same
from gpucast import PackedArray, files
from gpucast.checkpoints.scales import quantize as scaling
from gpucast.cli import main
from gpucast.core.formats import Format

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402

#: Types, the largest error of a probability, and the digits in a hundred that may be read worse than before.
CASES = [("FLOAT16", 1e-3, 0.0), ("BFLOAT16", 2e-2, 0.5), ("FLOAT8E4M3FN", 0.2, 1.0), ("FLOAT8E5M2", 0.4, 2.0)]


class Model(NamedTuple):
    weights: dict[str, np.ndarray]
    x: np.ndarray
    labels: np.ndarray
    folder: Path


def network(weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ weights["0.weight"] + weights["0.bias"], 0)
    scores = hidden @ weights["1.weight"] + weights["1.bias"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def graph(weights: dict[str, np.ndarray]) -> Any:
    nodes = [
        helper.make_node("MatMul", ["x", "0.weight"], ["a"]),
        helper.make_node("Add", ["a", "0.bias"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "1.weight"], ["d"]),
        helper.make_node("Add", ["d", "1.bias"], ["e"]),
        helper.make_node("Softmax", ["e"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 64), ("y", 10))
    ]
    held = [numpy_helper.from_array(weight, name) for name, weight in weights.items()]
    made = helper.make_graph(nodes, "digits", ends[:1], ends[1:], held)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    x, labels = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    trained = MLPClassifier((48,), max_iter=30, random_state=1, learning_rate_init=5e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        trained.fit(x[:1200], labels[:1200])
    weights = {}
    for layer, (matrix, bias) in enumerate(zip(trained.coefs_, trained.intercepts_, strict=True)):
        weights |= {f"{layer}.weight": matrix.astype(np.float32), f"{layer}.bias": bias.astype(np.float32)}
    folder = tmp_path_factory.mktemp("digits")
    onnx.save(graph(weights), folder / "model.onnx")
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    found = Model(weights, x[1200:], labels[1200:], folder)
    assert right(network(weights, found.x), found.labels) > 90
    np.testing.assert_allclose(run(folder / "model.onnx", found.x), network(weights, found.x), atol=1e-5)
    return found


def right(odds: np.ndarray, labels: np.ndarray) -> float:
    """The percentage of digits that are classified correctly."""
    return 100 * float(np.mean(odds.argmax(axis=1) == labels))


def run(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def converted(
    capsys: pytest.CaptureFixture[str], source: Path, target: Path, to: str, scale: str = "none"
) -> dict[str, Any]:
    command = ["convert", str(source), str(target), "--to", to, "--scale", scale, "--verify", "all"]
    assert main([*command, *["--allow-loss"] * (scale == "none"), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize(("to", "error", "points"), CASES)
def test_a_converted_model_runs_and_gives_nearly_the_same(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str, error: float, points: float
) -> None:
    result = converted(capsys, model.folder / "model.onnx", tmp_path / "small.onnx", to)
    row = gpucast.dtype(to)
    elements = sum(weight.size for weight in model.weights.values())
    assert result["total"]["bytes_in"] == 4 * elements and result["total"]["bytes_out"] == row.nbytes(elements)
    small = onnx.load(tmp_path / "small.onnx")
    onnx.checker.check_model(small, full_check=True)
    held = small.graph.initializer
    assert {tensor.data_type for tensor in held} == {row.number} and len(held) == len(model.weights)
    y = run(tmp_path / "small.onnx", model.x)
    # The same as NumPy's computation with the weights that a cast gives.
    back = {name: gpucast.cast(gpucast.cast(weight, to), "FLOAT") for name, weight in model.weights.items()}
    np.testing.assert_allclose(y, network(back, model.x), atol=1e-5)
    before = network(model.weights, model.x)
    assert 0 < np.abs(y - before).max() < error
    assert right(y, model.labels) >= right(before, model.labels) - points


#: Types with scales; the largest error of a weight as a share of the largest of its block; the largest error of a
#: probability, and the digits in a hundred that may be read worse than before.
#: INT4 has steps of amax / 7. NVFP4's scale is rounded to float8 (by 1/16 at most), its widest step is 2 of 6. MX
#: divides by a power of two: what is 8 then is clamped to 6. FLOAT8E4M3FN's widest step is 32 of 448.
SCALED = [
    ("INT4", "block", 1 / 14, 0.4, 2.0),
    ("FLOAT4E2M1", "nvfp4", 17 / 16 / 6, 0.5, 2.0),
    ("FLOAT4E2M1", "mx", 1 / 4, 0.4, 2.0),
    ("FLOAT8E4M3FN", "block", 1 / 28, 0.2, 1.0),
]


@pytest.mark.parametrize(("to", "scale", "share", "error", "points"), SCALED)
def test_a_model_with_scales_gives_nearly_the_same(
    model: Model,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    to: str,
    scale: str,
    share: float,
    error: float,
    points: float,
) -> None:
    small, wide = tmp_path / "small.safetensors", tmp_path / "wide.safetensors"
    result = converted(capsys, model.folder / "model.safetensors", small, to, scale)
    format, row = scaling.formats(gpucast.dtype(to))[scale], gpucast.dtype(to)
    matrices = {name: weight for name, weight in model.weights.items() if weight.ndim == 2}
    codes = sum(row.nbytes(weight.size) for weight in matrices.values())
    scales = sum(format.scale.nbytes(math.prod(format.scales_shape(w.shape, 1))) for w in matrices.values())
    assert result["total"]["bytes_in"] == sum(weight.nbytes for weight in matrices.values())
    assert result["total"]["bytes_out"] == codes + scales + 4 * format.global_scale * len(matrices)
    # The written tensors read back.
    converted(capsys, small, wide, "FLOAT")
    back = files.load(str(wide))
    assert back.keys() == model.weights.keys()
    for name, weight in model.weights.items():
        if name not in matrices:
            assert_same(back[name], weight)
            continue
        assert_same(back[name], gpucast.dequantize(gpucast.quantize(weight, format)))
        bound = share * largest_of_blocks(weight, format) * (1 + 1e-6)
        assert (np.abs(back[name] - weight) <= bound).all()
    onnx.save(graph(back), tmp_path / "wide.onnx")
    y, before = run(tmp_path / "wide.onnx", model.x), network(model.weights, model.x)
    assert 0 < np.abs(y - before).max() < error
    assert right(y, model.labels) >= right(before, model.labels) - points
    # A runtime that supports the type reads these codes and scales directly.
    if (to, scale) == ("INT4", "block"):
        onnx.save(dequantizing(files.load(str(small)), format), tmp_path / "small.onnx")
        np.testing.assert_allclose(run(tmp_path / "small.onnx", model.x), y, atol=1e-6)


def largest_of_blocks(weight: np.ndarray, format: Format) -> np.ndarray:
    """For each element the largest magnitude of its block."""
    largest = np.empty_like(weight)
    rows, columns = format.lengths(weight.shape, 1)
    for top in range(0, weight.shape[0], rows):
        for left in range(0, weight.shape[1], columns):
            block = np.s_[top : top + rows, left : left + columns]
            largest[block] = np.abs(weight[block]).max()
    return largest


def dequantizing(tensors: dict[str, np.ndarray], format: Format) -> Any:
    """The graph, with its matrices as codes and scales for DequantizeLinear."""
    made = graph({name: x for name, x in tensors.items() if name.endswith(".bias")})
    for name in ("0.weight", "1.weight"):
        codes, scales = tensors[name], tensors[f"{name}.scales"]
        packed = PackedArray.pack(codes).data.tobytes()
        number = gpucast.dtype(codes.dtype).number
        made.graph.initializer.extend(
            [
                helper.make_tensor(f"{name}.codes", number, codes.shape, packed, raw=True),
                numpy_helper.from_array(scales, f"{name}.scales"),
            ]
        )
        inputs = [f"{name}.codes", f"{name}.scales"]
        node = helper.make_node("DequantizeLinear", inputs, [name], axis=1, block_size=format.block[-1])
        made.graph.node.insert(0, node)
    onnx.checker.check_model(made, full_check=True)
    return made
