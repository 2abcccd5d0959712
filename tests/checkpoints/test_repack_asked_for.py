# SPDX-License-Identifier: Apache-2.0
"""`gpucast convert --repack` keeps every number of codes with scales, or writes nothing."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import gpucast
from gpucast.checkpoints.streaming import pieces
from gpucast.cli.main import main
from gpucast.files import load, save

X = gpucast.cast(np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32), "BFLOAT16")


def _run(command: str) -> int:
    return main(shlex.split(command))


def _mx(folder: Path, x: object = X) -> Path:
    """A model with MXFP4 weights, of which two share a global scale as NVFP4, and one without scales."""
    (folder / "plain").mkdir()
    (folder / "plain" / "config.json").write_text('{"model_type": "llama"}')
    tensors = {"m.q_proj.weight": x, "m.k_proj.weight": X[:64] * 2, "n.weight": X[:32]}
    save(str(folder / "plain" / "model.safetensors"), tensors)
    how = "--to FLOAT4E2M1 --scale mx --style compressed-tensors --exclude n.weight --quiet --allow-loss"
    assert _run(f"convert {folder}/plain {folder}/mx {how}") == 0
    return folder / "mx"


@pytest.mark.parametrize(
    "how",
    [
        "--to FLOAT4E2M1 --scale nvfp4 --style compressed-tensors",
        "--to FLOAT4E2M1 --scale nvfp4 --style comfyui",
        "--to FLOAT8E4M3FN --scale per-channel --style gpucast",
        "--to FLOAT8E4M3FN --scale mx --style gpucast",
    ],
)
def test_numbers_are_kept(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = _mx(tmp_path)
    assert _run(f"convert {source} {tmp_path}/new {how} --repack --verify all") == 0
    out = capsys.readouterr().out
    assert "lossless: 2 tensors with every value kept and compared" in out and "left alone: 'n.weight'" in out
    assert _run(f"diff {source} {tmp_path}/new") == 0


def test_one_global_scale_for_what_is_joined(tmp_path: Path) -> None:
    source = _mx(tmp_path)
    assert (
        _run(
            f"convert {source} {tmp_path}/new --to FLOAT4E2M1 --scale nvfp4 --style compressed-tensors --repack --quiet"
        )
        == 0
    )
    tensors = load(str(tmp_path / "new" / "model.safetensors"))
    assert tensors["m.q_proj.weight_global_scale"] == tensors["m.k_proj.weight_global_scale"]


def test_pieces_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _mx(tmp_path)
    for scale in ("per-channel", "per-tensor", "mx"):
        command = f"convert {source} {tmp_path}/%s --to FLOAT8E4M3FN --scale {scale} --style gpucast --repack --quiet"
        assert _run(command % "whole") == 0
        with monkeypatch.context() as patch:
            patch.setattr(pieces, "_PIECE", 1 << 11)
            assert _run(command % "pieces") == 0
        whole, cut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "pieces"))
        assert whole == cut
        for name in ("whole", "pieces"):
            shutil.rmtree(tmp_path / name)


def test_refused_with_the_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = X.copy()
    x[0, :32] *= 2.0**-40
    source = _mx(tmp_path, x)
    assert _run(f"convert {source} {tmp_path}/new --to FLOAT4E2M1 --scale nvfp4 --style comfyui --repack") == 1
    count = np.count_nonzero(gpucast.quantize(x, "mxfp4_even").dequantize()[0, :32])
    message = (
        f"tensor 'm.q_proj.weight': repack: {count} of 32,768 numbers would change from FLOAT4E2M1 with 32 blocks of"
    )
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_stored_reciprocal_changes_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """compressed-tensors stores 1/g as a FLOAT, which gives g again for powers of two alone."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text('{"model_type": "llama"}')
    how = "--to FLOAT4E2M1 --scale nvfp4 --quiet --style"
    # The global scale is that of the largest number, 6 times 448 times g.
    power = np.where(X.astype(np.float32) < 0, np.float32(-1.5), np.float32(6 * 448 / 4))
    for x, status in ((X, 1), (gpucast.cast(power, "BFLOAT16"), 0)):
        # Of a weight that loaders do not join with others.
        save(str(tmp_path / "plain" / "model.safetensors"), {"m.o_proj.weight": x})
        assert _run(f"convert {tmp_path}/plain {tmp_path}/nv {how} gpucast --allow-loss") == 0
        assert _run(f"convert {tmp_path}/nv {tmp_path}/new {how} compressed-tensors --repack") == status
        if status:
            assert "of 32,768 numbers would change from" in capsys.readouterr().err
            assert not (tmp_path / "new").exists()
            shutil.rmtree(tmp_path / "nv")
    assert _run(f"diff {tmp_path}/nv {tmp_path}/new") == 0
    assert load(str(tmp_path / "new" / "model.safetensors"))["m.o_proj.weight_global_scale"] == 4


def test_a_stored_reciprocal_stays_as_it_is(tmp_path: Path) -> None:
    """To the style that it has: no number changes, whatever the global scale is."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text('{"model_type": "llama"}')
    save(str(tmp_path / "plain" / "model.safetensors"), {"m.q_proj.weight": X, "m.k_proj.weight": X[:64] * 2})
    how = "--to FLOAT4E2M1 --scale nvfp4 --style compressed-tensors --quiet"
    assert _run(f"convert {tmp_path}/plain {tmp_path}/nv {how} --allow-loss") == 0
    assert _run(f"convert {tmp_path}/nv {tmp_path}/new {how} --repack --verify all") == 0
    old, new = (load(str(tmp_path / name / "model.safetensors")) for name in ("nv", "new"))
    assert old.keys() == new.keys() and all(old[name].tobytes() == new[name].tobytes() for name in old)
    assert np.log2(old["m.q_proj.weight_global_scale"]) % 1 != 0
