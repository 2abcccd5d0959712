# SPDX-License-Identifier: Apache-2.0
"""examples/fused_cast.py: compiled for GPUs, and carried out on the host as far as it goes. (digits.py is the demo.)"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import functions_on_host
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
@pytest.mark.skipif(PROBLEM is not None, reason=f"the next test runs it on the host: {PROBLEM}")
def test_on_a_gpu(fused_cast: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert fused_cast.main([]) == 0
    assert "16,777,216 elements, 0 differ" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [False, True])
def test_what_it_does_on_a_gpu(
    fused_cast: ModuleType,
    wrong: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a stand-in for CuPy that builds element-wise kernels for the host."""

    def elementwise(taken: str, given: str, operation: str, name: str, preamble: str) -> Callable[..., Any]:
        assert (taken, given) == ("float32 x, float32 scale", "uint8 code")
        loop = f"""
extern "C" void {name}(const float* xs, float scale, unsigned char* codes, long n) {{
    for (long i = 0; i < n; ++i) {{ const float& x = xs[i]; unsigned char& code = codes[i]; {operation}; }}
}}
"""
        function = functions_on_host.build(preamble + loop, tmp_path)[name]

        def kernel(x: np.ndarray, scale: np.float32) -> np.ndarray:
            codes = np.empty(x.shape, np.uint8)
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, codes)]
            function(pointers[0], ctypes.c_float(scale * (2 if wrong else 1)), pointers[1], ctypes.c_long(x.size))
            return codes

        return kernel

    def benchmark(call: Callable[[], object], n_repeat: int) -> Any:
        call()
        return SimpleNamespace(gpu_times=np.full((1, n_repeat), 3e-6))

    class NoArray:
        pass

    cupy = SimpleNamespace(ElementwiseKernel=elementwise, asarray=np.asarray, asnumpy=np.asarray, ndarray=NoArray)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupyx.profiler", SimpleNamespace(benchmark=benchmark))
    monkeypatch.setattr(gpucast.device, "unavailable", lambda: None)
    assert fused_cast.main([]) == int(wrong)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("16,777,216 elements, ")
    assert lines[0].endswith(" differ from gpucast.cast")
    assert (int(lines[0].split()[2]) > 1e6) == wrong
    assert lines[1:] == ["scale, then cast        3.0 us", "fused                   3.0 us"]
