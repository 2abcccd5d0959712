# SPDX-License-Identifier: Apache-2.0
"""`gpucast convert --rounding stochastic`: the bits do not depend on pieces, processes or interruptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same
from conversions import convert, failure, numbers
from gpucast import checkpoints, files
from gpucast.checkpoints import tensor_seed
from gpucast.checkpoints.running import staging
from gpucast.checkpoints.scales import scaling
from gpucast.cli import main
from gpucast.core.dtypes import dtype
from gpucast.files.tensor import StoredTensor
from host_driver import HostDriver, installed
from tensors import leftovers

pytestmark = pytest.mark.usefixtures("several_pieces")

SEED = 2**64 - 5
AT_RANDOM = ["--rounding", "stochastic", "--seed", str(SEED)]
PAIRS = [
    (to, scale)
    for to in ("FLOAT8E4M3FN", "FLOAT6E3M2", "FLOAT4E2M1")
    for scale in scaling.formats(dtype(to))
    if to != "FLOAT4E2M1" or scale == "nvfp4"
]


def small_pieces(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    parts = StoredTensor.parts
    monkeypatch.setattr(StoredTensor, "parts", lambda self, asked=limit: parts(self, asked))


def rounded(x: Any, name: str, to: str) -> Any:
    return gpucast.cast(x, to, rounding="stochastic", seed=tensor_seed(SEED, name))


def test_plain_casts_round_as_the_whole_tensor_would(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {
        "a": numbers(30, 40),
        "b": numbers(30, 40),
        "wide": numbers(199, seed=1).astype(np.float64),
        "half": numbers(7, 9, seed=2).astype(np.float16),
        "none": np.ones((0, 3), np.float32),
        "ids": np.arange(9),
    }
    files.save("in.safetensors", tensors)
    for to, scale in (("BFLOAT16", []), ("FLOAT8E5M2", ["--scale", "none"])):
        for limit in (1 << 23, 1024, 52):
            with monkeypatch.context() as patch:
                small_pieces(patch, limit)
                options = ["--to", to, *scale, *AT_RANDOM, "--verify", "all"]
                assert convert("in.safetensors", "out.safetensors", *options) == 0
            found = files.load("out.safetensors")
            for name, x in tensors.items():
                assert_same(found[name], x if name == "ids" else rounded(x, name, to))
    # The bits depend on both names and seeds.
    assert (found["a"].view(np.uint8) != found["b"].view(np.uint8)).any()
    assert convert("in.safetensors", "other.safetensors", *options[:-3], "1") == 0
    assert (files.load("other.safetensors")["a"].view(np.uint8) != found["a"].view(np.uint8)).any()
    assert leftovers(Path(), "in.safetensors", "out.safetensors", "other.safetensors") == []


@pytest.mark.parametrize(("to", "scale"), PAIRS)
def test_scaled_ones_round_as_the_whole_tensor_would(to: str, scale: str) -> None:
    tensors = {"a.weight": numbers(131, 130), "half": numbers(40, 256, seed=2).astype(np.float16)}
    tensors["a.weight"][70, 3] = np.nan if scale == "per-tensor" else 0
    files.save("in.safetensors", tensors)
    options = ["--to", to, "--scale", scale, *AT_RANDOM, "--verify", "all", "--allow-loss"]
    assert convert("in.safetensors", "out.safetensors", *options) == 0
    found = files.load("out.safetensors")
    for name, x in tensors.items():
        format = scaling.formats(dtype(to))[scale]
        axis = 0 if format.block == "axis" else -1
        seed = tensor_seed(SEED, name)
        q = gpucast.quantize(x, format, axis=axis, rounding="stochastic", seed=seed)
        assert_same(found[name], q.data.get() if format.element.packed else q.data)
        assert_same(found[f"{name}.scales"], q.scales)
        nearest = gpucast.quantize(x, format, axis=axis)
        assert_same(q.scales, nearest.scales)
        assert (found[name] != (nearest.data.get() if format.element.packed else nearest.data)).any()


def test_a_sample_is_verified_with_the_same_bits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).standard_normal((1 << 20) + 4000).astype(np.float32)
    files.save("in.safetensors", {"x": x})
    options = ["in.safetensors", "out.safetensors", "--to", "BFLOAT16", *AT_RANDOM, "--verify"]
    assert main(["convert", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified_elements"] == 2048
    assert_same(files.load("out.safetensors")["x"], rounded(x, "x", "BFLOAT16"))
    cast = gpucast.cast

    def one_further(x: Any, to: Any, **keywords: Any) -> Any:
        return cast(x, to, **keywords | ({"offset": 1} if keywords.get("offset") == 0 else {}))

    monkeypatch.setattr("gpucast.checkpoints.running.cast_tensor.cast", one_further)
    assert "verify: tensor 'x': element" in failure(capsys, *options)


def test_shares_and_resumed_runs_write_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in").mkdir()
    for name in "abc":
        files.save(f"in/{name}.safetensors", {f"{name}{i}": numbers(60, 64, seed=i) for i in range(3)})
    options = ["--to", "FLOAT8E4M3FN", "--scale", "block", "--rule", "*0=BFLOAT16", *AT_RANDOM]

    def written(folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.safetensors"))}

    assert convert("in", "out", *options) == 0
    for share in ("1/2", "0/2"):
        assert convert("in", "shared", *options, "--shard", share) == 0
    assert written("shared") == written("out")
    # Interrupted in the middle of the second file.
    monkeypatch.setattr(staging, "WORTH_KEEPING", 0)
    advanced = []

    def interrupt(nbytes: int) -> None:
        advanced.append(nbytes)
        if sum(advanced) > 4.5 * 60 * 64 * 4:
            raise KeyboardInterrupt

    def planned(seed: int) -> checkpoints.ConversionPlan:
        choice = checkpoints.Choice(dtype("FLOAT8E4M3FN"), rules=[checkpoints.SelectionRule("*0", dtype("BFLOAT16"))])
        asked = checkpoints.Request(choice, {"rounding": "stochastic"}, "block", seed=seed)
        return checkpoints.make_plan("in", "resumed", asked)

    with pytest.raises(KeyboardInterrupt):
        checkpoints.run(planned(SEED), checkpoints.Options(), checkpoints.Outcome(planned(SEED)), interrupt)
    outcome = checkpoints.Outcome(planned(SEED))
    checkpoints.run(planned(SEED), checkpoints.Options(), outcome)
    assert outcome.resumed >= 4 * 60 * 64 * 4
    assert written("resumed") == written("out")
    # Work with another seed is not resumed.
    assert planned(1).fingerprint != planned(2).fingerprint


def test_a_device_gives_the_same_bytes() -> None:
    files.save("in.safetensors", {"a.weight": numbers(96, 256), "b": numbers(5000, seed=1)})
    for options in (["--to", "BFLOAT16"], ["--to", "FLOAT8E4M3FN", "--scale", "per-tensor"]):
        argv = ["in.safetensors", "out.safetensors", *options, *AT_RANDOM]
        assert convert(*argv) == 0
        wanted = Path("out.safetensors").read_bytes()
        driver = HostDriver()
        with installed(driver):
            assert convert(*argv, "--device", "cuda", "--verify", "all") == 0
        assert driver.launched
        assert Path("out.safetensors").read_bytes() == wanted
