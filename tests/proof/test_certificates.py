# SPDX-License-Identifier: Apache-2.0
"""Committed certificates are of the kernels of today: a share of each, another when it changes, or ``--exhaustive``."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.proof import freshness
from tests.proof.__main__ import main

CERTIFICATES = dict(freshness.certificates())
#: How many proofs of a certificate are compared.
_SHARE = 6


@pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: path.stem)
def test_its_proofs_are_of_the_ptx_of_today(path: Path, exhaustive: bool) -> None:
    found = CERTIFICATES[path]
    if not freshness.is_of_this_compiler(found):
        pytest.skip(f"the certificate is of NVRTC {found['nvrtc']}, which makes other PTX")
    proofs = found["proofs"]
    assert proofs, f"{path.name} holds no proof"
    if not exhaustive:
        # Another share for each state of the certificate.
        proofs = random.Random(path.read_text("utf-8")).sample(proofs, min(_SHARE, len(proofs)))
    old = [proof for proof in proofs if not freshness.is_current(proof, found["arch"], found["paths"])]
    again = f"prove them again, or drop them: python -m tests.proof --refresh bench/results/{path.name}"
    assert [proof["kernel"] for proof in old] == [], again


def test_what_is_of_other_ptx_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "proof.json"
    assert main(["INT4:INT2", "INT4:BOOL", "--json", str(path), "--no-progress"]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    first, second = found["proofs"]
    for change in ({"ptx": "0" * 64}, {"attributes": {"saturate": False}}):
        path.write_text(json.dumps({**found, "proofs": [first | change, second]}))
        assert main(["--refresh", str(path)]) == 0
        assert "1 proofs are of today's kernels, 1 were of others" in capsys.readouterr().out
        assert [proof["kernel"] for proof in json.loads(path.read_text())["proofs"]] == [second["kernel"]]
    path.write_text(json.dumps({**found, "nvrtc": "0.0"}))
    assert main(["--refresh", str(path)]) == 1
    assert "the certificate is of NVRTC 0.0" in capsys.readouterr().err
