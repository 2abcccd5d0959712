# SPDX-License-Identifier: Apache-2.0
"""`gpucast fold IN OUT`: replaces the casts of constants in an ONNX model by their results."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from gpucast.cli import arguments
from gpucast.files import MODEL, FileError, onnx_model, strangers
from gpucast.files.atomic import open_regular
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
    if not args.output.lower().endswith(MODEL) and args.output != os.devnull:
        raise FileError(f"{args.output}: a folded model is an {MODEL} file; expected a name that ends in {MODEL}")
    if os.path.exists(args.output) and not args.overwrite and args.output != os.devnull:
        raise FileError(f"{args.output}: exists already; give --overwrite to replace it, or another name")
    with open_regular(args.input) as source:
        strangers.check(source, args.input, MODEL)
        model = onnx_model.parsed(source, args.input)
    folders = {os.path.realpath(os.path.dirname(path)) for path in (args.input, args.output)}
    is_external = any(tensor.external_data for tensor in model.graph.initializer)
    if len(folders) > 1 and is_external:
        raise FileError(f"{args.output}: {args.input} has tensors in files beside it; expected OUT in the same folder")
    # onnx is optional: only this command needs the module.
    from gpucast.onnx.backend import fold_casts

    folded = fold_casts(model)
    with arguments.created(args.output) as file:
        assert file is not None
        file.write(folded.SerializeToString())
    before, after = (
        [node for graph in (one.graph, *one.functions) for node in casts(graph)] for one in (model, folded)
    )
    elsewhere = {tensor.name for tensor in folded.graph.initializer if tensor.external_data}
    left = "; those of tensors in files beside it stay" if any(node.input[0] in elsewhere for node in after) else ""
    print(f"{args.output}: {len(before) - len(after)} of {len(before)} casts folded{left}")
    return 0


def casts(graph: Any) -> Iterator[Any]:
    """The casts of a graph or function, and of its subgraphs."""
    for node in graph.node:
        if node.op_type in ("Cast", "CastLike") and node.domain in ("", "ai.onnx"):
            yield node
        for inner in inner_graphs(node):
            yield from casts(inner)
