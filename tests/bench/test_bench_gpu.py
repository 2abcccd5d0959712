# SPDX-License-Identifier: Apache-2.0
"""The whole benchmark on a fake GPU (see fake_machine): what it measures, keeps, goes on with, and makes of it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from bench import readme
from bench.cases import buffers, check, pairs
from bench.cases import case as one_case
from bench.cases.case import Row
from bench.cases.contenders import COPY, SAME_RATIO, Ours, OursAllocating
from bench.gpu import many_cases, quantize_cases, run, sweep, user_cases
from bench.report import gpu_tables
from bench.report import results as kept
from bench.report.results import Results
from bench.timing import times as timing
from fake_machine import COPY_KERNEL, LAUNCH, MANY_LAUNCH, FakeMachine, FakeRival, TimedDriver, built_driver
from gpucast.core.dtypes import dtype
from gpucast.parity.cases import NUMERIC
from host_driver import installed, upload
from ptx_driver import PtxDriver

FLOAT, HALF, INT4 = (dtype(name) for name in ("FLOAT", "FLOAT16", "INT4"))
COMMON = ((FLOAT, HALF), (INT4, HALF))
LARGE = 1 << 12


@pytest.fixture(scope="module")
def built() -> TimedDriver:
    return built_driver([(src, dst) for src in (FLOAT, HALF, INT4) for dst in (FLOAT, HALF, INT4)])


def few_samples(machine: FakeMachine, works: list[Any], **limits: float) -> list[timing.Times]:
    """The fake's clock is exact, and its kernels run on the host."""
    return timing.measure(machine, works, samples=3)


@contextlib.contextmanager
def fake_gpu(built: TimedDriver) -> Iterator[FakeMachine]:
    """A fake GPU, and cases of its size: three types, two common pairs, small arrays, short batches."""
    sizes = {"LARGE": LARGE, "LAYOUT_SIZE": 1 << 11, "SIZES": (1 << 10,)}
    changed: dict[Any, dict[str, Any]] = {
        pairs: {**sizes, "NUMERIC": (FLOAT, HALF, INT4), "COMMON": COMMON},
        gpu_tables: {"COMMON": COMMON, "LARGE": LARGE, "LAYOUT_SIZE": 1 << 11},
        run: {"COPY_SIZES": (1 << 12, 1 << 16), "CLOCK_WARM_UP": 1e-3},
        timing: {"BATCH": 1e-6},
        one_case: {"measure": few_samples, "_CALLS": 2},
        readme: {"LARGE": LARGE},
        check: {"_SHARE": 1 / 1024},
        buffers: {"BLOCK": 1 << 14, "MOST_SETS": 64},
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, values in changed.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        # What takes arrays of its own has tests of its own.
        for module in (user_cases, many_cases, quantize_cases):
            patch.setattr(module, "cases", lambda: iter(()))
        buffers.source_codes.cache_clear()
        built.machine = FakeMachine()
        with installed(built):
            yield built.machine
    buffers.source_codes.cache_clear()


@pytest.fixture
def machine(built: TimedDriver) -> Iterator[FakeMachine]:
    with fake_gpu(built) as made:
        yield made


def contenders(machine: FakeMachine) -> list[Any]:
    rivals = [FakeRival(machine, "CuPy copyto", 0.3e9), FakeRival(machine, "torch copy_", 1.2e9, wrong=2)]
    return [Ours(machine), OursAllocating(machine), *rivals]


def measured(machine: FakeMachine, folder: Path, seconds: float = 1e6) -> tuple[Results, int]:
    results = kept.open_for(machine.device, folder)
    return results, run.measure(machine, run.cases(machine, contenders(machine), results), results, seconds)


@pytest.fixture(scope="module")
def recorded(built: TimedDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with fake_gpu(built) as machine:
        path = measured(machine, tmp_path_factory.mktemp("results"))[0].path
    assert path is not None
    return path


@pytest.fixture
def results(recorded: Path, machine: FakeMachine, tmp_path: Path) -> Results:
    """A whole run's."""
    return kept.read(Path(shutil.copy(recorded, tmp_path)))


@pytest.mark.parametrize("case", list(quantize_cases.training()), ids=str)
def test_what_training_calls_is_right_before_it_is_timed(case: quantize_cases.Quantizing) -> None:
    x = gpucast.reference.cast(np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32), case.src)
    with installed(PtxDriver("sm_90")) as driver:
        made = quantize_cases.difference(case(upload(x)), case(x))
        assert driver.launched and made.checked > 0 and made.wrong == 0, made
        assert quantize_cases.difference(case(upload(x)), case(x * 0)).wrong > 0


# ---- measuring ----


def test_everything_is_measured_and_kept(results: Results) -> None:
    assert not results.begun and not results.failed
    stages = list(dict.fromkeys(stage for stage, _ in results.cases))
    assert stages == ["copies", "common pairs", "calls", "all pairs", "layouts"]
    assert [state["stage"] for state in results.states] == [*stages, "end"]
    assert all(row.wrong == 0 and not row.problem for row in results.rows() if row.is_ours)
    assert kept.read(results.path) == results  # type: ignore[arg-type]


def test_a_later_run_goes_on(machine: FakeMachine, tmp_path: Path) -> None:
    some, left = measured(machine, tmp_path, seconds=0.05)
    assert left > 0 and some.cases
    again, still_left = measured(machine, tmp_path)
    assert still_left == 0 and again.path == some.path and len(again.sessions) == 2
    tasks = [json.loads(line) for line in again.path.read_text().splitlines()]  # type: ignore[union-attr]
    begun = [one["case"] for one in tasks if one["kind"] == "begin"]
    assert len(begun) == len(set(begun)) == len(again.cases), "nothing is measured twice"
    assert measured(machine, tmp_path)[1] == 0


def test_what_failed_is_told_and_measured_again(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Ours.prepare

    def broken(self: Ours, sets: Any) -> Any:
        if sets.n == pairs.LAYOUT_SIZE and sets.layout.kind == "strided":
            raise RuntimeError("too hot")
        return good(self, sets)

    monkeypatch.setattr(Ours, "prepare", broken)
    first, left = measured(machine, tmp_path)
    assert left == 0
    assert (
        run.report(first)["failures"][0] == "layouts: FLOAT to FLOAT16, 2,048, strided: gpucast: RuntimeError: too hot"
    )
    monkeypatch.setattr(Ours, "prepare", good)
    assert run.report(measured(machine, tmp_path)[0])["failures"] == []


# ---- what is measured ----


def test_every_pair_size_and_layout_is_planned() -> None:
    planned = [*pairs.large(), *pairs.all_pairs(), *pairs.layouts()]
    large = {case.pair for case in planned if case.stage in ("common pairs", "all pairs") and case.n == pairs.LARGE}
    assert len(large) == len(NUMERIC) ** 2
    for src, dst in pairs.COMMON:
        of = [case for case in planned if case.pair == (src, dst)]
        assert {case.n for case in of} >= {1 << 10, 1 << 13, 1 << 16, 1 << 20, 1 << 24, 1 << 28}
        layouts = {case.layout.name for case in of}
        assert layouts >= {"source off by one", "destination off by one", "both off by one"}
        assert ("transposed" in layouts) == (not src.packed)


def by_name(machine: FakeMachine, case: Any) -> dict[str, Row]:
    return {row.name: row for row in case.measure(machine)}


@pytest.mark.parametrize("number", [0, 3])
def test_many_arrays_beside_one(machine: FakeMachine, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    src, dst, _ = many_cases.PAIRS[number]
    shapes = many_cases.shapes(2, 8)
    with installed(TimedDriver(machine)):
        made = [*_cases_of_many(2, 8)][number]
        rows = by_name(machine, made)
    many, one = rows["gpucast.cast_many"], rows[many_cases.ONE]
    assert many.wrong == 0 < many.checked and "torch" in rows["torch._foreach_copy_"].problem
    assert many.times is not None and many.times.median == pytest.approx(MANY_LAUNCH + LAUNCH)
    assert one.share == 1 and many.share == pytest.approx(one.times.median / many.times.median)  # type: ignore[union-attr]
    # Each cast of the loop is a launch.
    assert rows["gpucast.cast, a loop"].times.median > 24 * LAUNCH  # type: ignore[union-attr]
    size = sum(int(np.prod(shape)) for shape in shapes)
    assert many.bytes == size * (dtype(src).bits + dtype(dst).bits) // 8
    monkeypatch.setattr(many_cases.gpucast, "cast_many", lambda *arguments, **keywords: machine.spend(1e-3))
    with installed(TimedDriver(machine)):
        assert by_name(machine, made)["gpucast.cast_many"].wrong > 0


_cases_of_many = many_cases.cases


# ---- what is made of it ----


def test_the_table_of_common_pairs(results: Results) -> None:
    table = gpu_tables.common_table(results, LARGE)
    row = next(line for line in table.splitlines() if line.startswith("| FLOAT | FLOAT16 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    (group,) = (g for g in gpu_tables.groups(results, LARGE) if g.name == "FLOAT to FLOAT16")
    assert cells[3] == f"{group.ours.speed / 1e9:,.0f}" and cells[6] == "torch copy_ *"
    assert group.share == pytest.approx(group.ours.speed / group.rows[COPY].speed)
    medians = {name: row.times.median for name, row in group.rows.items() if row.times is not None}
    assert medians["gpucast"] == pytest.approx(24576 / 0.99e9 + LAUNCH)
    assert medians[SAME_RATIO] == pytest.approx(24576 / COPY_KERNEL + LAUNCH)
    assert group.ours.bytes == 24576 and group.ours.wrong == 0 and group.ours.checked > LARGE
    assert group.rows["torch copy_"].wrong >= 2 and Row.from_json(group.ours.as_json()) == group.ours
    assert cells[4] == f"{group.share:.0%}"
    assert cells[9].startswith("0 of ")
    assert cells[8] == f"{(24576 / 1.2e9 + LAUNCH) / (24576 / 0.99e9 + LAUNCH):.2f}"
    assert "its results differ" in table and "none has it" in table
    assert group.goal == 0.95 and all(g.goal == 0.9 for g in gpu_tables.groups(results) if "INT4" in g.name)


def test_the_report_is_written_beside_the_results(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    figures = run.report(results)
    assert results.path is not None
    text = results.path.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    for heading in ("Copies", "Common pairs", "All pairs", "Layouts", "Calls"):
        assert f"## {heading}\n\n" in text, heading
    assert results.label in text and "NVIDIA Fake" in results.label and results.sessions[-1]["date"] in results.label
    assert "| source off by one | " in text
    assert figures["failures"] == []
    picture = results.path.with_suffix(".svg").read_text()
    assert results.label in picture and "<title>FLOAT to FLOAT16</title>" in picture
    section = readme.gpu_section(results.path.parent)
    assert results.label in section and gpu_tables.common_table(results, LARGE) in section
    assert section.count("![") == 1


# ---- the sweep for sanitizers ----


def test_the_sweep_compares_with_the_reference(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "NUMERIC", (FLOAT, HALF, INT4))
    monkeypatch.setattr(sweep, "SIZES", 120)
    assert sweep.main([], machine) == 0
    assert "126" in capsys.readouterr().out
    monkeypatch.setattr(sweep, "wanted_codes", lambda rule, codes: np.zeros(codes.shape, rule.dst.code_numpy))
    monkeypatch.setattr(sweep, "KERNELS", 20)
    assert sweep.main(["--kernels"], machine) == 1
    assert "differ" in capsys.readouterr().out
