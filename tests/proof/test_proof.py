# SPDX-License-Identifier: Apache-2.0
"""Proofs of kernels from their PTX, and what becomes of planted faults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fused_cases import rule_of
from gpucast.cli import main
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import Options, resolve
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES, Kind, sorted_kinds
from gpucast.kernel.fused_kernel import FusedOps
from gpucast.parity.cases import NUMERIC, WIDE, all_cases, all_pairs, cases, shuffled, stochastic_cases
from tests.proof import certificate, mutants
from tests.proof import terms as t
from tests.proof.__main__ import main as prove
from tests.proof.launches import BatchSubject, Launch, Subject, edges, full_tile, fused, strided, tables
from tests.proof.machine import Unknown
from tests.proof.prover import Prover, Verdict
from tests.proof.ptx import read


def compiled(pair: str, arch: str = "sm_90", **attributes: Any) -> tuple[Subject, str]:
    src, dst = map(dtype, pair.split(":"))
    source = Subject.of(resolve(src, dst, Options(**attributes)))
    return source, certificate.ptx(source.kernel, arch)


def verdict(source: Subject, text: str, launches: Iterable[Launch]) -> Verdict:
    t.forget()
    return Prover(source, read(text), 60).prove(launches)


def changed(text: str, old: str, new: str, count: int = 1) -> str:
    assert old in text, f"the kernel no longer has {old!r}: plant another fault"
    return text.replace(old, new) if count == 0 else text.replace(old, new, count)


@pytest.mark.parametrize("pair", ["FLOAT:FLOAT8E4M3FN", "UINT16:DOUBLE", "FLOAT:INT2"])
def test_every_edge_and_alignment_is_proved(pair: str) -> None:
    source, text = compiled(pair)
    found = verdict(source, text, edges(source))
    assert found.problem == ""
    assert found.launches == len(list(edges(source)))


def test_edges_of_accesses_of_32_bytes_are_proved() -> None:
    source, text = compiled("UINT32:FLOAT6E3M2", "sm_100a")
    assert ".v8.b32" in text
    launches = list(edges(source, 32))
    assert {launch.src for launch in launches} == {launch.dst for launch in launches} == set(range(32))
    assert verdict(source, text, launches).problem == ""


@pytest.mark.parametrize(
    ("pair", "shape"),
    [
        ("FLOAT:FLOAT8E4M3FN", "strided"), ("DOUBLE:FLOAT6E2M3", "strided"), ("INT4:UINT16", "strided"),
        ("INT2:FLOAT4E2M1", "strided"), ("FLOAT:FLOAT8E4M3FN", "transposed"),
    ],
)  # fmt: skip
def test_other_layouts_are_proved(pair: str, shape: Any) -> None:
    src, dst = map(dtype, pair.split(":"))
    source = Subject.of(resolve(src, dst), shape)
    text = certificate.ptx(source.kernel, "sm_90")
    found = verdict(source, text, strided(source))
    assert found.problem == ""
    # The strides are added, instead of multiplied by a place.
    faulty = text.replace("mul.lo.s64", "add.s64")
    if pair != "INT2:FLOAT4E2M1":  # Both sides are streams.
        assert faulty != text
        assert verdict(source, faulty, strided(source)).problem != ""


@pytest.mark.parametrize(
    ("pair", "ops"),
    [
        ("FLOAT:FLOAT8E4M3FN", FusedOps("narrow")), ("FLOAT16:BFLOAT16", FusedOps("narrow")),
        ("INT64:INT8", FusedOps("wide")),
        ("FLOAT:FLOAT8E4M3FN", FusedOps(amax=True, finite=True)),
    ],
)  # fmt: skip
def test_scaled_casts_and_largest_magnitudes_are_proved(pair: str, ops: FusedOps, exhaustive: bool) -> None:
    src, dst = map(dtype, pair.split(":"))
    source = Subject.of(rule_of(src, dst, ops, False), ops=ops)
    text = certificate.ptx(source.kernel, "sm_90")
    launches = list(fused(source, ops))
    if ops.amax and not exhaustive:
        # The magnitudes of a whole tile take a solver a quarter of a minute; .ci/run asks for it.
        del launches[0]
    assert verdict(source, text, launches).problem == ""
    if ops.amax:
        flagged = re.sub(r"(setp\.lt\.u32 \t%p\d+, %r\d+, )2139095040;", r"\g<1>2139095041;", text)
        assert flagged != text
        assert "leaves another number" in verdict(source, flagged, launches).problem
        narrower = changed(text, "0xffffffff", "0x7fffffff", 0)
        assert "not all threads of a warp" in verdict(source, narrower, launches).problem
    else:
        faulty = re.sub(r"mul\.(rz\.f32|f64)", lambda match: f"add.{match[1].replace('f64', 'rn.f64')}", text)
        assert faulty != text
        assert verdict(source, faulty, launches).problem == "an element differs from the specification"


def test_casts_of_many_arrays_are_proved() -> None:
    pairs = ("FLOAT:FLOAT8E4M3FN", "INT4:BFLOAT16", "FLOAT8E5M2:FLOAT")
    kinds = [Kind(resolve(*map(dtype, pair.split(":")))) for pair in pairs]
    batch = BatchSubject.of(sorted_kinds(kinds), ARGUMENT_BYTES[0])
    text = certificate.ptx(batch.kernel, "sm_90")
    t.forget()
    found = Prover(batch, read(text)).prove(tables(batch))
    assert found.problem == ""
    assert found.launches == 3
    # The array before the one of a block.
    faulty = re.sub(
        r"setp\.le\.u32|setp\.gt\.u32", lambda match: match[0].replace("le", "lt").replace("gt", "ge"), text
    )
    assert faulty != text
    t.forget()
    assert Prover(batch, read(faulty)).prove(tables(batch)).problem != ""


def fault_in_table(text: str) -> str:
    """Another code in all copies of one entry."""
    table = re.search(r"= \{([\d, ]+)\}", text)
    assert table is not None
    numbers = table[1].split(", ")
    for copy in range(4):
        numbers[16 * 9 + 4 * copy] = str(int(numbers[16 * 9 + 4 * copy]) ^ 1)
    return text.replace(table[1], ", ".join(numbers))


FAULTS = [
    ("table entry", "FLOAT8E4M3FNUZ:FLOAT16", fault_in_table),
    ("rounding constant", "FLOAT:FLOAT8E4M3FNUZ", lambda text: changed(text, "1098924416", "1098924417", 0)),
    ("limit", "FLOAT:FLOAT8E4M3FNUZ", lambda text: changed(text, "1131430768", "1131430752", 0)),
    ("shift", "FLOAT:INT64", lambda text: re.sub(r"(shr\.u32 \t%r\d+, %r\d+), 23;", r"\1, 22;", text)),
    ("comparison", "INT64:BOOL", lambda text: re.sub(r"setp\.(eq|ne)\.s64 (.*), 0;", r"setp.\1.s64 \2, 1;", text)),
]


@pytest.mark.parametrize(("pair", "plant"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_a_fault_in_the_arithmetic_has_a_counterexample(pair: str, plant: Any) -> None:
    source, text = compiled(pair)
    faulty = plant(text)
    assert faulty != text
    found = verdict(source, faulty, [full_tile(source, [21])])
    assert found.problem == "an element differs from the specification"
    example = found.counterexample
    assert example is not None and example.got != example.wanted
    # It is one: the reference gives what the specification wants.
    code = example.codes[example.index]
    [case] = [case for case in cases(source.rule.src, source.rule.dst) if case.rule == source.rule]
    proof = certificate.Proof(case, "sm_90", source.kernel.name, "", found)
    wanted = certificate.describe(source.rule.dst, example.wanted)
    text = certificate.explain(proof)
    assert f"reference: {wanted}" in text and f"host build: {wanted}" in text
    assert certificate.describe(source.rule.src, code) in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The elements of the last tile: one more, and one fewer.
        (r"setp\.lt(\.u32 p, i, %r\d+; @p st\.u8 \[%rd\d+\+2\], b;)", r"setp.le\1"),
        (r"(@p st\.u8 \[%rd\d+\+1\], b; add\.u32 i, i,) 1;", r"\1 2;"),
        # The bytes that are read: one beyond the array.
        (r"setp\.lt(\.u32 p, i, %r\d+; @p ld\.u8 %r\d+, \[%rd\d+\];)", r"setp.le\1"),
        # The mask of the words that are shifted together.
        (r"(and\.b32  \t%r\d+, %r\d+,) 24;", r"\1 16;"),
        # How far from the ends a shifted load keeps.
        (r"(selp\.b64 \t%rd\d+, 0,) 5,", r"\1 1,"),
        # What is a whole tile.
        (r"setp\.le\.s64 \t%p36, %rd87, %rd11;", "setp.lt.s64 \t%p36, %rd86, %rd11;"),
        # What is asked for first: what is behind the array.
        (r"setp\.ge(\.s64 \t%p8, %rd18, %rd11;)", r"setp.gt\1"),
    ],
)
def test_a_fault_at_an_edge_is_found(old: str, new: str) -> None:
    source, text = compiled("FLOAT:FLOAT8E4M3FN")
    faulty = re.sub(old, new, text)
    assert faulty != text, f"the kernel no longer has {old!r}: plant another fault"
    assert verdict(source, faulty, [full_tile(source, [21])]).proved
    assert verdict(source, faulty, edges(source)).problem != ""


def test_a_wrong_random_word_is_found() -> None:
    case = stochastic_cases(dtype("FLOAT"), dtype("FLOAT8E4M3FN"))[0]
    source = Subject.of(case.rule)
    text = certificate.ptx(source.kernel, "sm_90")
    faulty = changed(text, str(0xD2511F53 - 2**32), str(0xD2511F53 - 2**32 + 2), 0)
    assert "random word" in verdict(source, faulty, [full_tile(source, [21])]).problem


def test_an_unknown_instruction_is_an_error_that_names_it() -> None:
    source, text = compiled("DOUBLE:FLOAT8E4M3FNUZ")
    with pytest.raises(Unknown, match=r"the instruction min\.ftz\.f32 is unknown .*min\.ftz\.f32 %f\d+"):
        verdict(source, changed(text, "min.f32", "min.ftz.f32", 0), [full_tile(source, [21])])


def test_an_unanswered_question_is_no_proof() -> None:
    source, text = compiled("DOUBLE:INT64", rounding="nearest_even")
    t.forget()
    found = Prover(source, read(text), 0.001).prove([full_tile(source, [21])])
    assert found.problem == "bitwuzla gave no answer within 0.001 s"


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    path = tmp_path / "proof.json"
    asked = ["--json", str(path), "--no-progress"]
    assert prove(["FLOAT:INT8", "INT4:FLOAT16", *asked]) == 0
    out = capsys.readouterr().out
    assert "FLOAT to INT8, sm_90: proved by bitwuzla" in out
    assert "INT4 to FLOAT16, sm_90: proved by exhaustion" in out
    assert out.endswith("2 of 2 rules proved for sm_90\n")
    found = json.loads(path.read_text())
    assert (found["rules"], found["proved"], found["methods"]) == (2, 2, {"bitwuzla": 1, "exhaustion": 1})
    # A known proof is not made again: its seconds are those of the certificate.
    [seconds] = [proof["seconds"]["bitwuzla"] for proof in found["proofs"] if proof["src"] == "FLOAT"]
    assert prove(["FLOAT:INT8", "--known", str(path), "--no-progress"]) == 0
    assert f"FLOAT to INT8, sm_90: proved by bitwuzla {seconds:.2f} s" in capsys.readouterr().out


def test_the_picture_marks_proved_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # One of its pairs has a further rule, which is not proved.
    assert prove(["INT4:INT2", "INT4:BOOL", "--rule", "default", "--json", "proof.json", "--no-progress"]) == 0
    asked = ["--backend", "host", "--pair", "INT4:BOOL", "--picture", "x.svg", "--proof", "proof.json", "--no-progress"]
    assert main(["parity", *asked]) == 0
    text = Path("x.svg").read_text(encoding="utf-8")
    assert re.findall(r"<title>(\w+ to \w+): .*, proved for every input</title>", text) == ["INT4 to BOOL"]
    assert "every rule proved for every input: 1<" in text
    assert text.count("<circle") == 2


# ---- what every change must pass ----


@pytest.mark.parametrize("src", WIDE, ids=str)
def test_the_default_casts_of_wide_sources_are_proved(src: DType, exhaustive: bool) -> None:
    chosen = NUMERIC if exhaustive else NUMERIC[WIDE.index(src) :: 5]
    proofs = certificate.prove([cases(src, dst)[0] for dst in chosen], "sm_90")
    assert [str(proof) for proof in proofs if not proof.verdict.proved] == []


@pytest.mark.parametrize(
    ("arch", "paths", "count"),
    [
        ("sm_80", "full", 12),
        ("sm_100a", "full", 12),
        ("sm_90", "edges", 1),
        ("sm_90", "layouts", 1),
        ("sm_90", "scaled", 1),
        ("sm_90", "many", 1),
    ],
)
def test_a_seeded_share_of_all_rules_is_proved(arch: str, paths: certificate.Paths, count: int) -> None:
    chosen = shuffled(all_cases(all_pairs()), seed=17)[:count]
    proofs = list(certificate.prove(chosen, arch, paths))
    assert len(proofs) == count
    assert [str(proof) for proof in proofs if not proof.verdict.proved] == []


@pytest.mark.parametrize("pair", ["FLOAT:FLOAT8E4M3FN", "FLOAT8E5M2:BFLOAT16"])
def test_mutants_are_found_or_proved_equal(pair: str) -> None:
    """Most of those that are equal choose another path, which gives the same result."""
    source, text = compiled(pair)
    t.forget()
    judged = mutants.judge(source, read(text), full_tile(source, [21]), seed=3, count=12)
    assert judged["open"] == 0
    assert judged["found"] >= 6
