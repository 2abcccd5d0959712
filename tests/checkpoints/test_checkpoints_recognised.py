# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that have scales: detected by name, read as numbers, or refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from counted_steps import counted
from gpucast import files
from gpucast.arrays.bitpacking import pack_codes
from gpucast.checkpoints.scales import comfyui
from gpucast.checkpoints.scales.detect import Catalogue
from gpucast.checkpoints.streaming import pieces
from gpucast.core.dtypes import dtype
from gpucast.files.tensor import LoadedTensor
from scaled_files import NAMES, convert, failure, numbers, quantized, save
from tensors import leftovers


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # So that small tensors have several pieces.
    monkeypatch.setattr(pieces, "_PIECE", 1 << 12)
    return tmp_path


def shards(folder: str, tensors: dict[str, dict[str, Any]], **config: Any) -> None:
    """A checkpoint of several files, with an index."""
    weight_map = {}
    for name, held in tensors.items():
        save(f"{folder}/{name}", held)
        weight_map |= dict.fromkeys(held, name)
    index = {"metadata": {}, "weight_map": weight_map}
    Path(folder, "model.safetensors.index.json").write_text(json.dumps(index))
    if config:
        Path(folder, "config.json").write_text(json.dumps(config))


def test_scales_in_another_file_than_their_weight() -> None:
    q = quantized(NAMES["l.weight"], "FLOAT8E4M3FN", "block")
    one = {"l.weight": q.data, "n.weight": np.ones(4, np.float32)}
    two = {"l.weight_scale_inv": q.scales, "m.weight": numbers(4, 6)}
    shards("in", {"1.safetensors": one, "2.safetensors": two}, quantization_config={}, vocab=3)
    for source in ("in", "in/model.safetensors.index.json"):
        assert convert(source, "out", "--to", "BFLOAT16", "--verify", "all") == 0
        assert_same(files.load("out/1.safetensors")["l.weight"], q.dequantize("BFLOAT16"))
        assert list(files.load("out/2.safetensors")) == ["m.weight"]
        index = json.loads(Path("out/model.safetensors.index.json").read_text())
        places = {"l.weight": "1.safetensors", "n.weight": "1.safetensors", "m.weight": "2.safetensors"}
        assert index["weight_map"] == places
        assert index["metadata"]["total_size"] == 2 * (264 * 256 + 4 + 24)
        for path in Path("out").iterdir():
            path.unlink()
        Path("out").rmdir()
    # Kept with its scales, wherever they are.
    assert convert("in/model.safetensors.index.json", "out", "--to", "FLOAT16", "--exclude", "l.weight") == 0
    assert_same(files.load("out/1.safetensors")["l.weight"], q.data)
    assert_same(files.load("out/2.safetensors")["l.weight_scale_inv"], q.scales)
    # And from shards to shards in the style of gpucast.
    assert convert("in", "i4", "--to", "INT4", "--scale", "block", "--style", "gpucast", "--verify") == 0
    index = json.loads(Path("i4/model.safetensors.index.json").read_text())
    assert index["weight_map"]["l.weight.scales"] == "1.safetensors"
    assert json.loads(Path("i4/config.json").read_text()) == {"vocab": 3}


def test_a_model_of_which_a_part_keeps_its_scales_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    q = quantized(NAMES["l.weight"], "FLOAT8E4M3FN", "block")
    held = {f"{name}.{part}": x for name in "lm" for part, x in (("weight", q.data), ("weight_scale_inv", q.scales))}
    shards("in", {"1.safetensors": held}, quantization_config={})
    message = failure(capsys, "in", "out", "--to", "FLOAT", "--exclude", "m.weight")
    assert "cast them all, or none" in message


def test_new_scales_beside_old_ones_that_are_kept_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    q = quantized(NAMES["l.weight"][:256], "FLOAT8E4M3FN", "per-tensor")
    held = {
        f"{name}.{part}": x for name in ("l", "lm_head") for part, x in (("weight", q.data), ("weight_scale", q.scales))
    }
    shards("in", {"1.safetensors": held}, quantization_config={})
    options = ["--to", "FLOAT8E4M3FN", "--scale", "block", "--style", "deepseek"]
    # lm_head is left alone by this style, and so would keep scales that its loaders do not look for.
    assert "'lm_head.weight' is kept with its scales" in failure(capsys, "in", "out", *options)
    assert convert("in", "out", *options, "--include", "*.weight") == 0
    assert files.load("out/1.safetensors").keys() == {
        f"{n}.weight{s}" for n in ("l", "lm_head") for s in ("", "_scale_inv")
    }


F8 = numbers(6, 8).astype(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize(
    ("scale", "factor"),
    [
        (np.float32(0.5), np.float32(0.5)),
        (np.full((1,), 0.5, ml_dtypes.bfloat16), np.float32(0.5)),
        (np.full((1, 1), 3, np.float16), np.float32(3)),
        (np.arange(1, 7, dtype=np.float32), np.arange(1, 7)[:, None]),
        (np.arange(1, 7, dtype=np.float32)[:, None], np.arange(1, 7)[:, None]),
        (np.arange(1, 25, dtype=np.float32).reshape(6, 4), np.repeat(np.arange(1, 25).reshape(6, 4), 2, 1)),
        (np.full((6, 2), 130, np.uint8), np.float32(8)),
        (np.full((6, 2), 4, ml_dtypes.float8_e8m0fnu), np.float32(4)),
    ],
    ids=["scalar", "one", "ones", "rows", "column", "groups", "bytes", "e8m0"],
)
def test_shapes_and_types_of_scales(scale: Any, factor: Any) -> None:
    held = {"l.weight": F8, "l.weight_scale": np.asarray(scale), "l.input_scale": np.float32(2)}
    files.save("in.safetensors", held)
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT", "--verify") == 0
    found = files.load("out.safetensors")
    # The scale of the activations goes with the codes.
    assert list(found) == ["l.weight"]
    assert_same(found["l.weight"], F8.astype(np.float32) * np.asarray(factor, np.float32))


def test_other_producers() -> None:
    # compressed-tensors' int-quantized with zero points; ModelOpt's NVFP4, whose second scale multiplies; ComfyUI's
    # newer names; expert weights of three dimensions.
    codes = np.arange(-24, 24, dtype=np.int8).reshape(6, 8)
    scales, zero = np.arange(1, 7, dtype=np.float32)[:, None], np.arange(6, dtype=np.int8)[:, None]
    four = np.arange(64, dtype=np.uint8).reshape(2, 32) % 16
    block = np.array([[1, 2], [0.5, 4]], ml_dtypes.float8_e4m3fn)
    experts = numbers(2, 130, 128).astype(ml_dtypes.float8_e4m3fn)
    held = {
        "a.weight": codes,
        "a.weight_scale": scales,
        "a.weight_zero_point": zero,
        "b.weight": pack_codes(four.reshape(-1), 4).reshape(2, 16),
        "b.weight_scale": block,
        "b.weight_scale_2": np.float32(0.25),
        "c.weight": F8,
        "c.weight_scale": np.float32(2),
        "c.comfy_quant": np.frombuffer(b'{"format": "float8_e4m3fn"}', np.uint8),
        "experts": experts,
        "experts_scale_inv": np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1),
        "logit_scale": np.float32(4.5),
        "layer_scale": np.ones(3, np.float32),
    }
    files.save("in.safetensors", held)
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT", "--verify", "all") == 0
    found = files.load("out.safetensors")
    assert found.keys() == {"a.weight", "b.weight", "c.weight", "experts", "logit_scale", "layer_scale"}
    assert_same(found["a.weight"], (codes.astype(np.float32) - zero) * scales)
    values = four.view(np.uint8).astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert_same(found["b.weight"], values * np.repeat(block.astype(np.float32), 16, 1) * np.float32(0.25))
    factors = np.repeat(np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1), 128, 1)[:, :130]
    assert_same(found["experts"], experts.astype(np.float32) * factors)


TRAPS: dict[str, tuple[dict[str, Any], str]] = {
    "without its weight": (
        {"l.weight_scale_inv": np.ones((1, 1), np.float32)},
        "'l.weight_scale_inv' is named like a scale",
    ),
    "of a wide weight": (
        {"l.weight": numbers(4, 4), "l.weight_scale": np.ones(1, np.float32)},
        "'l.weight_scale' is named like a scale",
    ),
    "wrong shape": ({"l.weight": F8, "l.weight_scale": np.ones((5, 1), np.float32)}, "have (5, 1); expected one scale"),
    "transposed": ({"l.weight": F8, "l.weight_scale": np.ones((1, 8), np.float32)}, "have (1, 8); expected one scale"),
    "too wide": ({"l.weight": F8, "l.weight_scale": np.ones(1)}, "its scales 'l.weight_scale' are F64"),
    "two kinds": (
        {"l.weight": F8, "l.weight_scale": np.ones(1, np.float32), "l.weight_scale_inv": np.ones(1, np.float32)},
        "two kinds of scales",
    ),
    "no shape": (
        {"l.weight_packed": np.ones((4, 2), np.int32), "l.weight_scale": np.ones((4, 1), np.float32)},
        "weight_shape is missing",
    ),
    "a false shape": (
        {
            "l.weight_packed": np.ones((4, 2), np.int32),
            "l.weight_scale": np.ones((4, 1), np.float32),
            "l.weight_shape": np.array([4, -3]),
        },
        "cannot hold the shape (4, -3)",
    ),
    "an open width": (
        {
            "l.weight_packed": np.ones((4, 1), np.int32),
            "l.weight_scale": np.ones((4, 1), np.float32),
            "l.weight_shape": np.array([4, 4]),
        },
        "leave open how wide a code is",
    ),
    "reordered groups": (
        {"l.weight": F8, "l.weight_scale": np.ones((6, 1), np.float32), "l.weight_g_idx": np.zeros(8, np.int32)},
        "has an order of its groups",
    ),
    "no global scale": (
        {"l.weight_packed": np.ones((4, 8), np.uint8), "l.weight_scale": np.ones((4, 1), ml_dtypes.float8_e4m3fn)},
        "in a form that is not known here",
    ),
    "scales that are one number, beside another": (
        {
            "l.weight_packed": np.ones((4, 16), np.uint8),
            "l.weight_scale": np.array(1, ml_dtypes.float8_e4m3fn),
            "l.weight_global_scale": np.ones(1, np.float32),
        },
        "in a form that is not known here",
    ),
    "bytes of another kind": (
        {"l.weight": np.ones((4, 8), np.uint8), "l.weight_scale": np.ones((4, 1), np.float32)},
        "in a form that is not known here",
    ),
    "groups of two possible lengths": (
        {"l.weight": F8.repeat(25, 1), "l.weight_scale": np.ones((6, 2), np.float32)},
        "may be for groups of 100 or 128",
    ),
    "another name beside it": (
        {"l.weight": F8, "l.scale": np.ones((1, 1), np.float32)},
        "tensor 'l.weight' is F8_E4M3, and 'l.scale' beside it may be its scales",
    ),
    "another name within it": (
        {"l.weight": F8, "l.weight.my_scaling": np.ones((1, 1), np.float32)},
        "'l.weight.my_scaling' beside it may be its scales",
    ),
    "GPTQ": (
        {"l.qweight": np.ones((4, 4), np.int32), "l.scales": np.ones((4, 4), np.float16)},
        "'l.scales' is named like",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_never_cast_as_if_the_scales_were_not_there(trap: str, capsys: pytest.CaptureFixture[str]) -> None:
    held, expected = TRAPS[trap]
    files.save("in.safetensors", {**held, "norm": np.ones(3, np.float32)})
    message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "BFLOAT16")
    assert expected in message
    assert leftovers(Path(), "in.safetensors") == []
    if "two kinds" in expected:
        return
    # Left alone on demand: all of it.
    exclude = [option for name in held for option in ("--exclude", name)]
    assert convert("in.safetensors", "out.safetensors", "--to", "BFLOAT16", *exclude) == 0
    found = files.load("out.safetensors")
    for name, x in held.items():
        assert_same(found[name], np.asarray(x))


def test_the_name_of_any_part_keeps_all_parts() -> None:
    held = {"l.weight": F8, "l.weight_scale": np.ones(1, np.float32), "norm": np.ones(3, np.float32)}
    files.save("in.safetensors", held)
    for name in ("l.weight", "l.weight_scale"):
        assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT16", "--exclude", name) == 0
        found = files.load("out.safetensors")
        assert found.keys() == held.keys()
        assert_same(found["l.weight"], F8)
        assert_same(found["l.weight_scale"], held["l.weight_scale"])


def test_our_own_style_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", {"w": numbers(4, 256)})
    assert convert("in.safetensors", "q.safetensors", "--to", "INT8", "--scale", "block") == 0
    with files.TensorFile("q.safetensors") as file:
        metadata = file.metadata
    held = files.load("q.safetensors")
    key = "gpucast.quantized.w"
    entry = json.loads(metadata[key])

    def said(tensors: dict[str, Any], entry: object) -> str:
        files.save("bad.safetensors", tensors, {key: entry if isinstance(entry, str) else json.dumps(entry)})
        return failure(capsys, "bad.safetensors", "out.safetensors", "--to", "FLOAT", "--include", "*")

    assert "its scales 'w.scales' are missing" in said({"w": held["w"]}, entry)
    assert "expected FLOAT (4, 2)" in said({**held, "w.scales": np.ones((4, 1), np.float32)}, entry)
    assert "expected INT8" in said({**held, "w": held["w"].view(np.uint8)}, entry)
    assert "not as convert writes" in said(held, {**entry, "axis": 0})
    assert "is not what this version of gpucast writes" in said(held, "{")
    assert "'rule' is missing" in said(held, {name: text for name, text in entry.items() if name != "rule"})
    assert "must be one of" in said(held, {**entry, "scale": "INT8"})
    scalar = {"w": np.asarray(held["w"][0, 0]), "w.scales": np.ones(1, np.float32)}
    assert "has shape ()" in said(scalar, {**entry, "block": "axis", "axis": 0})
    empty = {"w": held["w"][:, :0], "w.scales": np.ones((4, 0), np.float32)}
    assert "has shape (4, 0)" in said(empty, entry)
    gpucast.quantize(numbers(4, 256), "int8_128").save("saved.safetensors")
    assert "Quantized.load" in failure(capsys, "saved.safetensors", "out.safetensors", "--to", "FLOAT")
    # Metadata of a missing tensor is ignored.
    files.save("bad.safetensors", {"v": numbers(2, 2)}, {key: json.dumps(entry)})
    assert convert("bad.safetensors", "out.safetensors", "--to", "FLOAT16") == 0


def test_the_work_to_find_scales_grows_with_the_tensors_alone() -> None:
    """Not with the files times the tensors: a model may have a thousand files."""

    def steps(count: int) -> int:
        """Instructions of Python that are run."""
        catalogue, codes, scale = Catalogue(), dtype("FLOAT8E4M3FN"), np.ones((1, 1), np.float32)
        for number in range(count):
            held = [
                LoadedTensor(f"{number}.weight", codes, F8.shape, "F8_E4M3", 48, F8),
                LoadedTensor(f"{number + 1}.weight_scale_inv", dtype("FLOAT"), (1, 1), "F32", 4, scale),
            ]
            catalogue.add(f"in/{number}", SimpleNamespace(tensors=held, metadata={}))  # type: ignore[arg-type]
        with counted() as run:
            found = list(catalogue.detect())
        assert len(found) == count - 1
        assert found[0].paths == {"1.weight": "in/1", "1.weight_scale_inv": "in/0"}
        return run.steps

    # Ten times as many, and a little for each of the longer names; files times tensors would be a hundred times.
    assert steps(200) < 12 * steps(20)


def test_the_same_scale_in_two_other_files(capsys: pytest.CaptureFixture[str]) -> None:
    scale = np.ones((1, 1), np.float32)
    save("in/1.safetensors", {"l.weight": F8})
    save("in/2.safetensors", {"l.weight_scale_inv": scale})
    save("in/3.safetensors", {"l.weight_scale_inv": scale})
    message = failure(capsys, "in", "out", "--to", "FLOAT")
    assert "is in several files" in message or "two kinds of scales" in message


def blocks(shape: tuple[int, int], block: tuple[int, int]) -> tuple[dict[str, Any], Any]:
    """Codes with a scale for each block, and the numbers that they stand for."""
    codes = numbers(*shape).astype(ml_dtypes.float8_e4m3fn)
    rows, columns = (-(-n // length) for n, length in zip(shape, block, strict=True))
    scales = numbers(rows, columns, seed=1)
    factors = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[: shape[0], : shape[1]]
    return {"l.weight": codes, "l.weight_scale_inv": scales}, codes.astype(np.float32) * factors


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((100, 200), (64, 64)),
        ((100, 200), (1, 128)),
        ((6, 130), (1, 48)),
        ((200, 100), (128, 32)),
        ((90, 70), (50, 64)),
        ((130, 200), (100, 100)),
        ((130, 200), (128, 128)),
        ((40, 30), (64, 64)),
    ],
)
def test_blocks_that_config_json_tells(shape: tuple[int, int], block: tuple[int, int]) -> None:
    held, wanted = blocks(shape, block)
    config = {"quant_method": "fp8", "weight_block_size": list(block)}
    shards("in", {"1.safetensors": {**held, "bias": np.ones(3, np.float32)}}, quantization_config=config, vocab=3)
    assert convert("in", "out", "--to", "FLOAT", "--verify", "all") == 0
    assert_same(files.load("out/1.safetensors")["l.weight"], wanted)
    assert json.loads(Path("out/config.json").read_text()) == {"vocab": 3}
    # A single file of the folder is read in the same way.
    assert convert("in/1.safetensors", "out.safetensors", "--to", "FLOAT") == 0
    assert_same(files.load("out.safetensors")["l.weight"], wanted)


def test_blocks_that_the_shapes_tell() -> None:
    for shape, block in (
        ((128, 192), (64, 64)),
        ((33, 100), (64, 16)),
        ((256, 96), (32, 32)),
        ((200, 200), (128, 128)),
    ):
        held, wanted = blocks(shape, block)
        files.save("in.safetensors", held)
        assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT", "--verify", "all") == 0
        assert_same(files.load("out.safetensors")["l.weight"], wanted)


def test_blocks_that_nothing_tells_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for shape, block, block_size, message in [
        ((100, 200), (64, 64), None, "may be for groups of 50 or 64"),
        ((100, 200), (100, 8), None, "have (1, 25); expected one scale"),
        ((256, 96), (200, 48), None, "may be for groups of 48 or 64"),
        ((130, 200), (64, 64), [128, 128], "have (3, 4); expected one scale, one for each of the 130 rows, for each "),
        ((130, 256), (1, 128), [128, 128], "for each block of 128x128 (config.json)"),
        ((128, 128), (64, 64), [64], "weight_block_size is [64]; expected two lengths"),
        ((128, 128), (64, 64), [64, 0], "weight_block_size is [64, 0]; expected two lengths"),
        ((128, 128), (64, 64), "64", "weight_block_size is '64'; expected two lengths"),
    ]:
        held, _ = blocks(shape, block)
        shards("in", {"1.safetensors": held}, quantization_config={"weight_block_size": block_size})
        assert message in failure(capsys, "in", "out", "--to", "FLOAT"), (shape, block)
    Path("in/config.json").write_text("[")
    assert "no JSON object" in failure(capsys, "in", "out", "--to", "FLOAT")
    assert leftovers(Path(), "in") == []


def test_names_of_scales_that_collide_with_those_of_another_file(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"1.safetensors": {"l.weight": numbers(4, 64)}, "2.safetensors": {"l.weight.scales": np.ones(2, np.float32)}}
    shards("in", held)
    message = failure(capsys, "in", "out", "--to", "INT8", "--scale", "block", "--include", "l.weight")
    assert "two tensors would have the name 'l.weight.scales', in '1.safetensors' and '2.safetensors'" in message


class Asked(dict[str, Any]):
    """Counts the letters of the keys that are asked for."""

    letters = 0

    def __contains__(self, key: object) -> bool:
        self.letters += len(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.letters += len(key)
        return super().__getitem__(key)


def test_layers_are_found_by_the_longest_end_of_a_name() -> None:
    rng = random.Random(0)
    for _ in range(300):
        names = [".".join(rng.choices(["a", "b", "", "weight"], k=rng.randrange(1, 5))) for _ in range(8)]
        entries = {name: {"format": name} for name in names}
        for weight in (".".join(rng.choices(["a", "b", "", "weight"], k=6)) for _ in range(8)):
            parts = weight.removesuffix(".weight").split(".")
            ends = [".".join(parts[start:]) for start in range(len(parts))]
            wanted = next((entries[end] for end in ends if end in entries), {})
            assert comfyui.layer_of(weight, None, comfyui.Layers(entries)) == wanted, (weight, names)


def test_a_name_of_many_parts_takes_no_quadratic_time() -> None:
    """One of 128 KB took 4 seconds: every end of it was a key."""
    for entries in (Asked({"x": {}}), Asked({"a": {"format": "f"}, "." * 999 + "a": {"format": "g"}})):
        name = "." * 100_000 + "a"
        found = comfyui.layer_of(name + ".weight", None, comfyui.Layers(entries))
        assert found == ({} if "x" in entries else {"format": "g"})
        assert entries.letters <= len(name)
