# SPDX-License-Identifier: Apache-2.0
"""Trees of PyTorch tensors through `gpucast.cast_many`. For CUDA tensors stand tensors of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast import PackedArray
from gpucast.casting import list_plans
from host_driver import HostDriver, download, installed, upload

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from gpucast.libraries.torch import tensors as adapted  # noqa: E402

pytestmark = pytest.mark.peers


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDriver]:
    """Every tensor is taken for one on device 1."""
    driver = HostDriver()
    monkeypatch.setattr(adapted, "device_of", lambda x, caller: 1)
    monkeypatch.setattr(adapted, "stream", lambda device: 700 + 77 * device)
    # Plans for tensors of the host do not ask for the device.
    monkeypatch.delitem(list_plans.HOST_KINDS, torch.Tensor, raising=False)
    with installed(driver):
        yield driver


def wanted(x: Any, to: str) -> Any:
    return gpucast.cast(x.detach().numpy(), to)


def bits(y: Any) -> bytes:
    """The codes of a result."""
    if isinstance(y, PackedArray):
        return (y.data if isinstance(y.data, np.ndarray) else download(y.data)).tobytes()
    return (y.detach().contiguous().view(torch.uint8).numpy() if isinstance(y, torch.Tensor) else y).tobytes()


def tensors() -> list[Any]:
    return [torch.randn(30, 7), torch.randn(5, dtype=torch.float64), torch.arange(9), torch.randn(0, 3)]


def batch_plans() -> list[list_plans.ListCalls]:
    """The calls on devices that are kept."""
    return [calls for known in list_plans._KNOWN.values() for calls in known.calls.values()]


def test_tensors_give_tensors_in_one_launch_on_their_stream(cuda: HostDriver) -> None:
    given = tensors()
    out = [torch.empty(x.shape, dtype=torch.bfloat16) for x in given]
    for _ in range(2):
        for y, x in zip(gpucast.cast_many(given, torch.bfloat16), given, strict=True):
            assert y.dtype is torch.bfloat16 and y.shape == x.shape
            assert bits(y) == bits(wanted(x, "BFLOAT16"))
        assert gpucast.cast_many(given, torch.bfloat16, out=out) is out
        assert [bits(y) for y in out] == [bits(wanted(x, "BFLOAT16")) for x in given]
    assert [stream for _, stream in cuda.launched] == [777] * 4
    assert len(batch_plans()) == 2


def test_tensors_beside_arrays_have_their_own_launch(cuda: HostDriver) -> None:
    given = tensors()[:2]
    arrays = [upload(x.numpy(), 1) for x in given]
    result = gpucast.cast_many({"t": given, "a": arrays}, "FLOAT16")
    assert sorted(stream for _, stream in cuda.launched) == [100, 777]
    for t, a in zip(result["t"], result["a"], strict=True):
        assert bits(t) == download(a).tobytes()


@pytest.mark.parametrize("on_device", [True, False], ids=["device", "host"])
def test_gradients_come_back_in_their_own_types(on_device: bool, request: pytest.FixtureRequest) -> None:
    if on_device:
        request.getfixturevalue("cuda")
    scale = None if on_device else 2.0
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(5, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        a.grad = b.grad = None
        result = gpucast.cast_many({"a": a, "b": (b, torch.arange(3))}, "BFLOAT16", scale=scale)
        assert not result["b"][1].requires_grad
        (result["a"].float().sum() + 3 * result["b"][0].float().sum()).backward()
        assert torch.equal(a.grad, torch.full((3, 4), scale or 1.0))
        assert torch.equal(b.grad, torch.full((5,), 3 * (scale or 1.0), dtype=torch.float64))
        with torch.no_grad():
            assert not gpucast.cast_many([a, b], "BFLOAT16")[0].requires_grad
    room = [torch.empty(3, 4, dtype=torch.float16)]
    with pytest.raises(ValueError, match=r"^cast_many: arrays\[0\]: x requires grad, and out= is not differentiable"):
        gpucast.cast_many([a], "FLOAT16", out=room)
    with torch.no_grad():
        gpucast.cast_many([a], "FLOAT16", out=room)
    assert bits(room[0]) == bits(wanted(a, "FLOAT16"))


def test_a_packed_result_between_the_elements_of_its_source() -> None:
    held = torch.zeros(64, dtype=torch.uint8)
    x = held[::16]
    x[:] = torch.arange(4)
    y = gpucast.PackedArray(held[1:3].numpy(), "INT4", (4,))
    assert gpucast.cast_many([x], "INT4", out=[y])[0].get().tolist() == [0, 1, 2, 3]


def test_a_scale_that_requires_grad_is_refused(cuda: HostDriver) -> None:
    """With `out` as without, before anything is written, also in a call like one that went well."""
    given, scale = [torch.ones(3), torch.ones(4)], torch.tensor(2.0)
    for out in (None, [torch.zeros(3, dtype=torch.float16), torch.zeros(4, dtype=torch.float16)]):
        for _ in range(2):
            with pytest.raises(ValueError, match="^cast_many: scale requires grad, and is not differentiable"):
                gpucast.cast_many(given, "FLOAT16", scale=scale.clone().requires_grad_(), out=out)
            gpucast.cast_many(given, "FLOAT16", scale=scale, out=out)
    assert len(cuda.launched) == 4


def test_within_the_transforms_of_torch_func() -> None:
    x, w = torch.randn(4, 3), torch.randn(3)

    def loss(tree: dict[str, Any]) -> Any:
        return sum(y.float().sum() for y in gpucast.cast_many(tree, "BFLOAT16", scale=2.0).values())

    for gradient in torch.func.grad(loss)({"x": x, "w": w}).values():
        assert torch.equal(gradient, torch.full_like(gradient, 2))
    keywords = {"rounding": "stochastic", "seed": 3, "offset": 5}
    both = torch.vmap(lambda row: tuple(gpucast.cast_many([row, w], "FLOAT8E5M2", **keywords)), out_dims=(0, None))(x)
    alone = gpucast.cast_many([x[0], w], "FLOAT8E5M2", **keywords)
    assert [bits(both[0][0]), bits(both[1])] == list(map(bits, alone))
    amax, grown = torch.zeros(()), torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"arrays\[0\]: x requires grad, and a scale for each array is not differ"):
        gpucast.cast_many([grown, torch.ones(2)], "FLOAT16", scale=np.float32([1, 2]), amax=amax)
    assert amax == 0
    for arrays, match in (
        (lambda x: [w.numpy(), x], r"arrays\[1\]: torch.vmap cannot batch a cast to INT4"),
        (
            lambda x: [w.numpy(), {"b": np.array(["1", "?"])}, x],
            r"arrays\[1\]\['b'\]: element 1 is '\?', which is no number",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^cast_many: {match}"):
            torch.vmap(lambda row, arrays=arrays: gpucast.cast_many(arrays(row), "INT4"))(x)
    with pytest.raises(ValueError, match="^cast_many: finite= does not work within a transform of torch.func"):
        torch.func.grad(lambda x: gpucast.cast_many([x], "FLOAT16", finite=np.ones(1, bool))[0].sum())(x)


def test_what_autograd_has_saved_is_not_written_unnoticed(cuda: HostDriver) -> None:
    given, out = tensors(), [torch.empty(x.shape, dtype=torch.float16) for x in tensors()]
    for _ in range(2):
        weight = torch.ones(out[0].shape, dtype=torch.float16, requires_grad=True)
        loss = (weight * out[0]).sum()
        gpucast.cast_many(given, "FLOAT16", out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    out[0].requires_grad_()
    before = bits(out[0])
    with torch.no_grad(), pytest.raises(ValueError, match=r"^cast_many: arrays\[0\]: out requires grad"):
        gpucast.cast_many([x * 2 for x in given], "FLOAT16", out=out)
    assert bits(out[0]) == before


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_plans_give_way_to_transforms(cuda: HostDriver) -> None:
    given = [torch.randn(4), torch.randn(4)]
    for _ in range(2):
        gpucast.cast_many(given, torch.float64)
    assert batch_plans()
    forward = torch.autograd.forward_ad
    with forward.dual_level(), pytest.raises(NotImplementedError, match="forward"):
        gpucast.cast_many([forward.make_dual(x, x) for x in given], torch.float64)
