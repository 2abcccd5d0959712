# SPDX-License-Identifier: Apache-2.0
"""The first half hour on a GPU (bench/gpu.sh): its steps and their commands, on the host build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from bench.gpu import families, libraries, profiled
from bench.gpu.device_calls import FAMILIES
from bench.gpu.places import DeviceCall, Place
from host_driver import HostDriver, download, installed, upload

PROJECT = Path(__file__).parents[2]


def put(x: Any, offset: int) -> Any:
    return upload(x, offset=offset)


def test_the_steps_and_their_order() -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(PROJECT / "bench" / "gpu.sh"), "--list"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    names = [line.partition(":")[0] for line in result.stdout.splitlines()]
    first = ["machine", "info", "libraries", "quick"]
    first += [f"family-{family}" for family in FAMILIES] + [f"memcheck-{family}" for family in FAMILIES]
    assert names[: len(first) + 4] == [*first, "tests", "users", "counters", "memcheck"]
    assert len(set(names)) == len(names) and "codes-FLOAT16" in names and "initcheck-quantize" in names


def test_without_a_gpu_it_says_why() -> None:
    if gpucast.kernel.devices.unavailable() is None:
        pytest.skip("there is a GPU")
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(PROJECT / "bench" / "gpu.sh")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "there is no GPU that gpucast can use" in result.stderr


def test_a_family_by_its_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def right(place: Place) -> Any:
        return gpucast.cast(place("x", np.arange(9, dtype=np.float32)), "FLOAT16"), 3

    def wrong(place: Place) -> Any:
        return np.zeros(3) if place.on_device else np.ones(3)

    def failing(place: Place) -> Any:
        if place("x", np.zeros(2, np.int8)) is None or place.on_device:
            raise RuntimeError("CUDA_ERROR_MISALIGNED_ADDRESS")

    monkeypatch.setattr(families, "of_gpu", lambda: (put, download))
    monkeypatch.setitem(FAMILIES, "mixed", lambda: iter([DeviceCall("mixed", "a cast", right)]))
    with installed(HostDriver()):
        assert families.main(["mixed"]) == 0
        # All aligned, all at four offsets, and the only array at them.
        assert capsys.readouterr().out.endswith("mixed: 9 calls, 8 at odd addresses; 0 wrong\n")
        both = [DeviceCall("mixed", "zeros", wrong), DeviceCall("mixed", "stops", failing)]
        monkeypatch.setitem(FAMILIES, "mixed", lambda: iter(both))
        assert families.main(["mixed", "--aligned"]) == 1
        out = capsys.readouterr().out
    assert "mixed: zeros: other bits than on the host" in out
    assert "mixed: stops: RuntimeError: CUDA_ERROR_MISALIGNED_ADDRESS" in out
    assert "2 calls, 0 at odd addresses; 2 wrong" in out
    assert families.main(["--names"]) == 0 and capsys.readouterr().out.split() == list(FAMILIES)
    with pytest.raises(SystemExit):
        families.main([])


def test_the_calls_that_a_profiler_looks_at() -> None:
    with installed(HostDriver()) as driver:
        made = profiled.calls(put, 64, 128)
        for call in made.values():
            call()
        before = len(driver.launched)
        for call in made.values():
            driver.capture = True
            call()
        launched = [name for name, _ in driver.launched[before:]]
    # Nothing is allocated, and each call is little more than its kernel.
    assert len(made) == 10 <= len(set(launched)) and len(launched) < 20


def test_a_cast_of_each_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = gpucast.cast(libraries.X, "FLOAT16")
    cases = {
        "json": lambda module: wanted,
        "math": lambda module: wanted[::-1].copy(),
        "no_such": lambda module: wanted,
    }
    monkeypatch.setattr(libraries, "LIBRARIES", {**cases, "sys": lambda module: module.nothing})
    assert libraries.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["json: right", "math: wrong: other bits than on the host", "no_such: not installed"]
    assert lines[3].startswith("sys: wrong: AttributeError")
