# SPDX-License-Identifier: Apache-2.0
"""Casts in kernels of other compilers: Numba, Triton, cupyx.jit.

Their simulators and host builds give the bits of the reference; what they compile for a GPU is compiled and linked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.core.rule import resolve
from nvrtc_wheels import INSTALLED, load

# ---- scripts: a process of its own for each ----

SIMULATED = """
import numpy as np, gpucast
from numba import cuda
from gpucast.user_kernels.numba import cast

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
KERNELS = """
import sys
import numpy as np, torch, triton, triton.language as tl
import gpucast
from gpucast.user_kernels.triton import decode, encode
from gpucast.parity import hard_values

@triton.jit
def there(x, codes, n, to: tl.constexpr, saturate: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(codes + i, encode(tl.load(x + i, i < n), to, saturate), i < n)

@triton.jit
def back(codes, x, n, of: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, decode(tl.load(codes + i, i < n), of), i < n)

SMALL = [kind for kind in gpucast.DTYPES if kind.family == "float" and kind.signed and kind.bits <= 16]
"""
INTERPRETED = f"""{KERNELS}
FLOAT = gpucast.dtype("FLOAT")
BLOCK = 4096
for kind in SMALL:
    held = torch.uint8 if kind.bits <= 8 else torch.uint16
    words = hard_values.codes(FLOAT, kind, 1, 1 / 16, 2000)
    x = torch.from_numpy(words.view(np.float32).copy())
    for saturate in (True, False):
        codes = torch.zeros(x.numel(), dtype=held)
        there[(triton.cdiv(x.numel(), BLOCK),)](x, codes, x.numel(), kind.name, saturate, BLOCK)
        wanted = gpucast.reference.cast(x.numpy(), kind, saturate=saturate).view(kind.code_numpy)
        wrong = np.flatnonzero(codes.numpy() != wanted)
        assert not wrong.size, (kind, saturate, words[wrong[:3]], codes.numpy()[wrong[:3]], wanted[wrong[:3]])
    every = np.arange(1 << kind.bits, dtype=kind.code_numpy)
    found = torch.zeros(every.size)
    back[(triton.cdiv(every.size, BLOCK),)](torch.from_numpy(every), found, every.size, kind.name, BLOCK)
    wanted = gpucast.reference.cast(every.view(kind.numpy), "FLOAT")
    wrong = np.flatnonzero(found.numpy().view(np.uint32) != wanted.view(np.uint32))
    assert not wrong.size, (kind, every[wrong[:3]], found.numpy()[wrong[:3]], wanted[wrong[:3]])
print(len(SMALL), "types")
"""
COMPILED = f"""{KERNELS}
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
for capability in (80, 90, 100):
    for kind in SMALL:
        types = {{"x": "*fp32", "codes": "*u8" if kind.bits <= 8 else "*u16", "n": "i32"}}
        for kernel, more in ((there, {{"to": kind.name, "saturate": True}}), (back, {{"of": kind.name}})):
            constants = more | {{"BLOCK": 1024}}
            signature = {{name: types.get(name, "constexpr") for name in kernel.arg_names}}
            made = triton.compile(ASTSource(kernel, signature, constants), GPUTarget("cuda", capability, 32))
            assert ".entry" in made.asm["ptx"]
print("compiled")
"""
SHORT = COMPILED.replace("(80, 90, 100)", "(90,)").replace("in SMALL:", "in SMALL[-4::2]:")
#: The library that a script needs, its variables, and what it says at its end.
SCRIPTS: dict[str, tuple[str, str, dict[str, str], str]] = {
    "Numba's simulator": ("numba.cuda", SIMULATED, {"NUMBA_ENABLE_CUDASIM": "1"}, "simulator"),
    "Triton's interpreter": ("triton", INTERPRETED, {"TRITON_INTERPRET": "1"}, "9 types"),
    "Triton's compiler": ("triton", SHORT, {}, "compiled"),
}


@pytest.mark.peers
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str, tmp_path: Path, exhaustive: bool) -> None:
    library, script, variables, said = SCRIPTS[name]
    pytest.importorskip(library, reason=f"{library} is not installed")
    # A file of its own, because Triton reads the source of kernels.
    (tmp_path / "script.py").write_text(COMPILED if exhaustive and script is SHORT else script)
    environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "script.py")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert said in run.stdout


# ---- Numba ----


@pytest.mark.peers
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
def test_a_kernel_of_numba_is_linked(to: str, src: str | None, of: str, result: str) -> None:
    pytest.importorskip("numba.cuda")
    from cuda.bindings import nvjitlink
    from numba import cuda, types

    from gpucast.kernel import compiler
    from gpucast.user_kernels import numba

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


@pytest.mark.peers
def test_a_type_that_numba_has_not() -> None:
    pytest.importorskip("numba.cuda")
    from numba import cuda, types

    from gpucast.user_kernels.numba import cast

    def kernel(x: Any, y: Any) -> None:
        y[0] = cast(x[0], "float7")

    with pytest.raises(Exception, match="cast: to='float7' is not a dtype"):
        cuda.compile(kernel, (types.float32[::1], types.uint8[::1]), device=False, cc=(9, 0), abi="numba")


# ---- cupyx.jit: the text of the page becomes CUDA, which NVRTC takes with the headers of CuPy ----

PAGE = Path(__file__).parents[2] / "docs" / "building-blocks.md"


@pytest.mark.filterwarnings("ignore:cupyx.jit.rawkernel is experimental")
def test_the_page_of_cupyx_jit(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
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
