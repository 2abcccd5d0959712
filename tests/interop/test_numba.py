# SPDX-License-Identifier: Apache-2.0
"""Casts in kernels of numba-cuda: its simulator gives the bits of `gpucast.cast`, and what it compiles is linked."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import gpucast
from gpucast.core.rule import resolve

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
pytestmark = pytest.mark.peers

SIMULATED = """
import numpy as np, gpucast
from numba import cuda
from gpucast.interop.numba import cast

@cuda.jit
def there(x, codes):
    i = cuda.grid(1)
    if i < x.size:
        codes[i] = cast(x[i], "FLOAT8E4M3FN")

@cuda.jit
def back(codes, x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = cast(codes[i], "FLOAT", "FLOAT8E4M3FN")

@cuda.jit
def rounded(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = cast(x[i], "FLOAT16")

x = np.random.default_rng(0).standard_normal(200).astype(np.float32) * 300
codes, again, half = np.zeros(200, np.uint8), np.zeros(200, np.float32), np.zeros(200, np.float16)
there[7, 32](x, codes)
back[7, 32](codes, again)
rounded[7, 32](x, half)
wanted = gpucast.cast(x, "FLOAT8E4M3FN")
assert np.array_equal(codes, wanted.view(np.uint8))
assert np.array_equal(again, gpucast.cast(wanted, "FLOAT"))
assert np.array_equal(half, gpucast.cast(x, "FLOAT16"))
print("ran in", type(there).__module__)
"""


def test_the_simulator_casts() -> None:
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    run = subprocess.run(
        [sys.executable, "-c", SIMULATED], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "simulator" in run.stdout


@pytest.mark.parametrize(
    ("to", "src", "of", "result"),
    [
        ("FLOAT8E4M3FN", None, "float32", "uint8"),
        ("FLOAT", "FLOAT8E4M3FN", "uint8", "float32"),
        ("FLOAT16", None, "int64", "float16"),
        ("BOOL", None, "float16", "boolean"),
        ("BFLOAT16", None, "boolean", "uint16"),
    ],
)
def test_a_kernel_is_compiled_and_linked(to: str, src: str | None, of: str, result: str) -> None:
    from cuda.bindings import nvjitlink
    from numba import cuda, types

    from gpucast.compile import compiler
    from gpucast.interop import numba

    cast = numba.cast

    def kernel(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            y[i] = cast(x[i], to) if src is None else cast(x[i], to, src)

    signature = getattr(types, of)[::1], getattr(types, result)[::1]
    ptx, _ = cuda.compile(kernel, signature, device=False, cc=(9, 0), abi="numba")
    source = of.replace("boolean", "bool") if src is None else src
    name, code = numba._source(resolve(gpucast.dtype(source), gpucast.dtype(to)))
    assert f".extern .func  (.param .b32 func_retval0) {name}" in ptx
    nvrtc = compiler.compiler()._load()
    function = nvrtc.compile(code.data, name, "compute_90", ("--std=c++17", "--relocatable-device-code=true")).code
    linker = nvjitlink.create(1, ["-arch=sm_90"])
    for text, of_what in ((ptx.encode(), "kernel"), (function.rstrip(b"\0"), "function")):
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text, len(text), of_what)
    nvjitlink.complete(linker)
    assert nvjitlink.get_linked_cubin_size(linker) > 1000
    nvjitlink.destroy(linker)


def test_a_type_that_there_is_not() -> None:
    from numba import cuda, types

    from gpucast.interop.numba import cast

    def kernel(x: Any, y: Any) -> None:
        y[0] = cast(x[0], "float7")

    with pytest.raises(Exception, match="cast: to='float7' is not a dtype"):
        cuda.compile(kernel, (types.float32[::1], types.uint8[::1]), device=False, cc=(9, 0), abi="numba")
