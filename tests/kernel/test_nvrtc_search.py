# SPDX-License-Identifier: Apache-2.0
"""Which copy of NVRTC is taken where there are several, and what is said where there is none."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel import nvidia, nvrtc, nvrtc_search
from gpucast.kernel.nvrtc_builtins import file_name
from gpucast.kernel.nvrtc_search import NvrtcCopy, find
from nvrtc_wheels import INSTALLED, load, wheels

WHEEL = {13: "nvidia/cu13/lib", 12: "nvidia/cuda_nvrtc/lib"}


class Machine:
    """A machine without NVRTC, to which a test adds what it needs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.monkeypatch, self.root = monkeypatch, root
        self.loaded: dict[str, Any] = {}
        self.on_the_loaders_path: dict[str, str] = {}
        monkeypatch.setattr(sys, "path", [str(root / "no packages"), str(root / "packages")])
        monkeypatch.setattr(sys, "prefix", str(root / "prefix"))
        monkeypatch.setattr(nvrtc_search, "_already_loaded", self.loaded.get)
        monkeypatch.setattr(nvrtc_search, "Nvrtc", lambda library: library)
        monkeypatch.setattr(nvrtc, "load", self.load)
        for name in ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME"):
            monkeypatch.delenv(name, raising=False)
        self.packages(())
        self.runs(None)

    def load(self, path: str) -> str:
        if path not in self.on_the_loaders_path:
            raise OSError(f"{path}: cannot open shared object file")
        return self.on_the_loaders_path[path]

    def runs(self, cuda: tuple[int, int] | None) -> None:
        self.monkeypatch.setattr(nvidia, "cuda_version", lambda: cuda)

    def packages(self, names: tuple[str, ...]) -> None:
        def version(name: str) -> str:
            if name not in names:
                raise importlib.metadata.PackageNotFoundError(name)
            return "14.2.0"

        self.monkeypatch.setattr(importlib.metadata, "version", version)

    def put(self, folder: str, major: int) -> str:
        path = self.root / folder / file_name(major)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        return str(path)

    def wheel(self, major: int) -> str:
        return self.put(f"packages/{WHEEL[major]}", major)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_nothing_is_taken_from_the_current_folder(machine: Machine) -> None:
    """Its files may be anybody's. ``python -c`` has it in `sys.path` as "", ``python -m`` by its name."""
    machine.put(f"here/{WHEEL[13]}", 13)
    machine.put(f"here/below/{WHEEL[13]}", 13)
    (machine.root / "link").symlink_to("here")
    machine.monkeypatch.chdir(machine.root / "here")
    machine.monkeypatch.setattr(nvrtc_search, "_TOOLKIT", ())
    names = ["", ".", "below", "../here", str(machine.root / "here"), str(machine.root / "link")]
    machine.monkeypatch.setattr(sys, "path", names)
    with pytest.raises(DeviceUnavailable, match="NVRTC, the compiler of the CUDA kernels, was not found"):
        find()
    machine.monkeypatch.setattr(sys, "path", [*names, str(machine.root / "here" / "below")])
    assert find() == NvrtcCopy(str(machine.root / "here" / "below" / WHEEL[13] / file_name(13)))


def test_the_order_of_the_places(machine: Machine) -> None:
    """Each place added here comes before all that were there."""
    toolkit = machine.put("toolkit/lib64", 13)
    machine.monkeypatch.setenv("CUDA_PATH", str(machine.root / "toolkit"))
    assert find() == NvrtcCopy(toolkit)
    machine.on_the_loaders_path[file_name(12)] = "from the loader's cache"
    assert find() == NvrtcCopy(None, "from the loader's cache")  # type: ignore[arg-type]
    folder = machine.put("of the loader", 12)
    machine.monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere::{machine.root / 'of the loader'}")
    assert find() == NvrtcCopy(folder)
    prefix = machine.put("prefix/lib", 12)
    assert find() == NvrtcCopy(prefix)
    wheel = machine.wheel(12)
    assert find() == NvrtcCopy(wheel)
    newer = machine.wheel(13)
    assert find() == NvrtcCopy(newer)
    machine.loaded[file_name(12)] = "loaded by torch"
    assert find() == NvrtcCopy(None, "loaded by torch")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cuda", "major"), [(None, 13), ((12, 0), 12), ((12, 9), 12), ((13, 0), 13), ((13, 2), 13), ((14, 0), 13)]
)
def test_no_newer_than_the_driver(machine: Machine, cuda: tuple[int, int] | None, major: int) -> None:
    paths = {13: machine.wheel(13), 12: machine.wheel(12)}
    machine.runs(cuda)
    assert find() == NvrtcCopy(paths[major])
    machine.loaded[file_name(13)] = "13"
    assert find() == (NvrtcCopy(paths[12]) if major == 12 else NvrtcCopy(None, "13"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cuda", "packages", "extra"),
    [
        (None, (), "cuda12"),
        ((12, 4), (), "cuda12"),
        ((13, 0), (), "cuda13"),
        ((13, 0), ("cupy-cuda12x",), "cuda12"),
        (None, ("cupy-cuda13x",), "cuda13"),
    ],
)
def test_the_command_that_mends_it(
    machine: Machine, cuda: tuple[int, int] | None, packages: tuple[str, ...], extra: str
) -> None:
    machine.monkeypatch.setattr(nvrtc_search, "_TOOLKIT", ())
    machine.runs(cuda)
    machine.packages(packages)
    with pytest.raises(DeviceUnavailable) as caught:
        find()
    assert str(caught.value) == (
        f"compile: NVRTC, the compiler of the CUDA kernels, was not found; run: pip install 'gpucast[{extra}]'"
    )


USE = """
import ctypes, sys
from gpucast.kernel import nvrtc_search
first = nvrtc_search.find()
assert first == nvrtc_search.NvrtcCopy(sys.argv[1]), first
assert nvrtc_search._already_loaded("libnvrtc.so.99") is None
ctypes.CDLL(sys.argv[1])
second = nvrtc_search.find()
assert second.path is None
print(*second.loaded.version)
"""


def test_a_real_copy_is_found_and_found_again_once_it_is_loaded() -> None:
    load(INSTALLED[-1])
    path = wheels()[INSTALLED[-1]]
    printed = subprocess.run([sys.executable, "-c", USE, path], capture_output=True, text=True, check=True).stdout
    assert printed.split()[0] == str(INSTALLED[-1])
