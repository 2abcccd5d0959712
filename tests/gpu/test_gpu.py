# SPDX-License-Identifier: Apache-2.0
"""On a real GPU. Every test here has a sibling that runs the same code without one: tests/gpu/test_device.py (the
Python path), tests/codegen/test_kernels*.py (the kernels), tests/compile/test_compiler.py (compilation)."""

from __future__ import annotations

import numpy as np
import pytest

import gpucast
from device_views import check_pair
from gpucast import PackedArray
from gpucast.core.dtypes import DType
from gpucast.parity.cases import NUMERIC

PROBLEM = gpucast.gpu.devices.unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=f"siblings run without a GPU: {PROBLEM}")]


@pytest.mark.parametrize("dst", NUMERIC, ids=str)
@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_every_pair(src: DType, dst: DType) -> None:
    """Contiguous, strided and misaligned; the sibling in tests/gpu/test_device.py sees which kernels that launches."""
    check_pair(src, dst)


def test_strides_streams_and_graphs() -> None:
    import cupy

    host = np.random.default_rng(0).standard_normal((64, 50, 9)).astype(np.float32)
    x = cupy.asarray(host)
    for view, same in ((x.T, host.T), (x[::2, ::-1], host[::2, ::-1]), (x[:, 3], host[:, 3])):
        assert np.array_equal(gpucast.cast(view, "FLOAT16").get(), same.astype(np.float16))
    out = cupy.empty(x.shape, cupy.float16)
    gpucast.cast(x, "FLOAT16", out=out)
    out[...] = 0
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        gpucast.cast(x, "FLOAT16", out=out)
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
    assert np.array_equal(out.get(), host.astype(np.float16))


@pytest.mark.parametrize("dst", ["INT8", "FLOAT16", "DOUBLE"])
def test_transposes_and_unaligned_ends(dst: str) -> None:
    import cupy

    host = np.random.default_rng(1).standard_normal((3, 130, 70)).astype(np.float32)
    wanted = gpucast.reference.cast(host, dst)
    out = cupy.empty((3, 70, 130), wanted.dtype)
    assert np.array_equal(
        gpucast.cast(cupy.asarray(host).transpose(0, 2, 1), dst, out=out).get(), wanted.transpose(0, 2, 1)
    )
    flat = cupy.empty(host.size + 1, wanted.dtype)
    gpucast.cast(cupy.asarray(host).ravel(), dst, out=flat[1:])
    assert np.array_equal(flat[1:].get(), wanted.ravel())


def test_more_than_2_31_elements() -> None:
    import cupy

    size = (1 << 31) + 5
    data = cupy.full(-(-size // 4), 0b11_10_01_00, cupy.uint8)
    result = gpucast.cast(PackedArray(data, "UINT2", (size,)), "INT2")
    assert bool((result.data[:-1] == 0b11_10_01_00).all())
    assert int(result.data[-1]) == 0b00_00_00_00 | (0b11_10_01_00 & (1 << 2 * (size % 4)) - 1)
