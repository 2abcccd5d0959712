# SPDX-License-Identifier: Apache-2.0
"""The config.json of a converted model: what loaders read there is true of the weights beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpucast import files
from scaled_files import convert, failure, numbers, save

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


def test_a_plain_cast_to_few_bits_leaves_the_type() -> None:
    model({"l.weight": numbers(8, 8)}, dtype="float32")
    assert convert("in", "out", "--to", "FLOAT8E4M3FN", "--scale", "none") == 0
    assert written() == {"dtype": "float32"}


def test_weights_that_lose_their_scales_have_the_type_that_is_told() -> None:
    model({"l.weight": numbers(128, 128)}, dtype="bfloat16")
    assert convert("in", "out", *BLOCKS, "--style", "deepseek") == 0
    assert written()["dtype"] == "bfloat16"
    shutil.move("out", "middle")
    assert convert("middle", "out", "--to", "FLOAT") == 0
    assert written() == {"dtype": "float32"}


def test_scales_beside_a_config_need_a_style(capsys: pytest.CaptureFixture[str]) -> None:
    model({"l.weight": numbers(128, 128)})
    message = failure(capsys, "in", "out", *BLOCKS)
    assert "--style" in message
    assert "deepseek (transformers, vLLM" in message
    assert convert("in", "out", *BLOCKS, "--style", "gpucast") == 0
    # A file by itself has no loader that could be misled.
    assert convert("in/model.safetensors", "out.safetensors", *BLOCKS) == 0


@pytest.mark.parametrize("style", ["gpucast", "deepseek", "compressed-tensors"])
def test_unknown_codes_beside_a_config_that_tells_of_them(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"l.weight": numbers(128, 128), "m.w_codes": np.ones((128, 64), np.uint8)}
    model(tensors, quantization_config={"quant_method": "special"})
    message = failure(capsys, "in", "out", *BLOCKS, "--style", style)
    assert "says that weights are quantized (special), and 'm.w_codes' (UINT8)" in message
    assert not Path("out").exists()


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


def test_other_links_out_of_a_snapshot_are_not_followed(capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = Path("models--a--b/snapshots/0123")
    snapshot.mkdir(parents=True)
    (snapshot.parent.parent / "blobs").mkdir()
    save("in/model.safetensors", {"l.weight": numbers(4, 4)})
    os.symlink("../../../in/model.safetensors", snapshot / "model.safetensors")
    message = failure(capsys, str(snapshot), "out", "--to", "BFLOAT16")
    assert "is a link that leads out of the folder" in message
    assert "cp -rL" in message
