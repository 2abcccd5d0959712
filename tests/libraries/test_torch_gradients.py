# SPDX-License-Identifier: Apache-2.0
"""Gradients of casts between floating types in PyTorch: straight through, for every width, or a clear refusal."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import values
from foreign_arrays import tensor
from gpucast import PackedArray, layers
from gpucast.core import errors
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.errors import NarrowGradientWarning

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from gpucast.interop import torch as gpucast_torch  # noqa: E402

pytestmark = pytest.mark.peers

#: The floating types that are tensors, FLOAT4E2M1 among them, and those that are none.
FLOATS = [row for row in DTYPES if row.is_float and row.bits != 6 and row.number is not None]
PACKED = [row for row in DTYPES if row.bits == 6]


def codes(y: Any) -> bytes:
    y = y.detach()
    if y.dtype is torch.float4_e2m1fn_x2:
        # Not every torch copies pairs.
        y = y.view(torch.uint8)
    return y.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def codes_of(x: np.ndarray) -> bytes:
    return PackedArray.pack(x).tobytes() if dtype(x.dtype).packed else x.tobytes()


@pytest.mark.parametrize("scale", [None, 0.625, torch.tensor(0.625)], ids=["plain", "number", "array"])
@pytest.mark.parametrize("src", FLOATS, ids=str)
def test_the_gradient_of_every_pair_is_the_cast_back(src: DType, scale: Any) -> None:
    for dst in FLOATS:
        x, dy = tensor(values(src, (3, 4))).requires_grad_(), values(dst, (3, 4), seed=1)
        y = gpucast.cast(x, dst, scale=scale)
        assert y.requires_grad
        (dx,) = torch.autograd.grad(y, x, tensor(dy))
        assert codes(dx) == codes_of(gpucast.cast(dy, src, scale=None if scale is None else 0.625))
        _, pull = torch.func.vjp(lambda x, dst=dst: gpucast.cast(x, dst, scale=scale), x.detach())
        assert codes(pull(tensor(dy))[0]) == codes(dx)


@pytest.mark.parametrize("to", ["FLOAT4E2M1", "FLOAT8E4M3FN", "FLOAT8E8M0"])
def test_a_step_through_a_narrow_type(to: str) -> None:
    """Clamped elements too, in every mode of torch."""

    def narrow(w: Any) -> Any:
        return gpucast.cast(gpucast.cast(w, to), "FLOAT")

    def loss(w: Any) -> Any:
        return (narrow(w) * 2).sum()

    w = torch.tensor([[1e9, 0.3], [-7.0, 0.0]])
    leaf = w.clone().requires_grad_()
    loss(leaf).backward()
    wanted = torch.full_like(w, 2.0)
    assert torch.equal(leaf.grad, wanted)
    assert torch.equal(torch.func.grad(loss)(w), wanted)
    assert torch.equal(torch.vmap(torch.func.grad(loss))(w), wanted)
    assert torch.equal(torch.vmap(torch.func.grad(loss), in_dims=1, out_dims=1)(w), wanted)
    assert torch.equal(torch.vmap(narrow)(w), narrow(w))


def test_pairs_in_a_batch() -> None:
    x = torch.from_numpy(values(dtype("FLOAT"), (3, 4, 6)))
    for along in range(2):
        y = torch.vmap(lambda x: gpucast.cast(x, "FLOAT4E2M1"), in_dims=along, out_dims=along)(x)
        assert codes(y) == codes(gpucast.cast(x, "FLOAT4E2M1"))
        back = torch.vmap(lambda y: gpucast.cast(y, "FLOAT"), in_dims=along, out_dims=along)(y)
        assert torch.equal(back, gpucast.cast(y, "FLOAT"))
    with pytest.raises(ValueError, match=r"x has shape \(\); torch has FLOAT4E2M1 in pairs"):
        torch.vmap(lambda x: gpucast.cast(x, "FLOAT4E2M1"))(x[0, 0])


@pytest.mark.parametrize("to", PACKED, ids=str)
@pytest.mark.parametrize(
    "call",
    [
        gpucast.cast,
        lambda x, to: gpucast.cast(x, to, scale=2.0),
        lambda x, to: gpucast.cast_like(x, PackedArray(np.zeros(3, np.uint8), to, (4,))),
        lambda x, to: gpucast.cast_many([x], to),
        lambda x, to: layers.Cast(to).forward(x),
        lambda x, to: gpucast_torch.Cast(to)(x),
    ],
    ids=["cast", "scaled", "cast_like", "cast_many", "layer", "module"],
)
def test_what_can_carry_no_gradient_is_refused(call: Callable[..., Any], to: DType) -> None:
    x = torch.ones(4, requires_grad=True)
    message = rf"x requires grad, and {to.name} becomes a PackedArray.*; pass x\.detach\(\), .*gpucast\.layers\.Cast"
    with pytest.raises(ValueError, match=message):
        call(x, to)
    # Where nothing is lost it is cast.
    call(x.detach(), to)
    with torch.no_grad():
        call(x, to)


@pytest.mark.parametrize("many", [False, True])
def test_what_is_refused_for_its_gradient_leaves_amax(many: bool) -> None:
    x, amax = torch.ones(4, requires_grad=True), torch.zeros(())
    with pytest.raises(ValueError, match="through which torch passes no gradient"):
        gpucast.cast_many([x], "FLOAT6E2M3", amax=amax) if many else gpucast.cast(x, "FLOAT6E2M3", amax=amax)
    assert amax == 0


def test_integers_have_none() -> None:
    x = torch.ones(4, requires_grad=True)
    for to in ("INT8", "INT4", "BOOL", "STRING"):
        y = gpucast.cast(x, to)
        assert not getattr(y, "requires_grad", False)
        assert not getattr(layers.Cast(to).forward(x), "requires_grad", False)
        with pytest.raises(TypeError, match=f"^layers.Cast.backward: y was {to}, which has no gradient"):
            layer = layers.Cast(to)
            layer.forward(x)
            layer.backward(torch.ones(4))


@pytest.mark.parametrize("coefficient", [1, 0.5, -0.375])
@pytest.mark.parametrize("to", ["FLOAT4E2M1", "FLOAT8E5M2", "DOUBLE"])
def test_layers_differentiate_with_their_coefficient(to: str, coefficient: float) -> None:
    """The layer, its module, CastLike; by autograd, by torch.func and by the layer's own `backward`."""
    x = torch.tensor([[1e9, 0.5], [-2.0, 0.0]])
    like = gpucast.cast(x, to)
    wanted = torch.full_like(x, 2 * coefficient)
    for layer in (
        layers.Cast(to, lda_coeff=coefficient).forward,
        gpucast_torch.Cast(to, lda_coeff=coefficient),
        lambda x: layers.CastLike(lda_coeff=coefficient).forward(x, like),
        lambda x: gpucast_torch.CastLike(lda_coeff=coefficient)(x, like),
    ):

        def loss(x: Any, layer: Any = layer) -> Any:
            return (gpucast.cast(layer(x), "FLOAT") * 2).sum()

        leaf = x.clone().requires_grad_()
        loss(leaf).backward()
        assert torch.equal(leaf.grad, wanted)
        assert torch.equal(torch.func.grad(loss)(x), wanted)
        assert torch.equal(torch.vmap(torch.func.grad(loss))(x), wanted)
        assert codes(layer(x)) == codes(like)
    layer = layers.Cast(to, lda_coeff=coefficient)
    layer.forward(x)
    assert torch.equal(layer.backward(torch.full_like(x, 2.0)), wanted)


def test_layers_have_gradients_of_gradients() -> None:
    layer = gpucast_torch.Cast("FLOAT16", lda_coeff=-0.5)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad((gpucast.cast(layer(x), "DOUBLE") ** 2).sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.sum(), x)
    assert dx.tolist() == [-1.0] * 3 and ddx.tolist() == [0.5] * 3


def test_the_gradient_of_a_transform_is_the_transform_back() -> None:
    rng = np.random.default_rng(1)
    x, dy = (torch.from_numpy(rng.integers(-64, 64, (3, 32, 5)).astype(np.float32)) for _ in range(2))
    for how in ({"axis": 1, "seed": 9}, {"axis": -2, "signs": [1, -1] * 8, "inverse": True}):
        back = gpucast.hadamard(dy, 16, **(how | {"inverse": "inverse" not in how}))
        leaf = x.clone().requires_grad_()
        y = gpucast.hadamard(leaf, 16, **how)
        (dx,) = torch.autograd.grad(y, leaf, dy, create_graph=True)
        # Integers over 16 numbers: nothing is rounded, so both sides are equal.
        assert torch.equal(dx, back) and (y * dy).double().sum() == (x * dx).double().sum()
        assert torch.equal(torch.func.grad(lambda t, how=how: (gpucast.hadamard(t, 16, **how) * dy).sum())(x), back)
        # A batch along an axis of its own; and the gradient of the gradient.
        batched = torch.func.vmap(lambda t: gpucast.hadamard(t, 16, axis=0, seed=9))(x)
        assert torch.equal(batched, gpucast.hadamard(x, 16, axis=1, seed=9))
        target = torch.zeros_like(dy, requires_grad=True)
        (dx,) = torch.autograd.grad(gpucast.hadamard(leaf, 16, **how), leaf, target, create_graph=True)
        assert torch.equal(torch.autograd.grad(dx, target, x)[0], gpucast.hadamard(x, 16, **how))
    half = x.half().requires_grad_()
    assert torch.autograd.grad(gpucast.hadamard(half, 16, axis=1).sum(), half)[0].dtype is torch.float16
    with pytest.raises(ValueError, match="hadamard: x requires grad, and out= is not differentiable"):
        gpucast.hadamard(half, 16, axis=1, out=torch.empty_like(x))
    with pytest.raises(ValueError, match="length=12 must be one of 16, 32, 64, 128"):
        gpucast.hadamard(half, 12, axis=1)


def test_a_transform_within_vmap_has_the_axes_of_one_example() -> None:
    x = torch.arange(16.0 * 3 * 32).reshape(16, 3, 32)
    for axis, place in ((0, 0), (-2, 0), (1, 2), (-1, 2)):
        batched = torch.func.vmap(lambda t, axis=axis: gpucast.hadamard(t, 16, axis=axis), in_dims=1, out_dims=1)
        assert torch.equal(batched(x), gpucast.hadamard(x, 16, axis=place))
    for axis in (-3, 2):
        with pytest.raises(ValueError, match=rf"axis={axis} is out of bounds for shape \(3, 32\)"):
            torch.func.vmap(lambda t, axis=axis: gpucast.hadamard(t, 16, axis=axis))(x)


@pytest.mark.parametrize("kind", [torch.Tensor.requires_grad_, torch.nn.Parameter], ids=["tensor", "parameter"])
@pytest.mark.parametrize("keywords", [{}, {"saturate": False}], ids=["plan", "checked"])
@pytest.mark.parametrize("to", ["DOUBLE", "BFLOAT16", "FLOAT8E5M2", "FLOAT4E2M1"])
def test_a_cast_records_one_node_that_keeps_no_tensor(to: str, keywords: Any, kind: Callable[..., Any]) -> None:
    kept: list[Any] = []
    x = kind(torch.linspace(-2, 2, 8).reshape(2, 4))
    wanted = gpucast.cast(x.detach(), to, **keywords)
    for given in (x, x.t()[:2].t()[:, :2] if to == "FLOAT4E2M1" else x.t()):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
            y = gpucast.cast(given, to, **keywords)
        assert type(y) is torch.Tensor and y.requires_grad and not y.is_leaf and kept == []
        source = y.grad_fn.next_functions[0][0]
        assert source is given.grad_fn if given is not x else source.variable is x
        assert codes(y) == codes(gpucast.cast(given.detach(), to, **keywords))
    y = gpucast.cast(x, to, **keywords)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            z = gpucast.cast(x, to, **keywords)
            assert not z.requires_grad and z.is_inference() == (mode is torch.inference_mode)
            assert codes(z) == codes(wanted)
            out = torch.empty_like(wanted)
            assert gpucast.cast(x, to, out=out, **keywords) is out and codes(out) == codes(wanted)
    with pytest.raises(ValueError, match="x requires grad, and out= is not differentiable"):
        gpucast.cast(x, to, out=torch.empty_like(wanted), **keywords)
    # Twice: nothing that the first pass needs is gone.
    for _ in range(2):
        (dx,) = torch.autograd.grad(y, x, gpucast.cast(torch.full((2, 4), 1.5), to), retain_graph=True)
        assert torch.equal(dx, torch.full((2, 4), 1.5))


@pytest.mark.parametrize("to", ["FLOAT16", "FLOAT8E5M2"])
def test_the_scale_of_a_gradient_is_that_of_the_cast(to: str) -> None:
    """Also where an array of NumPy has changed since; torch refuses one of its own that has."""
    x, scale = torch.ones(3, requires_grad=True), np.float32([2.0])
    y = gpucast.cast(x, to, scale=scale)
    scale[0] = 8
    assert torch.autograd.grad(y.float().sum(), x)[0].tolist() == [2.0] * 3
    own = torch.tensor(2.0)
    y = gpucast.cast(x, to, scale=own)
    assert torch.autograd.grad(y.float().sum(), x, retain_graph=True)[0].tolist() == [2.0] * 3
    own.fill_(8)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.float().sum().backward()


def test_a_batch_of_gradients() -> None:
    """As for a Jacobian: one backward pass for all rows."""
    x = torch.ones(3, requires_grad=True)
    y = gpucast.cast(x, "BFLOAT16")
    (dx,) = torch.autograd.grad(y, x, torch.eye(3, dtype=torch.bfloat16), is_grads_batched=True)
    assert torch.equal(dx, torch.eye(3))


def test_second_derivatives() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    (dx,) = torch.autograd.grad((gpucast.cast(x, "DOUBLE") ** 3).sum(), x, create_graph=True)
    assert dx.dtype is torch.float32
    assert torch.equal(torch.autograd.grad(dx.sum(), x)[0], 6 * x)


def test_a_tensor_that_has_left_its_transform_has_its_gradient() -> None:
    w, left = torch.ones(3, requires_grad=True), []
    torch.func.grad(lambda x: (left.append(x * w), x.sum())[1])(torch.ones(3))
    gpucast.cast(left[0], "BFLOAT16").float().sum().backward()
    assert torch.equal(w.grad, torch.ones(3))


def test_a_tracer_sees_one_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    gpucast.cast(torch.ones(3, requires_grad=True), "BFLOAT16")
    graph = make_fx(lambda x: gpucast.cast(x, "BFLOAT16"))(torch.ones(3, requires_grad=True)).graph
    assert [node.target.name() for node in graph.nodes if node.op == "call_function"] == ["gpucast::cast"]


#: Casts through which a gradient is to pass in a narrow type, and how each is named.
NARROW: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "plan": ("cast", lambda x: gpucast.cast(x, "FLOAT8E4M3FN")),
    "checked": ("cast", lambda x: gpucast.cast(x, "FLOAT8E4M3FN", saturate=False)),
    "pairs": ("cast", lambda x: gpucast.cast(x, "FLOAT4E2M1")),
    "scaled": ("cast", lambda x: gpucast.cast(x, "FLOAT8E5M2", scale=0.5)),
    # By the plan of an earlier call it is a cast.
    "like": ("cast(_like)?", lambda x: gpucast.cast_like(x, torch.ones(1).to(torch.float8_e5m2))),
    "many": ("cast_many", lambda x: gpucast.cast_many([x], "FLOAT8E8M0")),
    "module": ("cast", gpucast_torch.Cast("FLOAT8E4M3FN")),
    "compiled": (
        "cast",
        torch.compile(lambda x: gpucast.cast(x, "FLOAT8E4M3FN").float(), backend="aot_eager"),
    ),
}


@pytest.mark.parametrize("name", NARROW)
def test_a_gradient_in_a_narrow_type_is_warned_of_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caller, call = NARROW[name]
    torch.compiler.reset()
    x = torch.ones(4, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(errors, "_is_said", False)
        # Nothing is recorded here.
        call(x.detach())
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                call(x)
        gpucast.cast(x, "BFLOAT16").sum().backward()
        gpucast.cast(x, "INT8")
        torch.vmap(lambda x: gpucast.cast(x, "FLOAT8E4M3FN", scale=2.0))(x[None].detach())
    torch.compiler.reset()
    with pytest.warns(NarrowGradientWarning, match=rf"^{caller}: the gradient of this cast arrives in FLOAT") as told:
        call(x)
        call(x)
    [one] = [warning for warning in told if warning.category is NarrowGradientWarning]
    assert "gpucast.mixed.fake_cast(x, 'FLOAT" in str(one.message)
    assert one.filename == __file__ or name == "compiled"


def test_a_transform_that_differentiates_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_is_said", False)
    with pytest.warns(NarrowGradientWarning, match="arrives in FLOAT8E4M3FN"):
        torch.func.grad(lambda x: gpucast.cast(x, "FLOAT8E4M3FN").float().sum())(torch.ones(4))


@pytest.mark.parametrize("scale", [None, 2.0, torch.tensor(2.0)], ids=str)
def test_batches_of_gradients(scale: Any) -> None:
    """``torch.autograd.functional.jacobian(vectorize=True)``, and `grad` with ``is_grads_batched``."""
    x = torch.tensor([[0.5, 3.0]])
    calls: tuple[Any, ...] = (
        lambda x: gpucast.cast(x, "FLOAT16", scale=scale),
        lambda x: gpucast.cast_many([x], "FLOAT16", scale=scale)[0],
    )
    for call in calls:
        found = torch.autograd.functional.jacobian(lambda x, call=call: call(x).float(), x, vectorize=True)
        assert torch.equal(found.reshape(2, 2), torch.eye(2) * (1 if scale is None else 2))
