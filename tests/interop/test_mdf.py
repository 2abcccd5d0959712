# SPDX-License-Identifier: Apache-2.0
"""MDF graphs from their JSON files, on the stock package and on gpucast."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.core.dtypes import DTYPES, DType

onnx_ops = pytest.importorskip("modeci_mdf.functions.onnx", reason="modeci-mdf is not installed")

from modeci_mdf.execution_engine import EvaluableGraph  # noqa: E402
from modeci_mdf.mdf import Edge, Function, Graph, InputPort, Model, Node, OutputPort  # noqa: E402
from modeci_mdf.utils import load_mdf  # noqa: E402

from gpucast.onnx import mdf  # noqa: E402

STOCK = onnx_ops.cast, onnx_ops.get_onnx_schema
#: What the stock package casts to.
STOCK_TYPES = ("FLOAT", "DOUBLE", "UINT8", "INT8", "INT32", "INT64", "BOOL", "STRING")
VALUES = np.array([0.0, 1.5, -2.75, 100.0, -0.0, 3e-5], np.float32)


def is_stock() -> bool:
    return STOCK == (onnx_ops.cast, onnx_ops.get_onnx_schema)


@pytest.fixture(autouse=True)
def stock_afterwards() -> Iterator[None]:
    assert is_stock()
    yield
    mdf.uninstall()
    assert is_stock()


def node(name: str, function: str, **args: Any) -> Node:
    """One MDF node: an input port, the function, an output port."""
    made = Node(id=name)
    made.input_ports.append(InputPort(id=f"{name}_in", shape="(1,)"))
    made.functions.append(Function(id=f"{name}_f", function=function, args=args))
    made.output_ports.append(OutputPort(id=f"{name}_out", value=f"{name}_f"))
    return made


def graph_file(folder: Path, *nodes: Node) -> Path:
    """A chain of nodes as a JSON file, written by the package itself."""
    model, graph = Model(id="model"), Graph(id="graph")
    model.graphs.append(graph)
    graph.nodes.extend(nodes)
    for one, other in itertools.pairwise(nodes):
        edge = dict(sender=one.id, sender_port=f"{one.id}_out", receiver=other.id, receiver_port=f"{other.id}_in")
        graph.edges.append(Edge(id=f"{one.id}_{other.id}", **edge))
    path = folder / "model.json"
    model.to_json_file(str(path))
    return path


def run(path: Path, x: Any) -> Any:
    """Load the file, evaluate its graph, and give the value of the last node's output."""
    graph = EvaluableGraph(load_mdf(str(path)).graphs[0], verbose=False)
    names = list(graph.enodes)
    first = graph.enodes[names[0]].evaluable_inputs
    graph.evaluate(initializer={next(iter(first)): x})
    (output,) = graph.enodes[names[-1]].evaluable_outputs.values()
    return output.curr_value


def cast_file(folder: Path, to: Any, **args: Any) -> Path:
    return graph_file(folder, node("c", "onnx::Cast", input="c_in", to=to, **args))


@pytest.mark.parametrize("to", STOCK_TYPES)
def test_the_results_of_the_stock_package_where_it_is_right(to: str, tmp_path: Path) -> None:
    path = cast_file(tmp_path, gpucast.dtype(to).number)
    # Texts of which both agree about the digits; the rest ("0" and "0.0") is a known difference.
    x = np.array([1.5, -2.75], np.float32) if to == "STRING" else VALUES
    stock = run(path, x)
    with mdf.installed():
        ours = run(path, x)
    np.testing.assert_array_equal(ours, stock, strict=True)


@pytest.mark.parametrize("dst", [row for row in DTYPES if row.number is not None], ids=str)
def test_every_type_runs(dst: DType, tmp_path: Path) -> None:
    path = cast_file(tmp_path, dst.number)
    if dst.name not in STOCK_TYPES:
        with pytest.raises(NotImplementedError, match="Unsupported type"):
            run(path, VALUES)
    mdf.install()
    result, wanted = run(path, VALUES), gpucast.reference.cast(VALUES, dst)
    # The engine widens float32.
    np.testing.assert_array_equal(result, wanted.astype(np.float64) if dst.name == "FLOAT" else wanted, strict=True)


def test_install_uninstall_and_nesting(tmp_path: Path) -> None:
    mdf.uninstall()
    assert is_stock()
    mdf.install()
    mdf.install()
    ours = onnx_ops.cast
    with mdf.installed():
        assert onnx_ops.cast not in (ours, STOCK[0])
    assert onnx_ops.cast is ours
    mdf.uninstall()
    assert is_stock()
    with pytest.raises(NotImplementedError), mdf.installed():
        raise NotImplementedError
    assert is_stock()
    with mdf.installed():
        mdf.uninstall()
        assert is_stock()
    with pytest.raises(NotImplementedError, match="Unsupported type"):
        run(cast_file(tmp_path, 10), VALUES)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"to": 99}, TypeError, "onnx::Cast: to=99 is not a dtype"),
        ({"to": 17, "saturate": "no"}, TypeError, "cast: saturate='no' must be True or False"),
        ({"to": 24, "round_mode": "sideways"}, ValueError, "cast: round_mode='sideways' is not legal"),
    ],
)
def test_bad_calls(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with mdf.installed(), pytest.raises(error, match=message):
        onnx_ops.cast(VALUES, **arguments)
