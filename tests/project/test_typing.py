# SPDX-License-Identifier: Apache-2.0
"""What a user's type checker and completion see of gpucast: the public names, and the kinds of results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpucast

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
#: Where the checkers find the package: an editable install they cannot follow.
ROOT = Path(gpucast.__file__).parent.parent


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
