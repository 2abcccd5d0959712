# SPDX-License-Identifier: Apache-2.0
"""Small whole files of every format, to be damaged."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import gpucast
from fuzz import jobs
from gpucast import files
from tensors import sample

#: What lies beside the folder that is converted, and may come into no result.
SECRET = b"the key to the house" * 40


@dataclass(frozen=True)
class Made:
    """A folder, those of its files that are damaged in turn, and what is converted then: "" is the damaged one."""

    folder: Path
    damaged: tuple[str, ...]
    source: str = ""


def make(kind: str, folder: Path) -> Made:
    """Make the files of a kind; the working folder is then another."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    if kind == "json":
        return _checkpoint(folder)
    if kind == "onnx":
        jobs.model("model.onnx")
        return Made(folder, ("model.onnx", "model.onnx", "model.onnx.bin"), source="model.onnx")
    {"npy": _npy, "npz": _npz, "pb": _pb, "safetensors": _safetensors}[kind]()
    return Made(folder, tuple(sorted(path.name for path in folder.iterdir() if path.suffix == f".{kind}")))


def _npy() -> None:
    files.save("float.npy", {"x": jobs.X})
    np.save("fortran.npy", np.asfortranarray(jobs.X.reshape(10, 20)))
    np.save("text.npy", np.array(["1.5", "é", "-inf"]))
    files.save("small.npy", {"x": sample(gpucast.dtype("FLOAT8E5M2"), (7,))})


def _several() -> dict[str, np.ndarray]:
    small = sample(gpucast.dtype("INT4"), (5,))
    return {"w": jobs.X.reshape(10, 20), "n": np.arange(6).reshape(2, 3), "q": small, "e": np.zeros((0, 2))}


def _npz() -> None:
    files.save("stored.npz", _several())
    # Few bytes that become many.
    np.savez_compressed("compressed.npz", w=jobs.X, z=np.zeros((512, 512), order="F"))


def _pb() -> None:
    files.save("raw.pb", {"x": jobs.X})
    files.save("small.pb", {"x": _several()["q"]})
    Path("typed.pb").write_bytes(onnx.helper.make_tensor("x", 1, [3], [1.0, 2.0, 3.0]).SerializeToString())
    Path("text.pb").write_bytes(numpy_helper.from_array(np.array(["a", "1"], object), "x").SerializeToString())


def _safetensors() -> None:
    files.save("several.safetensors", _several(), {"format": "pt"})
    weight = gpucast.quantize(np.outer(jobs.X, jobs.X[:64]), "float8e4m3fn_axis", axis=0)
    gpucast.save("quantized.safetensors", {"q": gpucast.quantize(jobs.X.reshape(2, 100), "int4_zp_32")})
    files.save("scaled.safetensors", {"l.weight": weight.data, "l.weight_scale": weight.scales})


def _checkpoint(folder: Path) -> Made:
    """A sharded checkpoint with scales, whose index and config.json are damaged."""
    jobs.folder()
    os.rename("in", "whole")
    for path in list(Path("whole").iterdir()):
        os.rename(path, path.name)
    os.rmdir("whole")
    config = json.loads(Path("config.json").read_text())
    quantization = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
    }
    Path("config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    x = gpucast.quantize(np.outer(jobs.X, jobs.X), "float8e4m3fn_128x128")
    files.save("b.safetensors", files.load("b.safetensors") | {"q.weight": x.data, "q.weight_scale_inv": x.scales})
    index = json.loads(Path("model.safetensors.index.json").read_text())
    index["weight_map"] |= {"q.weight": "b.safetensors", "q.weight_scale_inv": "b.safetensors"}
    Path("model.safetensors.index.json").write_text(json.dumps(index))
    return Made(folder, ("config.json", "model.safetensors.index.json"), source=".")
