# SPDX-License-Identifier: Apache-2.0
"""What a reading of the code by an attacker's eyes found in the reading of files (docs/security-reading.md)."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpucast import files
from gpucast.cli import main
from gpucast.files import onnx_graph
from gpucast.files.atomic import inside

pytestmark = pytest.mark.usefixtures("folder")


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked at by name, and then opened."""
    os.mkfifo("x.npy")
    monkeypatch.setattr(os.path, "isfile", lambda path: True)
    with pytest.raises(files.FileError, match="x.npy: is no regular file"):
        files.TensorFile("x.npy")


def test_a_pipe_that_is_named_like_an_index(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("x.index.json")
    assert main(["convert", "x.index.json", "out", "--to", "FLOAT16"]) == 1
    assert "x.index.json: is no regular file" in capsys.readouterr().err


def test_a_link_that_leads_through_more_links_than_any_system_follows() -> None:
    """RecursionError, of os.path.realpath."""
    for number in range(1500):
        os.symlink(f"{number + 1}", f"{number}")
    with pytest.raises((files.FileError, OSError)):
        inside(".", "0", "x.onnx", "location")


def test_a_file_that_is_replaced_gives_no_rights_of_its_owner_to_the_new_one() -> None:
    np.save("x.npy", np.ones(4, np.float32))
    os.chmod("x.npy", 0o6755)
    files.save("x.npy", {"x": np.zeros(4, np.float32)})
    assert os.stat("x.npy").st_mode & 0o7777 == 0o755


# ---- models that no checker has seen ----


def model(*nodes: onnx.NodeProto, names: str = "wv", values: list[str] | None = None) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(np.ones((2, 2), np.float32), name) for name in names]
    graph = helper.make_graph(nodes, "graph", [], [], initializers)
    graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in values or ())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Cast", ["w"], [], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["w", "v"], ["y"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["w", "w"], ["y"], to=TensorProto.FLOAT16),
    ],
)
def test_a_cast_without_one_input_and_one_output(node: onnx.NodeProto) -> None:
    """IndexError, and ValueError of a list."""
    onnx.save(model(node), "x.onnx")
    assert main(["convert", "x.onnx", "y.onnx", "--to", "FLOAT16", "--quiet"]) == 0
    made = onnx.load("y.onnx").graph
    assert [node.op_type for node in made.node].count("Cast") == 1 + len(set(node.input))
    assert len({proto.name for proto in made.initializer}) == 2


def test_casts_and_types_are_removed_by_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was looked for from the start: 100,000 of them took an hour."""
    names = "abcdef"
    casts = [helper.make_node("Cast", [name], [f"{name}16"], to=TensorProto.FLOAT16) for name in reversed(names)]
    other = helper.make_node("Neg", ["a16"], ["y"])
    proto = model(*casts[:3], other, *casts[3:], names=names, values=["y", *names, "a16"])
    before = dict.fromkeys(names, TensorProto.FLOAT)
    for initializer in proto.graph.initializer:
        initializer.data_type = TensorProto.FLOAT16

    def remove(*_: object) -> None:
        raise AssertionError("is looked for")

    for field in (proto.graph.node, proto.graph.value_info):
        # The same for all repeated fields of messages.
        with contextlib.suppress(TypeError):
            monkeypatch.setattr(type(field), "remove", remove)
    onnx_graph.retype(proto, before)
    assert [node.op_type for node in proto.graph.node] == ["Neg"]
    assert [value.name for value in proto.graph.value_info] == ["y", "a16"]
    assert [value.name for value in proto.graph.initializer] == [f"{name}16" for name in names]
