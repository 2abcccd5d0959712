# SPDX-License-Identifier: Apache-2.0
"""`gpucast fold`: the file is what `fold_casts` makes of it (what that is: test_onnx_fold.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpucast.cli import main
from gpucast.interop.onnx import fold_casts


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("Cast", ["w"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["half", "y"], ["z"]),
    ]
    values = [
        [helper.make_tensor_value_info(name, number, (2,))]
        for name, number in (("x", TensorProto.FLOAT), ("z", TensorProto.FLOAT16))
    ]
    weights = numpy_helper.from_array(np.array([0.1, 3], np.float32), "w")
    path = tmp_path / "in.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", *values, initializer=[weights])), path)
    return path


@pytest.mark.parametrize("name", ["out.onnx", "in.onnx"])
def test_a_model(model: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, target = fold_casts(onnx.load(model)), model.with_name(name)
    if target.exists():
        assert main(["fold", str(model), str(target)]) == 1
        assert "exists already; give --overwrite" in capsys.readouterr().err
    assert main(["fold", str(model), str(target), "--overwrite"]) == 0
    assert capsys.readouterr().out == f"{target}: 1 of 2 casts folded\n"
    assert onnx.load(target) == wanted


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data in (b"%PDF-1.7", b""):
        (tmp_path / "in.onnx").write_bytes(data)
        assert main(["fold", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]) == 1
        assert "in.onnx: is no ONNX model" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


def test_tensors_in_other_files_stay_beside_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(onnx.load(model), model, save_as_external_data=True, size_threshold=0, location="data.bin")
    (model.parent / "other").mkdir()
    assert main(["fold", str(model), str(model.parent / "other" / "out.onnx")]) == 1
    assert "expected OUT in the same folder" in capsys.readouterr().err
    assert main(["fold", str(model), str(model.with_name("out.onnx"))]) == 0
    assert capsys.readouterr().out.endswith(": 0 of 2 casts folded\n")
    assert onnx.load(model.with_name("out.onnx")) == onnx.load(model)
