# SPDX-License-Identifier: Apache-2.0
"""`gpucast bench` from the user's view: without a GPU, on the host, and on a fake GPU (see fake_machine)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cases.contenders import Ours
from bench.gpu import quick
from bench.timing.machine import HostMachine
from fake_machine import FakeMachine, FakeRival, TimedDriver
from gpucast.cli import bench, main
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.gpu import devices
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
    monkeypatch.setattr(quick, "GpuMachine", lambda: made)
    monkeypatch.setattr(quick, "contenders", lambda _: [Ours(made), Ours(made, allocates=True), *rivals])
    monkeypatch.setattr(quick, "PAIRS", PAIRS)
    monkeypatch.setattr(quick, "CALLS", 10)
    with installed(driver):
        yield made


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == main(["bench", "--quick"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    said = "bench: no GPU to measure: there is no NVIDIA driver; run on the host, or --allow-cpu"
    assert output.err.splitlines() == [said, said]


def test_without_a_checkout_it_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_ROOT", tmp_path)
    assert main(["bench"]) == 1
    assert "the benchmark is no part of the installed package: in a checkout of gpucast run" in capsys.readouterr().err


def test_the_host_is_marked_as_no_device(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "host.json"
    monkeypatch.setattr(quick, "CALLS", 20)
    monkeypatch.setattr(HostMachine, "free_bytes", lambda self: 1 << 30)
    command = ["bench", "--allow-cpu", "--seconds", "0.5", "--elements", "1000", "--src", "FLOAT", "--dst", "FLOAT16"]
    assert main([*command, "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("gpucast bench on the host (device: none): 1,000 elements")
    assert "memory is what limits" not in text
    assert "NumPy astype" in text and "FLOAT to FLOAT16" in text
    found = json.loads(path.read_text())
    assert found["device"] == "none" and found["quick"]["rows"][0]["wrong"] == 0


def test_a_gpu_beside_its_rivals(fake: FakeMachine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    assert main(["bench", "--seconds", "1", "--elements", "4096", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gpucast bench on NVIDIA Fake: 4,096 elements")
    assert sum("memory is what limits a cast" in line for line in lines) == 1
    (row,) = [line for line in lines if line.startswith("FLOAT to FLOAT16")]
    ours, half, twin = row.split()[4:7]
    assert float(half) < float(ours) and twin.endswith("~*") and row.endswith(" 0")
    assert any(" x half (geometric mean of 2 pairs: 2 faster, 0 same, 0 slower)" in line for line in lines)
    assert any(" x twin (geometric mean of 2 pairs: 0 faster, 2 same, 0 slower)" in line for line in lines)
    found = json.loads(path.read_text())["quick"]
    assert found["facts"]["name"] == "NVIDIA Fake"
    assert {row["contender"] for row in found["rows"]} == {"gpucast", "gpucast allocating", "half", "twin"}


def test_the_time_is_kept(fake: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    begin = fake.now()
    assert main(["bench", "--seconds", "0.0001", "--elements", "4096"]) == 0
    assert "1 pairs left out for want of time" in capsys.readouterr().out
    assert fake.now() - begin < 1


def test_wrong_results_are_a_failure(
    fake: FakeMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Ours.codes

    def one_wrong(self: Any, result: Any, dst: Any, count: int) -> Any:
        codes = good(self, result, dst, count).copy()
        codes[0] ^= codes.dtype.type(1)
        return codes

    monkeypatch.setattr(Ours, "codes", one_wrong)
    assert main(["bench", "--seconds", "1", "--elements", "64"]) == 1
    assert "DIFFERS from the reference: FLOAT to FLOAT16: " in capsys.readouterr().out
