# SPDX-License-Identifier: Apache-2.0
"""On a real GPU: streams, graphs, sizes, other libraries. (tests/parity/test_matrix.py runs all calls on one, too;
the siblings of these tests without a GPU are in tests/gpu/test_streams.py, test_capture.py and tests/libraries.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from gpucast import PackedArray

PROBLEM = gpucast.kernel.devices.unavailable()
_SIBLINGS = "tests/gpu/test_streams.py, test_capture.py and tests/libraries"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=f"{_SIBLINGS} run it here: {PROBLEM}")]


def test_graphs() -> None:
    import cupy

    host = np.random.default_rng(0).standard_normal((64, 50, 9)).astype(np.float32)
    # All of it on one stream, which does not wait for the default one.
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.asarray(host)
        out = cupy.empty(x.shape, cupy.float16)
        gpucast.cast(x, "FLOAT16", out=out)
        out[...] = 0
        stream.begin_capture()
        gpucast.cast(x, "FLOAT16", out=out)
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
    assert np.array_equal(out.get(), host.astype(np.float16))


def test_more_than_2_31_elements() -> None:
    import cupy

    size = (1 << 31) + 5
    data = cupy.full(-(-size // 4), 0b11_10_01_00, cupy.uint8)
    result = gpucast.cast(PackedArray(data, "UINT2", (size,)), "INT2")
    assert bool((result.data[:-1] == 0b11_10_01_00).all())
    assert int(result.data[-1]) == 0b00_00_00_00 | (0b11_10_01_00 & (1 << 2 * (size % 4)) - 1)


# ---- beside other libraries ----


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not module.cuda.is_available():
        pytest.skip("this PyTorch cannot use the GPU")
    return module


def test_torch_streams(torch: Any) -> None:
    """A cast stands in line on torch's current stream: behind a long wait, and before what reads the result."""
    x = torch.zeros(1 << 20, device="cuda")
    gpucast.cast(x, "INT8")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(1, 20):
            torch.cuda._sleep(1_000_000)
            x.fill_(i)
            y = gpucast.cast(x, "INT8")
            z = y + 0
            assert z.sum().item() == i << 20
    torch.cuda.synchronize()


def test_torch_graphs(torch: Any) -> None:
    x = torch.from_numpy(values("FLOAT", (67, 130))).cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gpucast.cast(x, "FLOAT16")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gpucast.cast(x, "FLOAT16")
    other = values("FLOAT", (67, 130), seed=1)
    x.copy_(torch.from_numpy(other))
    graph.replay()
    torch.cuda.synchronize()
    assert_same(y.cpu().numpy(), gpucast.reference.cast(other, "FLOAT16"))


def test_cuda_array_interface_with_a_stream() -> None:
    import cupy

    x = cupy.zeros(1 << 20, cupy.float32)

    class Interface:
        def __init__(self, stream: int | None) -> None:
            self.__cuda_array_interface__ = {**x.__cuda_array_interface__, "version": 3, "stream": stream}

    stream = cupy.cuda.Stream(non_blocking=True)
    for i in range(1, 10):
        with stream:
            for _ in range(50):
                x += 1
            x.fill(i)
        assert int(gpucast.cast(Interface(stream.ptr), "INT32").sum()) == i << 20
        assert int(gpucast.cast(Interface(1), "INT32")[0]) == i
    assert isinstance(gpucast.cast(Interface(None), "INT32"), cupy.ndarray)
