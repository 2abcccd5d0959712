# SPDX-License-Identifier: Apache-2.0
"""gpucast.mixed.fake_cast of tensors: the values of arrays, and the gradient of the result in every mode of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.mixed import DelayedScaling, fake_cast

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.peers

X = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32))
CALLS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: fake_cast(x, "FLOAT8E4M3FN"),
    "scaled": lambda x: fake_cast(x, "FLOAT8E5M2", scale=3.0),
    "tensor": lambda x: fake_cast(x, torch.float8_e4m3fn, scale=torch.tensor(0.3)),
    "pairs": lambda x: fake_cast(x, "FLOAT4E2M1", scale=2.0),
    "float6": lambda x: fake_cast(x, "FLOAT6E2M3"),
    "integers": lambda x: fake_cast(x, "INT4", scale=2.0, rounding="nearest_even", overflow="saturate"),
    "random": lambda x: fake_cast(x, "FLOAT8E4M3FN", rounding="stochastic", seed=2**64 - 1, offset=2**63),
    "blocks": lambda x: fake_cast(x, "nvfp4"),
    "columns": lambda x: fake_cast(x, "mxfp8e4m3", axis=0),
}


def wanted(name: str) -> Any:
    keywords: dict[str, Any] = {"scale": np.float32(0.3)} if name == "tensor" else {}
    return fake_cast(X.numpy(), "FLOAT8E4M3FN", **keywords) if keywords else CALLS[name](X.numpy())


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_arrays_and_gradients_those_of_the_result(name: str) -> None:
    call, values, dy = CALLS[name], wanted(name), torch.randn(X.shape)
    for x in (X.clone().requires_grad_(), torch.nn.Parameter(X)):
        y = call(x)
        assert type(y) is torch.Tensor and y.dtype is x.dtype and y.detach().numpy().tobytes() == values.tobytes()
        (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
        assert torch.equal(dx, dy)
        with torch.no_grad():
            assert not call(x).requires_grad and torch.equal(call(x), y)
    assert not call(X).requires_grad and torch.equal(call(X), y)
    strided = X.clone().requires_grad_()
    if name not in ("blocks", "columns"):
        z = call(strided.t().contiguous().t())
        assert z.stride() == (1, 4) and (name == "random" or torch.equal(z, y))


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("blocks", "columns")])
def test_transforms_of_torch(name: str) -> None:
    call = CALLS[name]

    def loss(x: Any) -> Any:
        return (call(x) * 3).sum()

    assert torch.equal(torch.func.grad(loss)(X), torch.full_like(X, 3))
    assert torch.equal(torch.vmap(torch.func.grad(loss))(X), torch.full_like(X, 3))
    parts = torch.stack([call(x) for x in X])
    assert torch.equal(torch.vmap(call)(X), parts)
    assert torch.equal(torch.vmap(call, in_dims=1, out_dims=1)(X.t().contiguous()), parts.t())
    scales = torch.tensor([1.0, 2.0, 0.3, 4.0])
    batched = torch.vmap(lambda x, s: fake_cast(x, "FLOAT8E4M3FN", scale=s))(X, scales)
    for x, s, y in zip(X, scales, batched, strict=True):
        assert torch.equal(y, fake_cast(x, "FLOAT8E4M3FN", scale=s))


@pytest.mark.parametrize("name", CALLS)
def test_compiled_it_is_one_node(name: str) -> None:
    call, x = CALLS[name], X.clone().requires_grad_()
    torch.compiler.reset()
    y = torch.compile(lambda x: call(x * 1) * 2, backend="aot_eager", fullgraph=True)(x)
    y.sum().backward()
    assert torch.equal(y, call(X) * 2) and torch.equal(x.grad, torch.full_like(X, 2))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's, of its own graphs.
def test_between_two_graphs() -> None:
    """With an amax, which the node does not write."""
    torch.compiler.reset()
    amax, x = torch.zeros(1), X.clone().requires_grad_()
    y = torch.compile(lambda x: fake_cast(x, "FLOAT8E4M3FN", amax=amax) * 2, backend="aot_eager")(x)
    y.sum().backward()
    assert amax == X.abs().max() and torch.equal(x.grad, torch.full_like(X, 2))


def test_the_gradient_that_a_pair_of_casts_loses() -> None:
    """The mean of many numbers has gradients below the smallest one of FLOAT8E4M3FN."""
    w, scaling = torch.full((4096,), 0.01, requires_grad=True), DelayedScaling("FLOAT8E4M3FN")
    for _ in range(2):
        y = scaling.fake_cast(w)
        scaling.update()
    pair = gpucast.cast(scaling.cast(w), "FLOAT", scale=scaling.inverse[0])
    (lost,) = torch.autograd.grad(pair.mean(), w)
    y = scaling.fake_cast(w)
    y.mean().backward()
    assert torch.equal(y, pair) and (lost == 0).all()
    assert torch.equal(w.grad, torch.full((4096,), 1 / 4096))


def test_meta_tensors_have_shapes_and_types_alone() -> None:
    y = fake_cast(torch.empty(3, 4, dtype=torch.bfloat16, device="meta"), "FLOAT8E4M3FN", scale=2.0)
    assert y.is_meta and y.shape == (3, 4) and y.dtype is torch.bfloat16


def test_out_and_types() -> None:
    x = X.to(torch.bfloat16)
    out = torch.empty_like(x)
    version = out._version
    assert fake_cast(x, "FLOAT8E4M3FN", scale=2.0, out=out) is out and out._version > version
    assert torch.equal(out, gpucast.cast(gpucast.cast(x, "FLOAT8E4M3FN", scale=2.0), "BFLOAT16", scale=0.5))
    leaf = X.clone().requires_grad_()
    with pytest.raises(ValueError, match="^fake_cast: x requires grad, and out= is not differentiable"):
        fake_cast(leaf, "INT8", out=torch.empty_like(X))
    with pytest.raises(ValueError, match="^fake_cast: scale requires grad"):
        fake_cast(X, "INT8", scale=torch.tensor(2.0, requires_grad=True))
    with pytest.raises(TypeError, match="^fake_cast: x.dtype=INT32"):
        fake_cast(X.int(), "INT8")
    with pytest.raises(ValueError, match="^fake_cast: scale=0.0 must be above 0"):
        fake_cast(leaf, "INT8", scale=0.0)
    for given in (X, leaf):
        with pytest.raises(ValueError, match="^fake_cast: axis=0 is for formats with blocks"):
            fake_cast(given, "INT8", axis=0)
        with pytest.raises(ValueError, match="^fake_cast: axis=7 is out of bounds"):
            fake_cast(given, "mxfp4", axis=7)
