# SPDX-License-Identifier: Apache-2.0
"""The verdict of `gpucast info`, from a test cast that is compiled, launched and compared, for every failure of it."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucast.cli import main
from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel import devices, nvidia, nvrtc_search
from gpucast.kernel import driver as launch
from gpucast.kernel.kernel import ARRAY, Kernel
from gpucast.kernel.nvrtc import CompileError, Nvrtc
from gpucast.kernel.nvrtc_search import NvrtcCopy
from host_driver import HostDriver, installed
from nvrtc_wheels import INSTALLED, load, wheels

PAIR = "FLOAT to FLOAT8E4M3FN"
KERNEL = "gpucast_float32_to_float8e4m3fn"
H200 = nvidia.DriverInfo((13, 0), ("cuda:0 NVIDIA H200 (sm_90)",), capabilities=((9, 0),))


class Wrong(HostDriver):
    """Inverts the first byte that a launch writes."""

    def load(self, kernel: Kernel) -> Any:
        right = super().load(kernel)

        def run(blocks: int, arguments: bytes) -> None:
            right(blocks, arguments)
            byte = ctypes.c_uint8.from_address(ARRAY.layout.unpack_from(arguments)[2])
            byte.value ^= 0xFF

        return run


class Failing(HostDriver):
    """Raises `error` when a kernel is loaded."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def load(self, kernel: Kernel) -> Any:
        raise self.error


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A driver of an H200 that runs the host builds of the kernels."""
    load(INSTALLED[-1])
    monkeypatch.setattr(nvrtc_search, "find", lambda: NvrtcCopy(wheels()[INSTALLED[-1]]))
    monkeypatch.setattr(nvidia, "find", lambda: H200)
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path))
    with installed(HostDriver()):
        yield


def info(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str]]:
    """The output of the command as JSON and as lines; the last line is the verdict."""
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == facts["verdict"]
    assert facts["gpu_casts"] == (facts["verdict"] == "GPU casts: yes")
    return facts, lines


def said(lines: list[str], name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in lines if line.startswith(f"{name} ")]


def test_yes_after_a_cast_that_is_right(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    facts, lines = info(capsys)
    assert facts["verdict"] == "GPU casts: yes"
    nvrtc = load(INSTALLED[-1])
    architectures = [number for number in nvrtc.architectures if number >= 75]
    assert facts["compiler"] == {
        "version": list(nvrtc.version), "path": wheels()[INSTALLED[-1]], "architectures": architectures,
        "compiled": ["sm_90"], "problem": None,
    }  # fmt: skip
    version = ".".join(map(str, nvrtc.version))
    assert said(lines, "compiler") == [f"NVRTC {version} compiles for sm_75 to sm_{architectures[-1]}"]
    tried = facts["self_test"]
    assert tried == {"devices": [0], "elements": tried["elements"], "wrong": 0, "problem": None}
    assert tried["elements"] > 1000
    assert said(lines, "self-test") == [f"{PAIR} on cuda:0: {tried['elements']:,} elements as in the reference"]
    host = launch.driver()
    assert isinstance(host, HostDriver)
    assert [name for name, _ in host.launched] == [KERNEL] * 2
    # The compiled kernel is not cached, so the next run compiles it again.
    assert not list(tmp_path.iterdir())


def test_no_where_the_bits_differ(capsys: pytest.CaptureFixture[str]) -> None:
    launch.use(Wrong())
    facts, lines = info(capsys)
    assert facts["self_test"]["wrong"] == 1
    assert facts["verdict"].startswith(
        f"GPU casts: no, because casts on cuda:0 give wrong results: 1 of {facts['self_test']['elements']:,} elements "
        f"differ from the reference; {PAIR}: index 0, input 0x00000000 (0.0): wanted 0x00 (0.0), got 0xff ("
    )
    assert facts["verdict"].endswith("; run gpucast parity")
    assert said(lines, "self-test") == [facts["self_test"]["problem"]]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError("an illegal\naddress"),
            "a cast on cuda:0 ended in RuntimeError: an illegal address; run nvidia-smi",
        ),
        (MemoryError("16 MiB"), "a cast on cuda:0 ended in MemoryError: 16 MiB; run nvidia-smi"),
        (DeviceUnavailable("compile: gone; run: pip install it"), "gone; run: pip install it"),
    ],
    ids=["launch", "memory", "remedy"],
)
def test_no_where_the_cast_raises(capsys: pytest.CaptureFixture[str], error: Exception, reason: str) -> None:
    launch.use(Failing(error))
    assert info(capsys)[0]["verdict"] == f"GPU casts: no, because {reason}"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeviceUnavailable("compile: NVRTC has no builtins; run: pip install some"),
         "NVRTC has no builtins; run: pip install some"),
        (CompileError("compile: NVRTC 13.0 cannot\ncompile", 6, "log"),
         "CompileError: NVRTC 13.0 cannot compile; run: pip install --upgrade --force-reinstall 'gpucast[EXTRA]'"),
    ],
    ids=["no builtins", "refused"],
)  # fmt: skip
def test_no_where_the_kernel_does_not_compile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(Nvrtc, "compile", fail)
    facts, lines = info(capsys)
    reason = reason.replace("EXTRA", f"cuda{INSTALLED[-1]}")
    assert facts["verdict"] == f"GPU casts: no, because {reason}"
    assert said(lines, "compiler") == [facts["compiler"]["problem"]] == [reason]
    assert facts["compiler"]["version"] == list(load(INSTALLED[-1]).version)
    assert (facts["compiler"]["compiled"], facts["self_test"]) == ([], None)
    # The driver itself asks for the architecture, and its error refers to this very command.
    monkeypatch.setattr(devices, "unavailable", lambda: ("compile: the same at more length", "run gpucast info"))
    assert info(capsys)[0]["verdict"] == f"GPU casts: no, because {reason}"
