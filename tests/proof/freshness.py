# SPDX-License-Identifier: Apache-2.0
"""Says which proofs in a certificate are of the PTX that NVRTC makes of today's kernels.

A certificate holds for the PTX that it names. ``python -m tests.proof --refresh FILE`` drops what is of older PTX;
`test_certificates.py` compares a share of every certificate in each run of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpucast.core.dtypes import dtype
from gpucast.kernel import compiler
from gpucast.parity.cases import Case, all_cases
from gpucast.quantization.formats import FORMATS
from tests.proof import block_codes, certificate

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "results"


def certificates() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(FOLDER.glob("*proof-*.json")):
        yield path, json.loads(path.read_text(encoding="utf-8"))


def is_of_this_compiler(found: Mapping[str, Any]) -> bool:
    """Whether NVRTC is the one of the certificate: another one makes other PTX."""
    return bool(found["nvrtc"] == ".".join(map(str, compiler.compiler().version)))


def is_current(proof: Mapping[str, Any], arch: str, paths: Any) -> bool:
    """Whether today's kernels have the PTX of a proof. A rule or a format that there is no longer has none."""
    if paths == "blocks":
        format = FORMATS.get(proof["format"])
        return format is not None and block_codes.digest_of(format, dtype(proof["src"]), arch) == proof["ptx"]
    case = _case(proof)
    return case is not None and certificate.digest_of(case, paths, arch) == proof["ptx"]


def _case(proof: Mapping[str, Any]) -> Case | None:
    """The case of a proof, by its attributes."""
    every = all_cases([(dtype(proof["src"]), dtype(proof["dst"]))])
    return next((case for case in every if dict(case.attributes) == proof["attributes"]), None)


def refresh(path: Path) -> tuple[int, int]:
    """Drop the proofs of older PTX from a certificate: how many stay, and how many went."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not is_of_this_compiler(found):
        raise ValueError(f"{path}: the certificate is of NVRTC {found['nvrtc']}; expected the NVRTC of this process")
    kept = [proof for proof in found["proofs"] if is_current(proof, found["arch"], found["paths"])]
    went = len(found["proofs"]) - len(kept)
    path.write_text(certificate.text(certificate.certificate({**found, "proofs": kept}, [])), encoding="utf-8")
    return len(kept), went
