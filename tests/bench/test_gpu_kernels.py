# SPDX-License-Identifier: Apache-2.0
"""The parts of a run on a GPU that are ours, on a stand-in for the driver: each launches no kernel that its list of
kernels to compile ahead does not have, writes as it goes, and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import device_views
import gpu_quantize_calls
from bench import gpu_cases, gpu_compile, gpu_kernels, gpu_parity, gpu_quantize, gpu_quick, gpu_sweep, gpu_sweeps
from bench.gpu_compile import Job, compile_all
from bench.gpu_lines import Lines, reached
from endings import HANGS
from fake_machine import FakeMachine, FakeRival, TimedDriver
from gpucast.benchmark import buffers, ceilings, check, latency, quick, timing
from gpucast.benchmark.contenders import Ours
from gpucast.core.dtypes import dtype
from gpucast.core.formats import SOURCES
from gpucast.gpu import driver as launch
from gpucast.parity import backends
from gpucast.quantization import FORMATS
from host_driver import HostDriver, installed
from quantization import test_gpu_quantization

FLOAT, HALF, INT4 = (dtype(name) for name in ("FLOAT", "FLOAT16", "INT4"))
PAIRS = [(src, dst) for src in (FLOAT, HALF, INT4) for dst in (FLOAT, HALF, INT4)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    monkeypatch.setattr(timing, "BATCH", 1e-6)
    monkeypatch.setattr(check, "_SHARE", 1 / 1024)
    monkeypatch.setattr(ceilings, "CLOCK_WARM_UP", 1e-3)
    monkeypatch.setattr(buffers, "BLOCK", 1 << 14)
    buffers.source_codes.cache_clear()
    machine = FakeMachine()
    with installed(TimedDriver(machine)):
        yield machine
    buffers.source_codes.cache_clear()


@pytest.fixture
def driver(machine: FakeMachine) -> HostDriver:
    found = launch.driver()
    assert isinstance(found, HostDriver)
    return found


def loaded(driver: HostDriver) -> set[str]:
    names = {name for name, _ in driver.loaded}
    assert names
    return names


def names(kernels: Iterator[gpu_kernels.DryKernel]) -> set[str]:
    found = {kernel.name: kernel.text for kernel in kernels}
    assert all(f"{name}" in text for name, text in found.items())
    return set(found)


@pytest.fixture(scope="module")
def of_tests() -> set[str]:
    return names(gpu_kernels.tests())


# ---- no part launches what is not in its list ----


def test_tests(driver: HostDriver, of_tests: set[str]) -> None:
    # The bodies of tests that a GPU runs.
    device_views.check_pair(HALF, INT4, (1, 131))
    device_views.check_pair(INT4, FLOAT, (131,))
    assert gpu_quantize_calls.sources("int8_64", False) != list(SOURCES)
    test_gpu_quantization.test_edges_of_blocks("int8_64", False)
    test_gpu_quantization.test_elements_at_odd_addresses()
    assert loaded(driver) - of_tests == set()


def test_parity(driver: HostDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the rules by each part of the pairs: every rule has its kernel in the list of all."""
    backend = object.__new__(backends.GpuBackend)
    backend._index, backend.device = 0, "NVIDIA Fake"
    monkeypatch.setitem(gpu_parity.BACKENDS, "gpu", lambda: backend)
    chosen = [case for case in gpu_parity.planned() if case.rule.src.bits <= 16][:: 2237 // 12]
    monkeypatch.setattr(gpu_parity, "planned", lambda: chosen)
    listed = names(gpu_kernels.parity())
    lines, report = tmp_path / "lines", tmp_path / "report"
    options = ["--threads", "1", "--random", "10", "--lines", str(lines), "--json", str(report)]
    monkeypatch.setattr(gpu_parity, "planned", lambda: chosen[:4])
    assert gpu_parity.main(options) == 0
    assert reached(lines).text() == "4 of 4"
    # A later run goes on, and its report is of both.
    monkeypatch.setattr(gpu_parity, "planned", lambda: chosen)
    assert gpu_parity.main([*options, "--picture", str(tmp_path / "svg")]) == 0
    found = json.loads(report.read_text())
    assert (found["rules"], found["resumed"], found["unfinished"], found["wrong"]) == (len(chosen), 4, [], 0)
    assert found["run"]["code"] and (tmp_path / "svg").read_text().startswith("<svg")
    assert reached(lines).text() == f"{len(chosen)} of {len(chosen)}" and not loaded(driver) - listed
    everything = names(gpu_kernels.rules(gpu_parity.planned()))
    assert listed == everything


def test_every_rule_of_every_pair_is_planned_once() -> None:
    planned = gpu_parity.planned()
    assert len({str(case) for case in planned}) == len(planned) == 2237
    first = planned[:625]
    assert len({(case.rule.src, case.rule.dst) for case in first}) == 625, "each pair has its turn"


def test_layouts(machine: FakeMachine, driver: HostDriver) -> None:
    chosen = list(gpu_sweep.cases(PAIRS))[:40]
    launches, _, wrong = gpu_sweep.sweep(machine, chosen, 1e6)
    assert launches == 40 and not wrong
    assert set() == loaded(driver) - names(gpu_kernels.casts(PAIRS, "contiguous", "strided"))


def test_quantize(machine: FakeMachine, driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_quantize, "_SAMPLES", 2)
    cases = [case for case in gpu_quantize.CASES if case.src == "BFLOAT16" and case.format in ("nvfp4", "int8_axis")]
    for case in cases:
        for line in gpu_quantize.measure_case(machine, case, [], 64, 64):
            assert "problem" not in line
            if line["name"] == gpu_quantize.OURS:
                # Both have to find something out about all of x first.
                assert line["reads"] == 2 and line["share_of_its_copy"] > line["share_of_copy"]
    assert set() == loaded(driver) - names(gpu_kernels.quantize(cases, 64, 64))
    # At the sizes of the benchmark there are other kernels of the same formats, or the same.
    assert len(names(gpu_kernels.quantize())) == 55


def test_which_formats_read_twice() -> None:
    twice = {case.format for case in gpu_quantize.CASES if case.reads == 2}
    assert twice == {"nvfp4", "float8e4m3fn_tensor", "int8_axis"}


def test_what_the_parts_need_is_named_once() -> None:
    needed = list(gpu_kernels.needed(["quick", "bench", "many"]))
    assert len(set(needed)) == len(needed) > 660
    # Those of the first part come first.
    assert [kernel.name for kernel in needed[: len(quick.PAIRS)]] == [
        kernel.name for kernel in gpu_kernels.casts(quick.PAIRS, "contiguous")
    ]


def test_the_gpu_s_tests_ask_for_a_third_of_the_kernels(of_tests: set[str]) -> None:
    quantization = [name for name in of_tests if "quantize" in name]
    assert 400 < len(quantization) < 700
    drawn = {row.name for name in FORMATS for row in gpu_quantize_calls.sources(name, False)}
    assert drawn == {row.name for row in SOURCES}
    for name in gpu_quantize_calls.USED:
        assert {"FLOAT", "BFLOAT16"} <= {row.name for row in gpu_quantize_calls.sources(name, False)}
    assert gpu_quantize_calls.sources("int2_32", True) == list(SOURCES)


# ---- lines ----


def test_quick_writes_each_pair(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(quick, "PAIRS", ((FLOAT, HALF), (INT4, HALF)))
    real = latency.measure_latency
    monkeypatch.setattr(quick, "measure_latency", lambda *given, **more: real(*given, **{**more, "calls": 10}))
    there = [Ours(machine), FakeRival(machine, "CuPy copyto", 0.3e9)]
    lines = tmp_path / "lines"
    options = ["--lines", str(lines), "--json", str(tmp_path / "json"), "--elements", "4096"]
    assert gpu_quick.main(options, machine, there) == 0
    assert reached(lines).text() == "2 of 2"
    rows = reached(lines).lines["FLOAT to FLOAT16"]["rows"]
    assert [row["contender"] for row in rows] == ["gpucast", "CuPy copyto"] and rows[0]["times"]["median"] > 0
    found = json.loads((tmp_path / "json").read_text())
    assert len(found["rows"]) == 3 and found["run"]["code"] and "FLOAT to FLOAT16" in capsys.readouterr().out


def test_cases_are_written_one_by_one_and_gone_on_with(machine: FakeMachine, tmp_path: Path) -> None:
    class Rival:
        name, heavy = "rival", True

        def __init__(self, machine: Any) -> None:
            pass

        def has(self, case: str) -> bool:
            return case == "one"

    measured: list[tuple[str, int]] = []
    fails = True

    def measure_case(machine: Any, case: str, rivals: list[Any]) -> list[dict[str, Any]]:
        measured.append((case, len(rivals)))
        if case == "two" and fails:
            raise RuntimeError("the GPU is gone")
        return [{"case": case, "name": "ours", "rivals": len(rivals)}]

    path = tmp_path / "lines"
    run: Any = gpu_cases.run
    with pytest.raises(RuntimeError, match="gone"):
        run(["one", "two"], [Rival], measure_case, lambda lines: None, path, machine)
    assert reached(path).text() == "1 of 4; 1 under way at the end: two, ours; 3 not reached: two, ours, " + ", ".join(
        ["one, rivals", "two, rivals"]
    )
    fails = False
    found = run(["one", "two"], [Rival], measure_case, lambda lines: None, path, machine)
    # First all of ours, then again beside rivals those that one has.
    assert measured == [("one", 0), ("two", 0), ("two", 0), ("one", 1)]
    assert [(line["case"], line["rivals"]) for line in found["lines"]] == [("one", 1), ("two", 0)]
    assert reached(path).text() == "4 of 4" and found["failures"] == []


def test_sweeps_write_as_they_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(gpu_sweeps, "DESTINATIONS", ("FLOAT8E4M3FN", "INT8"))
    path = tmp_path / "lines"
    options = ["--backend", "host", "--threads", "1", "--source", "FLOAT16", "--lines", str(path)]
    assert gpu_sweeps.main(options) == 0
    assert reached(path).text() == "2 of 2" and "65,536 codes in" in capsys.readouterr().out
    assert gpu_sweeps.main(options) == 0
    assert path.read_text().count('"done"') == 2, "what is done is left out"

    def wrong(self: Any, cases: Any, optimize: bool) -> Any:
        return lambda case, codes: np.zeros(codes.shape, case.rule.dst.code_numpy)

    monkeypatch.setattr(backends.HostBackend, "prepare", wrong)
    assert gpu_sweeps.main([*options[:-1], str(tmp_path / "other")]) == 1
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "other").read_text().splitlines()]
    assert kinds.index("differs") < kinds.index("done"), "what differs is told at once"
    assert len(reached(tmp_path / "other").failed) == 2


# ---- the pool ----


def work(name: str) -> str:
    return "no room" if name == "full" else ""


def test_the_pool_writes_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    jobs = (Job(name, work, (name,)) for name in ("a", "b", "full", "c"))
    assert compile_all(jobs, 2, HANGS, Lines(path)) == (4, 1)
    assert reached(path).text() == "4 of 4; 1 FAILED: full (no room)"


def test_the_pool_compiles_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from gpucast.compile import cubin, nvrtc_search

    # The copy of NVRTC that the pool finds, not one that other tests have loaded into this process.
    monkeypatch.setattr(nvrtc_search, "_already_loaded", lambda name: None)
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_kernels, "OF_PARTS", {"sweeps": lambda: gpu_kernels.casts([(FLOAT, HALF)], "contiguous")})
    cubin._compiler.cache_clear()
    try:
        assert gpu_compile.main(["sweeps", "--arch", "sm_90", "--jobs", "1", "--lines", str(tmp_path / "lines")]) == 0
        (kernel,) = gpu_kernels.casts([(FLOAT, HALF)], "contiguous")
        cache = cubin.compiler().cache
        count = cache.usage()[0]
        cubin.compile(kernel.text, kernel.name, "sm_90")
        assert cache.usage()[0] == count, "it is there already"
    finally:
        cubin._compiler.cache_clear()
    assert "1 kernels for sm_90" in capsys.readouterr().out


def test_what_fails_to_be_listed_is_an_error(tmp_path: Path) -> None:
    def broken() -> Iterator[Job]:
        yield Job("a", work, ("a",))
        raise ValueError("no such format")

    with pytest.raises(ValueError, match="no such format"):
        compile_all(broken(), 1, HANGS, Lines(tmp_path / "lines"))
