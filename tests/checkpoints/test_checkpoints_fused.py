# SPDX-License-Identifier: Apache-2.0
"""Weights that loaders join into one layer: NVFP4 gives them one global scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpucast import checkpoints, files
from gpucast.checkpoints.scales.scaling import groups
from gpucast.core.dtypes import dtype
from scaled_files import convert, numbers, save

pytestmark = pytest.mark.usefixtures("folder")

NVFP4 = ["--to", "FLOAT4E2M1", "--scale", "nvfp4", "--style", "compressed-tensors"]
LAYER = "model.layers.0.self_attn"


def shards(folder: str) -> list[str]:
    return list(map(str, Path(folder).glob("*.safetensors")))


def test_the_groups_are_those_of_the_loaders() -> None:
    names = [f"{LAYER}.{last}.weight" for last in ("q_proj", "k_proj", "v_proj", "o_proj")]
    names += ["l.mlp.gate_proj.weight", "l.mlp.up_proj.weight", "l.mlp.down_proj.weight", "m.mlp.up_proj.weight"]
    names += ["e.experts.0.w1.weight", "e.experts.0.w3.weight", "e.experts.1.w1.weight", "e.experts.0.w2.weight"]
    names += ["a.wq_a.weight", "a.wkv.weight", "w1.bias"]
    assert groups(names) == [names[:3], names[4:6], names[8:10], names[12:14]]


@pytest.mark.parametrize("among", ["one file", "several files"])
def test_joined_weights_get_one_global_scale(among: str) -> None:
    weights = {f"{LAYER}.{last}.weight": numbers(32, 64) * size for last, size in (("q_proj", 1), ("k_proj", 40))}
    weights[f"{LAYER}.v_proj.weight"] = numbers(16, 64) / 9
    weights[f"{LAYER}.o_proj.weight"] = numbers(32, 64) / 9
    for index, (name, weight) in enumerate(weights.items()):
        save(f"in/{index}.safetensors", {name: weight})
    if among == "one file":
        for path in Path("in").iterdir():
            path.unlink()
        save("in/model.safetensors", weights)
    Path("in/config.json").write_text("{}")
    assert convert("in", "out", *NVFP4, "--verify", "all") == 0
    written = {name: array for path in shards("out") for name, array in files.load(path).items()}
    scales = {name: float(written[f"{name}_global_scale"][0]) for name in weights}
    largest = max(float(np.abs(weight).max()) for weight in weights.values())
    own = float(np.abs(weights[f"{LAYER}.o_proj.weight"]).max())
    *joined, alone = scales.values()
    np.testing.assert_allclose(joined, [6 * 448 / largest] * 3, rtol=1e-6)
    np.testing.assert_allclose(alone, 6 * 448 / own, rtol=1e-6)
    # As vLLM reads it: every part of the joined layer by the largest global scale.
    assert convert("out", "back", "--to", "FLOAT") == 0
    for path in shards("back"):
        for name, array in files.load(path).items():
            factor = 1 if "o_proj" in name else scales[name] / max(joined)
            assert np.linalg.norm(array * factor - weights[name]) < 0.12 * np.linalg.norm(weights[name]), name


def test_a_weight_that_is_kept_does_not_count() -> None:
    weights = {f"l.{last}.weight": numbers(16, 64) * size for last, size in (("q_proj", 1), ("k_proj", 40))}
    save("in/model.safetensors", weights)
    Path("in/config.json").write_text("{}")
    assert convert("in", "out", *NVFP4, "--exclude", "l.k_proj.weight") == 0
    (scale,) = files.load("out/model.safetensors")["l.q_proj.weight_global_scale"]
    np.testing.assert_allclose(scale, 6 * 448 / np.abs(weights["l.q_proj.weight"]).max(), rtol=1e-6)
    assert json.loads(Path("out/config.json").read_text())["quantization_config"]["ignore"][0] == "l.k_proj"


def test_a_change_of_a_joined_weight_elsewhere_is_noticed() -> None:
    save("in/a.safetensors", {"l.q_proj.weight": numbers(16, 64)})
    save("in/b.safetensors", {"l.k_proj.weight": numbers(16, 64)})
    Path("in/config.json").write_text("{}")
    choice = checkpoints.Choice(dtype("FLOAT4E2M1"))
    request = checkpoints.Request(choice, {}, "nvfp4", asked_style="compressed-tensors")
    plan = checkpoints.make_plan("in", "out", request)
    save("in/b.safetensors", {"l.k_proj.weight": numbers(16, 64, seed=1)})
    assert plan.files[0].changed() is not None
