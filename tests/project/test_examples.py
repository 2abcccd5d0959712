# SPDX-License-Identifier: Apache-2.0
"""examples/fused_cast.py, compiled for GPUs. (digits.py is the demo.)"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import gpucast

PROBLEM = gpucast.device.unavailable()


@pytest.fixture
def fused_cast() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "examples" / "fused_cast.py"
    spec = importlib.util.spec_from_file_location("fused_cast", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_without_a_gpu_it_compiles(
    fused_cast: ModuleType, arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpucast.device, "unavailable", lambda: ("there is no NVIDIA driver", "install one"))
    assert fused_cast.main(["--arch", arch]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("No GPU: there is no NVIDIA driver. The kernel is compiled, but not run.\n\n__device__ ")
    assert "unsigned char gpucast_float32_to_float8e4m3fn(float value) {\n" in out
    assert out.count("__device__") == 1
    assert "scaled_cast(const float* xs" in out
    size, rest = out.splitlines()[-1].split(" ", 1)
    assert (int(size.replace(",", "")) > 1000, rest) == (True, f"bytes for {arch}")


def test_it_says_what_is_wrong(
    fused_cast: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpucast.device, "unavailable", lambda: ("there is no NVIDIA driver", "install one"))
    assert fused_cast.main(["--arch", "sm_9"]) == 1
    assert capsys.readouterr().err.startswith("fused_cast: 'sm_9' is not an architecture that gpucast compiles for")


@pytest.mark.gpu
@pytest.mark.skipif(
    PROBLEM is not None, reason=f"tests/codegen/test_device_function.py runs the function on the host: {PROBLEM}"
)
def test_on_a_gpu(fused_cast: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert fused_cast.main([]) == 0
    assert "16,777,216 elements, 0 differ" in capsys.readouterr().out
