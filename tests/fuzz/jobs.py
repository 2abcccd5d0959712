# SPDX-License-Identifier: Apache-2.0
"""Small conversions of every kind: the folder that each begins with, and its command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gpucast import files

X = np.linspace(-3, 3, 200, dtype=np.float32)
REPORT = "report.json"
#: Each makes its files in the working folder; the command follows in `COMMANDS`.
COMMANDS = {
    "npy": "in.npy out.npy --to FLOAT16",
    "npz": "in.npz out.npz --to BFLOAT16",
    "pb": "in.pb out.pb --to INT4 --scale none --allow-loss",
    "safetensors": "in.safetensors out.safetensors --to FLOAT8E4M3FN --scale none --verify",
    "itself": "in.safetensors in.safetensors --to FLOAT16",
    "folder": "in out --to FLOAT16",
    "onnx": "in.onnx out.onnx --to FLOAT16",
    "scale": "in out --to FLOAT8E4M3FN --scale per-tensor --style compressed-tensors",
    "report": "in.safetensors out.safetensors --to BFLOAT16 --report " + REPORT,
}


def argv(job: str) -> list[str]:
    return ["convert", *COMMANDS[job].split(), "--overwrite", "--quiet"]


def make(job: str) -> None:
    """Make the files of a job in the working folder."""
    source, target = COMMANDS[job].split()[:2]
    if source == "in":
        folder()
    elif source.endswith(".onnx"):
        model(source)
    else:
        kind = source.rpartition(".")[2]
        one = {"x": X} if kind in ("npy", "pb") else {"x": X, "y.weight": X.reshape(10, 20), "n": np.arange(3)}
        files.save(source, one)
    if os.path.splitext(target)[1] in (".npy", ".safetensors") and target != source:
        files.save(target, {"old": np.arange(5)})


def folder() -> None:
    """A checkpoint in two files with an index, a config.json and a file that is only copied."""
    os.mkdir("in")
    weight_map = {}
    for shard in ("a.safetensors", "b.safetensors"):
        tensors = {f"{shard[0]}.weight": X.reshape(10, 20), f"{shard[0]}.bias": X[:10]}
        files.save(f"in/{shard}", tensors)
        weight_map |= dict.fromkeys(tensors, shard)
    Path("in/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    Path("in/config.json").write_text(json.dumps({"model_type": "llama", "torch_dtype": "float32"}))
    Path("in/notes.txt").write_text("Read me.")


def model(path: str) -> None:
    """A model with two initializers, one of them in a file of external data."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("x", "y")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Add", ["z", "v"], ["y"])]
    weights = [numpy_helper.from_array(X.reshape(10, 20), "w"), numpy_helper.from_array(X[:20], "v")]
    graph = helper.make_graph(nodes, "test", values[:1], values[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(proto, path, save_as_external_data=True, location=f"{path}.bin", size_threshold=100)
