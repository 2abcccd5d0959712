# SPDX-License-Identifier: Apache-2.0
"""The six kernels of docs/building-blocks.md: by NVRTC, and as host code, a thread for a thread, beside NumPy."""

from __future__ import annotations

import ctypes
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import codes_of, values
from gpucast.parity import host_build
from nvrtc_wheels import INSTALLED, load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "building-blocks.md"
KERNELS = ("GEMV", "SOFTMAX", "KV_CACHE", "GATHER", "UPDATE", "REDUCE")
TARGETS = ("sm_80", "sm_90", "sm_100")
WIDER = ("sm_75", "sm_86", "sm_89", "sm_100a", "sm_120", "sm_120a")
THREADS = 32
#: Before the text: the threads of a block run at the same time, and wait for each other.
BEFORE = """
#include <pthread.h>
#include <thread>
#include <vector>
static pthread_barrier_t barrier;
#define GPUCAST_THREAD_LOCAL thread_local
#define GPUCAST_BARRIER() pthread_barrier_wait(&barrier)
"""
#: A launch of each kernel.
AFTER = """
extern "C" void launch_NAME(ARGUMENTS, unsigned blocks, unsigned threads) {
    pthread_barrier_init(&barrier, nullptr, threads);
    for (unsigned block = 0; block < blocks; ++block) {
        std::vector<std::thread> running;
        for (unsigned i = 0; i < threads; ++i) running.emplace_back([=] {
            blockIdx.x = block; threadIdx.x = i; blockDim.x = threads; gridDim.x = blocks;
            NAME(NAMES);
        });
        for (std::thread& one : running) one.join();
    }
    pthread_barrier_destroy(&barrier);
}
"""


@cache
def page() -> dict[str, str]:
    """The texts of the page, by their names."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        exec(block, names)
    return {name: names[name] for name in ("CASTS", "REDUCTION", *KERNELS)}


def signature(text: str) -> tuple[str, str]:
    """The name of a kernel and its parameters."""
    name, parameters = re.findall(r"void (\w+)\(([^{]*)\) \{", text)[0]
    return name, " ".join(parameters.split())


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a kernel on arrays and numbers: the host build of the page."""
    folder = tmp_path_factory.mktemp("cookbook")
    text = "".join(page().values())
    for name in KERNELS:
        kernel, parameters = signature(page()[name])
        names = ", ".join(re.findall(r"(\w+)(?:,|$)", re.sub(r"<[^>]*>", "", parameters)))
        text += AFTER.replace("ARGUMENTS", parameters).replace("NAMES", names).replace("NAME", kernel)
    (folder / "page.cpp").write_text(BEFORE + text)
    options = ["-std=c++17", "-O0", "-w", "-fPIC", "-shared", "-pthread", "-o", str(folder / "page.so")]
    subprocess.run([*host_build.compiler(), *options, str(folder / "page.cpp")], check=True)
    library = ctypes.CDLL(str(folder / "page.so"))

    def run(name: str, blocks: int, *arguments: Any) -> None:
        given = [ctypes.c_void_p(one.ctypes.data) if isinstance(one, np.ndarray) else one for one in arguments]
        library[f"launch_{name}"](*given, blocks, THREADS)

    return run


@pytest.mark.parametrize("major", INSTALLED)
def test_nvrtc_compiles_them(major: int, exhaustive: bool) -> None:
    for name in KERNELS:
        assert page()[name].strip().count("\n") <= 20
    for arch in (*TARGETS, *WIDER) if exhaustive else TARGETS[major % 2 :: 2]:
        assert not load(major).compile("".join(page().values()), "cookbook", arch, ("--std=c++17",)).log


def floats(shape: int | tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_gemv(launch: Any) -> None:
    w, scales, x = gpucast.cast(floats((5, 264), 1), "FLOAT8E4M3FN"), floats(5, 2), floats(264, 3)
    y = np.zeros(5, np.float32)
    launch("gemv", 5, w, scales, x, y, 264)
    np.testing.assert_allclose(y, scales * (w.astype(np.float32) @ x), rtol=1e-4, atol=1e-5)


def test_softmax(launch: Any) -> None:
    x, codes = floats((4, 264), 1) * 3, np.zeros((4, 264), np.uint8)
    launch("softmax", 4, x, codes, 264)
    e = np.exp(x.astype(np.float64))
    wanted = codes_of(gpucast.cast(448 * e / e.sum(1, keepdims=True), "FLOAT8E4M3FN"), gpucast.dtype("FLOAT8E4M3FN"))
    # Sums and exponentials of FLOAT move few numbers across the middle of two codes.
    assert np.abs(codes.astype(int) - wanted).max() <= 1 and (codes == wanted).mean() > 0.99


def test_kv_cache(launch: Any) -> None:
    keys, slots = gpucast.cast(floats((3, 136), 1), "BFLOAT16"), np.array([4, -1, 0])
    cache = np.zeros((6, 136), np.uint8)
    launch("write_kv", 3, keys, slots, cache, ctypes.c_float(0.3), 136)
    wanted = np.zeros_like(cache)
    wanted[[4, 0]] = gpucast.cast(keys[[0, 2]].astype(np.float32) * np.float32(0.3), "FLOAT8E4M3FN").view(np.uint8)
    assert np.array_equal(cache, wanted)


def test_gather(launch: Any) -> None:
    table, scales, rows = values("INT4", (7, 136)), floats(7, 2), np.array([6, 0, 6, 3], np.int32)
    out = np.zeros((4, 136), np.float16)
    launch("gather", 4, gpucast.PackedArray.pack(table).data, scales, rows, out, 136)
    assert np.array_equal(out, (table[rows].astype(np.float32) * scales[rows][:, None]).astype(np.float16))


def test_update(launch: Any) -> None:
    w, g, n = gpucast.cast(floats(260, 1), "BFLOAT16"), floats(260, 2), 260
    rate = np.float32(1e-3)
    wanted = gpucast.cast(w.astype(np.float32) - rate * g, "BFLOAT16", rounding="stochastic", seed=9, offset=3)
    launch("update", 3, w, g, ctypes.c_float(rate), ctypes.c_ulonglong(9), ctypes.c_ulonglong(3), n)
    assert w.tobytes() == wanted.tobytes()


def test_reduce(launch: Any) -> None:
    codes, sums = gpucast.cast(floats(1000, 1), "FLOAT8E5M2"), np.zeros(2, np.float32)
    launch("square_sum", 2, codes, sums, 1000)
    np.testing.assert_allclose(sums.sum(), (codes.astype(np.float64) ** 2).sum(), rtol=1e-5)
