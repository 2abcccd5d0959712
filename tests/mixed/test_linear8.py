# SPDX-License-Identifier: Apache-2.0
"""Linear8: its products and gradients are those of narrow operands, and it is a module like any other."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.mixed import DelayedScaling

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from gpucast.interop.torch import Linear8  # noqa: E402
from gpucast.mixed import linear8  # noqa: E402

pytestmark = pytest.mark.peers

SCALES = ("delayed", "blocks")


def narrow(x: Any, to: str) -> Any:
    """What float8 leaves of a tensor that is cast with the scale of its own largest magnitude."""
    scale = np.float32(gpucast.finfo(to).max) / np.float32(x.detach().abs().max())
    return gpucast.mixed.fake_cast(x.detach().float(), to, scale=scale).double()


def blocks(x: Any, name: str, axis: int) -> Any:
    return gpucast.quantize(x.detach(), name, axis=axis).dequantize().double()


def products(x: Any, w: Any, dy: Any, scales: str) -> tuple[Any, Any, Any]:
    """The three products by their definition, in DOUBLE."""
    if scales == "delayed":
        x, w, dy = narrow(x, "FLOAT8E4M3FN"), narrow(w, "FLOAT8E4M3FN"), narrow(dy, "FLOAT8E5M2")
        return x @ w.t(), dy @ w, dy.t() @ x
    e4, e5 = "mxfp8e4m3", "mxfp8e5m2"
    return (
        blocks(x, e4, 1) @ blocks(w, e4, 1).t(),
        blocks(dy, e5, 1) @ blocks(w, e4, 0),
        blocks(dy, e5, 0).t() @ blocks(x, e4, 0),
    )


def is_close(got: Any, wanted: Any) -> bool:
    """Up to the order of sums in FLOAT."""
    return bool((got.double() - wanted).abs().max() <= 2**-20 * wanted.abs().max())


@pytest.mark.parametrize("shape", [(8, 64, 32), (5, 13, 7), (1, 33, 1), (48, 16, 16)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scales", SCALES)
def test_products_are_those_of_narrow_operands(scales: Any, bias: bool, shape: tuple[int, int, int]) -> None:
    rows, inside, outside = shape
    torch.manual_seed(0)
    layer = Linear8(inside, outside, bias, scales=scales)
    x, dy = torch.randn(rows, inside, requires_grad=True), 1e-4 * torch.randn(rows, outside)
    y, dx, dw = products(x, layer.weight, dy, scales)
    got = layer(x)
    got.backward(dy)
    assert is_close(got - layer.bias if bias else got, y)
    assert is_close(x.grad, dx) and is_close(layer.weight.grad, dw)
    if bias:
        assert torch.equal(layer.bias.grad, dy.sum(0))
    if rows * outside > 1:
        # In float8, not in FLOAT: the error has the size of its rounding.
        wide = x.detach().double() @ layer.weight.detach().double().t()
        assert 1e-4 < (y - wide).norm() / wide.norm() < 0.1


@pytest.mark.parametrize("scales", SCALES)
def test_gradients_are_those_of_the_straight_through_definition(scales: Any) -> None:
    """A loss that is linear in the result: differences of the wide layer give the same gradients, up to rounding."""
    torch.manual_seed(1)
    layer = Linear8(64, 32, scales=scales)
    x, dy = torch.randn(16, 64, requires_grad=True), torch.randn(16, 32)
    (layer(x) * dy).sum().backward()
    wide = torch.nn.functional.linear
    step = 2.0**-6
    for tensor, grad in ((x, x.grad), (layer.weight, layer.weight.grad)):
        with torch.no_grad():
            for place in ((0, 0), (3, 5), (15, 63)):
                moved = tensor.detach().double().clone()
                moved[place] += step
                one = (moved, layer.weight.double()) if tensor is x else (x.double(), moved)
                two = (x.double(), layer.weight.double())
                difference = ((wide(*one) - wide(*two)) * dy).sum() / step
                assert abs(difference - grad[place]) < 0.12 * grad.abs().max()


def test_scales_are_those_of_earlier_steps() -> None:
    torch.manual_seed(2)
    layer, model = Linear8(16, 8, False, history=2), DelayedScaling("FLOAT8E4M3FN", tensors=2, history=2)
    sizes = (1.0, 3.0, 0.5, 0.5, 8.0)
    x, w = torch.randn(4, 16), layer.weight.detach().clone()
    model.cast_many([x, w])
    model.update()
    for size in sizes:
        given = size * x
        codes = model.cast_many([given, w])
        wide = [gpucast.cast(one, "FLOAT", scale=model.inverse[i]) for i, one in enumerate(codes)]
        y = layer(given.requires_grad_())
        assert torch.allclose(y, wide[0] @ wide[1].t(), rtol=1e-5, atol=1e-6)
        y.sum().backward()
        model.update()
        assert layer.operands.scale.tobytes() == model.scale.tobytes()


def test_evaluation_measures_nothing() -> None:
    layer = Linear8(16, 8).eval()
    x = torch.randn(4, 16)
    y, scale = layer(x), layer.operands.scale.copy()
    layer(100 * x).sum().backward()
    assert torch.equal(layer(x), y) and layer.operands.scale.tobytes() == scale.tobytes()
    assert not layer.operands.amax.any()
    layer.train()(100 * x)
    layer.update()
    assert (layer.operands.scale[0] < scale[0] / 50) and layer.operands.scale[1] == scale[1]


@pytest.mark.parametrize("scales", SCALES)
def test_shapes_and_types(scales: Any) -> None:
    layer = Linear8(32, 8, scales=scales)
    for shape in ((32,), (3, 32), (2, 3, 32), (0, 32), (2, 0, 32)):
        x = torch.randn(shape, requires_grad=True)
        y = layer(x)
        assert y.shape == (*shape[:-1], 8)
        y.sum().backward()
        assert x.grad.shape == x.shape
    for kind in (torch.float64, torch.bfloat16, torch.float16):
        own = Linear8(32, 8, scales=scales, dtype=kind)
        x = torch.randn(4, 32, dtype=kind, requires_grad=True)
        y = own(x)
        y.sum().backward()
        assert y.dtype is kind and x.grad.dtype is kind and own.weight.grad.dtype is kind
    frozen = Linear8(32, 8, scales=scales).requires_grad_(False)
    x = torch.randn(4, 32, requires_grad=True)
    frozen(x).sum().backward()
    assert x.grad is not None and frozen.weight.grad is None
    with torch.no_grad():
        assert not layer(x).requires_grad


@pytest.mark.parametrize("scales", SCALES)
def test_autocast(scales: Any) -> None:
    torch.manual_seed(3)
    layer, x = Linear8(32, 8, scales=scales), torch.randn(4, 32)
    wide = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        y.sum().backward()
    assert y.dtype is torch.bfloat16 and layer.weight.grad.dtype is torch.float32
    # The sum is in FLOAT and rounded once, before the bias.
    assert torch.equal(y, (wide - layer.bias).bfloat16() + layer.bias.bfloat16()) or torch.allclose(
        y.float(), wide, rtol=2**-7, atol=2**-8
    )


def copies(layer: Any) -> dict[str, Callable[[], Any]]:
    def loaded() -> Any:
        other = Linear8(16, 8, scales=layer.scales)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        return other

    return {"deepcopy": lambda: copy.deepcopy(layer), "state_dict": loaded}


@pytest.mark.parametrize("how", ["deepcopy", "state_dict"])
@pytest.mark.parametrize("scales", SCALES)
def test_a_copy_goes_on_as_the_layer_does(scales: Any, how: str) -> None:
    torch.manual_seed(4)
    layer, x = Linear8(16, 8, scales=scales), torch.randn(4, 16)
    layer(3 * x).sum().backward()
    layer.zero_grad()
    other = copies(layer)[how]()
    for _ in range(2):
        one, two = layer(x), other(x)
        assert torch.equal(one, two)
        for y in (one, two):
            y.square().sum().backward()
        assert torch.equal(layer.weight.grad, other.weight.grad)
    assert other.weight is not layer.weight


def test_states_that_do_not_fit() -> None:
    layer = Linear8(16, 8)
    state = layer.state_dict()
    assert set(state) == {"weight", "bias", "operands", "gradients"}
    plain = torch.nn.Linear(16, 8).state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "operands", "gradients"'):
        layer.load_state_dict(plain)
    layer.load_state_dict(plain, strict=False)
    with pytest.raises(
        RuntimeError, match=r"operands: DelayedScaling.load_state_dict: state has uint32 words of shape"
    ):
        layer.load_state_dict(Linear8(16, 8, history=4).state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Linear8(16, 8, scales="blocks").load_state_dict(state)
    nested = torch.nn.Sequential(Linear8(16, 8))
    nested.load_state_dict({f"0.{name}": x for name, x in state.items()})


def test_a_layer_over_the_parameters_of_another() -> None:
    linear = torch.nn.Linear(16, 8, dtype=torch.bfloat16).eval()
    layer = Linear8.of(linear, scales="blocks")
    assert layer.weight is linear.weight and layer.bias is linear.bias and not layer.training
    assert Linear8.of(torch.nn.Linear(3, 2, bias=False)).bias is None
    assert repr(layer) == "Linear8(in_features=16, out_features=8, bias=True, scales='blocks')"
    assert repr(Linear8(3, 2)).endswith("scales='delayed', history=16, margin=0)")
    with pytest.raises(TypeError, match=r"^Linear8.of: linear is ReLU; expected a torch.nn.Linear"):
        Linear8.of(torch.nn.ReLU())
    with pytest.raises(ValueError, match=r"^Linear8: scales='rows' must be 'delayed' or 'blocks'"):
        Linear8(3, 2, scales="rows")


@pytest.mark.parametrize("scales", SCALES)
def test_checkpoints_and_hooks(scales: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(5)
    layer, x = Linear8(16, 8, scales=scales), torch.randn(4, 16, requires_grad=True)
    other = copy.deepcopy(layer)
    for _ in range(2):
        layer(x).square().sum().backward()
        one, x.grad = x.grad, None
        checkpoint(other, x, use_reentrant=False).square().sum().backward()
        assert torch.equal(one, x.grad)
        x.grad = None


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of its own graphs.
@pytest.mark.parametrize("scales", SCALES)
def test_compiled(scales: Any) -> None:
    torch.compiler.reset()
    torch.manual_seed(6)
    model = torch.nn.Sequential(Linear8(16, 8, scales=scales), torch.nn.GELU(), Linear8(8, 4, scales=scales))
    other, x = copy.deepcopy(model), torch.randn(4, 16)
    run = torch.compile(other, backend="aot_eager")
    for _ in range(2):
        one, two = model(x), run(x)
        assert torch.equal(one, two)
        for y in (one, two):
            y.sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16])
def test_the_product_of_torch_gives_the_same(to: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has it, too; on a GPU it takes sides that are multiples of 16."""
    torch.manual_seed(7)
    x, results = torch.randn(32, 48, dtype=to), []
    layer = Linear8(48, 16, dtype=to)
    for has in (False, True):
        monkeypatch.setattr(linear8, "_has_product", lambda *given, has=has: has)
        own, given = copy.deepcopy(layer), x.clone().requires_grad_()
        y = own(given)
        y.square().sum().backward()
        results.append((y, given.grad, own.weight.grad))
    for one, two in zip(*results, strict=True):
        assert torch.allclose(one.float(), two.float(), rtol=1e-5 if to is torch.float32 else 2**-7, atol=1e-4)


def test_which_matrices_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Matrix:
        is_cuda, device = True, "cuda:0"

        def __init__(self, *shape: int) -> None:
            self.shape = shape

    for capability, has in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, own=capability: own)
        assert linear8._has_product(Matrix(32, 48), Matrix(48, 16), torch.bfloat16) == has
        for a, b in (((7, 48), (48, 16)), ((32, 40), (40, 16)), ((32, 48), (48, 8)), ((0, 48), (48, 16))):
            assert not linear8._has_product(Matrix(*a), Matrix(*b), torch.bfloat16)
        assert not linear8._has_product(Matrix(32, 48), Matrix(48, 16), torch.float64)
    assert not linear8._has_product(torch.ones(16, 16), torch.ones(16, 16), torch.bfloat16)


@pytest.mark.parametrize("scales", SCALES)
def test_a_second_derivative_is_refused(scales: Any) -> None:
    layer, x = Linear8(16, 8, scales=scales), torch.randn(4, 16, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
