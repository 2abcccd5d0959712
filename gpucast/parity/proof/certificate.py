# SPDX-License-Identifier: Apache-2.0
"""Proves rules one after the other, and says what was proved of which PTX, as text and as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast.codegen.cast import KernelSource
from gpucast.codegen.spec import CastSpec
from gpucast.compile import cubin
from gpucast.compile.cxx import CompilerMissing
from gpucast.core.version import __version__
from gpucast.parity.backends import KernelsBackend
from gpucast.parity.cases import Case
from gpucast.parity.compare import describe, wanted_codes
from gpucast.parity.proof import terms as t
from gpucast.parity.proof.launches import full_tile
from gpucast.parity.proof.machine import Unknown
from gpucast.parity.proof.prove import Prover, Verdict
from gpucast.parity.proof.ptx import read
from gpucast.parity.proof.solvers import versions

#: A thread of the second half of its block's first warp.
_THREAD = 21


@dataclass(frozen=True)
class Proof:
    """What came of one rule. `digest` is the SHA-256 of the PTX."""

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


def ptx(source: KernelSource, arch: str) -> str:
    """The PTX of a kernel, as NVRTC makes it for an architecture such as sm_90."""
    compiled = cubin.compile(source.text, source.name, arch.replace("sm_", "compute_"))
    return compiled.code.rstrip(b"\0").decode()


def prove(cases: Iterable[Case], arch: str, solvers: Sequence[str], limit: float) -> Iterator[Proof]:
    """The proofs of some rules. `solvers`: each of them must agree, within `limit` seconds for a question."""
    for case in cases:
        source = CastSpec.of(case.rule).source()
        text = ptx(source, arch)
        t.forget()
        prover = Prover(source, read(text), solvers, limit)
        try:
            verdict = prover.prove([full_tile(source, [_THREAD])])
        except Unknown as unknown:
            verdict = prover.verdict
            verdict.problem = str(unknown)
        yield Proof(case, arch, source.name, hashlib.sha256(text.encode()).hexdigest(), verdict)


def explain(proof: Proof) -> str:
    """A proof, and of one that failed a counterexample in numbers: what the PTX and everything else makes of it."""
    found = proof.verdict.counterexample
    rule = proof.case.rule
    if found is None or proof.case.random is not None:
        return str(proof)
    code = found.codes.get(found.index, 0)
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


def certificate(proofs: Sequence[Proof], arch: str, solvers: Sequence[str], limit: float, date: str) -> dict[str, Any]:
    """All proofs of an architecture, for a file."""
    installed = versions()
    return {
        "gpucast": __version__,
        "date": date,
        "arch": arch,
        "nvrtc": ".".join(map(str, cubin.compiler().version)),
        "solvers": {name: installed[name] for name in solvers},
        "seconds_per_question": limit,
        "rules": len(proofs),
        "proved": sum(proof.verdict.proved for proof in proofs),
        "proofs": [proof.as_json() for proof in proofs],
    }
