# SPDX-License-Identifier: Apache-2.0
"""`python -m bench`, and what talks to CUDA: all up to the GPU itself."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from bench import __main__ as command
from bench.revision import FOLDER
from bench.timing import machine as gpu
from gpucast.kernel import compiler, devices, disassembler

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


def test_the_gpu_is_the_default(ran: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "unavailable", lambda: None)
    assert command.main(["--json", str(tmp_path / "x.json")]) == 0
    assert [(call.name, call.results) for call in ran] == [("gpu", FOLDER)]
    assert "device" not in json.loads((tmp_path / "x.json").read_text())


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


# ---- what talks to CUDA ----


@pytest.mark.parametrize(
    ("read", "write", "arch"),
    [(1, 1, "sm_80"), (4, 4, "sm_90"), (4, 2, "sm_80"), (1, 8, "sm_90"), (8, 1, "sm_80"), (3, 4, "sm_90")],
)
def test_the_copy_kernel_moves_16_bytes_at_a_time(read: int, write: int, arch: str) -> None:
    name, text = gpu.copy_source(read, write)
    sass = disassembler.disassemble(compiler.compile(text, name, arch).code).decode()
    order, wide = (re.findall(rf"\b(LDG|STG)\.E\S*{end}", sass) for end in ("", r"\.128"))
    assert order == wide
    # All loads of the whole tile are in flight before its first store.
    whole = read * ["LDG"] + write * ["STG"]
    assert whole in (order[: read + write], order[-read - write :])


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A CuPy that notes what it is asked, on a machine with an H200."""
    properties = {"name": b"NVIDIA H200", "l2CacheSize": 60 << 20}
    fake = MagicMock()
    fake.cuda.runtime.configure_mock(**{"getDevice.return_value": 0, "getDeviceProperties.return_value": properties})
    fake.cuda.Stream.return_value.ptr = 77
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


def flat(nbytes: int, address: int) -> Any:
    return SimpleNamespace(nbytes=nbytes, data=SimpleNamespace(ptr=address))


def test_copies_on_the_gpu(cuda: Any) -> None:
    machine, runtime = gpu.Machine(), cuda.cuda.runtime
    assert (machine.device, machine.cache_bytes, machine.stream) == ("NVIDIA H200", 60 << 20, 77)
    src, dst = flat(1 << 20, 1000), flat(1 << 20, 5000)
    machine.copy(dst, src)
    runtime.memcpyAsync.assert_called_once_with(5000, 1000, 1 << 20, runtime.memcpyDeviceToDevice, 77)
    half = flat(1 << 19, 5000)
    machine.copy_kernel(4, 2)(half, src)
    assert cuda.RawKernel.call_args.args[1] == "gpucast_copy_4_2"
    vectors = (1 << 20) // 16
    arguments = (src, half, np.int64(vectors), np.int64(vectors // 2))
    cuda.RawKernel.return_value.assert_called_once_with((vectors // 256 // 4,), (256,), arguments)
