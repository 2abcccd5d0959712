# SPDX-License-Identifier: Apache-2.0
"""Casts of blocks in kernels of Triton: its interpreter gives the bits of the reference; its compiler takes them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.peers

KERNELS = """
import sys
import numpy as np, torch, triton, triton.language as tl
import gpucast
from gpucast.interop.triton import decode, encode
from gpucast.parity import hard_values

@triton.jit
def there(x, codes, n, to: tl.constexpr, saturate: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(codes + i, encode(tl.load(x + i, i < n), to, saturate), i < n)

@triton.jit
def back(codes, x, n, of: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, decode(tl.load(codes + i, i < n), of), i < n)

SMALL = [kind for kind in gpucast.DTYPES if kind.family == "float" and kind.bits <= 16]
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


def run(script: str, folder: str, **variables: str) -> str:
    # A script's own file, because Triton reads the source of kernels.
    path = os.path.join(folder, "kernels.py")
    with open(path, "w") as file:
        file.write(script)
    environment = os.environ | variables | {"TRITON_CACHE_DIR": os.path.join(folder, "cache")}
    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_interpreter_gives_the_bits_of_the_reference(tmp_path: object) -> None:
    assert "9 types" in run(INTERPRETED, str(tmp_path), TRITON_INTERPRET="1")


def test_the_compiler_takes_them(tmp_path: object, exhaustive: bool) -> None:
    script = (
        COMPILED if exhaustive else COMPILED.replace("(80, 90, 100)", "(90,)").replace("in SMALL:", "in SMALL[-4::2]:")
    )
    assert "compiled" in run(script, str(tmp_path))
