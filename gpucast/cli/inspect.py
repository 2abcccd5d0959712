# SPDX-License-Identifier: Apache-2.0
"""`gpucast inspect PATH`: what the tensors of a file or a checkpoint are, and how they are quantized."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from gpucast.cli import arguments
from gpucast.cli.dtypes import columns, counted
from gpucast.convert.planning import sources
from gpucast.convert.scales.declared import unknown
from gpucast.convert.scales.per_file import described
from gpucast.core.errors import printable
from gpucast.files import Tensor

_DESCRIPTION = """\
Print what a file of tensors, an *.index.json or a folder holds: types, formats,
scales, styles, sizes, and what `convert` does not understand. Tensors of one kind
are one line. Only headers and small tensors are read."""
_OPTIONS = """\
--all  print a line for each tensor
--json  print a JSON object with all tensors
"""
#: Tensors that are not understood, of which so many are printed.
_NAMED = 20


@dataclass
class _Row:
    name: str
    file: str
    #: The type, or how it is quantized.
    kind: str
    style: str
    shape: tuple[int, ...]
    bytes: int
    #: What it is beside codes, or why a model's constant is no weight.
    what: str = ""
    problem: str = ""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="print what the tensors of a file or a checkpoint are",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="a file, an *.index.json or a folder")
    arguments.add_options(parser, _OPTIONS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    rows, said = _rows(args.path)
    total = sum(row.bytes for row in rows)
    if args.json:
        document = {"path": args.path, "bytes": total, "tensors": list(map(asdict, rows)), "said": said}
        print(json.dumps(document, indent=1))
        return 0
    files = counted(len({row.file for row in rows}), "file")
    print(f"{printable(args.path)}: {counted(len(rows), 'tensor')} in {files}, {total:,} bytes")
    print(_each(rows) if args.all else _grouped(rows))
    for where, why in said.items():
        print(f"{printable(where)}: {printable(why)}")
    strange = [row for row in rows if row.problem]
    for row in strange[:_NAMED]:
        print(f"not understood: {printable(row.name)!r} {printable(row.problem)}")
    if len(strange) > _NAMED:
        print(f"not understood: {len(strange) - _NAMED:,} more")
    return 0


def _rows(path: str) -> tuple[list[_Row], dict[str, str]]:
    """The tensors, and what files beside them say of quantization, by where they say it."""
    rows, said = list[_Row](), dict[str, str]()
    with sources.opened(path) as (catalogue, models):
        for item, model in models:
            for tensor in model.tensors:
                why = model.weights.get(tensor.name, "")
                is_float = tensor.dtype is not None and tensor.dtype.is_float
                what = f"no weight: {why}" if why and is_float else "" if why else "weight"
                rows.append(_Row(tensor.name, item.name, _kind(tensor), "ONNX", tensor.shape, tensor.nbytes, what))
        names = {
            item: os.path.relpath(item, path) if os.path.isdir(path) else os.path.basename(item)
            for item in catalogue.files
        }
        every = list(catalogue.detect())
        for one in every:
            where = one.paths[one.name]
            shape = one.stored.model_shape if one.stored is not None else catalogue.files[where].tensors[one.name].shape
            why = "" if one.stored is not None else one.problem.partition(": ")[2]
            why = why or (catalogue.declared(where).problem(one.base, one.stored) if one.stored is not None else "")
            rows.append(_Row(one.base, names[where], one.kind, one.style, shape, one.nbytes, "", why))
        for beside in described(catalogue, every):
            what, tensor = "" if beside.companion is None else beside.companion.what, beside.tensor
            fields = tensor.shape, tensor.nbytes, what, beside.why
            rows.append(_Row(tensor.name, names[beside.path], _kind(tensor), "", *fields))
        for where in catalogue.files:
            for section in catalogue.declared(where).sections:
                method = section.entry.get("quant_method", section.entry.get("quant_algo", "?"))
                said[section.where] = unknown(section) or f"quantized by {method}"
    return rows, said


def _kind(tensor: Tensor) -> str:
    return tensor.dtype.name if tensor.dtype is not None else tensor.kind


def _grouped(rows: list[_Row]) -> str:
    groups: dict[tuple[str, str, str], list[_Row]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.style, "not understood" if row.problem else row.what), []).append(row)
    lines = [["type", "style", "what", "such as", "tensors", "bytes"]]
    for (kind, style, what), some in sorted(groups.items(), key=lambda group: -sum(row.bytes for row in group[1])):
        numbers = [f"{len(some):,}", f"{sum(row.bytes for row in some):,}"]
        lines.append([kind, style, what, printable(some[0].name), *numbers])
    return columns(lines, numbers=2)


def _each(rows: list[_Row]) -> str:
    lines = [["file", "tensor", "type", "style", "what", "shape", "bytes"]]
    for row in rows:
        shape = "x".join(map(str, row.shape)) or "scalar"
        what = "not understood" if row.problem else row.what
        lines.append([printable(row.file), printable(row.name), row.kind, row.style, what, shape, f"{row.bytes:,}"])
    return columns(lines, numbers=1)
