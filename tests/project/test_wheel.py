# SPDX-License-Identifier: Apache-2.0
"""What is installed: the wheel holds the package, its type marker, the kernels and the template of the report."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import gpucast

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_package_and_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    # Its hook builds the extension module, which takes a minute.
    environment = os.environ | {"HATCH_BUILD_NO_HOOKS": "true"}
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
    (wheel,) = tmp_path.glob("gpucast-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    kernels = {f"gpucast/{path.relative_to(ROOT)}" for path in (ROOT / "kernels").rglob("*.*")}
    suffixes = {".py", ".hpp", ".html"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gpucast").rglob("*") if path.suffix in suffixes}
    assert kernels and modules
    assert kernels | modules | {"gpucast/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert gpucast.__version__ in wheel.name


def test_the_base_package_needs_numpy_and_ml_dtypes_only() -> None:
    needed = importlib.metadata.requires("gpucast") or []
    base = {text.split(">")[0].replace("-", "_") for text in needed if "extra ==" not in text}
    assert base == {"numpy", "ml_dtypes"}
    extras = set(importlib.metadata.metadata("gpucast").get_all("Provides-Extra") or [])
    assert {"cuda12", "cuda13", "test", "bench", "fast", "onnx"} <= extras
    for major, other in (("cuda12", "cuda13"), ("cuda13", "cuda12")):
        wanted = [text for text in needed if f"extra == '{major}'" in text or f'extra == "{major}"' in text]
        assert any(f"cupy-{major}x" in text for text in wanted) and not any(f"cupy-{other}x" in text for text in wanted)
        assert sum("nvidia-cuda-" in text for text in wanted) == 2
