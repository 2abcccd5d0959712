# SPDX-License-Identifier: Apache-2.0
"""`python -m bench`, and what talks to CUDA: all up to the GPU itself."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import __main__ as command
from bench.revision import FOLDER
from bench.timing import machine as gpu
from gpucast.compile import compiler, disassembler
from gpucast.gpu import devices

# ---- python -m bench ----


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """The benchmarks replaced: what they are called with."""
    calls: list[argparse.Namespace] = []

    def fake(name: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
        def run(arguments: argparse.Namespace) -> dict[str, Any]:
            calls.append(argparse.Namespace(**vars(arguments), name=name))
            return {"rows": [name]}

        return run

    monkeypatch.setattr(command, "BENCHMARKS", {name: ("", fake(name)) for name in command.BENCHMARKS})
    monkeypatch.setattr(devices, "unavailable", lambda: ("there is no NVIDIA driver", "run on the host"))
    return calls


def test_without_a_gpu_it_says_so(ran: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 1 and not ran
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "bench: no GPU to measure: there is no NVIDIA driver; run on the host, or --allow-cpu\n"


def test_what_needs_no_gpu_is_marked_so(ran: list[Any], tmp_path: Path) -> None:
    for _ in range(2):
        assert command.main(["--allow-cpu", "--results", str(tmp_path / "new")]) == 0
    assert [call.name for call in ran] == ["static", "host"] * 2 and ran[0].elements == [command.FEW]
    files = sorted((tmp_path / "new").iterdir())
    assert len(files) == 2, "nothing is overwritten"
    for path in files:
        assert re.fullmatch(r"none-\d{4}-\d\d-\d\d-[0-9a-f]{8}(-2)?\.json", path.name)
        found = json.loads(path.read_text())
        assert found["device"] == "none" and found["static"] and found["host"] and "gpu" not in found


@pytest.mark.parametrize("option", ["--results", "--json"])
def test_results_that_cannot_be_written_are_known_before_the_work(
    ran: list[Any], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert command.main(["--allow-cpu", option, str(tmp_path / "file" / "x")]) == 1 and not ran
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"bench: results cannot be written: .*/file(/x)?: (Not a directory|File exists)", last)


def test_the_gpu_is_the_default(ran: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "unavailable", lambda: None)
    assert command.main(["--seconds", "30", "--json", str(tmp_path / "x.json")]) == 0
    assert [(call.name, call.seconds, call.results) for call in ran] == [("gpu", 30.0, FOLDER)]
    assert "device" not in json.loads((tmp_path / "x.json").read_text())


def test_the_others_are_chosen_by_name(ran: list[Any]) -> None:
    assert command.main(["--host", "--elements", "1", "1e3"]) == 0
    assert [(call.name, call.elements) for call in ran] == [("host", [1, 1000])]


def test_a_failure_is_the_exit_code(ran: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def broken(arguments: argparse.Namespace) -> dict[str, Any]:
        raise RuntimeError("nvdisasm was not found")

    others = dict(command.BENCHMARKS)
    monkeypatch.setattr(command, "BENCHMARKS", {**others, "static": ("", broken)})
    assert command.main(["--host", "--static"]) == 1
    assert [call.name for call in ran] == ["host"]
    assert "bench: static: nvdisasm was not found" in capsys.readouterr().err
    monkeypatch.setattr(command, "BENCHMARKS", {**others, "host": ("", lambda arguments: {"failures": ["slow"]})})
    assert command.main(["--host"]) == 1


def test_a_report_of_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--report-only", "--results", str(tmp_path)]) == 1
    assert "holds no results of a GPU" in capsys.readouterr().err


# ---- what talks to CUDA ----


@pytest.mark.parametrize(("read", "write"), [(1, 1), (4, 4), (4, 2), (1, 8), (8, 1), (3, 4)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_copy_kernel_moves_16_bytes_at_a_time(read: int, write: int, arch: str) -> None:
    name, text = gpu.copy_source(read, write)
    sass = disassembler.disassemble(compiler.compile(text, name, arch).code).decode()
    order, wide = (re.findall(rf"\b(LDG|STG)\.E\S*{end}", sass) for end in ("", r"\.128"))
    assert order == wide
    # All loads of the whole tile are in flight before its first store.
    whole = read * ["LDG"] + write * ["STG"]
    assert whole in (order[: read + write], order[-read - write :])


def test_peaks_are_those_of_the_vendors() -> None:
    assert gpu.peak_of("NVIDIA H200", {}) == 4.8e12
    assert gpu.peak_of("NVIDIA GH200 480GB", {}) == 4.9e12
    assert gpu.peak_of("NVIDIA H100 NVL", {}) == 3.9e12
    assert gpu.peak_of("NVIDIA H100 PCIe", {}) == 2.0e12 and gpu.peak_of("NVIDIA H100 80GB HBM3", {}) == 3.35e12
    # Of an RTX 4090: 10501 MHz, 384 bits.
    assert gpu.peak_of("other", {"memoryClockRate": 10_501_000, "memoryBusWidth": 384}) == pytest.approx(
        1008e9, rel=1e-3
    )
    assert gpu.peak_of("unknown", {}) == 0.0


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_readings_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu._nvidia_smi(gpu._READINGS, "0") == {}
    monkeypatch.undo()
    nvidia_smi(tmp_path, monkeypatch, 'echo "$@" >"$0.log"; echo "1980, 3201, 512.25, 61, 0x0000000000000000"')
    found = gpu._nvidia_smi(gpu._READINGS, "00000000:01:00.0")
    assert found == {
        "sm_mhz": 1980.0,
        "memory_mhz": 3201.0,
        "watts": 512.25,
        "celsius": 61.0,
        "throttle": "0x0000000000000000",
    }
    asked = (tmp_path / "nvidia-smi.log").read_text()
    assert "--id=00000000:01:00.0" in asked and "--query-gpu=clocks.sm,clocks.mem" in asked


def test_readings_that_nvidia_smi_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'case "$*" in *event_reasons*) exit 2 ;; *clocks.sm*) echo 1980 ;; *) echo "[N/A]" ;; esac'
    nvidia_smi(tmp_path, monkeypatch, text)
    found = gpu._nvidia_smi(gpu._READINGS, "0")
    assert found == {"sm_mhz": 1980.0, "memory_mhz": "[N/A]", "watts": "[N/A]", "celsius": "[N/A]"}


class FakeStream:
    ptr = 77

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.captured: list[str] = []

    def __enter__(self) -> None:
        self.log.append("enter")

    def __exit__(self, *error: object) -> None:
        self.log.append("exit")

    def begin_capture(self) -> None:
        self.log.append("begin")

    def end_capture(self) -> Any:
        self.log.append("end")
        return SimpleNamespace(launch=lambda stream: self.log.append(("graph", stream.ptr)))

    def synchronize(self) -> None:
        self.log.append("wait")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> tuple[gpu.Machine, list[Any]]:
    """A Gpu over a CuPy that notes what it is asked."""
    log: list[Any] = []
    properties = {
        "name": b"NVIDIA H200",
        "l2CacheSize": 60 << 20,
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 132,
        "totalGlobalMem": 141 << 30,
    }
    runtime = SimpleNamespace(
        getDevice=lambda: 0, getDeviceProperties=lambda index: properties, deviceGetPCIBusId=lambda index: "0:1",
        memcpyAsync=lambda *arguments: log.append(arguments), memcpyDeviceToDevice=3, memGetInfo=lambda: (1000, 2000),
        driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000,
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, Stream=lambda non_blocking: FakeStream(log), get_elapsed_time=lambda start, end: 250.0
    )
    pool = SimpleNamespace(free_bytes=lambda: 24, free_all_blocks=lambda: log.append("freed"))
    raw = lambda text, name: lambda grid, block, arguments: log.append((name, grid, block, arguments))  # noqa: E731
    fake = SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool, RawKernel=raw, empty=np.empty)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return gpu.Machine(), log


def flat(nbytes: int, address: int) -> Any:
    return SimpleNamespace(nbytes=nbytes, data=SimpleNamespace(ptr=address))


def test_copies_on_the_gpu(cuda: tuple[gpu.Machine, list[Any]]) -> None:
    machine, log = cuda
    assert (machine.device, machine.cache_bytes, machine.peak, machine.stream) == ("NVIDIA H200", 60 << 20, 4.8e12, 77)
    src, dst = flat(1 << 20, 1000), flat(1 << 20, 5000)
    machine.copy(dst, src)
    assert log == [(5000, 1000, 1 << 20, 3, 77)]
    log.clear()
    machine.copy_kernel(4, 2)(flat(1 << 19, 5000), src)
    vectors = (1 << 20) // 16
    ((name, grid, block, arguments),) = log
    assert (name, grid, block) == ("gpucast_copy_4_2", (vectors // 256 // 4,), (256,))
    assert arguments[2:] == (vectors, vectors // 2) and {one.dtype for one in arguments[2:]} == {np.dtype("int64")}
    with pytest.raises(AssertionError, match="whole vectors"):
        machine.copy_kernel(1, 1)(flat(8, 0), flat(8, 0))


def test_time_memory_and_streams_of_the_gpu(cuda: tuple[gpu.Machine, list[Any]]) -> None:
    machine, log = cuda
    assert machine.seconds(None, None) == 0.25 and machine.free_bytes() == 1024
    with machine.current():
        machine.release()
    assert log == ["enter", "wait", "freed", "exit"]
    facts = machine.facts()
    assert facts["name"] == "NVIDIA H200" and facts["sm_count"] == 132 and "uuid" not in facts
    assert json.loads(json.dumps(facts)) == facts


def test_a_capture_ends_whatever_happens(cuda: tuple[gpu.Machine, list[Any]]) -> None:
    machine, log = cuda
    graph = machine.capture(lambda: log.append("work"))
    assert graph is not None
    graph()
    assert log == ["begin", "work", "end", ("graph", 77)]
    log.clear()

    def broken() -> None:
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        machine.capture(broken)
    assert log == ["begin", "end"]


def test_the_real_cupy_has_what_the_gpu_asks_for() -> None:
    cupy = pytest.importorskip("cupy")
    versions = ("driverGetVersion", "runtimeGetVersion")
    memory = ("memcpyAsync", "memcpyDeviceToDevice", "memGetInfo")
    wanted = ("getDevice", "getDeviceProperties", "deviceGetPCIBusId", *memory, *versions)
    assert not [name for name in wanted if not hasattr(cupy.cuda.runtime, name)]
    methods = ("begin_capture", "end_capture", "synchronize", "__enter__")
    assert not [name for name in methods if not hasattr(cupy.cuda.Stream, name)]
    assert cupy.cuda.Event and cupy.cuda.get_elapsed_time and cupy.RawKernel and cupy.cuda.set_allocator
