# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in several files, folders of files, and which tensors of them are cast."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import gpucast
from codes import assert_same
from conversions import begun, checkpoint, contents, convert, failure, planned
from gpucast import files
from gpucast.cli import main
from gpucast.convert.running.work import UnfinishedWork
from gpucast.convert.streaming import prefetch
from gpucast.core.dtypes import dtype
from host_driver import HostDriver, installed
from tensors import leftovers, sample

BF16 = dtype("BFLOAT16")


def tensors(layer: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(layer)
    return {
        f"layers.{layer}.weight": rng.standard_normal((8, 6)).astype(np.float32),
        f"layers.{layer}.norm": np.ones(6, np.float32),
        f"layers.{layer}.ids": np.arange(5) + layer,
    }


def whole(folder: Path, count: int = 3) -> dict[str, np.ndarray]:
    """Write a checkpoint of so many files, with other files beside them; returns all its tensors."""
    shards = {f"model-{layer + 1:05}-of-{count:05}": tensors(layer) for layer in range(count)}
    every = {name: x for held in shards.values() for name, x in held.items()}
    checkpoint(folder, shards, total_size=sum(x.nbytes for x in every.values()), total_parameters=1)
    for name, text in {"config.json": "{}", "sub/tokens.txt": "a b", ".hidden": ""}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return every


def load_folder(folder: Path) -> dict[str, np.ndarray]:
    loaded: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        loaded |= files.load(str(path))
    return loaded


def test_a_folder_becomes_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = whole(folder / "in")
    # Links within the folder, and to it, are followed.
    shard = folder / "in" / "model-00001-of-00003.safetensors"
    shard.rename(folder / "in" / "sub" / "real.bin")
    shard.symlink_to("sub/real.bin")
    (folder / "link").symlink_to("in")
    before = contents(folder / "in")
    assert main(["convert", "link", "out", "--to", "BFLOAT16"]) == 0
    assert not (folder / "out" / shard.name).is_symlink()
    said = capsys.readouterr().out
    assert "copied as they are: 3 files" in said
    assert "out: 6 tensors of 3 files cast to BFLOAT16, 162 elements, 648 -> 324 bytes" in said
    assert contents(folder / "in") == before
    assert set(contents(folder / "out")) == set(before) - {".hidden"} | {".gpucast.json"}
    assert (folder / "out" / "sub" / "tokens.txt").read_text() == "a b"
    loaded = load_folder(folder / "out")
    assert set(loaded) == set(every)
    for name, x in every.items():
        row = BF16 if x.dtype == np.float32 else dtype(x.dtype)
        assert_same(loaded[name], gpucast.cast(x, row), row)
    index = json.loads((folder / "out" / "model.safetensors.index.json").read_text())
    sizes = sum(x.nbytes for x in loaded.values())
    assert index["metadata"] == {"total_size": sizes, "total_parameters": 1}
    for name, shard in index["weight_map"].items():
        with safe_open(folder / "out" / shard, "np") as file:
            assert name in file.keys()
    assert leftovers(folder, "in", "out", "link") == []


def test_folders_hold_any_format(folder: Path) -> None:
    (folder / "in" / "deep").mkdir(parents=True)
    x = np.linspace(-1, 1, 12, dtype=np.float32)
    files.save("in/a.npy", {"a": x})
    files.save("in/deep/b.npz", {"b": x, "n": np.arange(3)})
    files.save("in/n.npy", {"n": np.arange(3)})
    files.save("in/t.pb", {"t": x})
    assert convert("in", "out", "--to", "FLOAT16") == 0
    assert files.load("out/a.npy")["a"].dtype == np.float16
    assert files.load("out/deep/b.npz")["b"].dtype == np.float16
    # A single tensor of a single file is cast whatever its type, but not in a folder.
    assert (folder / "out/n.npy").read_bytes() == (folder / "in/n.npy").read_bytes()
    assert (folder / "out/t.pb").read_bytes() == (folder / "in/t.pb").read_bytes()


#: Options, and the resulting types of weight, norm and ids of a layer.
CHOICES: list[tuple[list[str], list[str]]] = [
    ([], ["FLOAT16", "FLOAT16", "INT64"]),
    (["--include", "*.ids"], ["FLOAT", "FLOAT", "FLOAT16"]),
    (["--include", "*.ids", "--include", "*.norm"], ["FLOAT", "FLOAT16", "FLOAT16"]),
    (["--exclude", "*norm"], ["FLOAT16", "FLOAT", "INT64"]),
    (["--include", "*", "--exclude", "*norm"], ["FLOAT16", "FLOAT", "FLOAT16"]),
    (["--rule", "*norm*=keep"], ["FLOAT16", "FLOAT", "INT64"]),
    (["--rule", "*norm=keep", "--rule", "*=BFLOAT16"], ["BFLOAT16", "FLOAT", "BFLOAT16"]),
    (["--rule", "*=BFLOAT16", "--rule", "*norm=keep"], ["BFLOAT16", "BFLOAT16", "BFLOAT16"]),
    (["--rule", "*ids=INT32", "--include", "*weight"], ["FLOAT16", "FLOAT", "INT32"]),
    (["--rule", "*=DOUBLE", "--exclude", "*weight"], ["FLOAT", "DOUBLE", "DOUBLE"]),
]


@pytest.mark.parametrize(("options", "kinds"), CHOICES, ids=lambda case: " ".join(case) or "none")
def test_patterns_choose(options: list[str], kinds: list[str], folder: Path) -> None:
    files.save("in.safetensors", tensors(0))
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT16", *options) == 0
    with files.TensorFile("out.safetensors") as file:
        found = {tensor.name.split(".")[-1]: tensor.dtype for tensor in file.tensors}
    assert [found[name].name for name in ("weight", "norm", "ids") if (found[name] is not None)] == kinds


def test_few_bits_need_scales(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = {"w": np.ones(3, np.float32), "b": sample(dtype("FLOAT8E5M2"), (4,)), "n": np.ones(3, int)}
    files.save("in.safetensors", held)
    for to in ("FLOAT8E4M3FN", "INT8", "INT4", "FLOAT4E2M1"):
        message = failure(capsys, "in.safetensors", "out.safetensors", "--to", to, "--as-weights", "*")
        assert "'w' from FLOAT to" in message and "none: a plain cast" in message
        plain = ["--scale", "none", "--allow-loss", "--as-weights", "*"]
        assert convert("in.safetensors", "out.safetensors", "--to", to, *plain) == 0
    # Integers, booleans, unchanged types and wider types need no --scale.
    for options in (["--to", "INT8", "--include", "n"], ["--to", "BOOL"], ["--to", "FLOAT8E5M2", "--include", "b"]):
        assert convert("in.safetensors", "out.safetensors", *options, "--as-weights", "*") == 0


def test_a_dry_run_tells_and_does_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole(folder / "in")
    before = contents(folder)
    assert main(["convert", "in", "out", "--to", "BFLOAT16", "--dry-run", "--rule", "*norm=keep"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["file", "tensor", "from", "to", "shape", "bytes", "becomes"]
    name = "model-00001-of-00003.safetensors"
    assert [name, "layers.0.weight", "FLOAT", "BFLOAT16", "8x6", "192", "96"] in [line.split() for line in lines]
    assert [name, "layers.0.norm", "FLOAT", "kept", "6", "24", "24"] in [line.split() for line in lines]
    assert lines[-1].split() == ["total", "3", "tensors", "cast", "773", "485"]
    assert main(["convert", "in", "out", "--to", "BFLOAT16", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["total"] == {"tensors": 6, "bytes_in": 773, "bytes_out": 449}
    assert contents(folder) == before
    # The result is as planned.
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    with files.TensorFile(f"out/{name}") as file:
        sizes = {tensor.name: tensor.nbytes for tensor in file.tensors}
    assert sizes == {t["name"]: t["bytes_out"] for t in told["tensors"] if t["file"] == name}
    np.save("t.npy", np.array([1.5]))
    assert main(["convert", "t.npy", "u.npy", "--to", "STRING", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "?"
    # Control characters in names do not reach the terminal.
    files.save("names.npz", {"a\n\x1b[31m\u202e": np.ones(3, np.float32)})
    assert main(["convert", "names.npz", "u.npz", "--to", "FLOAT16", "--dry-run"]) == 0
    assert r"'a\n\x1b[31m\u202e'" in capsys.readouterr().out.splitlines()[1]


def test_a_dry_run_fails_as_the_run_would(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole(folder / "in")
    common = ["in", "out", "--to", "BFLOAT16"]
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("")
    (folder / "other.partial").write_text("")
    before = contents(folder)
    for wrong in (common, ["in", "nowhere/out", *common[2:]], ["in", "other", *common[2:]]):
        said = failure(capsys, *wrong, "--dry-run")
        assert said == failure(capsys, *wrong)
    assert "is in the way" in said
    assert "No such file" in failure(capsys, "in", "new", *common[2:], "--dry-run", "--report", "nowhere/report.html")
    assert contents(folder) == before
    # Unfinished work of another conversion, then remains of one without any.
    plan = planned("in", "new")
    with begun(plan) as work, work.part(plan.files[0]) as part:
        part.write(b"begun")
    before = contents(folder)
    assert "holds unfinished work of another conversion" in failure(capsys, "in", "new", *common[2:], "--dry-run")
    assert main(["convert", "in", "new", *common[2:], "--dry-run", "--restart"]) == 0
    assert contents(folder) == before
    os.unlink(UnfinishedWork(plan).parts(plan.files[0])[0])
    assert main(["convert", "in", "new", *common[2:], "--dry-run"]) == 0
    assert (folder / "new.partial" / "job.json").exists()


def test_shares_divide_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = whole(folder / "in", 4)
    common = ["in", "out", "--to", "BFLOAT16", "--report", "report.json"]
    # The launcher tells of one of them: torchrun, or Slurm.
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    for number in ("2/4", "auto", "1/4"):
        assert main(["convert", *common, "--shard", number]) == 0
        assert "not written yet: other shares have" in capsys.readouterr().out
        assert leftovers(folder, "in") == ["out.partial"]
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["convert", *common, "--shard", "auto"]) == 0
    assert "8 tensors of 4 files cast" in capsys.readouterr().out
    assert leftovers(folder, "in", "report.json") == ["out"]
    assert len(json.loads((folder / "report.json").read_text())["tensors"]) == 8
    assert set(load_folder(folder / "out")) == set(every)
    # A later process finds that everything is done, and does not change the report.
    assert main(["convert", *common, "--shard", "1/4"]) == 0
    assert (
        capsys.readouterr().out
        == "out: was written by another run of the same conversion; its bytes were not read: --verify does that\n"
    )
    assert len(json.loads((folder / "report.json").read_text())["tensors"]) == 8
    assert convert("in", "out", "--to", "FLOAT16", "--shard", "1/4") == 1
    assert leftovers(folder, "in", "report.json") == ["out"]


def test_a_device_casts_while_the_host_reads_and_writes(folder: Path) -> None:
    """With the stand-in for a driver: pieces of a tensor are copied there and back in another thread."""
    driver = HostDriver()
    x = np.random.default_rng(0).standard_normal(5 << 20).astype(np.float32)
    q = sample(dtype("INT4"), (9,))
    files.save("in.safetensors", {"x": x, "q": q})
    options = ["--to", "BFLOAT16", "--include", "*", "--device", "cuda", "--verify"]
    with installed(driver):
        assert convert("in.safetensors", "out.safetensors", *options) == 0
        # One thread gives a device its work, as many as there are processors cast on the host.
        assert prefetch.Prefetcher("cuda").count == 1 <= prefetch.Prefetcher().count <= 4
    assert len(driver.launched) == 4
    loaded = files.load("out.safetensors")
    assert_same(loaded["x"], gpucast.cast(x, BF16), BF16)
    assert_same(loaded["q"], gpucast.cast(q, BF16), BF16)
