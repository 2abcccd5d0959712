# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.proof``: proves from the PTX of kernels that they cast every input as specified."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpucast.cli import arguments
from gpucast.cli.progress import progress_bar
from gpucast.kernel import compiler
from gpucast.parity.cases import all_cases, all_pairs
from gpucast.quantization.formats import find
from tests.proof import block_codes, certificate, freshness, solvers
from tests.proof.certificate import Proof

_DESCRIPTION = """\
Prove that the kernels of pairs cast every input as specified: the PTX that NVRTC makes is executed on unknown inputs,
and compared with a specification. Sources of 16 bits or fewer are proved by exhaustion, wider ones by an SMT solver
(pip install 'gpucast[proof]'). Needs no GPU. The exit code is 1 where anything is not proved."""

#: How many seconds of work may be lost.
_WRITTEN_EVERY = 10

_OPTIONS = f"""\
--arch ARCH = sm_90  the GPU architecture (default: %(default)s)
--rule default|all = default  prove the default attributes of a pair, or all (default: %(default)s)
--paths {"|".join(certificate.PATHS)} = full  full: a thread in the middle of an array; edges: ends of arrays and
    alignments; layouts: strided and transposed arrays; scaled: casts with a scale; many: many arrays in one launch
    (default: %(default)s)
--format NAME ...  prove the kernel that quantizes to this format, such as mxfp4, in place of casts (may be repeated)
--source TYPE = BFLOAT16  the type that --format quantizes from (default: %(default)s)
--known FILE ...  do not prove again what this certificate proves (may be repeated)
--json FILE  write a certificate as the proof goes on; a second run continues from it
--refresh FILE ...  prove nothing: drop from these certificates what was proved of older PTX (may be repeated)
--no-progress  draw no progress bar
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    try:
        return _run(_parser().parse_args(argv))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"proof: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=_DESCRIPTION)
    parser.add_argument(
        "pairs", metavar="SRC:DST", type=arguments.pair, nargs="*", help="pairs of types to prove (default: all)"
    )
    kinds = {"TYPE": arguments.dtype}
    arguments.add_options(parser, _OPTIONS, kinds)
    return parser


def _run(args: argparse.Namespace) -> int:
    if not solvers.version():
        raise ValueError(f"{solvers.SOLVER} is not installed; pip install 'gpucast[proof]'")
    arch = compiler.compiler().parse(args.arch)
    if args.refresh:
        return _refresh(args.refresh)
    if args.format:
        return _formats(args, arch)
    before = certificate.opened(args.json, arch, args.paths)
    others = [json.loads(Path(path).read_text(encoding="utf-8")) for path in args.known]
    known = certificate.proved([before, *others], args.paths)
    cases = all_cases(list(dict.fromkeys(args.pairs)) or all_pairs(), args.rule == "default")
    proofs = list[Proof]()

    def write() -> None:
        with arguments.created(args.json) as file:
            if file is not None:
                made = certificate.certificate(before, [proof.as_json() for proof in proofs])
                file.write(certificate.text(made).encode())

    write()
    written = time.monotonic()
    try:
        with progress_bar(len(cases), not args.no_progress, "rules") as advance:
            for proof in certificate.prove(cases, arch, args.paths, known):
                proofs.append(proof)
                advance(1)
                if args.pairs or not proof.verdict.proved:
                    print(certificate.explain(proof), flush=True)
                if time.monotonic() > written + _WRITTEN_EVERY:
                    write()
                    written = time.monotonic()
    finally:
        write()
    failed = sum(not proof.verdict.proved for proof in proofs)
    print(f"{len(proofs) - failed} of {len(proofs)} rules proved for {arch}")
    if failed:
        print(f"proof: {failed} rules are not proved", file=sys.stderr)
    return int(failed > 0)


def _refresh(paths: Sequence[str]) -> int:
    for path in paths:
        kept, went = freshness.refresh(Path(path))
        print(f"{path}: {kept:,} proofs are of today's kernels, {went:,} were of others", flush=True)
    return 0


def _formats(args: argparse.Namespace, arch: str) -> int:
    """Prove kernels that quantize; a proof that a certificate has is done again, and others stay in it."""
    before = certificate.opened(args.json, arch, "blocks")
    proofs = []
    for name in args.format:
        proofs.append(block_codes.prove(find(name, "proof"), args.source, arch))
        print("{format} from {src}, {scales} scales: {verdict}".format(**proofs[-1]), flush=True)
        with arguments.created(args.json) as file:
            if file is not None:
                file.write(certificate.text(certificate.certificate(before, proofs)).encode())
    return int(any(proof["verdict"] != "proved" for proof in proofs))


if __name__ == "__main__":
    sys.exit(main())
