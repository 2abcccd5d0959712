# SPDX-License-Identifier: Apache-2.0
"""`gpucast parity` from the user's view: what it prints and writes, exit codes, wrong usage."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucast.cli import main
from gpucast.parity import backends
from gpucast.parity.backends import CastCodes, NDArray
from gpucast.parity.cases import NUMERIC, Case, all_cases, all_pairs
from gpucast.parity.compare import run

pytestmark = pytest.mark.usefixtures("folder")

#: With many random codes the kernels are compiled with optimisation, which takes too long for a test.
FEW = ("--random", "10")


@pytest.fixture
def one_flipped_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both backends that need no GPU give another code for 0x3e in FLOAT8E5M2 -> INT8."""
    for backend in (backends.HostBackend, backends.KernelsBackend):
        monkeypatch.setattr(backend, "prepare", flipping(backend.prepare))


def flipping(prepare: Any) -> Any:
    def prepare_faulty(self: Any, cases: Sequence[Case], optimize: bool) -> CastCodes:
        cast = prepare(self, cases, optimize)

        def faulty(case: Case, codes: NDArray) -> NDArray:
            result: NDArray = cast(case, codes)
            if (case.rule.src.name, case.rule.dst.name) == ("FLOAT8E5M2", "INT8"):
                result = result ^ (codes == 0x3E).astype(result.dtype)
            return result

        return faulty

    return prepare_faulty


def grid(text: str) -> dict[tuple[str, str], str]:
    """The marks of the printed grid."""
    found = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 2 + len(NUMERIC) and (fields[1] == "-" or fields[1].isdecimal()):
            found |= {(fields[0], row.name): mark for row, mark in zip(NUMERIC, fields[2:], strict=True)}
    assert len(found) == len(NUMERIC) ** 2
    return found


@pytest.mark.parametrize("backend", ["kernels", "host"])
def test_equal_pairs(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["parity", "--backend", backend, "--pair", "INT4:FLOAT4E2M1", "--pair", "22:17", "--pair", "bool:int8",
                 "--pair", "INT4:FLOAT4E2M1", *FEW, "--json", "x.json"])  # fmt: skip
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    tried = {("INT4", "FLOAT4E2M1"), ("INT4", "FLOAT8E4M3FN"), ("BOOL", "INT8")}
    assert {pair: mark for pair, mark in grid(out).items() if mark != "."} == dict.fromkeys(tried, "=")
    assert re.match(rf"gpucast parity: {backend} \(.+\) against the reference\n", out)
    assert re.search(r"\n13 of 13 rules tried, in 3 pairs: 53,287 casts in \d+ s, 0 differ\n$", out)
    found = json.loads(Path("x.json").read_text())
    assert (found["backend"], found["mode"], found["wrong"], found["first"]) == (backend, "all", 0, None)
    assert (found["rules"], found["rules_planned"], found["elements"]) == (13, 13, 53287)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    states = {(pair["src"], pair["dst"]): pair["state"] for pair in found["pairs"]}
    assert len(states) == len(NUMERIC) ** 2
    assert {pair for pair, state in states.items() if state == "equal"} == tried
    assert {pair for pair, state in states.items() if state == "not tried"} == states.keys() - tried


@pytest.mark.usefixtures("one_flipped_bit")
@pytest.mark.parametrize("backend", ["kernels", "host"])
def test_a_mismatch(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ["--pair", "FLOAT8E5M2:UINT8", "--pair", "FLOAT8E5M2:INT8"]
    code = main(["parity", "--backend", backend, *pairs, *FEW, "--json", "x.json", "--picture", "x.svg"])
    out, err = capsys.readouterr()
    assert code == 1
    assert err == "gpucast parity: FLOAT8E5M2 to INT8: index 62, input 0x3e (1.5): wanted 0x01 (1), got 0x00 (0)\n"
    assert grid(out)["FLOAT8E5M2", "INT8"] == "X"
    assert grid(out)["FLOAT8E5M2", "UINT8"] == "="
    # 4,099 elements hold the code 16 times; the pair has six rules.
    assert " 96 differ\n" in out
    found = json.loads(Path("x.json").read_text())
    assert found["wrong"] == 96
    assert found["first"] == {
        "src": "FLOAT8E5M2", "dst": "INT8", "attributes": {}, "index": 62,
        "input": "0x3e (1.5)", "wanted": "0x01 (1)", "got": "0x00 (0)",
    }  # fmt: skip
    (pair,) = [pair for pair in found["pairs"] if pair["wrong"]]
    assert (pair["src"], pair["dst"], pair["state"], pair["rules"]) == ("FLOAT8E5M2", "INT8", "differing", 6)
    clamp, nearest, away = {"overflow": "saturate"}, {"rounding": "nearest_even"}, {"rounding": "nearest_away"}
    ways = [{}, clamp, nearest, nearest | clamp, away, away | clamp]
    assert [first["attributes"] for first in pair["mismatches"]] == ways
    assert [first["wanted"] for first in pair["mismatches"]] == ["0x01 (1)"] * 2 + ["0x02 (2)"] * 4


def test_a_sample(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def first_ones(backend: Any, cases: Sequence[Case], **keywords: Any) -> Any:
        asked.update(keywords, cases=cases)
        return run(backend, cases[:30], **(keywords | {"random": 10}))

    monkeypatch.setattr("gpucast.parity.compare.run", first_ones)
    tried, rules = [], len(all_cases(all_pairs()))
    for seed in ("3", "3", "4"):
        assert main(["parity", "--backend", "host", "--seed", seed, "--json", "x.json"]) == 0
        assert (len(asked["cases"]), asked["seconds"], asked["seed"]) == (rules, 10.0, int(seed))
        found = json.loads(Path("x.json").read_text())
        assert (found["mode"], found["rules"], found["rules_planned"]) == ("sample", 30, rules)
        tried.append(found["pairs"])
        assert "a seeded sample; --full tries all\n" in capsys.readouterr().out
    assert tried[0] == tried[1] != tried[2]
    assert main(["parity", "--backend", "host", "--full", "--random", "7", "--threads", "1"]) == 0
    assert (asked["seconds"], asked["random"], asked["threads"], asked["share"]) == (None, 7, 1, 1.0)
