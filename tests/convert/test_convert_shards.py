# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in shards of another size, or in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codes import assert_same
from conversions import checkpoint, save
from gpucast import files
from gpucast.cli import main
from gpucast.cli.arguments import size
from tensors import leftovers

X = np.linspace(-1, 1, 1000, dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint in two files (a0 to a4, b0 to b4 of 1,000 elements each), a config.json and a folder of another."""
    monkeypatch.chdir(tmp_path)
    weight_map = {}
    for name in "ab":
        tensors = {f"{name}{i}": X + i for i in range(5)} | {f"{name}n": np.arange(4)}
        save(f"in/{name}.safetensors", tensors, {"format": "pt", "part": name})
        weight_map |= dict.fromkeys(tensors, f"{name}.safetensors")
    index = {"metadata": {"total_size": 1, "mine": 2}, "weight_map": weight_map}
    Path("in/model.safetensors.index.json").write_text(json.dumps(index))
    Path("in/config.json").write_text('{"torch_dtype": "float32"}')
    save("in/vae/other.safetensors", {"v": X, "w": X})
    return tmp_path


def metadata(path: str) -> dict[str, str]:
    with files.TensorFile(path) as file:
        return file.metadata


def convert(*argv: str) -> int:
    return main(["convert", *argv, "--to", "FLOAT16", "--quiet"])


def all_of(folder: str, index: str = "model.safetensors.index.json") -> dict[str, Any]:
    """The tensors that an index names, each from the file that it names."""
    weight_map = json.loads(Path(folder, index).read_text())["weight_map"]
    return {name: files.load(f"{folder}/{file}")[name] for name, file in weight_map.items()}


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], x) for name, x in wanted.items())


def wanted(path: str = "in", kind: Any = np.float16) -> dict[str, Any]:
    tensors = files.load(f"{path}/a.safetensors") | files.load(f"{path}/b.safetensors")
    return {name: x.astype(kind) if x.dtype == np.float32 else x for name, x in tensors.items()}


def test_shards_of_a_size() -> None:
    assert convert("in", "out", "--shard-size", "7KB", "--verify", "all") == 0
    names = sorted(path.name for path in Path("out").glob("*.safetensors"))
    # Of 2,000 bytes for each tensor, and 32 for the integers.
    assert names == [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)]
    assert same(all_of("out"), wanted())
    index = json.loads(Path("out/model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 10 * 2000 + 2 * 32, "mine": 2}
    for name in names:
        held = files.load(f"out/{name}")
        assert sum(x.nbytes for x in held.values()) <= 7000
        assert held.keys() == {tensor for tensor, file in index["weight_map"].items() if file == name}
    # The second has tensors of both, which say different things of "part".
    assert [metadata(f"out/{name}").get("part") for name in names] == ["a", None, "b", "b"]
    assert all(metadata(f"out/{name}")["format"] == "pt" for name in names)
    assert json.loads(Path("out/config.json").read_text()) == {"torch_dtype": "float16"}
    assert same(files.load("out/vae/other.safetensors"), {"v": X.astype(np.float16), "w": X.astype(np.float16)})


def test_each_checkpoint_of_a_folder_has_its_own() -> None:
    assert convert("in", "out", "--shard-size", "2000") == 0
    index = json.loads(Path("out/vae/other.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        "v": "other-00001-of-00002.safetensors",
        "w": "other-00002-of-00002.safetensors",
    }
    assert same(all_of("out"), wanted())


@pytest.mark.parametrize("source", ["in", "in/model.safetensors.index.json"])
def test_merging(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    if source == "in":
        Path("in/vae/other.safetensors").unlink()
    assert main(["convert", source, "one.safetensors", "--to", "FLOAT16", "--verify", "all"]) == 0
    assert same(files.load("one.safetensors"), wanted())
    assert metadata("one.safetensors") == {"format": "pt"}
    said = capsys.readouterr().out
    assert "metadata not kept, since files say different things: 'part'" in said
    assert ("not in the one file that was written: config.json" in said) == (source == "in")
    assert leftovers(Path(), "in", "one.safetensors") == []


def test_merging_and_splitting_is_the_whole_again() -> None:
    assert convert("in/model.safetensors.index.json", "one.safetensors") == 0
    assert convert("one.safetensors", "parts", "--shard-size", "3kb") == 0
    assert convert("parts", "two.safetensors") == 0
    assert Path("one.safetensors").read_bytes() == Path("two.safetensors").read_bytes()


def test_sizes_are_decimal_and_binary(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("7", "7B", "1.5KB", "5GB", "2GiB", "3 mb")
    assert [size(text) for text in texts] == [7, 7, 1500, 5 * 10**9, 2 << 30, 3 * 10**6]
    for text in ("0", "-1", "5XB", "iB", "", "0.1B", "GB", "9" * 400, "9" * 9999, "9999999TB"):
        with pytest.raises(SystemExit):
            convert("in", "out", "--shard-size", text)
        assert "is no size; expected bytes as 5000000, 5GB or 4GiB" in capsys.readouterr().err


def test_codes_and_their_scales_go_together() -> None:
    """New ones, and kept ones that an entry of the metadata describes."""
    save("wide.safetensors", {name: np.outer(X[:64], X[:64]).astype(np.float32) for name in ("w", "v", "u")})
    argv = ["convert", "wide.safetensors", "codes", "--to", "FLOAT8E4M3FN", "--scale", "mx"]
    assert main([*argv, "--shard-size", "5KB", "--quiet", "--verify", "all"]) == 0
    held = [set(files.load(str(path))) for path in sorted(Path("codes").glob("*.safetensors"))]
    assert sorted(map(sorted, held)) == [["u", "u.scales"], ["v", "v.scales"], ["w", "w.scales"]]
    # Merged, split and read as numbers again.
    keep = ["--exclude", "*", "--quiet", "--to", "FLOAT"]
    assert main(["convert", "codes", "kept.safetensors", *keep[2:], "--exclude", "u"]) == 0
    assert sorted(files.load("kept.safetensors")) == ["u", "u.scales", "v", "w"]
    assert list(metadata("kept.safetensors")) == ["gpucast.quantized.u"]
    assert main(["convert", "kept.safetensors", "again", "--to", "FLOAT16", "--exclude", "u", "--shard-size", "1"]) == 0
    together = [path for path in Path("again").glob("*.safetensors") if "u" in files.load(str(path))]
    assert [sorted(files.load(str(path))) for path in together] == [["u", "u.scales"]]
    assert main(["convert", "again", "numbers", "--to", "FLOAT"]) == 0
    assert all_of("numbers", "kept.safetensors.index.json")["u"].dtype == np.float32


def test_weights_that_loaders_join_share_their_global_scale_over_shards() -> None:
    chance = np.random.default_rng(0)
    tensors = {f"l.self_attn.{x}_proj.weight": (chance.standard_normal((64, 64)) * 2**i).astype(np.float32)
               for i, x in enumerate("qkv")}  # fmt: skip
    save("model/model.safetensors", tensors)
    Path("model/config.json").write_text("{}")
    argv = ["--to", "FLOAT4E2M1", "--scale", "nvfp4", "--style", "compressed-tensors", "--quiet", "--verify", "all"]
    assert main(["convert", "model", "whole", *argv]) == 0
    assert main(["convert", "model", "parts", *argv, "--shard-size", "1KB"]) == 0
    assert len(list(Path("parts").glob("*.safetensors"))) == 3
    assert same(all_of("parts"), files.load("whole/model.safetensors"))
    assert Path("parts/config.json").read_bytes() == Path("whole/config.json").read_bytes()


def test_no_tensor_of_a_checkpoint_is_the_only_one() -> None:
    """The only tensor of the only file is cast, whatever its type. Merged files have others."""
    checkpoint("ones", {"1": {"w": np.ones(4, np.float32)}, "2": {"ids": np.arange(300)}})
    assert convert("ones", "out.safetensors", "--verify", "all") == 0
    assert_same(files.load("out.safetensors")["ids"], np.arange(300))
