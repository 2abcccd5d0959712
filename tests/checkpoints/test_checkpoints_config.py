# SPDX-License-Identifier: Apache-2.0
"""The config.json of a converted model: what loaders read there is true of the weights beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpucast import files
from scaled_files import convert, numbers, save

pytestmark = pytest.mark.usefixtures("folder")

BLOCKS = ["--to", "FLOAT8E4M3FN", "--scale", "block"]


def model(tensors: dict[str, Any], **config: Any) -> None:
    save("in/model.safetensors", tensors)
    Path("in/config.json").write_text(json.dumps(config))


def written() -> Any:
    return json.loads(Path("out/config.json").read_text())


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_the_type_of_the_weights_is_told(key: str) -> None:
    model({"l.weight": numbers(4, 4)}, model_type="llama", **{key: "float32"}, text_config={key: "torch.float32"})
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    assert written() == {"model_type": "llama", key: "bfloat16", "text_config": {key: "bfloat16"}}
    shutil.move("out", "middle")
    assert convert("middle", "out", "--to", "FLOAT16") == 0
    assert written()[key] == "float16"


def test_numbers_stay_as_they_were_written() -> None:
    model({"l.weight": numbers(4, 4)})
    text = '{"dtype": "float32", "rope_theta": 1e400, "eps": 1.0E-05, "list": [0.10, {"a": -1e999}], "n": 12}'
    Path("in/config.json").write_text(text)
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    wanted = text.replace("float32", "bfloat16").replace(" ", "").replace("\n", "")
    assert re.sub(r"\s", "", Path("out/config.json").read_text()) == wanted


def test_the_type_is_that_of_most_numbers() -> None:
    model({"l.weight": numbers(8, 8), "norm.weight": numbers(1, 4)}, dtype="float32", quantization_config=None)
    assert convert("in", "out", "--to", "BFLOAT16", "--include", "norm.weight") == 0
    assert Path("out/config.json").read_bytes() == Path("in/config.json").read_bytes()
    shutil.rmtree("out")
    assert convert("in", "out", "--to", "BFLOAT16", "--exclude", "norm*") == 0
    assert written() == {"dtype": "bfloat16", "quantization_config": None}


def test_a_snapshot_in_the_cache_of_hugging_face() -> None:
    blobs, snapshot = Path("models--a--b/blobs"), Path("models--a--b/snapshots/0123")
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    files.save("x.safetensors", {"l.weight": numbers(4, 4)})
    shutil.move("x.safetensors", blobs / "77")
    (blobs / "88").write_text('{"dtype": "float32"}')
    for name, blob in (("model.safetensors", "77"), ("config.json", "88")):
        os.symlink(f"../../blobs/{blob}", snapshot / name)
    assert convert(str(snapshot), "out", "--to", "BFLOAT16", "--verify") == 0
    assert written() == {"dtype": "bfloat16"}
    assert files.load("out/model.safetensors")["l.weight"].dtype.name == "bfloat16"
