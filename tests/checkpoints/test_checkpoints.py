# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in several files, folders of files, and which tensors of them are cast."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import gpucast
from codes import assert_same
from conversions import begun, contents
from gpucast import checkpoints, files
from gpucast.checkpoints.running import outcome
from gpucast.checkpoints.running.staging import Staging
from gpucast.checkpoints.streaming import checksums, prefetch
from gpucast.cli import main
from gpucast.core.dtypes import dtype
from host_driver import HostDriver, installed
from scaled_files import convert
from tensors import leftovers, sample

BF16 = dtype("BFLOAT16")


def tensors(layer: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(layer)
    return {
        f"layers.{layer}.weight": rng.standard_normal((8, 6)).astype(np.float32),
        f"layers.{layer}.norm": np.ones(6, np.float32),
        f"layers.{layer}.ids": np.arange(5) + layer,
    }


def checkpoint(folder: Path, shards: int = 3) -> dict[str, np.ndarray]:
    """Write a checkpoint as transformers does, with other files; returns all its tensors."""
    folder.mkdir()
    weight_map, every, total = {}, {}, 0
    for layer in range(shards):
        name = f"model-{layer + 1:05}-of-{shards:05}.safetensors"
        files.save(str(folder / name), tensors(layer), {"format": "pt"})
        every |= tensors(layer)
        weight_map |= dict.fromkeys(tensors(layer), name)
        total += sum(x.nbytes for x in tensors(layer).values())
    metadata = {"total_size": total, "total_parameters": 1}
    index = {"metadata": metadata, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    (folder / "sub").mkdir()
    (folder / "sub" / "tokens.txt").write_text("a b")
    (folder / ".hidden").write_text("")
    return every


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert convert(*argv) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def load_folder(folder: Path) -> dict[str, np.ndarray]:
    loaded: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        loaded |= files.load(str(path))
    return loaded


def test_a_folder_becomes_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = checkpoint(folder / "in")
    before = contents(folder / "in")
    assert main(["convert", "in", "out", "--to", "BFLOAT16"]) == 0
    said = capsys.readouterr().out
    assert "copied as they are: 2 files" in said
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
    assert leftovers(folder, "in", "out") == []


def test_an_index_may_name_files_in_other_ways(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", ".b"):
        files.save(f"{name}.safetensors", {name: np.ones(3, np.float32)})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "./a.safetensors"}}))
    assert convert(index.name, "out", "--to", "FLOAT16") == 0
    assert sorted(os.listdir("out")) == [".gpucast.json", "a.safetensors", index.name]
    assert json.loads((folder / "out" / index.name).read_text())["weight_map"] == {"a": "./a.safetensors"}
    (folder / "in").mkdir()
    assert failure(capsys, "no", "o", "--to", "FLOAT16") == "gpucast convert: no: No such file or directory\n"
    for name in ("a.safetensors", ".b.safetensors"):
        (folder / name).rename(folder / "in" / name)
    weight_map = {"a": "a.safetensors", ".b": ".b.safetensors"}
    (folder / "in" / index.name).write_text(json.dumps({"weight_map": weight_map}))
    assert "weight_map names '.b.safetensors', a hidden file" in failure(capsys, "in", "o", "--to", "FLOAT16")


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


def test_types_that_safetensors_lacks_come_back(folder: Path) -> None:
    every = checkpoint(folder / "in")
    assert convert("in", "out", "--to", "INT4", "--scale", "none", "--allow-loss", "--rounding", "nearest_even") == 0
    loaded = load_folder(folder / "out")
    weight = "layers.1.weight"
    assert_same(loaded[weight], gpucast.cast(every[weight], "INT4", rounding="nearest_even"), dtype("INT4"))
    index = json.loads((folder / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 3 * (24 + 3 + 40)
    assert convert("out", "back", "--to", "FLOAT", "--include", "*weight", "--include", "*norm") == 0
    assert load_folder(folder / "back")["layers.0.norm"].tolist() == [1] * 6


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


def test_patterns_that_find_nothing_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", tensors(0))
    for options, message in [
        (["--include", "w*"], "no tensor matches --include 'w*'; it holds 'layers.0.ids', 'layers"),
        (["--exclude", "w*"], "no tensor matches --exclude 'w*'"),
        (["--rule", "w*=keep"], "no tensor matches --rule 'w*=keep'"),
        (["--exclude", "*"], "leave none of its 3 tensors to cast"),
    ]:
        assert message in failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT16", *options)
    assert leftovers(folder, "in.safetensors") == []


def test_few_bits_need_a_word_about_scales(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(
        "in.safetensors", {"w": np.ones(3, np.float32), "b": sample(dtype("FLOAT8E5M2"), (4,)), "n": np.ones(3, int)}
    )
    for to in ("FLOAT8E4M3FN", "INT8", "INT4", "FLOAT4E2M1"):
        message = failure(capsys, "in.safetensors", "out.safetensors", "--to", to)
        assert "'w' from FLOAT to" in message
        assert "give --scale" in message
        assert "none: a plain cast" in message
        options = ["--to", to, "--scale", "none", "--allow-loss"]
        assert convert("in.safetensors", "out.safetensors", *options) == 0
    # Integers, booleans, unchanged types and wider types need no --scale.
    for options in (["--to", "INT8", "--include", "n"], ["--to", "BOOL"], ["--to", "FLOAT8E5M2", "--include", "b"]):
        assert convert("in.safetensors", "out.safetensors", *options) == 0
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT16", "--rule", "b=FLOAT") == 0
    message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT16", "--rule", "w=FLOAT8E5M2")
    assert "'w' from FLOAT to FLOAT8E5M2" in message


def damaged(folder: Path, **changes: Any) -> None:
    """Change fields of the index."""
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_names_that_lead_out_of_the_folder_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(folder / "in")
    files.save("secret.safetensors", {"layers.0.weight": np.ones(3, np.float32)})
    before = contents(folder)
    names = ["../secret.safetensors", str(folder / "secret.safetensors"), "sub/../../secret.safetensors"]
    names += ["..\\secret.safetensors", "C:\\x.safetensors", "c:x.safetensors", "", "a\0b", ".", "sub"]
    for name in names:
        damaged(folder / "in", weight_map={"layers.0.weight": name})
        for source in ("in/model.safetensors.index.json", "in") if name.endswith("s") else names[:0]:
            message = failure(capsys, source, "out", "--to", "FLOAT16")
            assert "leads out of the folder" in message
        assert convert("in/model.safetensors.index.json", "out", "--to", "FLOAT16") == 1
        capsys.readouterr()
    damaged(folder / "in", weight_map={"layers.0.weight": "model-00009.safetensors"})
    assert "is missing" in failure(capsys, "in", "out", "--to", "FLOAT16")
    after = contents(folder)
    assert {name: data for name, data in after.items() if "index" not in name} == {
        name: data for name, data in before.items() if "index" not in name
    }


def test_links_that_leave_the_folder_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = checkpoint(folder / "in")
    shard = folder / "in" / "model-00001-of-00003.safetensors"
    shard.rename(folder / "elsewhere.safetensors")
    shard.symlink_to("../elsewhere.safetensors")
    for source in ("in", "in/model.safetensors.index.json"):
        assert "is a link that leads out of the folder" in failure(capsys, source, "out", "--to", "FLOAT16")
    shard.unlink()
    shard.symlink_to("../nowhere.safetensors")
    assert "link that leads out" in failure(capsys, "in", "out", "--to", "FLOAT16")
    shard.unlink()
    # Links to files within the folder are followed, and so is a link to the folder itself.
    (folder / "elsewhere.safetensors").rename(folder / "in" / "sub" / "real.bin")
    shard.symlink_to("sub/real.bin")
    (folder / "link").symlink_to("in")
    assert convert("link", "out", "--to", "FLOAT16") == 0
    assert set(load_folder(folder / "out")) == set(every)
    assert not (folder / "out" / shard.name).is_symlink()
    (folder / "in" / "loop").symlink_to(".")
    assert "is a link to a folder" in failure(capsys, "in", "other", "--to", "FLOAT16")
    (folder / "in" / "loop").unlink()
    os.mkfifo(folder / "in" / "pipe")
    assert "no regular file" in failure(capsys, "in", "other", "--to", "FLOAT16")
    assert leftovers(folder, "in", "out", "link") == []


def test_indexes_that_do_not_fit_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(folder / "in")
    good = (folder / "in" / "model.safetensors.index.json").read_text()
    first = "model-00001-of-00003.safetensors"
    for changes, message in [
        (
            {"weight_map": {"layers.9.weight": first}},
            f"places 'layers.9.weight' in '{first}', which has no such tensor",
        ),
        ({"weight_map": [1]}, "is no index"),
        ({"weight_map": {"a": 1}}, "is no index"),
        ({"weight_map": {}}, "weight_map is empty"),
        ({"weight_map": {"a": "config.json"}}, "expected .safetensors files"),
        ({"metadata": [1]}, "metadata of the index is no JSON object"),
    ]:
        damaged(folder / "in", **changes)
        assert message in failure(capsys, "in/model.safetensors.index.json", "out", "--to", "FLOAT16")
        (folder / "in" / "model.safetensors.index.json").write_text(good)
    # In a folder, too, where an index of what is no checkpoint was copied as it was.
    for name in ("/etc/passwd", "config.json"):
        damaged(folder / "in", weight_map={"layers.9.weight": name})
        message = failure(capsys, "in", "out", "--to", "FLOAT16")
        assert "leads out of the folder" in message or "expected .safetensors files" in message
    (folder / "in" / "model.safetensors.index.json").write_text(good)
    for text in ("", "[]", "{", "{" * 10000, "\xff"):
        (folder / "in" / "model.safetensors.index.json").write_text(text)
        assert "is no index" in failure(capsys, "in", "out", "--to", "FLOAT16")
    (folder / "in" / "model.safetensors.index.json").write_text(good)
    (folder / "in" / first).unlink()
    assert "is missing" in failure(capsys, "in", "out", "--to", "FLOAT16")
    assert leftovers(folder, "in") == []


def test_targets_that_are_in_the_way_are_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(folder / "in")
    (folder / "full").mkdir()
    (folder / "full" / "x").write_text("mine")
    (folder / "file").write_text("mine")
    (folder / "a.npy.partial").write_text("mine")
    (folder / "b.npy.partial").mkdir()
    (folder / "b.npy.partial" / "x").write_text("mine")
    files.save("x.npy", {"x": np.ones(3)})
    before = contents(folder)
    for argv, message in [
        (["in", "full"], "exists already; expected a new or empty folder"),
        (["in", "file"], "exists already; expected a new or empty folder"),
        (["in", "in"], "lies in the folder in, which is to be converted"),
        (["in", "in/out"], "lies in the folder in, which is to be converted"),
        (["in", "no/out"], "no/out: No such file"),
        (["x.npy", "full"], "unknown format"),
        (["x.npy", "a.npy"], "is in the way, and nothing that gpucast left"),
        (["x.npy", "b.npy"], "is in the way, and nothing that gpucast left"),
        (["full", "out"], "has no file of .safetensors"),
        (["in", "out", "--from", "INT8"], "--from is for one file"),
    ]:
        assert message in failure(capsys, *argv, "--to", "FLOAT16")
    assert contents(folder) == before


def test_names_that_differ_in_case_alone_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "in").mkdir()
    for name in ("a.npy", "A.npy"):
        files.save(f"in/{name}", {"x": np.ones(3)})
    if len(list((folder / "in").iterdir())) == 2:
        assert "'A.npy' and 'a.npy' would be one file" in failure(capsys, "in", "out", "--to", "FLOAT16")


def test_a_dry_run_tells_and_does_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(folder / "in")
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
    checkpoint(folder / "in")
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
    plan = checkpoints.make_plan("in", "new", checkpoints.Request(checkpoints.Choice(dtype("FLOAT16")), {}))
    with begun(plan) as work, work.part(plan.files[0]) as part:
        part.write(b"begun")
        assert "another process" in failure(capsys, "in", "new", *common[2:], "--dry-run", "--restart")
    before = contents(folder)
    assert "holds unfinished work of another conversion" in failure(capsys, "in", "new", *common[2:], "--dry-run")
    assert main(["convert", "in", "new", *common[2:], "--dry-run", "--restart"]) == 0
    assert contents(folder) == before
    os.unlink(Staging(plan).parts(plan.files[0])[0])
    assert main(["convert", "in", "new", *common[2:], "--dry-run"]) == 0
    assert (folder / "new.partial" / "job.json").exists()


def test_shares_divide_the_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = checkpoint(folder / "in", shards=4)
    common = ["in", "out", "--to", "BFLOAT16", "--report", "report.json"]
    for number in (2, 0, 1):
        assert main(["convert", *common, "--shard", f"{number}/4"]) == 0
        assert "not written yet: other shares have" in capsys.readouterr().out
        assert leftovers(folder, "in") == ["out.partial"]
    assert main(["convert", *common, "--shard", "3/4"]) == 0
    assert "8 tensors of 4 files cast" in capsys.readouterr().out
    assert leftovers(folder, "in", "report.json") == ["out"]
    assert len(json.loads((folder / "report.json").read_text())["tensors"]) == 8
    assert set(load_folder(folder / "out")) == set(every)
    # A later process finds that everything is done, and does not change the report.
    assert main(["convert", *common, "--shard", "1/4"]) == 0
    assert capsys.readouterr().out == "out: was written by another run of the same conversion\n"
    assert len(json.loads((folder / "report.json").read_text())["tensors"]) == 8
    assert convert("in", "out", "--to", "FLOAT16", "--shard", "1/4") == 1
    assert leftovers(folder, "in", "report.json") == ["out"]


def test_every_share_is_done_once() -> None:
    sizes = [5, 0, 7, 7, 1, 100, 3]
    for count in (1, 2, 3, 10):
        shares = [outcome.Share(number, count).of(sizes) for number in range(count)]
        assert sorted(index for mine in shares for index in mine) == list(range(len(sizes)))
    loads = [sum(sizes[i] for i in outcome.Share(number, 2).of(sizes)) for number in (0, 1)]
    assert sorted(loads) == [23, 100]
    assert outcome.Share(10**12 - 1, 10**12).of(sizes) == set()


def test_shares_are_read_from_the_launcher() -> None:
    assert outcome.parse("2/4") == outcome.Share(2, 4)
    assert outcome.parse("auto", {"RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "0"}) == outcome.Share(1, 8)
    assert outcome.parse("auto", {"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}) == outcome.Share(3, 4)
    for text, environment in [
        ("auto", {"RANK": "1"}),
        ("auto", {"RANK": "x", "WORLD_SIZE": "2"}),
        ("4/4", {}),
        ("1", {}),
    ]:
        with pytest.raises(ValueError, match="expected I/N|give I/N"):
            outcome.parse(text, environment)


def test_sums_tell_what_is_missing() -> None:
    random = np.random.default_rng(5)
    for size in (0, 1, 7, 8, 9, 4096, (1 << 18) + 13):
        data = random.integers(0, 256, size, np.uint8)
        padded = np.zeros(-(-size // 8) * 8, np.uint8)
        padded[:size] = data
        wanted = sum(padded.view("<u8").tolist())
        cuts = sorted({0, size, *random.integers(0, size + 1, 5).tolist()})
        pieces = [(begin, data[begin:end]) for begin, end in itertools.pairwise(cuts)]
        assert checksums.checksum(data.data) == wanted
        assert checksums.checksum_of_blocks([piece.tobytes() for _, piece in pieces]) == wanted
        assert sum(checksums.checksum(piece, begin) for begin, piece in reversed(pieces)) == wanted
    # Words that would cancel in a sum modulo 2^64.
    words = np.tile(np.array([5, -5], np.int64), 1000)
    lost = words.copy()
    lost[512:1024] = 0
    assert checksums.checksum(lost.view(np.uint8)) < checksums.checksum(words.view(np.uint8))


def test_pieces_keep_their_order_and_their_errors() -> None:
    fetched = []

    def pieces(count: int) -> Iterator[int]:
        for piece in range(count):
            fetched.append(piece)
            yield piece

    def work(piece: int) -> int:
        time.sleep(0.002 * (piece % 3 == 0))
        if piece == 7:
            raise ValueError("seven")
        return -piece

    with prefetch.Prefetcher(3) as threads:
        for count in range(7):
            assert list(threads.in_order(work, pieces(count))) == [-piece for piece in range(count)]
        made = threads.in_order(work, pieces(20))
        assert [next(made) for _ in range(7)] == [0, -1, -2, -3, -4, -5, -6]
        with pytest.raises(ValueError, match="seven"):
            next(made)
        # Only a few are waiting.
        fetched.clear()
        made = threads.in_order(work, pieces(1000))
        assert [next(made) for _ in range(3)] == [0, -1, -2]
        assert len(fetched) <= 3 + 4
        made.close()
    assert prefetch.threads("cuda") == 1
    assert 1 <= prefetch.threads(None) <= 4


def test_no_call_goes_on_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while the main thread waits for the oldest call, which takes the longest."""
    running = set[int]()

    def work(piece: int) -> None:
        running.add(piece)
        time.sleep(0.2 * (piece == 0))
        running.discard(piece)

    def interrupted(future: Future[None]) -> None:
        raise KeyboardInterrupt

    with prefetch.Prefetcher(2) as threads:
        monkeypatch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(threads.in_order(work, iter(range(5))))
        assert not running


def test_a_device_casts_while_the_host_reads_and_writes(folder: Path) -> None:
    """With the stand-in for a driver: pieces of a tensor are copied there and back in another thread."""
    driver = HostDriver()
    x = np.random.default_rng(0).standard_normal(5 << 20).astype(np.float32)
    q = sample(dtype("INT4"), (9,))
    files.save("in.safetensors", {"x": x, "q": q})
    options = ["--to", "BFLOAT16", "--include", "*", "--device", "cuda", "--verify"]
    with installed(driver):
        assert convert("in.safetensors", "out.safetensors", *options) == 0
    assert len(driver.launched) == 4
    loaded = files.load("out.safetensors")
    assert_same(loaded["x"], gpucast.cast(x, BF16), BF16)
    assert_same(loaded["q"], gpucast.cast(q, BF16), BF16)
