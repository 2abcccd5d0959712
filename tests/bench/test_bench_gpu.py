# SPDX-License-Identifier: Apache-2.0
"""The whole benchmark on a fake GPU (see fake_machine): what it plans, keeps, goes on with, and makes of it."""

from __future__ import annotations

import csv
import functools
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import readme
from bench.cases import buffers, check
from bench.cases.contenders import Ours
from bench.gpu import casts as gpu
from bench.gpu import first_call as gpu_first_call
from bench.gpu import plan as gpu_plan
from bench.gpu import sweep as gpu_sweep
from bench.peers import rivals as gpu_rivals
from bench.report import figures as gpu_figures
from bench.report import plots as gpu_plots
from bench.report import results as gpu_results
from bench.report import tables as gpu_tables
from bench.report.results import Results
from bench.timing import ceilings, latency
from bench.timing import times as timing
from fake_machine import COPY_KERNEL, LAUNCH, FakeMachine, FakeRival, TimedDriver, built_driver
from gpucast.core.dtypes import dtype
from gpucast.gpu import driver
from gpucast.parity.cases import NUMERIC
from host_driver import installed

FLOAT, HALF, INT4 = (dtype(name) for name in ("FLOAT", "FLOAT16", "INT4"))
PAIRS = [(src, dst) for src in (FLOAT, HALF, INT4) for dst in (FLOAT, HALF, INT4)]
COMMON = ((FLOAT, HALF), (INT4, HALF))
FOREVER = 1e6
#: What other files test takes arrays of its own.
STAGES = tuple(stage for stage in gpu_plan.STAGES if stage not in ("users", "quantize", "many"))


@pytest.fixture(scope="module")
def built() -> TimedDriver:
    return built_driver(PAIRS)


@pytest.fixture
def machine(built: TimedDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    yield from fake_gpu(built, monkeypatch)


def fake_gpu(built: TimedDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    """A fake GPU, and a plan of its size: three types, two common pairs, small arrays, short batches."""
    monkeypatch.setattr(gpu_plan, "NUMERIC", (FLOAT, HALF, INT4))
    for module in (gpu_plan, gpu_tables):
        monkeypatch.setattr(module, "COMMON", COMMON)
    sizes = {"LARGE": 1 << 12, "HUGE": 1 << 13, "LAYOUT_SIZE": 1 << 11}
    lists = {
        "SIZES": (1, 1 << 10),
        "ODD": ((1 << 12) - 1,),
        "GRAPH_SIZES": (1 << 10,),
        "SHARED": (1 << 17,),
        "COMPILED": (1 << 10,),
    }
    for name, value in {**sizes, **lists}.items():
        monkeypatch.setattr(gpu_plan, name, value)
    monkeypatch.setattr(timing, "BATCH", 1e-6)
    monkeypatch.setattr(check, "_SHARE", 1 / 1024)
    monkeypatch.setattr(gpu, "measure_latency", functools.partial(latency.measure_latency, loops=3, calls=10))
    monkeypatch.setattr(gpu_plots, "_PANELS", tuple((str(src), str(dst)) for src, dst in COMMON))
    monkeypatch.setattr(gpu, "CEILING_SIZES", (1 << 12, 1 << 16, 1 << 20))
    monkeypatch.setattr(gpu, "CALLS", ((FLOAT, HALF, 1),))
    monkeypatch.setattr(ceilings, "CLOCK_WARM_UP", 1e-3)
    monkeypatch.setattr(gpu_first_call, "measure", first_calls)
    monkeypatch.setattr(buffers, "BLOCK", 1 << 14)
    buffers.source_codes.cache_clear()
    machine = FakeMachine()
    built.machine = machine
    with installed(built):
        yield machine
    buffers.source_codes.cache_clear()


def contenders(machine: FakeMachine) -> list[Any]:
    rivals = [FakeRival(machine, "CuPy copyto", 0.3e9), FakeRival(machine, "torch copy_", 1.2e9, wrong=2)]
    return [Ours(machine), Ours(machine, allocates=True), *rivals]


def first_calls() -> list[dict[str, Any]]:
    return [{"cache": "empty", "first": 0.25, "again": 1e-5}, {"cache": "full", "problem": "no room"}]


def measured(machine: FakeMachine, folder: Path, seconds: float = FOREVER) -> tuple[Results, int]:
    results = gpu_results.open_for(machine.device, folder)
    return results, gpu.measure(machine, contenders(machine), results, seconds, STAGES)


@pytest.fixture(scope="module")
def recorded(built: TimedDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for machine in fake_gpu(built, patch):
            path = measured(machine, tmp_path_factory.mktemp("results"))[0].path
    return path


@pytest.fixture
def results(recorded: Path, machine: FakeMachine, tmp_path: Path) -> Results:
    """A whole run's."""
    return gpu_results.read(Path(shutil.copy(recorded, tmp_path)))


# ---- measuring ----


def test_everything_is_measured_and_kept(results: Results) -> None:
    planned = gpu_plan.plan(lambda src, dst: [], 1 << 40)
    assert {str(task) for task in planned} <= results.done and not results.begun
    names = {"gpucast", "gpucast allocating", "CuPy copyto", "torch copy_", "copy kernel"}
    assert {row.contender for row in results.rows} == names
    assert all(row.wrong == 0 and not row.problem for row in results.rows if row.contender.startswith("gpucast"))
    assert {row.via for row in results.rows} == {"calls", "graph"}
    stages = [state["stage"] for state in results.lines["state"]]
    assert stages == [*sorted(stages[:-1], key=STAGES.index), "end"] and stages[0] == "ceilings"
    assert gpu_results.read(results.path) == results


def test_a_later_run_goes_on(machine: FakeMachine, tmp_path: Path) -> None:
    some, left = measured(machine, tmp_path, seconds=0.25)
    assert left > 0 and some.rows
    again, still_left = measured(machine, tmp_path)
    assert still_left == 0 and again.path == some.path and len(again.sessions) == 2
    assert again.rows[: len(some.rows)] == some.rows
    keys = [(gpu_results.key(row), row.contender) for row in again.rows]
    assert len(keys) == len(set(keys)), "nothing is measured twice"
    rows = len(again.rows)
    done, left = measured(machine, tmp_path)
    assert left == 0 and len(done.rows) == rows and len(done.sessions) == 3
    assert len(done.lines["latency"]) == len(again.lines["latency"]) and len(done.lines["first call"]) == 2


def test_what_ended_the_process_comes_last(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(self: FakeRival, sets: Any) -> Any:
        raise SystemExit

    monkeypatch.setattr(gpu, "measure_latency", lambda machine, works: [])
    monkeypatch.setattr(gpu, "works_of", lambda contenders, sets: [])
    with monkeypatch.context() as patch:
        patch.setattr(FakeRival, "prepare", ends)
        with pytest.raises(SystemExit):
            measured(machine, tmp_path)
    (task,) = gpu_results.open_for(machine.device, tmp_path).begun
    assert task == "common pairs: FLOAT to FLOAT16, 4,096"
    again, left = measured(machine, tmp_path)
    assert left == 0 and not again.begun
    tasks = [json.loads(line) for line in again.path.read_text().splitlines()]
    assert [one["task"] for one in tasks if one["kind"] == "begin"][-1] == task


def test_a_line_that_was_cut_off_is_measured_again(machine: FakeMachine, tmp_path: Path) -> None:
    whole, _ = measured(machine, tmp_path)
    lines = whole.path.read_text().splitlines(keepends=True)
    number = max(i for i, line in enumerate(lines) if '"kind":"rows"' in line)
    whole.path.write_text("".join(lines[:number]) + lines[number][:200])
    again, left = measured(machine, tmp_path)
    assert left == 0 and again.done == whole.done and again.path == whole.path
    assert gpu_results.read(again.path).done == whole.done


def test_what_failed_is_measured_again(machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Ours.prepare
    monkeypatch.setattr(gpu_plots, "draw", lambda results: [])

    def broken(self: Ours, sets: Any) -> Any:
        if sets.n == gpu_plan.HUGE:
            raise RuntimeError("too hot")
        return good(self, sets)

    monkeypatch.setattr(Ours, "prepare", broken)
    first, left = measured(machine, tmp_path)
    assert left == 0 and gpu.report(first)["failures"][0].endswith("RuntimeError: too hot")
    monkeypatch.setattr(Ours, "prepare", good)
    second, _ = measured(machine, tmp_path)
    assert len(second.rows) == len(first.rows) and gpu.report(second)["failures"] == []
    assert gpu_results.read(second.path) == second


def test_a_broken_device_ends_the_run(machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr("bench.cases.pairs.measure", broken)
    monkeypatch.setattr(gpu, "_GIVE_UP", 3)
    with pytest.raises(RuntimeError, match="nothing works any more: RuntimeError: an illegal memory access"):
        measured(machine, tmp_path)
    assert gpu_results.open_for(machine.device, tmp_path).done == {"ceilings"}


def test_other_code_has_another_file(machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = measured(machine, tmp_path, seconds=1.0)
    monkeypatch.setattr(gpu_results, "code_digest", lambda: "0123abcd")
    second = gpu_results.open_for(machine.device, tmp_path)
    assert second.path != first.path and not second.rows
    assert gpu_results.open_for("NVIDIA Other", tmp_path).path.name.startswith("gpu-nvidia-other-20")


def test_the_digest_is_of_what_a_cast_runs(tmp_path: Path) -> None:
    from bench.revision import code_digest

    for folder in ("gpucast", "kernels", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "gpucast" / "a.py").write_text("1")
    (tmp_path / "kernels" / "b.cuh").write_text("2")
    before = code_digest(tmp_path)
    (tmp_path / "tests" / "c.py").write_text("3")
    assert code_digest(tmp_path) == before
    (tmp_path / "kernels" / "b.cuh").write_text("4")
    assert code_digest(tmp_path) != before
    # What the C library and the host build are made of, too.
    for name in ("d.c", "d.h", "d.hpp"):
        before = code_digest(tmp_path)
        (tmp_path / "gpucast" / name).write_text("5")
        assert code_digest(tmp_path) != before, name


def test_the_commit_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.revision import VARIABLE, commit

    monkeypatch.setenv(VARIABLE, "abc")
    assert commit() == "abc"


# ---- planning ----


def has(src: Any, dst: Any) -> list[str]:
    return ["gpucast"] if src.packed or dst.packed else ["gpucast", "CuPy copyto", "torch copy_"]


def test_the_plan_has_what_was_asked_for() -> None:
    tasks = gpu_plan.plan(has, 140 << 30)
    assert len(set(map(str, tasks))) == len(tasks)
    assert [task.stage for task in tasks] == sorted((task.stage for task in tasks), key=gpu_plan.STAGES.index)
    large = {
        (task.src, task.dst)
        for task in tasks
        if task.stage in ("common pairs", "all pairs") and task.n == gpu_plan.LARGE
    }
    assert len(large) == len(NUMERIC) ** 2
    for src, dst in gpu_plan.COMMON:
        sizes = {task.n for task in tasks if (task.src, task.dst) == (src, dst)}
        assert sizes >= {1 << 10, 1 << 13, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 30, (1 << 28) - 1}
        layouts = {task.layout.name for task in tasks if (task.src, task.dst) == (src, dst)}
        assert layouts >= {"source off by one", "destination off by one", "both off by one"}
        assert ("transposed" in layouts) == (not src.packed)
    shared = {(task.src, task.dst) for task in tasks if task.stage == "shared pairs"}
    assert shared and all("CuPy copyto" in has(*pair) for pair in shared)
    small = gpu_plan.plan(has, 1 << 30)
    assert small and {task.n for task in small} < {task.n for task in tasks}


def test_what_is_measured_again_has_more_contenders() -> None:
    """So the rows of a measurement are always all of one time."""
    everyone = ["gpucast", "copy kernel", "CuPy copyto", "CuPy astype", "torch copy_", "torch.compile"]
    heavy = ["torch.compile"]
    measured: dict[Any, set[str]] = {}
    twice = 0
    for task in gpu_plan.plan(lambda src, dst: everyone, 140 << 30):
        names = set(task.names(everyone, heavy))
        assert {"gpucast", "copy kernel"} <= names
        case = task.src, task.dst, task.n, task.layout, task.via
        before = measured.setdefault(case, names)
        twice += before is not names
        assert before <= names, task
        measured[case] = names
    assert twice


# ---- what is made of it ----


def test_the_table_of_common_pairs(results: Results) -> None:
    table = gpu_tables.common_table(results)
    row = next(line for line in table.splitlines() if line.startswith("| FLOAT | FLOAT16 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    ours = next(g for g in gpu_figures.groups(results, 1 << 12) if g.name == "FLOAT to FLOAT16")
    assert ours.copy_kernel == ours.rows["copy kernel"].speed != 0
    assert cells[3] == f"{ours.ours.speed / 1e9:,.0f}" and cells[6] == f"{ours.ours.speed / 2e9:.0%}"
    assert (
        cells[7] == "torch copy_ *"
        and cells[9] == f"{(24576 / 1.2e9 + LAUNCH) / (24576 / 0.99e9 + LAUNCH):.2f}"
        and cells[10].startswith("0 of ")
    )
    assert "its results differ" in table
    assert "| INT4 | FLOAT16 |" in table and "none has it" in table


def test_shares_are_of_the_copy_of_the_same_measurement(results: Results) -> None:
    (group,) = (g for g in gpu_figures.groups(results, 1 << 12) if g.name == "FLOAT to FLOAT16")
    assert group.copy_kernel == group.rows["copy kernel"].speed and group.memcpy
    assert group.share == pytest.approx(group.ours.speed / group.copy_kernel)
    assert "copy kernel" not in gpu_figures.rivals(results) and all(
        row.contender != "copy kernel" for row in group.rivals()
    )
    # As many bytes as the cast moves, in the same time and again and again through arrays of its own.
    copy = group.rows["copy kernel"]
    assert (copy.bytes, copy.sets, copy.checked) == (group.ours.bytes, group.ours.sets, 0)
    assert copy.times is not None and copy.times.median == pytest.approx(copy.bytes / COPY_KERNEL + LAUNCH, rel=0.01)
    # Results that have no such row are measured by the nearest ceiling.
    del results._rows[gpu_results.key(copy), "copy kernel"]
    (group,) = (g for g in gpu_figures.groups(results, 1 << 12) if g.name == "FLOAT to FLOAT16")
    assert group.copy_kernel == ceilings.nearest(results.ceilings, group.ours.bytes, False) != copy.speed
    assert group.goal == 0.95 and all(g.goal == 0.9 for g in gpu_figures.groups(results) if "INT4" in g.name)


def test_losses_are_told(results: Results) -> None:
    lines = gpu_tables.rival_lines(results)
    cupy, torch = (next(line for line in lines if name in line) for name in ("CuPy copyto", "torch copy_"))
    assert 2.5 < float(cupy.split(" x ")[0]) < 3.3 and "slower in 0" in cupy
    assert torch.startswith("0.8") and "FLOAT to FLOAT16 at 131,072 (1.21 x)" in torch
    assert "results that differ from the reference: 0 of" in "\n".join(gpu_tables.pair_lines(results))


def test_short_pairs_and_mismatches_are_named(results: Results) -> None:
    lines = "\n".join(gpu_tables.pair_lines(results))
    # The fake's kernels reach 90 % of its copy kernel.
    assert "0 of 4" in lines and "short are" in lines


def test_the_report_is_written_beside_the_results(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    figures = gpu.report(results)
    text = results.path.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    for heading in ("Ceilings", "Common pairs", "All pairs", "Sizes", "Layouts", "Calls", "First calls"):
        assert f"## {heading}\n\n" in text, heading
    assert results.label in text and "NVIDIA Fake" in results.label and results.sessions[-1]["date"] in results.label
    assert "| source off by one | " in text and "| empty | 250 | 0.01 |" in text and "no room" in text
    assert figures["failures"] == [] and len(figures["pictures"]) == 3
    with results.path.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results.rows)
    assert float(rows[0]["median"]) == results.rows[0].times.median  # type: ignore[union-attr]


def test_wrong_results_are_failures(machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Ours.codes
    monkeypatch.setattr(gpu_plots, "draw", lambda results: [])
    monkeypatch.setattr(Ours, "codes", lambda self, *arguments: good(self, *arguments) ^ 1)
    results = gpu_results.open_for(machine.device, tmp_path)
    gpu.measure(machine, contenders(machine), results, FOREVER, ("common pairs",))
    first = gpu.report(results)["failures"][0]
    assert first.startswith("common pairs: FLOAT to FLOAT16, 4,096: ") and " gives " in first


def test_pictures_show_something(results: Results) -> None:
    from matplotlib.image import imread

    pictures = gpu_plots.draw(results)
    assert [path.name.rsplit("-", 1)[-1] for path in pictures] == ["ceiling.png", "sizes.png", "up.png"]
    for path in pictures:
        image = imread(path)
        assert min(image.shape[:2]) > 300 and len(np.unique(image[..., 0])) > 20, path


def test_no_picture_without_figures(tmp_path: Path) -> None:
    results = Results(tmp_path / "gpu-x.jsonl")
    results.begin({"name": "x"})
    assert gpu_plots.draw(results) == [] and list(tmp_path.glob("*.png")) == []
    assert gpu_tables.markdown(results).startswith("# gpucast on x, ")


def test_the_readme_shows_the_newest_results(results: Results, tmp_path: Path) -> None:
    assert readme.gpu_section(tmp_path / "nothing").startswith("No run on a GPU is recorded yet")
    text = readme.gpu_section(tmp_path)
    assert results.label in text and gpu_tables.common_table(results) in text
    assert "](bench/results/" not in text or "-ceiling.png" in text
    gpu_plots.draw(results)
    assert readme.gpu_section(tmp_path).count("![") == 3


def test_results_of_no_device_never_count(tmp_path: Path) -> None:
    (tmp_path / "none-2026-01-01-00000000.json").write_text(json.dumps({"device": "none"}))
    assert gpu_results.newest(tmp_path) is None


# ---- rivals, first calls, the sweep for sanitizers ----


def test_rivals_are_optional(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Missing:
        def __init__(self, machine: Any) -> None:
            raise ModuleNotFoundError("No module named 'jax'")

    class Broken:
        def __init__(self, machine: Any) -> None:
            raise RuntimeError("no driver for it")

    for name in ("TorchCompile", "TransformerEngine", "OnnxRuntime"):
        monkeypatch.setattr(gpu_rivals, name, Missing)
    monkeypatch.setattr(gpu_rivals, "JaxJit", Broken)
    monkeypatch.setattr(gpu_rivals, "contenders", lambda machine: [])
    found = gpu_rivals.all_contenders(FakeMachine())
    assert [one.name for one in found] == ["CuPy ElementwiseKernel"]
    assert "Broken is left out: RuntimeError: no driver for it" in capsys.readouterr().err


def test_first_calls_are_timed_one_after_the_other(machine: FakeMachine, built: TimedDriver) -> None:
    made = buffers.make_sets(machine, FLOAT, HALF, 64)
    names = (("FLOAT", "FLOAT16"), ("FLOAT", "INT4"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_first_call, "PAIRS", names)
        driver.use(built)  # Forgets what is loaded.
        built.loaded.clear()
        found = gpu_first_call.in_this_process(machine.now, lambda: None, lambda src: made.source_arrays()[0])
    assert list(found) == ["first", "second pair", "again"]
    assert len(built.loaded) == 2 and all(math.isfinite(value) and value > 0 for value in found.values())


def test_first_calls_have_an_empty_and_then_the_full_cache() -> None:
    seen: list[tuple[str, bool]] = []

    def run(variables: dict[str, str]) -> dict[str, Any]:
        folder = Path(variables["GPUCAST_CACHE_DIR"])
        seen.append((str(folder), folder.exists()))
        folder.mkdir(exist_ok=True)
        return {"first": 1.0}

    assert [line["cache"] for line in gpu_first_call.measure(run)] == ["empty", "full"]
    assert seen[0][0] == seen[1][0] and [there for _, there in seen] == [False, True]
    assert not Path(seen[0][0]).exists()


def test_a_first_call_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "executable", "no-such-python")
    assert "no-such-python" in gpu_first_call._process({})["problem"]


def test_the_sweep_has_every_size_and_pair() -> None:
    chosen = list(gpu_sweep.cases([(src, dst) for src in NUMERIC for dst in NUMERIC]))
    flat = [case for case in chosen if not case.strided]
    assert sorted(case.n for case in flat) == list(range(gpu_sweep.SIZES))
    assert {(case.src, case.dst) for case in flat} == {(src, dst) for src in NUMERIC for dst in NUMERIC}
    shifts = {(case.src_shift, case.dst_shift) for case in flat}
    assert len(shifts) == gpu_sweep.SHIFTS**2
    assert all(not case.src.packed for case in chosen if case.strided)
    kernels = {(case.src, case.dst, case.strided) for case in chosen}
    first = {(case.src, case.dst, case.strided) for case in chosen[: gpu_sweep.KERNELS]}
    assert len(first) == gpu_sweep.KERNELS and first == kernels
    assert len(set(map(str, chosen))) == len(chosen)


def test_the_sweep_compares_with_the_reference(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_sweep, "NUMERIC", (FLOAT, HALF, INT4))
    monkeypatch.setattr(gpu_sweep, "SIZES", 120)
    assert gpu_sweep.main([], machine) == 0
    assert "126" in capsys.readouterr().out
    monkeypatch.setattr(gpu_sweep, "wanted_codes", lambda rule, codes: np.zeros(codes.shape, rule.dst.code_numpy))
    assert gpu_sweep.main(["--launches", "20"], machine) == 1
    assert "differ" in capsys.readouterr().out
