# SPDX-License-Identifier: Apache-2.0
"""Plans of CUDA tensors that the extension module runs; tensors of the host stand for them."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

import gpucast
from fake_cuda import Cuda

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from gpucast.kernel.driver import CupyDriver  # noqa: E402
from gpucast.libraries.torch import library, tensors  # noqa: E402

pytestmark = pytest.mark.peers

#: torch's current stream of device 0, and where a DLTensor has its device's type: 2 is CUDA.
_STREAM, _TYPE_AT, _CUDA = 777, 8, 2
_VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_CURRENT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    if not tensors.VIEW:
        pytest.skip("this torch has no functions of C for DLPack; its CUDA tensors are cast by the custom op")
    real = _VIEW(tensors.VIEW)

    def view(x: Any, found: int) -> int:
        status = real(x, found)
        ctypes.c_int.from_address(found + _TYPE_AT).value = _CUDA
        return status

    def current(kind: int, device: int, stream: Any) -> int:
        assert (kind, device) == (_CUDA, 0)
        stream[0] = _STREAM
        return 0

    held = _VIEW(view), _CURRENT(current)
    for name, function in zip(("VIEW", "STREAM"), held, strict=True):
        monkeypatch.setattr(tensors, name, ctypes.cast(function, ctypes.c_void_p).value)
    monkeypatch.setattr(library, "_ASKED", (tensors.VIEW, tensors.STREAM, *library._ASKED[2:]))
    monkeypatch.setattr(tensors, "device_of", lambda x, caller: 0)
    monkeypatch.setattr(tensors, "stream", lambda device: _STREAM)
    library._plan.cache_clear()
    with Cuda().in_use() as fake:

        @contextlib.contextmanager
        def using(self: Any, stream: int, device: int) -> Iterator[None]:
            before, fake.device = fake.device, device
            fake.use_stream(stream)
            yield
            fake.use_stream(0)
            fake.device = before

        @contextlib.contextmanager
        def switched(self: Any, device: int) -> Iterator[None]:
            before, fake.device = fake.device, device
            yield
            fake.device = before

        # CuPy's streams and devices need CUDA.
        monkeypatch.setattr(CupyDriver, "using", using)
        monkeypatch.setattr(CupyDriver, "_switched", switched)
        yield fake
    library._plan.cache_clear()


def _launched(cuda: Cuda, x: Any, y: Any) -> None:
    """The last launch was that of a plan: all others go by CuPy's streams."""
    one = cuda.launches[-1]
    assert (one.stream, one.src, one.src_bit, one.dst, one.n) == (_STREAM, x.data_ptr(), 0, y.data_ptr(), x.numel())


def test_plans_of_tensors(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(5, 60)
    gpucast.cast(x, "FLOAT16")
    slow = []
    of_library = type(gpucast.libraries.torch.LIBRARY)
    for name in ("_cast", "_cast_numbers"):
        cast = getattr(of_library, name)
        checked = lambda self, *given, cast=cast: slow.append(1) or cast(self, *given)  # noqa: E731
        monkeypatch.setattr(of_library, name, checked)
    for given in (x, x[2:], torch.ones(7)):
        y = gpucast.cast(given, "FLOAT16")
        assert y.dtype is torch.float16 and y.shape == given.shape
        _launched(cuda, given, y)
        out = torch.empty_like(y)
        before = out._version
        assert gpucast.cast(given, "FLOAT16", out=out) is out and out._version == before + 1
        _launched(cuda, given, out)
    assert not slow
    # To all of these but the gradient, which is a node over the cast by the plan, the checked path has the answer.
    launches = len(cuda.launches)
    for given in (x.T, x.requires_grad_(), torch.ones(5, 60, dtype=torch.int8)):
        assert gpucast.cast(given, "FLOAT16").shape == given.shape
    assert len(slow) == 2 and len(cuda.launches) == launches + 3
    leaf = torch.ones(4)
    for out, error in (
        (torch.empty(5, dtype=torch.float16), ValueError),
        (torch.empty(4, dtype=torch.float32), TypeError),
        (leaf.view(torch.float16)[:4], ValueError),
        (torch.empty(4, dtype=torch.float16, requires_grad=True), ValueError),
    ):
        with pytest.raises(error):
            gpucast.cast(leaf, "FLOAT16", out=out)
    assert len(cuda.launches) == launches + 3


def test_plans_of_fused_casts_of_tensors(cuda: Cuda) -> None:
    x, scale, amax = torch.ones(5, 60), torch.tensor(2.0), torch.tensor(0.0)
    for keywords in ({"scale": 2.0}, {"scale": 0.1}, {"scale": scale, "amax": amax}, {"scale": scale.double()}):
        for _ in range(2):
            before, known = amax._version, len(cuda.launches)
            y = gpucast.cast(x, "FLOAT16", **keywords)
            assert amax._version == before + ("amax" in keywords)
            assert len(cuda.launches) == known + 1
        _launched(cuda, x, y)
    # One that shares memory with what is written, and one that requires a gradient.
    with pytest.raises(ValueError, match="amax shares memory with scale"):
        gpucast.cast(x, "FLOAT16", scale=amax, amax=amax)
    with pytest.raises(ValueError, match="scale requires grad"):
        gpucast.cast(x, "FLOAT16", scale=scale.requires_grad_(), amax=amax)


def test_a_plan_of_tensors_on_another_device_or_in_a_new_thread(cuda: Cuda) -> None:
    x = torch.ones(50)
    for _ in range(2):
        gpucast.cast(x, "FLOAT16")
    cuda.device = 1
    y = gpucast.cast(x, "FLOAT16")
    cuda.device = 0
    assert y.shape == x.shape
    cuda.bound.clear()
    y = gpucast.cast(x, "FLOAT16")
    _launched(cuda, x, y)
    assert sum(cuda.bound.values()) == 1
