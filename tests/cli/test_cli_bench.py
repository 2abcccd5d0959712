# SPDX-License-Identifier: Apache-2.0
"""`gpucast bench` from the user's view: without a GPU, on the host, and on a fake GPU (see fake_machine)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cases import case, check, pairs
from bench.cases.contenders import Ours, OursAllocating
from bench.gpu import run
from bench.timing import times
from fake_machine import FakeMachine, FakeRival, TimedDriver
from gpucast.cli import bench, main
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.kernel import devices
from host_driver import both_shapes, installed

PAIRS = [(dtype("FLOAT"), dtype("FLOAT16")), (dtype("INT8"), dtype("UINT8"))]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "unavailable", lambda: ("there is no NVIDIA driver", "run on the host"))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    """A GPU, with a contender at half our speed."""
    made = FakeMachine()
    driver = TimedDriver(made)
    driver.prepare(both_shapes(resolve(*pair) for pair in PAIRS))
    rivals = [FakeRival(made, "half", 0.5e9), FakeRival(made, "twin", 0.99e9, wrong=1)]
    monkeypatch.setattr(devices, "unavailable", lambda: None)
    monkeypatch.setattr(run, "Machine", lambda: made)
    monkeypatch.setattr(run, "contenders", lambda *_: [Ours(made), OursAllocating(made), *rivals])
    monkeypatch.setattr(run, "QUICK_PAIRS", PAIRS)
    monkeypatch.setattr(pairs, "_hard_values", pairs._hard_values.__wrapped__)
    monkeypatch.setattr(check, "_SHARE", 1 / 1024)
    # The fake's clock is exact, and its kernels run on the host.
    monkeypatch.setattr(case, "measure", lambda machine, works, **_: times.measure(machine, works, samples=3))
    with installed(driver):
        yield made


def test_without_a_checkout_it_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_ROOT", tmp_path)
    assert main(["bench"]) == 1
    assert "the benchmark is no part of the installed package: in a checkout of gpucast run" in capsys.readouterr().err


def test_a_gpu_beside_its_rivals(fake: FakeMachine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    assert main(["bench", "--elements", "4096", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gpucast on NVIDIA Fake") and any(line.startswith("4,096 elements") for line in lines)
    (row,) = [line for line in lines if line.startswith("| FLOAT | FLOAT16 | 29.8 | 1 |")]
    # The twin is as quick, and has a wrong result.
    assert "| twin * | 1 | (1.00) | 0 of " in row
    assert any(" x half over its pairs (geometric mean); faster in 2 of 2 measurements" in line for line in lines)
    found = json.loads(path.read_text())["quick"]
    assert found["facts"]["name"] == "NVIDIA Fake"
    timed = {row["name"] for row in found["rows"] if row.get("src")}
    assert {"gpucast", "gpucast allocating", "half", "twin", "copy kernel", "copy of the same ratio"} <= timed


def test_the_time_is_kept(
    fake: FakeMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SECONDS", 1e-4)
    begin = fake.now()
    assert main(["bench", "--elements", "4096"]) == 0
    assert "3 cases left out for want of time" in capsys.readouterr().out
    assert fake.now() - begin < 1
