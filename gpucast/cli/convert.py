# SPDX-License-Identifier: Apache-2.0
"""`gpucast convert IN OUT --to T`: cast the tensors of a file, or of all files of a checkpoint."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from typing import Any, get_args

from gpucast import convert
from gpucast.cli import arguments
from gpucast.cli.convert_text import outcome_text, plan_table
from gpucast.cli.progress import progress_bar
from gpucast.convert import Choice, ConversionPlan, Detail, Options, Outcome, Request, SelectionRule
from gpucast.convert.reporting import outcome_json
from gpucast.convert.running import cluster, outcome
from gpucast.convert.running.work import UnfinishedWork
from gpucast.convert.scales import scale_styles, scaling
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.errors import meant, printable, printable_lines
from gpucast.core.rounding import STOCHASTIC
from gpucast.files import FileError
from gpucast.files.atomic import check_target, within
from gpucast.quantization import RECIPES, recipes
from gpucast.quantization.formats import ScaleRule

_DESCRIPTION = """\
Cast or quantize the tensors of a file, a checkpoint in several files, or a
folder. IN is a file, an *.index.json or a folder. OUT is a file, or a new folder
if IN is an index or a folder. Suffixes choose the formats: .npy, .npz, .pb and
.onnx of ONNX, .safetensors. If OUT is named *.safetensors, it is one file with
all tensors. OUT appears whole or not at all. After an interruption the same
command goes on from there."""
_EXAMPLES = """examples:
  gpucast convert model.safetensors small.safetensors --to BFLOAT16
  gpucast convert llama/ llama-w4/ --to INT4 --scale block \\
    --style compressed-tensors
  gpucast convert model.onnx int8.onnx --to INT8 --scale per-channel"""

_CHOICE = """\
--include PATTERN ...  cast only the tensors with these names, whatever their type (wildcards; may be repeated)
--exclude PATTERN ...  do not cast the tensors with these names (wildcards; may be repeated)
--rule PATTERN=T ...  cast these tensors to another type, or keep them (PATTERN=keep); the first match counts
    (may be repeated)
--keep PATTERN ...  beside codes that become numbers: keep these tensors as they are
--drop PATTERN ...  leave these tensors out
--as-weights PATTERN ...  beside codes: these tensors are plain numbers, whatever their names and types say
"""
_SCALES = f"""\
--scale {"|".join(scaling.SCALES)}  which elements share a scale: all of a tensor, those of a row, or of a
    block (128 of a row; of float8 128x128). mx: 32, the scales powers of two; nvfp4: 16, and one more scale for the
    tensor. none: a plain cast without scales
--style STYLE  the loader that will read the result: it decides names, layout and config.json.
    One of {", ".join(scale_styles.STYLES)} (default: {scale_styles.DEFAULT}; required if there is a config.json).
    Or a recipe (`gpucast recipes`), which decides the codes and scales, too, in the style of a loader that takes them
--repack  convert only tensors that have scales already, and keep every number; refused where one would change
"""
_SCALE_RULE = """\
how to find a scale from the largest magnitude of a block. mx: the power of two below (floor), above (up) or nearest
(even). Symmetric integers: amax, full_range or no_clipping. Default: the rule of the style's own tool, else floor and
amax"""
_CHECKS = """\
--report FILE  write the losses, errors and histograms of every tensor as a page (.html) or as JSON
--allow-loss  write the result even if more than 1 %% of the values are lost
"""
_WORK = """\
--device D  cast on this device: cpu, cuda or cuda:N
--shard-size SIZE  write .safetensors files of at most this size, such as 5GB, with an index
"""
_WORKERS = """\
--shard I/N  do share I (from 0) of N of the files; auto: take both from torchrun or Slurm; the last share writes OUT
--scheduler ADDRESS  let the workers of a Dask cluster (tcp://HOST:8786) convert the files; all must see IN and OUT
"""
_EARLIER = """\
--overwrite  replace OUT if it is a file that exists
--restart  discard the unfinished work of an earlier run
"""
_PRINTED = """\
--json  print the summary as JSON
--no-progress  draw no progress bar
--quiet  print nothing but errors
"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        aliases=["cast"],
        help="cast the tensors of a file, or of all files of a checkpoint",
        usage="gpucast convert IN OUT --to T [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", metavar="IN", help="what to read")
    parser.add_argument("output", metavar="OUT", help="what to write")
    parser.add_argument(
        "--to", metavar="T", required=True, type=arguments.dtype, help="destination type; see `gpucast dtypes`"
    )
    arguments.add_options(
        parser.add_argument_group("which tensors", "By default all floating tensors; the others are copied."),
        _CHOICE,
        {"PATTERN=T": _rule},
    )
    scales = parser.add_argument_group("scales, for types of 8 bits or fewer")
    arguments.add_options(
        scales, _SCALES, {"STYLE": arguments.reader(_style, f" Styles: {', '.join(scale_styles.STYLES)}")}
    )
    scales.add_argument("--scale-rule", metavar="RULE", choices=get_args(ScaleRule), help=_SCALE_RULE)
    values = parser.add_argument_group("how values are read, rounded and clamped")
    values.add_argument(
        "--from", metavar="T", dest="source", type=_codes, help="read raw elements and unsigned codes as this type"
    )
    arguments.add_attributes(values)
    arguments.add_options(values, "--seed N  for --rounding stochastic, from 0 to 2^64 - 1", {"N": _seed})
    checks = parser.add_argument_group("checks")
    arguments.add_options(checks, "--dry-run  write nothing; list the tensors and sizes")
    checks.add_argument(
        "--verify",
        nargs="?",
        choices=("sampled", "all"),
        const="sampled",
        help="read the result again and compare a sample of each tensor, or all, with the reference",
    )
    arguments.add_options(checks, _CHECKS)
    work = parser.add_argument_group("where and how the work is done")
    arguments.add_options(work, _WORK, {"SIZE": arguments.size})
    arguments.add_options(work.add_mutually_exclusive_group(), _WORKERS, {"I/N": arguments.reader(outcome.parse)})
    arguments.add_options(work, _EARLIER)
    arguments.add_options(parser.add_argument_group("what is printed"), _PRINTED)
    parser.set_defaults(run=run)


def _codes(text: str) -> DType:
    dtype = arguments.dtype(text)
    if dtype.family == "string":
        raise argparse.ArgumentTypeError("STRING has no raw elements")
    return dtype


def _rule(text: str) -> SelectionRule:
    pattern, found, name = text.rpartition("=")
    if not found or not pattern:
        raise argparse.ArgumentTypeError(f"{text!r} is no rule; expected PATTERN=T or PATTERN=keep")
    return SelectionRule(pattern, None if name == "keep" else arguments.dtype(name))


def _style(text: str) -> str:
    if text in scale_styles.STYLES:
        return text
    if text.lower().replace("_", "-") in RECIPES:
        return recipes.find_recipe(text, "").name
    if loaded := [style for style, one in scale_styles.STYLES.items() if text.lower() in map(str.lower, one.loaders)]:
        raise ValueError(f"{text!r} is a loader, not a style; it reads {' and '.join(loaded)}.")
    every = ((kind, scale, format) for kind in DTYPES for scale, format in scaling.formats(kind).items())
    scales = {format.name: f"--to {kind} --scale {scale}" for kind, scale, format in every}
    scales |= dict.fromkeys(("fp8", "float8", "int4", "int8", "fp4"), "--to and --scale")
    if option := scales.get(text.lower()) or (text in scaling.SCALES and f"--scale {text}"):
        raise ValueError(f"{text!r} is a format, not a style: give it with {option}.")
    near = meant(text.lower().replace("_", "-"), [*scale_styles.STYLES, *RECIPES])
    raise ValueError(f"{text!r} is neither a style nor a recipe{near or '; `gpucast recipes` lists the recipes.'}")


def _seed(text: str) -> int:
    number = arguments.count(text)
    if number >= 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; expected 0 to 2^64 - 1")
    return number


def _request(args: argparse.Namespace) -> Request:
    """The request that the options make. ValueError for options that do not go together."""
    if args.restart and args.shard is not None and args.shard.count > 1:
        raise ValueError("--restart would discard the work of the other shares; remove OUT.partial before all begin")
    if (args.seed is not None) != (args.rounding == STOCHASTIC):
        raise ValueError("--seed N goes with --rounding stochastic, and that with a seed")
    if args.scale_rule is not None and args.scale in (None, "none"):
        raise ValueError("--scale-rule goes with --scale, and not with none")
    scale, style = args.scale, args.style
    if style in RECIPES:
        if args.repack or args.scale is not None:
            raise ValueError(
                f"--style {style} is a recipe, which finds codes and scales: leave --scale and --repack out"
            )
        scale, style = style, None
    detail: Detail = "all" if args.report is not None else "errors"
    choice = Choice(args.to, args.include, args.exclude, args.rule, args.keep, args.drop, args.as_weights)
    return Request(
        choice,
        arguments.attributes_of(args),
        scale,
        args.source,
        detail,
        style,
        args.seed,
        args.scale_rule,
        args.shard_size,
        args.repack,
    )


def run(args: argparse.Namespace) -> int:
    request = _request(args)
    paths = args.input, args.output
    if args.scheduler is not None:
        # Workers have other working directories.
        paths = os.path.abspath(args.input), os.path.abspath(args.output)
    plan = convert.make_plan(*paths, request, args.overwrite)
    if args.report is not None:
        _check_report(args.report, plan)
    if args.dry_run:
        UnfinishedWork(plan).check(args.restart)
        print(json.dumps(outcome_json.planned(plan)) if args.json else plan_table(plan))
        return 0
    options = Options(args.device, args.allow_loss, args.verify, args.shard, args.restart)
    outcome = Outcome(plan)
    try:
        wanted = not (args.quiet or args.no_progress)
        with progress_bar(options.work_of(plan), wanted, stage=lambda: outcome.stage) as advance:
            if args.scheduler is None:
                convert.run(plan, options, outcome, advance)
            else:
                cluster.run_on(args.scheduler, plan, options, outcome, advance)
    except BaseException:
        if outcome.kept is not None:
            kept = printable(outcome.kept)
            print(f"what is finished is kept in {kept}: the same command goes on from there", file=sys.stderr)
        _warn_of_rest(outcome)
        raise
    _warn_of_rest(outcome)
    if not outcome.waiting and not outcome.was_written:
        try:
            _write_report(args.report, outcome)
        except BaseException:
            print(printable(f"{plan.target} is written and whole"), file=sys.stderr)
            raise
    if args.json:
        print(json.dumps(outcome_json.summary(outcome)))
    elif not args.quiet:
        print(printable_lines(outcome_text(outcome, bool(options.files_of(plan)))))
    return 0


def _write_report(path: str | None, outcome: Outcome) -> None:
    with arguments.created(path) as file:
        if path is None or file is None:
            return
        document = outcome_json.report(outcome)
        page = outcome_json.page(document) if path.lower().endswith(".html") else json.dumps(document, indent=1) + "\n"
        file.write(page.encode())


def _warn_of_rest(outcome: Outcome) -> None:
    if outcome.left is not None:
        left = f"; {outcome.left}" if outcome.left else ""
        print(printable(f"{outcome.plan.target} is written and whole{left}"), file=sys.stderr)


def _check_report(path: str, plan: ConversionPlan) -> None:
    """Raise errors about the report before the work, also if it would replace a file that is read or written."""
    if path == os.devnull:
        return
    if not os.path.basename(path):
        raise FileError(f"{path!r} is no name of a file; expected one for --report, as report.html")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    check_target(path)
    target_folder = os.path.dirname(plan.target) if plan.single else plan.target
    names = [*(name for file in plan.files for name in file.names), *(name for name, _ in plan.indexes)]
    written = [os.path.join(target_folder, name) for name in names]
    read = [known.path for file in plan.files for known in file.identity]
    # Some files that are read from a folder are not in the plan: an index, and a config.json that changes.
    of_source = os.path.isdir(plan.source) and os.path.lexists(path) and within(plan.source, path)
    if of_source or os.path.realpath(path) in map(os.path.realpath, (plan.source, plan.target, *read, *written)):
        raise FileError(f"{path}: is read or written by the conversion itself; choose another name for --report")
