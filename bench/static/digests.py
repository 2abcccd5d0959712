# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.static.digests FILE``: digests of the CUDA text of every kernel, and of the PTX of a share of them.
With ``--against OLD``: what differs.

A refactoring shows with it that it changes no kernel: digests before, digests after, exit code 0. Comments are left
out. Kernels of one text and one compiler have the same PTX, so only those whose text differs are compared by their PTX,
as far as both files have it. Texts of all kernels take minutes; the PTX of all for one architecture hours, of one in 40
(``--sample 40``) minutes. ``--shard 0`` to ``--shard 39`` of that sample are all of them. Needs no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from bench.revision import commit
from bench.static.catalog import add_options, all_kernels, chosen, uncached
from gpucast.cli.processes import processes
from gpucast.cli.progress import progress_bar
from gpucast.kernel import compiler
from gpucast.kernel.kernel import Kernel, Part, parts_text, unit

#: Hexadecimal digits of a digest.
_DIGITS = 20
#: Kernels that a process takes at a time, and differences that are printed.
_CHUNK, _LINES = 8, 50
#: Text in quotes, which may look like a comment, and comments.
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

#: For a kernel the digest of its text, and for each architecture that of its PTX; none outside of the share.
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
    kernels = all_kernels(only=arguments.only)
    share = [one for one in kernels if not arguments.texts and chosen(one.name, arguments.sample, "", arguments.shard)]
    rows = digests(kernels, share, arguments.arch, arguments.jobs, known(old["kernels"] if old else {}))
    figures = {
        "compiler": version,
        "commit": commit(),
        "architectures": arguments.arch,
        "only": arguments.only,
        "share": [len(share), len(kernels)],
        "kernels": rows,
    }
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    # A kernel is a line.
    text = re.sub(r"\n {3,}|\n {2}(?=[]}])", "", json.dumps(figures, indent=1))
    arguments.file.write_text(text + "\n", encoding="utf-8")
    archs = f"the PTX of {len(share)} ({len(share) / max(len(kernels), 1):.1%}) for {', '.join(arguments.arch)}"
    print(f"the text of {len(kernels)} kernels, {archs}, in {time.monotonic() - begin:.0f} s: {arguments.file}")
    if old is None:
        return 0
    found = compared(old, figures)
    print(*found.lines[:_LINES], sep="\n")
    left = f"{found.left} of another text without PTX, not compared"
    print(f"{found.same} kernels of the same text, {found.ptx} of the same PTX, {left}; {len(found.lines)} differences")
    return int(bool(found.lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.static.digests", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="where the digests are written")
    parser.add_argument("--against", type=Path, metavar="OLD", help="print what differs from these digests")
    parser.add_argument("--texts", action="store_true", help="no PTX, texts alone")
    add_options(parser)
    return parser


def known(rows: Rows) -> dict[tuple[str, str], str]:
    """Digests of PTX by that of the CUDA text and the architecture."""
    return {(text, arch): ptx for of_name in rows.values() for text, of in of_name for arch, ptx in of.items()}


def digests(
    kernels: Sequence[Kernel],
    share: Collection[Kernel],
    archs: Sequence[str],
    jobs: int,
    done: Mapping[tuple[str, str], str],
) -> Rows:
    """The digests of kernels, those of a name in order. `share`: those whose PTX is wanted; `done`: what is known."""
    texts = {kernel: text_digest(kernel) for kernel in kernels}
    ptx = dict(done)
    todo = [(kernel, arch) for kernel in share for arch in archs if (texts[kernel], arch) not in ptx]
    if todo:
        with processes(jobs) as executor, progress_bar(len(todo), wanted=True, unit=" kernels") as advance:
            for (kernel, arch), digest in zip(todo, executor.map(_ptx_digest, todo, chunksize=_CHUNK), strict=True):
                ptx[texts[kernel], arch] = digest
                advance(1)
    rows: Rows = {}
    for kernel, text in texts.items():
        row = text, {arch: ptx[text, arch] for arch in archs if (text, arch) in ptx}
        rows.setdefault(kernel.name, []).append(row)
    return {name: sorted(of_name) for name, of_name in rows.items()}


def text_digest(kernel: Kernel) -> str:
    """The digest of a kernel's text."""
    return _digest(_parts_digest(kernel.parts) + without_comments(unit("", kernel.dtypes, [kernel.line])))


@lru_cache(maxsize=256)
def _parts_digest(parts: tuple[Part, ...]) -> str:
    return _digest(without_comments(parts_text(parts)))


def _ptx_digest(of: tuple[Kernel, str]) -> str:
    kernel, arch = of
    code = uncached(kernel.text, kernel.name, arch.replace("sm_", "compute_")).code
    return _digest(without_comments(code.rstrip(b"\0").decode()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


class Compared(NamedTuple):
    """What a comparison finds."""

    #: Kernels of the same text, others with the same PTX for every architecture, and those that have another text and
    #: no PTX, because they are outside of the share.
    same: int
    ptx: int
    left: int
    #: A line for each name that is gone or new, or whose kernels differ.
    lines: list[str]


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> Compared:
    """How two files differ, in what both cover. Kernels of a name are compared as a set."""
    archs = [arch for arch in new["architectures"] if arch in old["architectures"]]
    before, after = (
        {name: of_name for name, of_name in rows.items() if all(chosen(name, 1, of["only"]) for of in (old, new))}
        for rows in (old["kernels"], new["kernels"])
    )
    same, ptx, left, lines = 0, 0, 0, list[str]()
    for name in sorted({*before, *after}):
        sides = [dict(rows.get(name, ())) for rows in (before, after)]
        both = sides[0].keys() & sides[1].keys()
        same += len(both)
        others = [[of for text, of in side.items() if text not in both] for side in sides]
        if name not in after or name not in before:
            lines.append(f"{'new' if name in after else 'gone'}: {name}")
        elif not all(arch in of for side in others for of in side for arch in archs):
            left += len(others[1])
        else:
            differ = [
                arch for arch in archs if Counter(of[arch] for of in others[0]) != Counter(of[arch] for of in others[1])
            ]
            lines += [f"differs: {arch} {name}" for arch in differ]
            ptx += 0 if differ else len(others[1])
    return Compared(same, ptx, left, lines)


if __name__ == "__main__":
    sys.exit(main())
