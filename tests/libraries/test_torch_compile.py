# SPDX-License-Identifier: Apache-2.0
"""Every public call on tensors within torch.compile: what it gives outside, and the gradient, on each torch.

`tests/libraries/torch_matrix.py` runs this with several versions of torch.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast import layers, mixed

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from gpucast.interop import torch as gpucast_torch  # noqa: E402

pytestmark = pytest.mark.peers

_LAYER, _LIKE = layers.Cast("FLOAT16", lda_coeff=-0.5), layers.CastLike(lda_coeff=0.5)
_MODULE, _NARROW = gpucast_torch.Cast("FLOAT8E4M3FN", lda_coeff=-0.5), gpucast_torch.Cast("FLOAT4E2M1", lda_coeff=0.5)
_DELAYED = mixed.DelayedScaling("FLOAT8E5M2")
_HALF = torch.zeros(1, dtype=torch.float16)


def _with_amax(x: Any) -> Any:
    amax = torch.zeros(())
    return gpucast.cast(x, "BFLOAT16", scale=0.5, amax=amax).float() + amax


def _with_out(x: Any) -> Any:
    out = torch.empty(x.shape, dtype=torch.float16)
    gpucast.cast(x.detach(), "FLOAT16", scale=0.5, out=out)
    return x + out


def _backward_of_a_layer(x: Any) -> Any:
    _LAYER.forward(x.detach())
    return x + _LAYER.backward(x.detach())


class _Narrow(torch.autograd.Function):
    """Casts in a forward and in a backward function."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return gpucast.cast(gpucast.cast(x, "BFLOAT16"), "FLOAT")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return gpucast.cast(gpucast.cast(grads[0], "FLOAT8E5M2"), "FLOAT")


#: Calls that are part of a whole graph.
WHOLE: dict[str, Callable[[Any], Any]] = {
    "cast": lambda x: gpucast.cast(x, "FLOAT16"),
    "float4": lambda x: gpucast.cast(gpucast.cast(x, "FLOAT4E2M1"), "FLOAT"),
    "integers": lambda x: x + gpucast.cast(x, "INT8", rounding="nearest_even", overflow="saturate"),
    "scale": lambda x: gpucast.cast(x, "BFLOAT16", scale=3.5),
    "scale of a tensor": lambda x: gpucast.cast(x, "BFLOAT16", scale=torch.tensor(3.5)),
    "stochastic": lambda x: gpucast.cast(x, "BFLOAT16", rounding="stochastic", seed=2**64 - 1),
    "amax": _with_amax,
    "out": _with_out,
    "cast_like": lambda x: gpucast.cast_like(x, _HALF),
    "hadamard": lambda x: gpucast.hadamard(x, 32, seed=2**64 - 1, to="BFLOAT16"),
    "hadamard with signs": lambda x: x + gpucast.hadamard(x, 16, axis=1, signs=[1, -1] * 8, inverse=True),
    "layer": _LAYER.forward,
    "layer like": lambda x: _LIKE.forward(x, _HALF),
    "backward of a layer": _backward_of_a_layer,
    "a function of autograd": _Narrow.apply,
    "fake cast": lambda x: mixed.fake_cast(x, "FLOAT8E4M3FN", scale=0.3),
    "fake cast of blocks": lambda x: mixed.fake_cast(x, "mxfp8e4m3"),
    # torch's own cast back of the gradient does not saturate in every version.
    "module": lambda x: gpucast.cast(_MODULE(x), "FLOAT"),
    "module of float4": lambda x: gpucast.cast(_NARROW(x), "FLOAT"),
}
#: Calls between two graphs: their results are no tensors, or need values.
BETWEEN: dict[str, Callable[[Any], Any]] = {
    "cast_many": lambda x: gpucast.cast_many({"a": x, "b": x * 2}, "BFLOAT16", scale=2.0)["b"],
    "mxfp4": lambda x: x + gpucast.quantize(x.detach(), "mxfp4").dequantize(),
    "mxfp8": lambda x: x + gpucast.dequantize(gpucast.quantize(x.detach(), "mxfp8e4m3")),
    "int8": lambda x: x + gpucast.quantize(x.detach(), "int8_32").dequantize("FLOAT16"),
    "int4": lambda x: x + gpucast.cast(gpucast.cast(x, "INT4"), "FLOAT"),
    "float6": lambda x: x + gpucast.cast(gpucast.cast(x.detach(), "FLOAT6E2M3", scale=0.5), "FLOAT"),
    "bytes": lambda x: x + gpucast.cast(x.detach(), "UINT4").to_torch().sum(),
    "report": lambda x: x * gpucast.cast_report(x.detach(), "FLOAT8E4M3FN").saturated,
    "text": lambda x: x * len(gpucast.cast(x.detach(), "STRING")),
    "hadamard with numbers of NumPy": lambda x: gpucast.hadamard(
        gpucast.hadamard(x, 16, seed=np.int64(5)), np.int64(16), signs=np.array([1, -1] * 8)
    ),
    "fake cast with amax": lambda x: mixed.fake_cast(x, "FLOAT8E4M3FN", amax=torch.zeros(1)),
    "delayed fake cast": _DELAYED.fake_cast,
    "policy": lambda x: mixed.get_policy("p=f32,c=bf16,o=f32").cast_to_compute({"a": x})["a"],
    "unscale": lambda x: x + mixed.StaticLossScale(2.0).unscale([x.detach()])[0][0],
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    # torch's own use of what it has deprecated.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def outcome(function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    """What a function gives, and the gradient."""
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    assert y.requires_grad
    (dx,) = torch.autograd.grad(y.float().square().sum(), leaf)
    return y.detach(), dx


def check(function: Callable[[Any], Any], **options: Any) -> None:
    x = torch.linspace(-500, 500, 64).reshape(2, 32)
    run = torch.compile(function, backend="aot_eager", **options)
    # A second call finds what the first one compiled.
    for given in (x, x / 64):
        found, wanted = outcome(run, given), outcome(function, given)
        assert torch.equal(found[0].float(), wanted[0].float())
        assert torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("dynamic", [None, True], ids=["", "dynamic"])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_graphs(name: str, dynamic: bool | None) -> None:
    check(WHOLE[name], fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("name", BETWEEN)
def test_calls_between_two_graphs(name: str) -> None:
    check(BETWEEN[name])


def test_a_compiled_function_within_a_transform() -> None:
    x = torch.linspace(-2, 2, 8)
    for function, slope in ((WHOLE["float4"], 1), (WHOLE["scale"], 3.5), (WHOLE["module"], -0.5)):
        run = torch.compile(lambda x, function=function: function(x).float().sum(), backend="aot_eager")
        assert torch.equal(torch.func.grad(run)(x), torch.full_like(x, slope))


def test_many_kinds_of_calls_in_one_function() -> None:
    """More than torch compiles of one function: then it runs that as it is, and traces what it calls."""

    def function(x: Any, name: str, to: str) -> Any:
        return gpucast.quantize(x, name).dequantize(to) + gpucast.cast(gpucast.cast(x, "INT4"), to)

    run = torch.compile(function, backend="eager")
    x = torch.linspace(-8, 8, 128).reshape(1, 128)
    for name in ("mxfp4", "mxfp8e4m3", "int8_32", "int4_128", "nvfp4", "mxfp6e2m3"):
        for to in ("FLOAT", "DOUBLE", "BFLOAT16"):
            assert torch.equal(run(x, name, to), function(x, name, to))


def test_the_refusal_of_a_lost_gradient() -> None:
    run = torch.compile(lambda x: gpucast.cast(x, "FLOAT6E2M3"), backend="eager")
    with pytest.raises(ValueError, match="FLOAT6E2M3 becomes a PackedArray, through which torch passes no gradient"):
        run(torch.ones(4, requires_grad=True))


@pytest.mark.parametrize(
    "wrong",
    [{"seed": -1}, {"seed": 2**64 + 5}, {"seed": True}, {"inverse": 1}, {"signs": [1.9, -1.2] * 8}],
    ids=["negative seed", "large seed", "boolean seed", "inverse", "signs"],
)
def test_a_compiled_transform_refuses_what_the_eager_one_refuses(wrong: dict[str, Any]) -> None:
    x = torch.ones(2, 32)
    with pytest.raises((TypeError, ValueError)) as eager:
        gpucast.hadamard(x, 16, **wrong)
    run = torch.compile(lambda x: gpucast.hadamard(x, 16, **wrong), backend="eager")
    with pytest.raises(eager.type, match=re.escape(str(eager.value))):
        run(x)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"out": torch.zeros(3, dtype=torch.float16)}, r"out has shape \(3,\)"),
        ({"out": torch.zeros(3, dtype=torch.float16), "scale": 2.0}, r"out has shape \(3,\)"),
        ({"scale": torch.ones(2)}, r"scale has shape \(2,\)"),
        ({"amax": torch.ones(2)}, r"amax has shape \(2,\)"),
        ({"scale": -1.0}, "scale=-1.0 must be finite, as a DOUBLE, and not negative"),
        ({"scale": math.inf}, "scale=inf must be finite"),
    ],
)
def test_errors_of_compiled_casts_have_the_name_of_their_caller(keywords: dict[str, Any], message: str) -> None:
    like = torch.zeros((), dtype=torch.float16)
    calls: dict[str, Any] = {
        "cast": lambda x: gpucast.cast(x, "FLOAT16", **keywords),
        "cast_like": lambda x: gpucast.cast_like(x, like, **keywords),
    }
    for name, function in calls.items():
        torch._dynamo.reset()
        for run in (function, torch.compile(function, backend="eager")):
            with pytest.raises(ValueError, match=f"^{name}: {message}"):
                run(torch.ones(2, 2))


def test_inductor(exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("takes a C++ compiler and half a minute; pytest --exhaustive")
    x = torch.linspace(-500, 500, 64).reshape(2, 32)
    for name, function in (WHOLE | BETWEEN).items():
        torch._dynamo.reset()
        found, wanted = outcome(torch.compile(function), x), outcome(function, x)
        assert torch.equal(found[0].float(), wanted[0].float()), name
        assert torch.equal(found[1], wanted[1]), name


def compiled(function: Any) -> tuple[Any, list[Any]]:
    """`torch.compile` of a function into whole graphs, and the list of those made."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    return torch.compile(function, fullgraph=True, backend=backend), graphs


def fused_step(x: Any, scale: Any, amax: Any, seed: int) -> Any:
    y = gpucast.cast(2 * x, "FLOAT16", scale=scale, amax=amax)
    return y + gpucast.cast(x, "FLOAT16", rounding="stochastic", seed=seed, offset=seed)


def test_compile_keeps_the_graph_whole_at_fused_casts() -> None:
    """Numbers that change make no further graph, and `amax` is what it would be."""
    x = torch.linspace(-2, 2, 24).reshape(4, 6)
    run, graphs = compiled(fused_step)
    for seed in (1, 2, 7, 2**40):
        got, wanted = torch.zeros(()), torch.zeros(())
        assert torch.equal(run(x, 0.5, got, seed), fused_step(x, 0.5, wanted, seed))
        assert got == wanted == 4
    nodes = [node.target for node in graphs[-1].graph.nodes if "fused_cast" in str(node.target)]
    assert nodes == [torch.ops.gpucast.fused_cast.default] * 2
    assert len(graphs) == 2


def test_a_whole_graph_of_the_first_use_after_the_import_for_it() -> None:
    code = (
        "import torch, gpucast, gpucast.interop.torch\n"
        "f = torch.compile(lambda x: gpucast.cast(x, 'FLOAT16'), backend='eager', fullgraph=True)\n"
        "assert f(torch.ones(4)).dtype is torch.float16\n"
    )
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)


def test_the_first_use_of_all_is_within_a_compiled_function() -> None:
    code = (
        "import torch, gpucast, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "f = lambda x: gpucast.quantize(x, 'mxfp4').dequantize() + gpucast.cast(gpucast.cast(x, 'INT4'), 'FLOAT')\n"
        "x = torch.linspace(-8, 8, 64).reshape(2, 32)\n"
        "assert torch.equal(torch.compile(f, backend='eager')(x), f(x))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
