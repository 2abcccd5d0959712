# SPDX-License-Identifier: Apache-2.0
"""`gpucast fold IN OUT`: replaces the casts of constants in an ONNX model by their results."""

from __future__ import annotations

import argparse
import os
from typing import Any

from gpucast.cli import arguments
from gpucast.files import FileError, onnx_pb
from gpucast.files.onnx_graph import inner_graphs

_DESCRIPTION = """\
Replace every Cast and CastLike of a constant in an ONNX model (.onnx) by its result. Nothing else changes. A cast that
would fail stays. Tensors in external files are not read: their casts stay, and OUT must be in the folder of IN."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "fold",
        help="replace the casts of constants in an ONNX model by their results",
        description=_DESCRIPTION,
    )
    parser.add_argument("input", metavar="IN", help="the model")
    parser.add_argument("output", metavar="OUT", help="the folded model; IN itself with --overwrite")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    onnx = onnx_pb.imported(args.input)
    if os.path.exists(args.output) and not args.overwrite and args.output != os.devnull:
        raise FileError(f"{args.output}: exists already; give --overwrite to replace it, or another name")
    # onnx is optional: only this command needs the module.
    from gpucast.onnx.backend import fold_casts

    with open(args.input, "rb") as source:
        data = source.read()
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        # The type of the error depends on how protobuf was built.
        raise FileError(f"{args.input}: is no ONNX model: {error}") from None
    if not model.HasField("graph"):
        raise FileError(f"{args.input}: is no ONNX model: it has no graph")
    folders = {os.path.realpath(os.path.dirname(path)) for path in (args.input, args.output)}
    if len(folders) > 1 and any(tensor.external_data for tensor in model.graph.initializer):
        raise FileError(f"{args.output}: {args.input} has tensors in files beside it; expected OUT in the same folder")
    folded = fold_casts(model)
    with arguments.created(args.output) as file:
        assert file is not None
        file.write(folded.SerializeToString())
    before, after = casts(model), casts(folded)
    print(f"{args.output}: {before - after} of {before} casts folded")
    return 0


def casts(model: Any) -> int:
    """How many casts the graph of a model, its subgraphs and its functions have."""
    return sum(count_in(graph) for graph in (model.graph, *model.functions))


def count_in(graph: Any) -> int:
    own = sum(node.op_type in ("Cast", "CastLike") and node.domain in ("", "ai.onnx") for node in graph.node)
    return own + sum(count_in(one) for node in graph.node for one in inner_graphs(node))
