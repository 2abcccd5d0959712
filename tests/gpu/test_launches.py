# SPDX-License-Identifier: Apache-2.0
"""Launches of the real `CupyDriver` in threads, on streams, interrupted and failing; only CUDA itself is replaced."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
import pytest

import gpucast
from bench import idle_cuda
from fake_cuda import Cuda, arrays
from gpucast.core.dtypes import dtype
from gpucast.core.extension import WHY_NOT
from gpucast.core.rule import resolve
from gpucast.kernel import driver, nvidia
from gpucast.kernel.fused_kernel import cast_kernel


@pytest.fixture(params=["by the module", "by CuPy"])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    if request.param == "by CuPy":
        monkeypatch.setattr(driver, "MODULE", None)
    elif driver.MODULE is None:
        pytest.skip(f"the extension module is missing: {WHY_NOT}")
    with Cuda().in_use() as fake:
        yield fake


def test_two_threads_on_two_streams_at_once(cuda: Cuda) -> None:
    """Each launch has its own arguments until CUDA has read them, and its thread's stream and context."""
    x, out = arrays()
    gpucast.cast(x, "FLOAT16", out=out)
    cuda.launches.clear()
    cuda.before_reading = lambda: time.sleep(0.0005)
    wanted = set()
    start = threading.Barrier(4)

    def work(stream: int, x: Any, out: Any) -> None:
        cuda.use_stream(stream)
        start.wait()
        for _ in range(30):
            gpucast.cast(x, "FLOAT16", out=out)

    threads = []
    held = []
    for stream in range(1, 5):
        held.append(arrays(100 * stream))
        x, out = held[-1]
        wanted.add((stream, x.data.ptr, 0, out.data.ptr, 100 * stream))
        threads.append(threading.Thread(target=work, args=(stream, x, out)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = Counter((one.stream, one.src, one.src_bit, one.dst, one.n) for one in cuda.launches)
    assert seen == dict.fromkeys(wanted, 30)


def test_the_context_is_bound_once_in_each_thread(cuda: Cuda) -> None:
    x, out = arrays()
    gpucast.cast(x, "FLOAT16", out=out)
    before = dict(cuda.bound)
    for _ in range(5):
        gpucast.cast(x, "FLOAT16", out=out)
    # CuPy's way binds it for every launch.
    is_module = driver.MODULE is not None
    assert (cuda.bound == before) == is_module
    thread = threading.Thread(target=lambda: [gpucast.cast(x, "FLOAT16", out=out) for _ in range(5)])
    thread.start()
    thread.join()
    assert len(cuda.launches) == 11
    assert min(cuda.bound.values()) == (1 if is_module else 5) and len(cuda.bound) == 2


def test_a_launch_that_another_one_interrupts(cuda: Cuda) -> None:
    """As when a finalizer casts while the arguments lie ready."""
    x, out = arrays(100)
    inner_x, inner_out = arrays(7)
    gpucast.cast(x, "FLOAT16", out=out)
    cuda.launches.clear()

    def interrupt() -> None:
        cuda.before_reading = lambda: None
        gpucast.cast(inner_x, "FLOAT16", out=inner_out)

    cuda.before_reading = interrupt
    gpucast.cast(x, "FLOAT16", out=out)
    assert [(one.src, one.dst, one.n) for one in cuda.launches] == [
        (inner_x.data.ptr, inner_out.data.ptr, 7),
        (x.data.ptr, out.data.ptr, 100),
    ]


def test_a_launch_that_fails_does_no_harm(cuda: Cuda) -> None:
    x, out = arrays()
    gpucast.cast(x, "FLOAT16", out=out)
    cuda.error = 700  # CUDA_ERROR_ILLEGAL_ADDRESS.
    for _ in range(3):
        with pytest.raises(RuntimeError, match="CUresult 700"):
            gpucast.cast(x, "FLOAT16", out=out)
    cuda.error = 0
    assert gpucast.cast(x, "FLOAT16", out=out) is out
    assert cuda.launches[-1].n == 100


def test_no_block_is_without_work(cuda: Cuda) -> None:
    """The first tile begins before an array only where that is not aligned."""
    source = cast_kernel(resolve(dtype("FLOAT"), dtype("FLOAT16")))
    n = 3 * source.block
    x, out = arrays(n + 16)
    for first, blocks in ((0, 3), (16, 3), (1, 4)):
        for count, more in ((n, 0), (n - source.block, -1)):
            gpucast.cast(x[first:][:count], "FLOAT16", out=out[first:][:count])
            assert cuda.launches[-1].blocks == blocks + more


@pytest.mark.parametrize("older", [False, True], ids=["cuFuncLoad", "before CUDA 12.4"])
def test_a_kernel_is_loaded_before_its_first_launch(monkeypatch: pytest.MonkeyPatch, older: bool) -> None:
    """CUDA loads functions late, and a launch that loads cannot be captured."""
    from cupy_backends.cuda.api import driver as of_cupy

    done: list[Any] = []
    calls = dict(launch_kernel=lambda *_: done.append("launch") or 0, module_function=lambda *_: 77)
    with idle_cuda.idle(load=lambda function: done.append(function) or 0, **calls):
        if older:
            found = nvidia.function
            monkeypatch.setattr(nvidia, "function", lambda name: 0 if name == "cuFuncLoad" else found(name))
            monkeypatch.setattr(of_cupy, "funcGetAttribute", lambda *given: done.append(given))
        x, out = arrays()
        gpucast.cast(x, "FLOAT16", out=out)
    assert done == [(of_cupy.CU_FUNC_ATTRIBUTE_NUM_REGS, 77) if older else 77, "launch"]
    monkeypatch.undo()
    with idle_cuda.idle(load=lambda function: 2, **calls), pytest.raises(RuntimeError, match="CUresult 2"):
        gpucast.cast(x, "FLOAT16", out=out)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("to", ["FLOAT16", "FLOAT8E4M3FN", "INT4"])
def test_a_device_that_is_full(to: str, warm: bool, cuda: Cuda) -> None:
    """The error is CuPy's own, nothing is kept, and the next call works."""
    x = idle_cuda.array((100,), np.float32)
    if warm:
        gpucast.cast(x, to)
    launches = len(cuda.launches)
    cuda.full = cupy.cuda.memory.OutOfMemoryError(512, 10, 0)
    for _ in range(2):
        with pytest.raises(MemoryError, match="Out of memory allocating 512 bytes"):
            gpucast.cast(x, to)
    assert len(cuda.launches) == launches
    cuda.full = None
    assert gpucast.cast(x, to).shape == (100,) and len(cuda.launches) == launches + 1
    given = weakref.ref(x)
    del x
    gc.collect()
    assert given() is None


@pytest.mark.parametrize(("columns", "stays", "blocks"), [(8192, True, 528), (8192, False, 8192), (128, True, 128)])
def test_blocks_that_stay_are_as_many_as_a_device_holds(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, columns: int, stays: bool, blocks: int
) -> None:
    """No more than there are tiles; on a device before sm_90 a block for each tile of 64 x 128."""
    if not stays:
        monkeypatch.setattr(driver.CupyDriver, "_capability", staticmethod(lambda device: (8, 0)))
    x = idle_cuda.array((8192, columns), dtype("BFLOAT16").numpy)
    gpucast.quantize(x, "mxfp8e4m3", transpose="both")
    assert [one.blocks for one in cuda.launches] == [blocks]
