# SPDX-License-Identifier: Apache-2.0
"""Other libraries' arrays on a real GPU. The siblings without one: tests/interop/test_torch.py,
tests/interop/test_jax.py, tests/interop/test_dlpack.py, tests/arrays/test_adapters.py."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same, random_codes
from gpucast import PackedArray
from gpucast.core.dtypes import DType, dtype
from gpucast.parity.cases import NUMERIC

PROBLEM = gpucast.gpu.devices.unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=f"siblings run without a GPU: {PROBLEM}")]

PAIRED = dtype("FLOAT4E2M1")
SHAPE = (67, 130)


def values(row: DType, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    return random_codes(row, shape, seed).view(row.numpy)


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not module.cuda.is_available():
        pytest.skip("this PyTorch cannot use the GPU")
    return module


def tensor(torch: Any, x: np.ndarray) -> Any:
    """The codes of an array as a tensor on the GPU; float4 in pairs."""
    row = dtype(x.dtype)
    if row is PAIRED:
        codes = torch.from_numpy(PackedArray.pack(x).data.reshape(*x.shape[:-1], -1))
        return codes.cuda().view(torch.float4_e2m1fn_x2)
    return torch.from_numpy(x.view(row.code_numpy)).cuda().view(getattr(torch, row.numpy_name))


def array(torch: Any, y: Any, row: DType) -> np.ndarray:
    if isinstance(y, PackedArray):
        assert y.dtype is row
        return y.get()
    if row is PAIRED:
        assert y.dtype is torch.float4_e2m1fn_x2
        data = y.view(torch.uint8).cpu().contiguous().numpy()
        return PackedArray(data.reshape(-1), row, (*y.shape[:-1], 2 * y.shape[-1])).get()
    assert y.is_cuda and y.dtype is getattr(torch, row.numpy_name)
    return np.asarray(y.detach().view(getattr(torch, row.code_numpy.name)).cpu().numpy().view(row.numpy))


@pytest.mark.parametrize("src", [row for row in NUMERIC if row.bits != 6], ids=str)
def test_torch_every_pair(src: DType, torch: Any) -> None:
    x = values(src)
    given = tensor(torch, x)
    for dst in NUMERIC:
        y = gpucast.cast(given, dst)
        assert isinstance(y, PackedArray) == (dst.packed and dst is not PAIRED)
        assert_same(array(torch, y, dst), gpucast.reference.cast(x, dst))
    assert gpucast.cast(given[:3], "STRING").tolist() == gpucast.reference.cast(x[:3], "STRING").tolist()


def test_torch_layouts_out_and_moves(torch: Any) -> None:
    x, half = tensor(torch, values(dtype("FLOAT"))), dtype("FLOAT16")
    for view in (x, x.T, x[:, ::2], x[1:, 3], x[:1].expand(4, 130), x[:0], torch.empty(0, device="cuda")):
        y = gpucast.cast(view, half)
        assert y.stride() == torch.empty_like(view, dtype=torch.float16).stride()
        assert_same(array(torch, y, half), gpucast.reference.cast(view.cpu().numpy(), half))
    out = torch.empty(SHAPE, dtype=torch.float16, device="cuda")
    assert gpucast.cast(x, half, out=out) is out
    assert_same(array(torch, out, half), gpucast.reference.cast(x.cpu().numpy(), half))
    assert gpucast.cast(x, torch.float32, copy=False) is x
    with pytest.raises(ValueError, match="out is on cpu; the result belongs on cuda:0"):
        gpucast.cast(x, half, out=out.cpu())
    for to, bits in (("FLOAT8E5M2", 8), ("DOUBLE", 64)):
        down, up = gpucast.cast(x, to, device="cpu"), gpucast.cast(x.cpu(), to, device="cuda")
        assert not down.is_cuda and up.is_cuda and down.element_size() * 8 == bits
        assert torch.equal(down.view(torch.uint8), up.cpu().view(torch.uint8))
    packed = gpucast.cast(x, "INT4")
    assert packed.to_torch().data_ptr() == packed.data.data.ptr
    assert packed.to_torch().cpu().numpy().tobytes() == packed.tobytes()


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
    x, half = tensor(torch, values(dtype("FLOAT"))), dtype("FLOAT16")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gpucast.cast(x, half)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gpucast.cast(x, half)
    other = values(dtype("FLOAT"), seed=1)
    x.copy_(torch.from_numpy(other))
    graph.replay()
    torch.cuda.synchronize()
    assert_same(array(torch, y, half), gpucast.reference.cast(other, half))


def test_torch_gradients_and_compile(torch: Any) -> None:
    x = tensor(torch, values(dtype("FLOAT"))).requires_grad_()
    dy = values(dtype("FLOAT16"), seed=1)
    (dx,) = torch.autograd.grad(gpucast.cast(x, "FLOAT16"), x, tensor(torch, dy))
    assert_same(array(torch, dx, dtype("FLOAT")), gpucast.reference.cast(dy, "FLOAT"))
    x = x.detach()

    def function(x: Any) -> Any:
        return gpucast.cast(x * 2, "FLOAT8E4M3FN"), gpucast.cast(x, "FLOAT4E2M1")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for got, wanted in zip(torch.compile(function, fullgraph=True)(x), function(x), strict=True):
            assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


def test_torch_and_dlpack(torch: Any) -> None:
    import cupy

    from gpucast.interop import dlpack

    for row in NUMERIC:
        if row.packed or not hasattr(torch, row.numpy_name):
            continue
        x = cupy.asarray(values(row).view(row.code_numpy)).view(row.numpy)
        for view in (x, x.T, x[1:, ::2]):
            y = torch.from_dlpack(dlpack.Export(view))
            assert y.data_ptr() == view.data.ptr and y.dtype is getattr(torch, row.numpy_name)
            back = dlpack.take(y, "test")
            assert (back.data.ptr, back.strides, back.dtype) == (view.data.ptr, view.strides, view.dtype)
    packed = gpucast.cast(values(PAIRED), PAIRED, device="cuda")
    assert_same(array(torch, torch.from_dlpack(packed), PAIRED), values(PAIRED))


@pytest.mark.parametrize("src", [row for row in NUMERIC if not row.packed], ids=str)
def test_jax_every_pair(src: DType) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX cannot use the GPU")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        x = values(src)
        given = jax.device_put(x)
        for dst in NUMERIC:
            y = gpucast.cast(given, dst)
            assert isinstance(y, PackedArray) == dst.packed
            assert dst.packed or (isinstance(y, jax.Array) and y.devices() == given.devices())
            got = y.get() if dst.packed else np.asarray(y)
            assert_same(got, gpucast.reference.cast(x, dst))
    finally:
        jax.config.update("jax_enable_x64", before)


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


def test_packed_arrays_pickle_by_way_of_the_host() -> None:
    host = values(dtype("INT4"))
    packed = gpucast.cast(host, "INT4", device="cuda")
    again = pickle.loads(pickle.dumps(packed))
    assert isinstance(again, PackedArray) and again.device == packed.device
    assert_same(again.get(), host)
