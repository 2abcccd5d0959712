# SPDX-License-Identifier: Apache-2.0
"""What is installed: the wheel holds the package, its type marker, the kernels and the template of the report."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

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


def test_the_source_package_holds_what_a_checkout_does_and_no_machine_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (package,) = tmp_path.glob("gpucast-*.tar.gz")
    with tarfile.open(package) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "gpucast/host/hatch_hook.py", "kernels/host/module.cpp", "tests/conftest.py", ".ci/run"}
    assert wanted <= names
    assert not [name for name in names if name.endswith((".so", ".pyd", ".pyc")) or "_host_missing" in name]


def test_the_base_package_needs_numpy_and_ml_dtypes_only() -> None:
    needed = importlib.metadata.requires("gpucast") or []
    base = {text.split(">")[0].replace("-", "_") for text in needed if "extra ==" not in text}
    assert base == {"numpy", "ml_dtypes"}
    extras = set(importlib.metadata.metadata("gpucast").get_all("Provides-Extra") or [])
    assert {"cuda12", "cuda13", "test", "bench", "onnx"} <= extras
    for major, other in (("cuda12", "cuda13"), ("cuda13", "cuda12")):
        wanted = [text for text in needed if f"extra == '{major}'" in text or f'extra == "{major}"' in text]
        assert any(f"cupy-{major}x" in text for text in wanted) and not any(f"cupy-{other}x" in text for text in wanted)
        assert sum("nvidia-cuda-" in text for text in wanted) == 2


# ---- what a user's type checker and completion see ----

#: A user's script. The checkers have to refuse the lines that end in "# refused", and no others.
SCRIPT = """
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import gpucast

x = np.ones((2, 32), np.float32)
assert_type(gpucast.cast(x, "FLOAT16"), npt.NDArray[Any])
assert_type(gpucast.cast([1.0, 2.0], np.int8, overflow="saturate", device="cpu"), npt.NDArray[Any])
assert_type(gpucast.cast(x, "FLOAT16", out=np.empty((2, 32), np.float16)), npt.NDArray[Any])
assert_type(gpucast.cast(1.5, 10), npt.NDArray[Any])
assert_type(gpucast.cast_like(x, x), npt.NDArray[Any])
assert_type(gpucast.cast(x, "FLOAT16", device="cuda"), Any)
assert_type(gpucast.empty(3, "BFLOAT16"), npt.NDArray[Any])
assert_type(gpucast.quantize(x, "mxfp4"), gpucast.Quantized)
assert_type(gpucast.quantize(x, "mxfp4", transpose="both"), tuple[gpucast.Quantized, gpucast.Quantized])
assert_type(gpucast.dtype("FLOAT"), gpucast.DType)
assert_type(gpucast.finfo("FLOAT").max, float)
assert_type(gpucast.PackedArray.pack(gpucast.cast(x, "INT4")).get(), np.ndarray[Any, Any])
gpucast.mixed.get_policy("p=f32,c=bf16")
gpucast.cast(x, "INT8", rounding="neerest")  # refused
gpucast.cast(x, "INT8", overflow="clamp")  # refused
gpucast.cast(x, "FLOAT8E8M0", round_mode="upwards")  # refused
gpucast.cast(x, "INT8", roundng="truncate")  # refused
gpucast.cast_many([x], "INT8", rounding="neerest")  # refused
gpucast.cast_like(x, x, overflow="clamp")  # refused
gpucast.quantize(x, "mxfp4", transpose="twice")  # refused
gpucast.layers.Cast("FLOAT8E8M0", round_mode="upwards")  # refused
gpucast.cast_everything(x)  # refused
"""


def test_dir_is_the_public_names() -> None:
    names = dir(gpucast)
    assert names == sorted([*gpucast.__all__, "__version__"])
    assert {"quantize", "dequantize", "mixed", "layers", "cast_many"} <= set(names)
    for name in names:
        getattr(gpucast, name)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


REFUSED = {number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# refused")}


def test_mypy_knows_the_kinds_of_results(script: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--ignore-missing-imports", script.name]
    # Of the package only what the script names is reported on; its own check is another one.
    command += ["--no-error-summary", "--follow-imports=silent", f"--cache-dir={script.parent / 'cache'}"]
    done = _run(command, script)
    found = [line.split(":") for line in done.splitlines() if ": error:" in line]
    assert {int(number) for _, number, *_ in found} == REFUSED, done


def test_pyright_knows_the_kinds_of_results(script: Path) -> None:
    pytest.importorskip("pyright", reason="pyright is not installed")
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "strict", "reportMissingModuleSource": False}
    script.with_name("pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    done = _run([sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, script.name], script)
    found = [one for one in json.loads(done)["generalDiagnostics"] if one["severity"] == "error"]
    errors = [one for one in found if not one.get("rule", "").startswith("reportUnknown")]
    assert {one["range"]["start"]["line"] + 1 for one in errors} == REFUSED, done


def _run(command: list[str], script: Path) -> str:
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, env=environment, check=False)
    return done.stdout or done.stderr
