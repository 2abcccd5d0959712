# SPDX-License-Identifier: Apache-2.0
"""Files that are not what their names say, and types that no file should have."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import gpucast
from gpucast import files
from gpucast.cli import main

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 4976698672\n"
BEGIN = [
    (LFS, "is a pointer of Git LFS"),
    (b"\n<!DOCTYPE html>\n<html></html>", "is a web page"),
    (b"<HTML><head>", "is a web page"),
    (b'{"error":"Repository not found"}', "is an error message of a server"),
    (b"Entry not found", "is an error message of a server"),
    (b"GGUF\x03\0\0\0", "is GGUF (llama.cpp)"),
    (b"<?xml version='1.0'?><Error/>", "is an XML document"),
    (b"PK\x03\x04abcdefgh", "is a file of PyTorch"),
    (pickle.dumps({"weight": [1.0] * 9}, 4), "is a file of PyTorch"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "is a file of PyTorch"),
]


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx", ".npz", ".npy", ".pb"])
@pytest.mark.parametrize(("begin", "said"), BEGIN, ids=[f"{said} {i}" for i, (_, said) in enumerate(BEGIN)])
def test_what_is_named_like_tensors(begin: bytes, said: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(begin)
    with pytest.raises(
        files.FileError, match=r"PyTorch|zip|ONNX|begins" if "PyTorch" in said else said.partition(" (")[0]
    ):
        files.load(str(path))


def test_gguf_has_a_name_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "m.gguf", tmp_path / "folder/m.gguf"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"GGUF")
        source = path if path.parent == tmp_path else path.parent
        assert main(["convert", str(source), str(tmp_path / "out"), "--to", "FLOAT"]) == 1
        assert "holds GGUF (llama.cpp), whose blocks are not read here" in capsys.readouterr().err


def test_types_that_no_file_should_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for x, said in (
        (np.ones(2, np.longdouble), "cast it to float64 first"),
        (np.zeros(2, "V2"), r"x\.view\(ml_dtypes\.bfloat16\) says which"),
        (np.zeros(2, "V1"), r"x\.view\(ml_dtypes\.float8_e4m3fn\)"),
    ):
        with pytest.raises(TypeError, match=said):
            gpucast.cast(x, "FLOAT")
    np.save(tmp_path / "x.npy", np.ones(2, np.longdouble))
    assert main(["convert", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), "--to", "FLOAT"]) == 1
    said = capsys.readouterr().err
    assert "longdouble: ONNX has no wider type than DOUBLE" in said and "--from" not in said
    for array in (np.zeros(2, "M8[s]"), np.zeros(2, [("a", "f4"), ("b", "i4")])):
        np.save(tmp_path / "x.npy", array)
        assert main(["convert", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), "--to", "FLOAT"]) == 1
        said = capsys.readouterr().err
        assert "which Cast does not take" in said and "--from" not in said
