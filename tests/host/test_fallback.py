# SPDX-License-Identifier: Apache-2.0
"""Without the extension module: the same bits by the reference, one warning, and the reason where users look."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucast.core.extension import MODULE

ROOT = Path(__file__).resolve().parents[2]
WORK = """
import warnings
import numpy as np
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import gpucast
    assert not said, "importing says nothing"
    x = np.array([[0.1, 464.0, 1e9, -np.inf, np.nan, 1e-45], [1, -2, 3, 300.5, 2.0**40, -0.0]], np.float32)
    amax, flag = np.zeros((), np.float32), np.ones((), bool)
    results = [gpucast.cast(x, to) for to in gpucast.DTYPES]
    results += [gpucast.cast(x.T, "FLOAT16"), gpucast.cast(x[:, ::-2], "INT8", overflow="saturate")]
    results += [gpucast.cast(x, "FLOAT8E5M2", scale=0.5, amax=amax), amax]
    results += [gpucast.cast(x, "BFLOAT16", rounding="stochastic", seed=7)]
    results += gpucast.cast_many([x, x[0]], "FLOAT16", scale=2.0, finite=flag) + [flag]
    packed = gpucast.PackedArray.pack(gpucast.cast(x, "INT4"))
    results += [packed.data, gpucast.cast(packed, "FLOAT"), gpucast.cast(np.array(["1e-3", "inf"]), "FLOAT16")]
    for name in ("mxfp4", "nvfp4", "int8_zp_axis", "float8e4m3fn_tensor"):
        q = gpucast.quantize(x, name)
        results += [np.asarray(q.scales), gpucast.dequantize(q)]
    assert gpucast.cast(x, "FLOAT16", out=np.empty(x.shape, np.float16)).shape == x.shape
print("|".join(np.asarray(y).tobytes().hex() if y.dtype != object else repr(y.tolist()) for y in results))
print("\\n".join(str(one.message) for one in said))
"""


def run(code: str, **variables: str) -> list[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip().split("\n")


def test_the_reference_does_the_work_and_says_so_once() -> None:
    results, *said = run(WORK, GPUCAST_NO_HOST="1")
    assert len(said) == 1
    assert said[0].startswith("gpucast: casts on the host are slow, by the reference: GPUCAST_NO_HOST=1 is set")
    for level in () if MODULE is None else MODULE.LEVELS:
        assert run(WORK, GPUCAST_HOST_LEVEL=level) == [results]


@pytest.mark.skipif(MODULE is None, reason="the extension module could not be built here")
def test_levels_that_are_not_there() -> None:
    code = "from gpucast.core import extension; print(extension.status())"
    (line,) = run(code, GPUCAST_HOST_LEVEL="x86-64-v9")
    assert "GPUCAST_HOST_LEVEL=x86-64-v9 is not a level that is built and that this processor has" in line
    assert "-m gpucast.host.build" in line
    (line,) = run(code, GPUCAST_HOST_LEVEL=MODULE.LEVEL)
    assert line.startswith(f"compiled for {MODULE.LEVEL} (built: ")


@pytest.mark.skipif(MODULE is None, reason="there is no module")
def test_a_module_of_other_sources_counts_as_missing() -> None:
    code = """
import sys, types
module = types.ModuleType("gpucast._host")
sys.modules["gpucast._host"] = module
import gpucast
gpucast._host = module
from gpucast.core.extension import MODULE, status
assert MODULE is None
print(status())
"""
    (said,) = run(code)
    assert "the extension module is missing (it was built from other sources than these); with a C++ compiler" in said
