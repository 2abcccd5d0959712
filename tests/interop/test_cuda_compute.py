# SPDX-License-Identifier: Apache-2.0
"""Casts in cuda.compute: operators give the bits of the reference as host code, and link with its iterators' code.

Importing cuda.compute needs CUDA's driver library. An empty one stands for it: what runs here calls none of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucast.parity import host_build

pytest.importorskip("cuda.cccl", reason="cuda-cccl is not installed")
pytestmark = pytest.mark.peers

HEAD = """
import ctypes, os, sys
sys.setdlopenflags(os.RTLD_LAZY)
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import ml_dtypes, numpy as np
import gpucast
from cuda.compute import CountingIterator
from gpucast.interop import cuda_compute
from gpucast.interop.cuda_compute import CastIterator, CastOutputIterator, cast_op

class Array:
    def __init__(self, x):
        self.x, self.dtype = x, x.dtype
        strides = None if x.flags.c_contiguous else x.strides
        self.__cuda_array_interface__ = {
            "shape": x.shape, "typestr": x.dtype.str, "data": (x.ctypes.data, False), "strides": strides, "version": 3}
"""

OPERATORS = """
from pathlib import Path
from codes import every_code
from functions_on_host import build

for src, dst, attributes, packed in (
    ("FLOAT16", "FLOAT8E5M2", {"saturate": False}, False),
    ("BOOL", "BFLOAT16", {}, False),
    ("FLOAT4E2M1", "DOUBLE", {}, False),
    ("INT4", "FLOAT", {}, True),
    ("UINT2", "BOOL", {}, True),
):
    kind, to = gpucast.dtype(src), gpucast.dtype(dst)
    x = every_code(kind).view(kind.numpy)
    found = cuda_compute._source(src, dst, attributes, packed, "test")
    held = gpucast.PackedArray.pack(x).data if packed else x
    first = "&x, &i" if packed else f"x + i * {x.itemsize}"
    loop = f'extern "C" void run(char* x, char* y, long long n) {{'
    loop += f"for (long long i = 0; i < n; ++i) {found.name}({first}, y + i * {to.numpy.itemsize}); }}"
    y = np.empty(x.size, to.code_numpy)
    build(found.text + loop, Path(sys.argv[2])).run(
        ctypes.c_void_p(held.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_longlong(x.size))
    assert np.array_equal(y, gpucast.reference.cast(x, dst, **attributes).view(to.code_numpy)), found.name
print("as the reference")
"""

ITERATORS = """
from cuda.bindings import nvjitlink
from cuda.compute._target_cc import target_cc

codes = Array(np.zeros(8, np.uint8))
small = Array(np.zeros(8, ml_dtypes.float8_e4m3fn))
readers = [
    CastIterator(codes, "FLOAT", "FLOAT8E4M3FN", arch="sm_90"),
    CastIterator(small, "BFLOAT16", arch="sm_90") + 3,
    CastIterator(codes, "FLOAT16", "INT4", packed=True, arch="sm_90"),
    CastIterator(CountingIterator(np.int32(5)), "FLOAT8E5M2", arch="sm_90"),
]
writers = [CastOutputIterator(small, "BFLOAT16", arch="sm_90")]
types = [str(one.value_type.dtype) for one in (*readers, *writers)]
assert types == ["float32", "bfloat16", "float16", "uint8", "bfloat16"]
assert bytes(readers[2].state)[8:] == codes.x.ctypes.data.to_bytes(8, "little")
with target_cc(90):
    for one in (*readers, *writers):
        ops = [one.get_advance_op(), one.get_output_deref_op() if one in writers else one.get_input_deref_op()]
        declared = "".join(f'extern "C" __device__ void {op.name}(void*, void*);' for op in ops)
        calls = "".join(f"{op.name}(x, y);" for op in ops)
        kernel = declared + 'extern "C" __global__ void kernel(void* x, void* y) {' + calls + "}"
        linker = nvjitlink.create(2, ["-arch=sm_90", "-lto"])
        parts = {cuda_compute._compiled(kernel, "sm_90"): None}
        for op in ops:
            parts |= dict.fromkeys(bytes(part) for part in (op.code.op_bytes, *(c.op_bytes for c in op.extra_code)))
        for part in parts:
            nvjitlink.add_data(linker, nvjitlink.InputType.LTOIR, part, len(part), "part")
        nvjitlink.complete(linker)
        assert nvjitlink.get_linked_cubin_size(linker) > 500
        nvjitlink.destroy(linker)
for wrong, arguments in ((np.zeros(8, np.uint8), {}), (Array(np.zeros(8, np.uint8)[::2]), {})):
    try:
        CastIterator(wrong, "FLOAT", "INT8", arch="sm_90")
        raise SystemExit("taken")
    except TypeError as error:
        assert "not a contiguous array on a device" in str(error)
print("linked")
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    library = tmp_path / "libcuda.so.1"
    (tmp_path / "empty.c").touch()
    command = [*host_build.compiler(), "-shared", f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run([*command, str(tmp_path / "empty.c")], check=True)
    return library


@pytest.mark.parametrize(("script", "said"), [(OPERATORS, "as the reference"), (ITERATORS, "linked")])
def test_casts_of(script: str, said: str, driver: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", HEAD + script, str(driver), str(tmp_path)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, said + "\n"), run.stdout + run.stderr
