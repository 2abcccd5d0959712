# SPDX-License-Identifier: Apache-2.0
"""Proofs of kernels that quantize by blocks, and what becomes of planted faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucast.core.dtypes import dtype
from gpucast.quantization.formats import FORMATS
from tests.proof import block_codes, certificate
from tests.proof import terms as t
from tests.proof.__main__ import main
from tests.proof.block_codes import BlockProof
from tests.proof.prover import Prover
from tests.proof.ptx import read

pytest.importorskip("bitwuzla")


def proof(name: str, source: str, arch: str, *change: str) -> BlockProof:
    """That of a kernel in whose PTX a text was changed."""
    t.forget()
    format, src = FORMATS[name], dtype(source)
    kernel = block_codes.kernel_of(format, src)
    text = certificate.ptx(kernel.kernel, arch)
    if change:
        assert change[0] in text
        text = text.replace(*change)
    return BlockProof(format, src, Prover(kernel, read(text)))


@pytest.mark.parametrize(
    ("name", "source", "arch"),
    [
        ("mxfp8e4m3", "BFLOAT16", "sm_90"), ("mxfp4", "BFLOAT16", "sm_90"), ("mxfp8e4m3", "BFLOAT16", "sm_100a"),
        ("mxfp4", "BFLOAT16", "sm_80"), ("mxfp6e2m3", "FLOAT", "sm_90"), ("mxfp4", "FLOAT", "sm_100a"),
    ],
)  # fmt: skip
def test_some_scales(name: str, source: str, arch: str) -> None:
    """The smallest, one, the largest, and NaN."""
    assert proof(name, source, arch).prove([0, 127, 254, 255]).proved


@pytest.mark.parametrize("source", ["BFLOAT16", "FLOAT"])
@pytest.mark.parametrize(
    "change",
    [
        ("cvt.rn.satfinite.e4m3x2.f32 x, ", "cvt.rn.satfinite.e5m2x2.f32 x, "),
        ("2130706432", "2122317824"),  # The factor of the smallest scale.
    ],
)
def test_a_fault_is_found(change: tuple[str, str], source: str) -> None:
    found = proof("mxfp8e4m3", source, "sm_90", *change).prove([127])
    assert found.problem == "element 0 with the scale 0x7f differs from the specification"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_codes, "every_scale", lambda format: [255])
    path = tmp_path / "proof.json"
    for name in ("mxfp8e4m3", "mxfp4"):
        assert main(["--format", name, "--json", str(path)]) == 0
    assert "mxfp4 from BFLOAT16, 1 scales: proved" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["proved"] == 2 and {one["format"] for one in found["proofs"]} == {"mxfp8e4m3", "mxfp4"}
    assert main(["--format", "nvfp4"]) == 1
    assert "expected mxfp8e4m3" in capsys.readouterr().err
