# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors on a device, and on the host beside: for CUDA tensors stand tensors of the host, with the stand-in
driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from foreign_arrays import PAIRED, from_torch, tensor
from gpucast import PackedArray
from gpucast.core.dtypes import DType, dtype
from host_driver import HostDriver, download, installed

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from gpucast.libraries.torch import library, tensors  # noqa: E402

pytestmark = pytest.mark.peers


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDriver]:
    """Tensors of the host count as tensors of device 1, whose current stream in torch is 777."""
    driver = HostDriver()
    monkeypatch.setattr(tensors, "device_of", lambda x, caller: 1)
    # These tensors lie in the host's memory.
    monkeypatch.setattr(library, "keep_plan", lambda *call: None)
    monkeypatch.setattr(tensors, "stream", lambda device: 700 + 77 * device)
    with installed(driver):
        yield driver
    assert driver.index == 0 and driver.streams == {0: 0, 1: 100}


@pytest.fixture(params=["host", "cuda"])
def place(request: pytest.FixtureRequest) -> None:
    if request.param == "cuda":
        request.getfixturevalue("cuda")


@pytest.mark.parametrize("dst", [dtype("FLOAT16"), dtype("DOUBLE"), dtype("FLOAT8E5M2")], ids=str)
def test_layouts(dst: DType, place: None) -> None:
    """Order "K", as torch's own `empty_like` lays it out: the fake kernel promises that to torch.compile."""
    x = torch.from_numpy(values(dtype("FLOAT"), (2, 3, 4, 6)))
    for view in (
        x,
        x.T if x.ndim == 2 else x.permute(3, 1, 0, 2),
        x[:, :, ::2],
        x[0, 1:, 2:, 3],
        x.to(memory_format=torch.channels_last),
        x[:, :1].expand(2, 5, 4, 6),
        x[0, 0, 0, 0],
        x[:0],
        x.as_strided((3, 3), (1, 2)),
    ):
        y = gpucast.cast(view, dst)
        assert y.stride() == torch.empty_like(view, dtype=y.dtype).stride()
        assert_same(from_torch(y, dst), gpucast.reference.cast(view.numpy(), dst))


def test_out(place: None) -> None:
    x = values(dtype("FLOAT"), (4, 6))
    for dst in (*map(dtype, ("FLOAT16", "FLOAT8E5M2", "DOUBLE", "BOOL")), PAIRED):
        room = tensor(values(dst, (4, 6)))
        for out in (room, room.T.contiguous().T) if dst is not PAIRED else (room,):
            version = out._version
            assert gpucast.cast(torch.from_numpy(x), dst, out=out) is out
            assert_same(from_torch(out, dst), gpucast.reference.cast(x, dst))
            assert out._version > version, "autograd must know"


CUDA_ROWS = [dtype(name) for name in ("FLOAT", "FLOAT8E4M3FN", "INT16", "BOOL")]


@pytest.mark.parametrize("src", [*CUDA_ROWS, PAIRED, dtype("INT4")], ids=str)
def test_on_a_device(src: DType, cuda: HostDriver) -> None:
    x = values(src, (4, 6))
    given = tensor(x)
    targets = [dtype(name) for name in ("BFLOAT16", "FLOAT8E5M2", "FLOAT4E2M1", "UINT2", "FLOAT6E3M2", "BOOL")]
    for dst in targets:
        for view, host in ((given, x), (given[1:], x[1:])):
            cuda.launched.clear()
            y = gpucast.cast(view, dst)
            # On torch's stream of the tensor's device, into torch's memory.
            assert [stream for _, stream in cuda.launched] == [777]
            if isinstance(y, PackedArray):
                assert y.device.id == 1
                y = PackedArray(download(y.data), dst, y.shape)
            assert_same(from_torch(y, dst), gpucast.reference.cast(host, dst))


def test_gradients_on_a_device(cuda: HostDriver) -> None:
    x = torch.from_numpy(values(dtype("FLOAT"), (4, 6)))
    leaf = x.clone().requires_grad_()
    dy = values(dtype("FLOAT16"), (4, 6), seed=1)
    cuda.launched.clear()
    (dx,) = torch.autograd.grad(gpucast.cast(leaf, "FLOAT16"), leaf, tensor(dy))
    assert_same(dx.numpy(), gpucast.reference.cast(dy, "FLOAT"))
    assert [stream for _, stream in cuda.launched] == [777, 777]
    assert gpucast.cast(x, "FLOAT", copy=False) is x


def test_a_captured_graph_takes_casts_into_torchs_memory(cuda: HostDriver) -> None:
    """torch allocates from the graph's own pool, so that nothing is left for us to allocate."""
    x = torch.from_numpy(values(dtype("FLOAT"), (4, 6)))
    gpucast.cast(x, "FLOAT16")
    cuda.capture = True
    try:
        y = gpucast.cast(x, "FLOAT16")
    finally:
        cuda.capture = False
    assert_same(from_torch(y, dtype("FLOAT16")), gpucast.reference.cast(x.numpy(), "FLOAT16"))


def test_fused_casts_on_a_device(cuda: HostDriver) -> None:
    x = values(dtype("FLOAT"), (4, 6))
    scale, amax, theirs = torch.tensor(0.25), torch.zeros(()), np.zeros((), np.float32)
    wanted = gpucast.cast(x, "FLOAT8E4M3FN", scale=0.25, amax=theirs)
    for view, host in ((torch.from_numpy(x), wanted), (torch.from_numpy(x).T, wanted.T)):
        y = gpucast.cast(view, "FLOAT8E4M3FN", scale=scale, amax=amax)
        assert_same(from_torch(y, dtype("FLOAT8E4M3FN")), host)
        assert_same(amax.numpy(), theirs)
    # Both lie in one order, so that nothing is to be told apart.
    assert cuda.launched == [("gpucast_float32_to_float8e4m3fn_scaled_amax", 777)] * 2
    cuda.launched.clear()
    y = gpucast.cast(torch.from_numpy(x).T, "FLOAT8E4M3FN", rounding="stochastic", seed=1)
    assert_same(from_torch(y, dtype("FLOAT8E4M3FN")), gpucast.cast(x.T, "FLOAT8E4M3FN", rounding="stochastic", seed=1))
    assert cuda.launched == [("gpucast_float32_to_float8e4m3fn_stochastic_strided", 777)]


def test_packed_results_on_a_device_come_back_there(cuda: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's stream, as the cast that made them. (The last step, torch's own import, needs torch's CUDA.)"""
    given: list[Any] = []
    monkeypatch.setattr(tensors, "from_array", lambda x: given.append(x) or "a tensor")
    x = torch.arange(-4.0, 4.0)
    packed = gpucast.cast(x, "INT4")
    cuda.launched.clear()
    assert gpucast.cast(packed, "FLOAT") == "a tensor"
    assert [stream for _, stream in cuda.launched] == [777]
    assert download(given[0]).tolist() == x.tolist()
