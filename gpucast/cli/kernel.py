# SPDX-License-Identifier: Apache-2.0
"""`gpucast kernel SRC DST`: show the kernel of a cast as CUDA text, PTX, cubin or machine code."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gpucast.cli import arguments
from gpucast.core.rule import Options, resolve
from gpucast.kernel import compiler, disassembler, nvidia
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import Kernel

_DESCRIPTION = "Show the kernel that casts SRC to DST. No GPU is needed when --arch is given."
_OPTIONS = """\
--emit source|ptx|cubin|sass = source  what to show (default: %(default)s)
--arch ARCH  architecture, such as sm_90 (default: this machine's first GPU)
--shape contiguous|strided = contiguous  memory layout of the arrays (default: %(default)s)
--unpacked  the source is below one byte, and has one element per byte
"""


def add(commands: Any) -> None:
    parser = commands.add_parser("kernel", help="show the CUDA kernel of a cast", description=_DESCRIPTION)
    parser.add_argument("src", metavar="SRC", type=arguments.dtype, help="source type; see `gpucast dtypes`")
    parser.add_argument("dst", metavar="DST", type=arguments.dtype, help="destination type")
    arguments.add_options(parser, _OPTIONS)
    arguments.add_attributes(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE (default: standard output)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    rule = resolve(args.src, args.dst, Options(**arguments.attributes_of(args), caller="kernel"))
    kernel = cast_kernel(rule, args.shape, args.unpacked)
    if args.emit == "cubin" and args.output is None and sys.stdout.isatty():
        raise ValueError("a cubin is no text; give -o FILE")
    if args.emit == "source" and args.arch is not None:
        raise ValueError(
            f"--arch {args.arch} does not apply to --emit source, whose text is the same for every architecture; "
            "expected --emit ptx, cubin or sass, or no --arch"
        )
    data = kernel.text.encode() if args.emit == "source" else _compiled(kernel, args.emit, args.arch)
    with arguments.created(args.output) as file:
        if file is not None:
            file.write(data)
    if args.output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 0


def _compiled(kernel: Kernel, form: str, arch: str | None) -> bytes:
    name = compiler.compiler().parse(arch) if arch is not None else _own_architecture()
    if form == "ptx":
        name = name.replace("sm_", "compute_")
    elif name.startswith("compute_"):
        raise ValueError(f"--emit {form} needs an architecture of a GPU, such as sm_90; {name} gives PTX")
    compiled = compiler.compile(kernel.text, kernel.name, name)
    if compiled.log:
        print(compiled.log, file=sys.stderr)
    if form == "sass":
        return disassembler.disassemble(compiled.code)
    # Remove the trailing zero byte that the driver needs.
    return compiled.code.rstrip(b"\0") if form == "ptx" else compiled.code


def _own_architecture() -> str:
    found = nvidia.find()
    if found is None or not found.capabilities:
        raise ValueError("there is no GPU here to compile for; give --arch, such as --arch sm_90")
    return compiler.architecture(found.capabilities[0])
