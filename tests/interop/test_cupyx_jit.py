# SPDX-License-Identifier: Apache-2.0
"""Casts in kernels of cupyx.jit: the page's text becomes CUDA, which NVRTC takes with CuPy's headers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvrtc_wheels import INSTALLED, load

cupy = pytest.importorskip("cupy")

PAGE = Path(__file__).parents[2] / "docs" / "building-blocks.md"


@pytest.mark.filterwarnings("ignore:cupyx.jit.rawkernel is experimental")
def test_the_pages_kernel_compiles(tmp_path: Path) -> None:
    from cupyx.jit import _compile, _cuda_types

    # In a file, which cupyx.jit reads functions from.
    [text] = re.findall(r"```py\n(.*?)```", PAGE.read_text("utf-8").partition("## In cupyx.jit")[2], re.DOTALL)[:1]
    (tmp_path / "page.py").write_text(text)
    spec = importlib.util.spec_from_file_location("page", tmp_path / "page.py")
    assert spec is not None and spec.loader is not None
    page: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    types = (_cuda_types.CArray(np.dtype("uint8"), 1, True, True), _cuda_types.Scalar(np.dtype("float32")))
    found = _compile.transpile(page.scale._func, ['extern "C"', "__global__"], "cuda", types, _cuda_types.void)
    call = "gpucast_float32_to_float8e4m3fn((gpucast_float8e4m3fn_to_float32(codes[i]) * factor))"
    assert f"codes[i] = {call};" in found.code
    headers, nvidia = Path(cupy.__file__).parent / "_core" / "include", Path(cupy.__file__).parents[1] / "nvidia"
    cuda = {12: nvidia / "cuda_runtime" / "include", 13: nvidia / "cu13" / "include"}
    majors = [major for major in INSTALLED if (cuda[major] / "cuda_fp16.h").exists()]
    if not majors:
        pytest.skip("the headers of CUDA's runtime are not installed")
    folders = (headers, *(headers / "cupy" / "_cccl").iterdir(), cuda[majors[0]])
    options = (*found.options, "--device-as-default-execution-space", *(f"-I{folder}" for folder in folders))
    ptx = load(majors[0]).compile(found.code, "scale", "compute_90", options).code
    assert b"cvt.rn.satfinite.e4m3x2.f32" in ptx and b"cvt.rn.f16x2.e4m3x2" in ptx
