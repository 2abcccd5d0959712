# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.static.digests FILE``: digests of the PTX of every kernel. With ``--against OLD``: what differs.

A refactoring shows with it that it changes no kernel: digests before, digests after, exit code 0. Only comments of the
PTX are left out. A kernel whose CUDA text is that of a kernel in OLD, but for comments, is not compiled again. Needs no
GPU. All kernels for one architecture take hours; one of 40 (``--sample 40``) minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.revision import commit
from bench.static.catalog import add_options, all_kernels, chosen, uncached
from gpucast.cli.processes import processes
from gpucast.cli.progress import progress_bar
from gpucast.kernel import compiler
from gpucast.kernel.kernel import Kernel

#: Hexadecimal digits of a digest.
_DIGITS = 20
#: Kernels that a process takes at a time, and differences that are printed.
_CHUNK, _LINES = 8, 50
#: Text in quotes, which may look like a comment, and comments.
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

#: For a kernel the digest of its text, and for each architecture that of its PTX.
Row = tuple[str, dict[str, str]]
#: The digests of the kernels of a name.
Rows = dict[str, list[Row]]


def without_comments(text: str) -> str:
    """CUDA or PTX text without comments, empty lines, and space at the ends of lines."""
    code = _COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    return "\n".join(filter(None, map(str.strip, code.splitlines())))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    version = ".".join(map(str, compiler.compiler().version))
    old = json.loads(arguments.against.read_text()) if arguments.against else None
    if old is not None and old["compiler"] != version:
        raise SystemExit(f"digests: {arguments.against} is of NVRTC {old['compiler']}, this is NVRTC {version}")
    begin = time.monotonic()
    kernels = all_kernels(arguments.sample, arguments.only)
    rows = digests(kernels, arguments.arch, arguments.jobs, known(old["kernels"] if old else {}))
    figures = {
        "compiler": version,
        "commit": commit(),
        "architectures": arguments.arch,
        "sample": arguments.sample,
        "only": arguments.only,
        "kernels": rows,
    }
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    # A kernel is a line.
    text = re.sub(r"\n {3,}|\n {2}(?=[]}])", "", json.dumps(figures, indent=1))
    arguments.file.write_text(text + "\n", encoding="utf-8")
    print(
        f"{len(kernels)} kernels for {', '.join(arguments.arch)} in {time.monotonic() - begin:.0f} s: {arguments.file}"
    )
    if old is None:
        return 0
    lines = differences(old, figures)
    print(*lines[:_LINES], sep="\n")
    print(f"{len(lines)} differences from {arguments.against}")
    return int(bool(lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.static.digests", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="where the digests are written")
    parser.add_argument("--against", type=Path, metavar="OLD", help="print what differs from these digests")
    add_options(parser)
    return parser


def known(rows: Rows) -> dict[tuple[str, str], str]:
    """Digests of PTX by that of the CUDA text and the architecture."""
    return {(text, arch): ptx for of_name in rows.values() for text, of in of_name for arch, ptx in of.items()}


def digests(kernels: Sequence[Kernel], archs: Sequence[str], jobs: int, done: Mapping[tuple[str, str], str]) -> Rows:
    """The digests of kernels, those of a name in order."""
    rows: Rows = {}
    work = partial(_row, tuple(archs))
    with (
        processes(jobs, _keep, done) as executor,
        progress_bar(len(kernels), wanted=True, unit=" kernels") as advance,
    ):
        for kernel, row in zip(kernels, executor.map(work, kernels, chunksize=_CHUNK), strict=True):
            rows.setdefault(kernel.name, []).append(row)
            advance(1)
    return {name: sorted(of_name) for name, of_name in rows.items()}


#: In each process the digests that it need not make again.
_done: dict[tuple[str, str], str] = {}


def _keep(done: Mapping[tuple[str, str], str]) -> None:
    _done.update(done)


def _row(archs: Sequence[str], kernel: Kernel) -> Row:
    text = _digest(without_comments(kernel.text))
    return text, {arch: _done.get((text, arch)) or _ptx_digest(kernel.text, kernel.name, arch) for arch in archs}


def _ptx_digest(text: str, name: str, arch: str) -> str:
    code = uncached(text, name, arch.replace("sm_", "compute_")).code
    return _digest(without_comments(code.rstrip(b"\0").decode()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each kernel that differs, is new or is gone. Only what both files cover is compared."""
    archs = [arch for arch in new["architectures"] if arch in old["architectures"]]

    def covered(rows: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: of_name
            for name, of_name in rows.items()
            if all(chosen(name, of["sample"], of["only"]) for of in (old, new))
        }

    before, after = covered(old["kernels"]), covered(new["kernels"])
    return list(_lines(before, after, archs))


def _lines(before: Mapping[str, Any], after: Mapping[str, Any], archs: Sequence[str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"gone: {name}"
        elif name not in before:
            yield f"new: {name}"
        else:
            for arch in archs:
                # Kernels of a name are compared as a set.
                old, new = (Counter(row[1][arch] for row in rows[name]) for rows in (before, after))
                if old != new:
                    yield f"differs: {arch} {name}"


if __name__ == "__main__":
    sys.exit(main())
