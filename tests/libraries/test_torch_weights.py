# SPDX-License-Identifier: Apache-2.0
"""Weights are tensors that require a gradient, where one is recorded and where none is: repeated calls are plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.core.extension import MODULE
from gpucast.mixed import fake_cast

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from bench.entered import entered  # noqa: E402
from gpucast.libraries.torch import tensors  # noqa: E402

pytestmark = pytest.mark.peers
needs_plans = pytest.mark.skipif(
    MODULE is None or not tensors.VIEW, reason="plans of tensors need the extension module and PyTorch 2.13"
)

ENDS = torch.tensor([7, 32], dtype=torch.int32)
CALLS: dict[str, Callable[[Any], Any]] = {
    "quantize": lambda x: gpucast.quantize(x, "nvfp4"),
    "both ways": lambda x: gpucast.quantize(x, "mxfp8e4m3", transpose="both"),
    "groups": lambda x: gpucast.quantize_grouped(x, ENDS, "mxfp8e4m3"),
    "hadamard": lambda x: gpucast.hadamard(x, 16),
    "cast_many": lambda x: gpucast.cast_many([x, x[:3]], "FLOAT16"),
    "a vector of scales": lambda x: gpucast.cast_many([x, x[:3]], "FLOAT16", scale=torch.tensor([2.0, 3.0])),
    "a tree": lambda x: gpucast.cast_many({"w": x}, "INT8"),
    "there and back": lambda x: fake_cast(x, "mxfp8e4m3"),
}


def weight(kind: type = torch.nn.Parameter) -> Any:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    return kind(x) if kind is torch.nn.Parameter else x.requires_grad_()


def parts(y: Any) -> list[bytes]:
    """The codes of all tensors of a result."""
    if isinstance(y, torch.Tensor):
        assert not y.requires_grad
        return [y.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()]
    if isinstance(y, dict):
        return parts(list(y.values()))
    if isinstance(y, (tuple, list)):
        return [one for each in y for one in parts(each)]
    found = [y.data, y.scales, getattr(y, "global_scale", None)]
    return [one for each in found if isinstance(each, torch.Tensor) for one in parts(each)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.Tensor])
@pytest.mark.parametrize("name", CALLS)
def test_where_nothing_is_recorded_a_weight_is_its_numbers(name: str, kind: type, mode: Any) -> None:
    x, call = weight(kind), CALLS[name]
    wanted = parts(call(x.detach()))
    assert wanted
    with mode():
        for _ in range(3):
            assert parts(call(x)) == wanted
    assert x.grad is None and x.is_leaf and x._version == 0


@needs_plans
@pytest.mark.parametrize("name", [name for name in CALLS if name != "a vector of scales"])
def test_repeated_calls_of_weights_are_plans(name: str) -> None:
    """The checked path enters hundreds of functions."""
    x, call = weight(), CALLS[name]
    with torch.no_grad():
        for _ in range(3):
            call(x)
        functions, _ = min(entered(lambda: call(x)) for _ in range(3))
    assert functions <= 50


@pytest.mark.parametrize("name", ["quantize", "groups"])
def test_a_plan_does_not_take_a_gradient_that_is_recorded(name: str) -> None:
    x, call = weight(), CALLS[name]
    for recorded in (False, True, False):
        with torch.set_grad_enabled(recorded):
            if recorded:
                with pytest.raises(ValueError, match=r"x requires grad"):
                    call(x)
            else:
                call(x)


@pytest.mark.parametrize("scale", [None, 3.0])
def test_lists_have_the_gradients_of_single_casts(scale: float | None) -> None:
    xs = [weight(), torch.randn(5), torch.randn(3, 4, dtype=torch.float64, requires_grad=True), weight(torch.Tensor)]
    for _ in range(3):
        results = gpucast.cast_many(xs, "FLOAT16", scale=scale)
        singles = [gpucast.cast(x, "FLOAT16", scale=scale) for x in xs]
        assert [y.requires_grad for y in results] == [x.requires_grad for x in xs]
        grads = []
        for each in (results, singles):
            for x in xs:
                x.grad = None
            sum((y.float() * (i + 1)).sum() for i, y in enumerate(each)).backward()
            grads.append([x.grad for x in xs])
        assert all(torch.equal(one, other) for one, other in zip(results, singles, strict=True))
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(*grads, strict=True))
        assert grads[0][1] is None and grads[0][2].dtype is torch.float64


def test_what_has_no_gradient_is_refused_in_lists_before_amax_is_written() -> None:
    amax, x = torch.zeros(()), weight()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^cast_many: arrays\[1\]: x requires grad, and FLOAT6E2M3"):
            gpucast.cast_many([x.detach(), x], "FLOAT6E2M3", amax=amax)
        with pytest.raises(ValueError, match=r"^cast_many: arrays\[0\]: x requires grad, and a scale for each array"):
            gpucast.cast_many([x, x], "FLOAT16", amax=amax, scale=torch.ones(2))
        assert amax == 0
        gpucast.cast_many([x.detach(), x.detach()], "FLOAT16")


def test_a_scale_of_a_list_that_changes_before_the_backward_pass() -> None:
    for call in (lambda x, scale: gpucast.cast(x, "FLOAT16", scale=scale), _first_of_list):
        x, scale = weight(), np.full((), 2, np.float32)
        y = call(x, scale)
        scale[...] = 100
        y.float().sum().backward()
        assert (x.grad == 2).all()


def _first_of_list(x: Any, scale: Any) -> Any:
    return gpucast.cast_many([x], "FLOAT16", scale=scale)[0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("x", [torch.ones(3), torch.ones(3, requires_grad=True)], ids=["numbers", "weight"])
def test_what_is_no_scale_is_refused_by_name(x: Any) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for scale, said in (
        ([[1.0], [2.0, 3.0]], r"scale=\[\[1.0\], \[2.0, 3.0\]\] must be a number or an array"),
        (nested, "scale: x has the layout nested"),
    ):
        with pytest.raises(TypeError, match=f"^cast_many: {said}"):
            gpucast.cast_many([x, x], "FLOAT16", scale=scale)


def test_strides_of_what_comes_back_from_blocks() -> None:
    """Along axes of one element a tensor in the order of channels differs from a new one in its strides alone."""
    ordered = torch.randn(4, 1, 8, 32).to(memory_format=torch.channels_last)
    assert ordered.is_contiguous()
    for x in (ordered, torch.randn(1, 32), torch.randn(2, 0, 32), torch.randn(4, 2, 8, 32)):
        for _ in range(2):
            y = fake_cast(x, "mxfp8e4m3")
            assert y.stride() == x.stride()
            assert torch.equal(y, gpucast.quantize(x, "mxfp8e4m3").dequantize())


def test_there_and_back_by_blocks() -> None:
    x = weight()
    wanted = gpucast.quantize(x.detach(), "mxfp8e4m3").dequantize()
    for given in (x, x.detach(), x.detach().t().contiguous().t()):
        for _ in range(3):
            y = fake_cast(given, "mxfp8e4m3")
            assert torch.equal(y, wanted) and y.stride() == given.stride()
            assert y.data_ptr() != given.data_ptr() and y.requires_grad == given.requires_grad
    y = fake_cast(x, "mxfp8e4m3", scale=None)
    y.backward(torch.full_like(y, 2.0))
    np.testing.assert_array_equal(x.grad, 2.0)
