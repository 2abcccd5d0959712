# SPDX-License-Identifier: Apache-2.0
"""`gpucast convert IN OUT --to T`: cast the tensors of a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gpucast
from gpucast import files
from gpucast.commands import attributes, loss
from gpucast.commands.progress import progress_bar
from gpucast.commands.selection import Selection, read_as
from gpucast.dtypes import DType
from gpucast.files import Spec, Tensor
from gpucast.files.tensor import Array
from gpucast.report import CastReport
from gpucast.rule import resolve

_DESCRIPTION = """\
Cast the tensors of a file with the ONNX Cast operator. The suffixes choose the formats
(.npy, .npz, ONNX .pb, .safetensors), which may differ; IN and OUT may be the same file.
In a file of several tensors the floating ones are cast and the others copied, unless --only or --all is given.
OUT appears whole or not at all."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        aliases=["cast"],
        help="cast the tensors of a file",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", metavar="IN")
    parser.add_argument("output", metavar="OUT")
    parser.add_argument(
        "--to", metavar="T", required=True, type=attributes.dtype, help="destination type; see `gpucast dtypes`"
    )
    parser.add_argument(
        "--from", metavar="T", dest="source", type=_codes, help="read raw elements and unsigned codes as this type"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="cast the tensors of these names (wildcards; may be repeated)",
    )
    which.add_argument("--all", action="store_true", help="cast every tensor")
    attributes.add(parser)
    parser.add_argument("--device", metavar="D", help="cast there: cpu, cuda or cuda:N")
    parser.add_argument("--allow-loss", action="store_true", help="go on where over 1 %% of the values would be lost")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--no-progress", action="store_true", help="draw no progress bar")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=run)


def _codes(text: str) -> DType:
    row = attributes.dtype(text)
    if row.family == "string":
        raise argparse.ArgumentTypeError("STRING has no raw elements")
    return row


@dataclass
class Result:
    """What became of one tensor that was cast."""

    tensor: Tensor
    bytes_out: int = 0
    report: CastReport = field(default_factory=CastReport)


def run(args: argparse.Namespace) -> int:
    with files.TensorFile(args.input) as source:
        tensors = source.tensors
        selection = Selection(args.only, args.all)
        if args.source is not None:
            tensors = read_as(tensors, args.source, selection, args.input)
        chosen = selection.names(tensors, args.input)
        for tensor in tensors:
            if tensor.name in chosen:
                _check(tensor, args)
        plan = [
            Spec(tensor.name, args.to, tensor.shape) if tensor.name in chosen else files.kept(tensor, args.output)
            for tensor in tensors
        ]
        total = sum(tensor.nbytes for tensor in tensors)
        results = []
        with (
            files.create(args.output, plan, source.metadata) as writer,
            progress_bar(total, not (args.quiet or args.no_progress)) as advance,
        ):
            for tensor, spec in zip(tensors, plan, strict=True):
                if tensor.name in chosen:
                    results.append(_convert(tensor, spec, writer, args, advance))
                elif spec.source is not None:
                    advance(writer.copy(spec))
                else:
                    advance(writer.write(spec, tensor.chunks()))
    left_alone = [tensor for tensor in tensors if tensor.name not in chosen]
    dropped = sorted(source.metadata) if not args.output.lower().endswith(".safetensors") else []
    if args.json:
        print(json.dumps(_as_json(args, results, left_alone)))
    elif not args.quiet:
        print(_as_text(args, results, left_alone, dropped))
    return 0


def _check(tensor: Tensor, args: argparse.Namespace) -> None:
    """Refuse what cannot be cast before any work is done."""
    if tensor.row is None:
        raise files.FileError(
            f"{args.input}: tensor {tensor.name!r} has type {tensor.kind}, which Cast does not take; "
            "give --from T if these are raw elements of a type T, or leave it out with --only"
        )
    resolve(tensor.row, args.to, **attributes.of(args), who=f"{args.input}: tensor {tensor.name!r}")


def _convert(
    tensor: Tensor, spec: Spec, writer: Any, args: argparse.Namespace, advance: Callable[[int], object]
) -> Result:
    result = Result(tensor)
    result.bytes_out = writer.write(spec, _cast(result, args, advance))
    if not args.allow_loss:
        assert tensor.row is not None
        loss.check(tensor.name, tensor.row.name, args.to.name, result.report)
    return result


def _cast(result: Result, args: argparse.Namespace, advance: Callable[[int], object]) -> Iterator[Array]:
    """The chunks of a tensor, cast; what they lose is added to the result."""
    tensor, keywords = result.tensor, attributes.of(args)
    assert tensor.row is not None
    # Text is cast whole, so that an error names the right index.
    chunks = iter([tensor.read()]) if tensor.row.family == "string" else tensor.chunks()
    for x in chunks:
        try:
            y = gpucast.cast(x, args.to, device=args.device, **keywords)
            result.report += gpucast.cast_report(x, args.to, **keywords)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{args.input}: tensor {tensor.name!r}: {error}") from None
        advance(tensor.nbytes * x.size // max(1, tensor.size))
        yield (y if isinstance(y, np.ndarray) else y.get()).reshape(-1)


def _sums(results: list[Result]) -> tuple[CastReport, int, int]:
    report = sum((result.report for result in results), CastReport())
    return report, sum(result.tensor.nbytes for result in results), sum(result.bytes_out for result in results)


def _as_text(args: argparse.Namespace, results: list[Result], left_alone: list[Tensor], dropped: list[str]) -> str:
    report, bytes_in, bytes_out = _sums(results)
    names = ", ".join(f"{tensor.name!r} ({_kind(tensor)})" for tensor in left_alone)
    lines = [f"left alone: {names}"] if left_alone else []
    if dropped:
        lines.append(f"metadata not kept, since the format of OUT has none: {', '.join(map(repr, dropped))}")
    tensors = "1 tensor" if len(results) == 1 else f"{len(results):,} tensors"
    lines.append(
        f"{args.output}: {tensors} cast to {args.to.name}, {report.elements:,} elements, "
        f"{bytes_in:,} -> {bytes_out:,} bytes; {loss.words(report)}; "
        f"largest relative error {report.max_relative_error:.3g}"
    )
    return "\n".join(lines)


def _as_json(args: argparse.Namespace, results: list[Result], left_alone: list[Tensor]) -> dict[str, Any]:
    report, bytes_in, bytes_out = _sums(results)
    return {
        "input": args.input,
        "output": args.output,
        "to": args.to.name,
        "tensors": [
            {
                "name": result.tensor.name,
                "from": _kind(result.tensor),
                "shape": result.tensor.shape,
                "bytes_in": result.tensor.nbytes,
                "bytes_out": result.bytes_out,
                **loss.as_json(result.report),
            }
            for result in results
        ],
        "left_alone": [{"name": t.name, "dtype": _kind(t), "shape": t.shape} for t in left_alone],
        "total": {"tensors": len(results), "bytes_in": bytes_in, "bytes_out": bytes_out, **loss.as_json(report)},
    }


def _kind(tensor: Tensor) -> str:
    return tensor.kind if tensor.row is None else tensor.row.name
