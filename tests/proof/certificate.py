# SPDX-License-Identifier: Apache-2.0
"""Proves rules in turn and reports, as text and as JSON, which PTX was proved for which rule."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from gpucast.core.rule import Options, resolve
from gpucast.core.version import __version__
from gpucast.kernel import compiler
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES, Kind
from gpucast.kernel.cast_kernel import VECTOR, Shape
from gpucast.kernel.cxx import CompilerMissing
from gpucast.kernel.fused_kernel import FusedOps
from gpucast.kernel.kernel import ALIGNED, Kernel
from gpucast.parity.backends import KernelsBackend
from gpucast.parity.cases import Case
from gpucast.parity.compare import describe, wanted_codes
from tests.proof import terms as t
from tests.proof.launches import BatchSubject, Launch, Subject, edges, full_tile, fused, strided, tables
from tests.proof.machine import Unknown
from tests.proof.prover import Prover, Verdict
from tests.proof.ptx import read
from tests.proof.solvers import SOLVER, version

Paths = Literal["full", "edges", "layouts", "scaled", "many"]
PATHS = get_args(Paths)


@dataclass(frozen=True)
class Proof:
    """The outcome for one rule. `digest` is the SHA-256 of its PTX without comments and target."""

    case: Case
    arch: str
    kernel: str
    digest: str
    verdict: Verdict

    def __str__(self) -> str:
        verdict = self.verdict
        if not verdict.proved:
            return f"{self.case}, {self.arch}: NOT PROVED: {verdict.problem}"
        methods = ", ".join(f"{method} {seconds:.2f} s" for method, seconds in verdict.seconds.items())
        return f"{self.case}, {self.arch}: proved by {methods or 'its form'}"

    def as_json(self) -> dict[str, Any]:
        rule, verdict = self.case.rule, self.verdict
        return {
            "src": rule.src.name,
            "dst": rule.dst.name,
            "attributes": dict(self.case.attributes),
            "kernel": self.kernel,
            "ptx": self.digest,
            "verdict": "proved" if verdict.proved else verdict.problem,
            "seconds": {method: round(seconds, 3) for method, seconds in verdict.seconds.items()},
            "launches": verdict.launches,
        }


def ptx(kernel: Kernel, arch: str) -> str:
    """The PTX that NVRTC makes of a kernel for an architecture such as sm_90."""
    compiled = compiler.compile(kernel.text, kernel.name, arch.replace("sm_", "compute_"))
    return compiled.code.rstrip(b"\0").decode()


def digest(text: str) -> str:
    """The identity of a kernel's PTX. Architectures that get the same instructions share it."""
    lines = (line for line in text.splitlines() if not line.startswith(("//", ".target")))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def digest_of(case: Case, paths: Paths, arch: str) -> str:
    """The identity of the PTX of all kernels of a rule, as a certificate names it."""
    return digest("\n".join(ptx(source.kernel, arch) for source, _ in kernels(case, paths, arch)))


def prove(
    cases: Iterable[Case], arch: str, paths: Paths = "full", known: Mapping[str, Verdict] | None = None
) -> Iterator[Proof]:
    """Prove some rules.

    `paths` chooses what runs: "full" is one thread of a full block, "edges" are the launches of `edges`, "layouts" are
    kernels for arrays that are not contiguous, "scaled" are casts times a FLOAT, and "many" are casts of many arrays.
    `known` holds earlier verdicts by the digest of the PTX.
    """
    for case in cases:
        sources = list(kernels(case, paths, arch))
        texts = [ptx(source.kernel, arch) for source, _ in sources]
        key = digest("\n".join(texts))
        verdict = None if known is None else known.get(key)
        if verdict is None:
            verdict = Verdict()
            for (source, launches), text in zip(sources, texts, strict=True):
                t.forget()
                try:
                    Prover(source, read(text), verdict=verdict).prove(launches)
                except Unknown as unknown:
                    verdict.problem = str(unknown)
                if verdict.problem:
                    break
        yield Proof(case, arch, sources[0][0].kernel.name, key, verdict)


def kernels(
    case: Case, paths: Paths, arch: str
) -> Iterator[tuple[Subject | BatchSubject, Iterable[Launch | list[Launch]]]]:
    """The kernels of a rule, with the launches of each."""
    rule = case.rule
    source = Subject.of(rule)
    if paths == "full":
        yield source, [full_tile(source)]
    elif paths == "edges":
        unpacked = [Subject.of(rule, unpacked=True)] * rule.src.packed
        widest = ALIGNED if int(re.sub(r"\D", "", arch)) >= 100 else VECTOR
        for contiguous in (source, *unpacked):
            yield contiguous, [full_tile(contiguous), *edges(contiguous, widest)]
    elif paths == "layouts":
        shapes: list[Shape] = ["strided"]
        if min(rule.src.bits, rule.dst.bits) >= 8 and case.random is None:
            shapes.append("transposed")
        for shape in shapes:
            source = Subject.of(rule, shape)
            yield source, strided(source)
    elif paths == "scaled":
        options = Options(**{name: value for name, value in case.attributes if name not in ("seed", "offset")})
        ops = FusedOps("narrow")
        source = Subject.of(resolve(rule.src, rule.dst, options._replace(scale=1.0)), ops=ops)
        yield source, fused(source, ops)
    else:
        batch = BatchSubject.of((Kind(rule),), ARGUMENT_BYTES[0])
        yield batch, tables(batch)


def explain(proof: Proof) -> str:
    """A proof as text. After a failure it adds a counterexample: the input, the PTX's result, and the expected one."""
    found = proof.verdict.counterexample
    rule = proof.case.rule
    if found is None or found.launch.given is not None:
        return str(proof)
    code = found.codes.get(found.index, 0) & rule.src.code_mask
    codes = np.array([code], rule.src.code_numpy)
    lines = [f"{proof}\n  {found.launch}, element {found.index}: {describe(rule.src, code)}"]
    lines += [
        f"    beside element {index}: {describe(rule.src, other)}"
        for index, other in found.codes.items()
        if index != found.index
    ]
    results = [("PTX", found.got), ("specification", found.wanted), ("reference", int(wanted_codes(rule, codes)[0]))]
    try:
        results.append(("host build", int(KernelsBackend().prepare([proof.case], False)(proof.case, codes)[0])))
    except CompilerMissing:
        lines.append("  (there is no C++ compiler for the host build)")
    return "\n".join([*lines, *(f"  {name}: {describe(rule.dst, result)}" for name, result in results)])


def opened(path: str | None, arch: str, paths: Paths | Literal["blocks"]) -> dict[str, Any]:
    """Read a certificate that is to be continued. ValueError if the file is a certificate of something else."""
    begin: dict[str, Any] = {"arch": arch, "paths": paths, "solvers": {}, "proofs": []}
    if path is None or not Path(path).is_file():
        return begin
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    there = found.get("arch"), found.get("paths")
    if there != (arch, paths):
        raise ValueError(f"{path} is of {there[0]}, paths {there[1]}; asked were {arch}, paths {paths}")
    return found


def _subject(proof: Mapping[str, Any]) -> tuple[str, ...]:
    """The rule, or the format and the type, of a proof."""
    return tuple(str(proof.get(name)) for name in ("format", "src", "dst", "attributes"))


def certificate(before: Mapping[str, Any], new: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The certificate with the proofs made since it was opened; others stay."""
    subjects = set(map(_subject, new))
    proofs = [*new, *(old for old in before["proofs"] if _subject(old) not in subjects)]
    methods = Counter(method for proof in proofs for method in proof["seconds"])
    solvers = {**before["solvers"], SOLVER: version()}
    return {
        "gpucast": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "arch": before["arch"],
        "nvrtc": ".".join(map(str, compiler.compiler().version)),
        "solvers": {name: used for name, used in solvers.items() if name in methods},
        "paths": before["paths"],
        "proved": sum(proof["verdict"] == "proved" for proof in proofs),
        "rules": len(proofs),
        "methods": dict(methods),
        "proofs": proofs,
    }


def text(found: Mapping[str, Any]) -> str:
    """A certificate as JSON, one line for each proof."""
    head = json.dumps({name: value for name, value in found.items() if name != "proofs"}, indent=1).removesuffix("\n}")
    return f'{head},\n "proofs": [\n' + ",\n".join(map(json.dumps, found["proofs"])) + "\n ]\n}\n"


def proved(certificates: Iterable[Mapping[str, Any]], paths: Paths) -> dict[str, Verdict]:
    """The proofs in certificates, by the digest of the PTX."""
    return {
        proof["ptx"]: Verdict(proof["seconds"], launches=proof["launches"])
        for found in certificates
        if found["paths"] == paths
        for proof in found["proofs"]
        if proof["verdict"] == "proved"
    }
