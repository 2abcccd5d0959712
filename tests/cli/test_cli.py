# SPDX-License-Identifier: Apache-2.0
"""The `gpucast` command as a program: help, tables, info, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.cli import info, main
from gpucast.compile import cache, nvidia
from gpucast.core.dtypes import DTYPES
from tensors import leftovers

ROOT = Path(__file__).parents[2]


def program(*argv: str, **keywords: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "gpucast", *argv]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, **keywords)


def test_names_that_the_terminal_cannot_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    np.savez(tmp_path / "x.npz", é=np.arange(3), w=np.ones(3))
    run = program("convert", "x.npz", "y.npz", "--to", "FLOAT", cwd=tmp_path)
    out, err = run.communicate()
    assert (run.returncode, err) == (0, "")
    assert out.startswith("left alone: '\\xe9' (INT64)\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_conversion_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    # A sparse file of zeros, which takes far longer to convert than this test waits.
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float16, (1 << 27,))
    (tmp_path / "y.npz").write_bytes(b"old")
    run = program("convert", "x.npy", "y.npz", "--to", "STRING", "--overwrite", cwd=tmp_path)
    while not leftovers(tmp_path, "x.npy", "y.npz"):
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
    run.send_signal(number)
    out, err = run.communicate()
    assert (run.returncode, out, err) == (130, "", "gpucast convert: interrupted\n")
    assert leftovers(tmp_path, "x.npy") == ["y.npz"]
    assert (tmp_path / "y.npz").read_bytes() == b"old"


#: A `sitecustomize` that interrupts the process when it imports a module.
INTERRUPT = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}: signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
#: What the command that pip installs looks like.
SCRIPT = "import sys\nfrom gpucast.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.mark.parametrize(
    ("started", "module"),
    [("script", "ml_dtypes"), ("module", "gpucast.casting.cast"), ("import", "gpucast.cli.warmup")],
)
def test_an_interruption_while_modules_are_imported(started: str, module: str, tmp_path: Path) -> None:
    """It is one line, whatever is imported; a program that is not ours gets its exception."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT.format(module=module))
    (tmp_path / "gpucast").write_text(SCRIPT)
    command = {
        "script": [str(tmp_path / "gpucast")],
        "module": ["-m", "gpucast"],
        "import": ["-c", "try:\n import gpucast.cli\nexcept KeyboardInterrupt:\n print('ours')"],
    }[started]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    run = subprocess.run(
        [sys.executable, *command, "dtypes"], env=environment, capture_output=True, text=True, check=False
    )
    wanted = (0, "ours\n", "") if started == "import" else (130, "", "gpucast: interrupted\n")
    assert (run.returncode, run.stdout, run.stderr) == wanted


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in [
        (["--help"], ["convert", "dtypes", "info"]),
        (["--version"], [gpucast.__version__]),
        (["cast", "--help"], ["--to", "--include", "--allow-loss", "--no-saturate"]),
    ]:
        with pytest.raises(SystemExit) as left:
            main(argv)
        assert left.value.code == 0
        printed = capsys.readouterr().out
        assert all(word in printed for word in words)
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2


def test_the_table_of_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtypes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["number"]) for row in rows] == [(row.name, row.number) for row in DTYPES]
    by_name = {row["name"]: row for row in rows}
    assert by_name["INT4"] == {
        "name": "INT4", "number": 22, "bits": 4, "layout": None, "bias": None, "min": -8, "max": 7, "smallest": None,
        "specials": None, "opset": 21, "numpy": "int4", "safetensors": None,
    }  # fmt: skip
    assert by_name["FLOAT8E4M3FN"] == {
        "name": "FLOAT8E4M3FN", "number": 17, "bits": 8, "layout": "1/4/3", "bias": 7, "min": -448.0, "max": 448.0,
        "smallest": 2.0**-9, "specials": "NaN, -0", "opset": 19, "numpy": "float8_e4m3fn", "safetensors": "F8_E4M3",
    }  # fmt: skip
    assert main(["dtypes"]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert main(["dtypes", "--markdown"]) == 0
    markdown = capsys.readouterr().out.splitlines()
    assert len(plain) == 1 + len(DTYPES)
    assert len(markdown) == 2 + len(DTYPES)
    assert len({line.count("|") for line in markdown}) == 1
    for row, line, cells in zip(DTYPES, plain[1:], markdown[2:], strict=True):
        assert line.split()[0] == row.name
        assert cells.startswith(f"| {row.name} | {row.number or ''} | ")
    assert "2^-127" in next(line for line in plain if line.startswith("FLOAT8E8M0"))


def test_info(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path / "kept"))
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gpucast"] == gpucast.__version__
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["cache"] == {"folder": str(tmp_path / "kept"), "exists": False, "writable": True}
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == facts["verdict"]
    assert str(tmp_path / "kept") in next(line for line in lines if line.startswith("cache"))
    monkeypatch.setattr(gpucast.gpu.devices, "unavailable", lambda: ("it sleeps", "run wake"))
    assert main(["info"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "GPU casts: no, because it sleeps; run wake"


def test_cupy_and_the_driver_must_fit() -> None:
    new, old = nvidia.DriverInfo((13, 0), ("cuda:0 H200",)), nvidia.DriverInfo((12, 4), ("cuda:0 H200",))
    both = {"cupy-cuda12x": "14.2", "cupy-cuda13x": "14.2"}
    for cupy, found, words in [
        (both, None, ["both installed", "pip uninstall -y cupy-cuda12x cupy-cuda13x", "gpucast[cuda12]"]),
        (both, old, ["both installed", "gpucast[cuda12]"]),
        (both, new, ["both installed", "gpucast[cuda13]"]),
        ({}, new, ["cupy is not installed", "gpucast[cuda13]"]),
        ({}, old, ["cupy is not installed", "gpucast[cuda12]"]),
        ({"cupy-cuda13x": "14.2"}, old, ["needs a driver for CUDA 13", "CUDA 12.4", "gpucast[cuda12]"]),
    ]:
        (line,) = info._cupy_advice(cupy, found)
        assert all(word in line for word in words), line
    for cupy, found in [
        ({"cupy-cuda12x": "14.2"}, old), ({"cupy-cuda12x": "14.2"}, new), ({"cupy-cuda13x": "14.2"}, new), ({}, None),
        ({}, nvidia.DriverInfo((12, 4), (), "no device")),
    ]:  # fmt: skip
        assert info._cupy_advice(cupy, found) == []


class FakeDriver:
    """The functions of libcuda that `driver` calls, for a machine of our choice."""

    def __init__(self, version: int, names: list[str], error: int = 0) -> None:
        self._version, self._names, self._error = version, names, error

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self._version
        return 0

    def cuInit(self, flags: int) -> int:
        return self._error

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self._names)
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        handle._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, length: int, handle: Any) -> int:
        name.value = self._names[handle.value].encode()
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> int:
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvidia.describe(FakeDriver(12040, ["NVIDIA H200", "NVIDIA H200"]))
    devices = ("cuda:0 NVIDIA H200 (sm_90)", "cuda:1 NVIDIA H200 (sm_90)")
    assert found == nvidia.DriverInfo((12, 4), devices, capabilities=((9, 0), (9, 0)))
    assert nvidia.describe(FakeDriver(13000, [])).problem == "the driver finds no device"
    assert "CUDA error 100" in nvidia.describe(FakeDriver(13000, [], error=100)).problem

    # Whether casts work is tested elsewhere; with this driver CuPy would be asked next.
    monkeypatch.setattr(gpucast.gpu.devices, "unavailable", lambda: ("it sleeps", "run wake"))
    machine = None
    monkeypatch.setattr(nvidia, "_load", lambda: machine)
    assert nvidia.find() is None
    assert "no NVIDIA driver" in info._as_text(info.collect())
    machine = FakeDriver(13010, ["NVIDIA B200"])
    text = info._as_text(info.collect())
    assert "runs up to CUDA 13.1" in text
    assert "cuda:0 NVIDIA B200 (sm_90)" in text


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUCAST_CACHE_DIR", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for platform, xdg, wanted in [
        ("linux", None, ".cache/gpucast"),
        ("linux", str(tmp_path / "x"), "x/gpucast"),
        ("darwin", None, "Library/Caches/gpucast"),
        ("win32", None, "AppData/Local/gpucast/Cache"),
    ]:
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if xdg:
            monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache.cache_folder() == str(tmp_path / wanted)
    (tmp_path / "file").write_text("")
    assert cache.writable(str(tmp_path / "new" / "deep"))
    assert not cache.writable(str(tmp_path / "file"))
    assert not cache.writable(str(tmp_path / "file" / "deep"))
