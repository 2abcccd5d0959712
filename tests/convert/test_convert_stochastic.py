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
from conversions import convert, failure, numbers, save
from gpucast import convert as conversion
from gpucast import files
from gpucast.cli import main
from gpucast.convert import tensor_seed
from gpucast.core.dtypes import dtype
from gpucast.files.tensor import StoredTensor
from host_driver import HostDriver, installed
from tensors import leftovers

pytestmark = pytest.mark.usefixtures("several_pieces")

SEED = 2**64 - 5
AT_RANDOM = ["--rounding", "stochastic", "--seed", str(SEED)]


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

    monkeypatch.setattr("gpucast.convert.running.cast_tensor.cast", one_further)
    assert "verify: tensor 'x': element" in failure(capsys, *options)


def test_shares_write_the_same() -> None:
    for name in "abc":
        save(f"in/{name}.safetensors", {f"{name}{i}": numbers(60, 64, seed=i) for i in range(3)})
    options = ["--to", "FLOAT8E4M3FN", "--scale", "block", "--rule", "*0=BFLOAT16", *AT_RANDOM]
    assert convert("in", "out", *options) == 0
    for share in ("1/2", "0/2"):
        assert convert("in", "shared", *options, "--shard", share) == 0
    for name in "abc":
        assert Path(f"shared/{name}.safetensors").read_bytes() == Path(f"out/{name}.safetensors").read_bytes()
    # Work with another seed is not gone on with.
    choice = conversion.Choice(dtype("BFLOAT16"))
    requests = (conversion.Request(choice, {"rounding": "stochastic"}, seed=seed) for seed in (1, 2))
    assert len({conversion.make_plan("in", "new", request).fingerprint for request in requests}) == 2


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
