# SPDX-License-Identifier: Apache-2.0
"""`gpucast.cast` within transforms of JAX: the bits of a call outside, and the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from foreign_arrays import HELD_BY_JAX as HELD
from foreign_arrays import wide  # noqa: F401
from gpucast import mixed
from gpucast.core.dtypes import DType, dtype

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

pytestmark = pytest.mark.usefixtures("wide")
#: Of each kind of floats one: to compile takes long.
FLOATS = [dtype(name) for name in ("FLOAT", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E8M0", "FLOAT4E2M1")]


@pytest.mark.parametrize("src", HELD, ids=str)
def test_within_jit_bits_are_those_of_a_call_outside(src: DType) -> None:
    x = values(src, (4, 6))
    # Half of the pairs: to compile takes long.
    chosen = HELD[HELD.index(src) % 2 :: 2]
    ys = jax.jit(lambda x: [gpucast.cast(x, dst) for dst in chosen])(jnp.asarray(x))
    for y, dst in zip(ys, chosen, strict=True):
        assert isinstance(y, jax.Array)
        assert_same(np.asarray(y), gpucast.reference.cast(x, dst))


@pytest.mark.parametrize(
    ("to", "keywords"),
    [
        ("FLOAT8E4M3FN", {"saturate": False}),
        ("FLOAT8E8M0", {"round_mode": "nearest"}),
        ("FLOAT8E4M3FNUZ", {"opset": 19}),
        ("INT8", {"rounding": "nearest_even", "overflow": "saturate"}),
        ("FLOAT8E5M2", {"rounding": "stochastic", "seed": 7, "offset": 3}),
        ("BFLOAT16", {"scale": 0.375}),
        ("FLOAT16", {"scale": np.float32(3), "overflow": "saturate"}),
    ],
)
def test_keywords(to: str, keywords: dict[str, Any]) -> None:
    x = values(dtype("FLOAT"), (5, 7))
    wanted = gpucast.cast(x, to, **keywords)
    assert_same(np.asarray(jax.jit(lambda x: gpucast.cast(x, to, **keywords))(x)), wanted)
    # Each part of a batch is cast as if it were alone.
    batch = values(dtype("FLOAT"), (3, 5, 7), seed=1)
    found = np.asarray(jax.vmap(lambda x: gpucast.cast(x, to, **keywords))(jnp.asarray(batch)))
    for part, one in zip(found, batch, strict=True):
        assert_same(part, gpucast.cast(one, to, **keywords))


def test_the_scale_may_be_traced() -> None:
    x, scale = values(dtype("FLOAT"), (5,)), np.float32(0.375)
    wanted = gpucast.cast(x, "FLOAT16", scale=scale)
    assert_same(np.asarray(jax.jit(lambda x, s: gpucast.cast(x, "FLOAT16", scale=s))(x, scale)), wanted)
    assert_same(np.asarray(jax.jit(lambda s: gpucast.cast(jnp.asarray(x), "FLOAT16", scale=s))(scale)), wanted)
    scales = np.array([0.375, 2.0], np.float32)
    both = jax.vmap(lambda s: gpucast.cast(jnp.asarray(x), "FLOAT16", scale=s))(jnp.asarray(scales))
    assert_same(np.asarray(both), np.stack([wanted, gpucast.cast(x, "FLOAT16", scale=scales[1])]))


@pytest.mark.parametrize("inside", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("src", FLOATS, ids=str)
def test_the_gradient_is_the_cast_back(src: DType, inside: Callable[..., Any]) -> None:
    x, scale = values(src, (3, 4)), 0.625
    for dst in FLOATS:
        dy = values(dst, (3, 4), seed=2)
        for keywords in ({}, {"scale": scale}):

            def pulled(x: Any, dy: Any, keywords: Any = keywords, dst: DType = dst) -> Any:
                y, pull = jax.vjp(lambda x: gpucast.cast(x, dst, **keywords), x)
                return y, pull(dy)[0]

            y, dx = inside(pulled)(jnp.asarray(x), jnp.asarray(dy))
            assert_same(np.asarray(y), gpucast.cast(x, dst, **keywords))
            assert_same(np.asarray(dx), gpucast.cast(dy, src, **keywords))


def test_integers_and_scales_have_no_gradient() -> None:
    x = jnp.asarray([1.5, -2.5], jnp.float32)
    through = jax.grad(lambda x: gpucast.cast(gpucast.cast(x, "INT8"), "FLOAT").sum())
    assert through(x).tolist() == jax.jit(through)(x).tolist() == [0, 0]
    of_scale = jax.grad(lambda s: gpucast.cast(x, "FLOAT16", scale=s).astype(jnp.float32).sum())
    assert float(of_scale(jnp.float32(2))) == float(jax.jit(of_scale)(jnp.float32(2))) == 0
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: gpucast.cast(x, "FLOAT16"), (x,), (x,))


def test_trees_and_policies() -> None:
    tree = {"w": jnp.asarray([0.1, 1e9], jnp.float32), "n": jnp.arange(3)}
    policy = mixed.get_policy("p=f32,c=bf16,o=f32")
    inside = jax.jit(policy.cast_to_compute)(tree)
    assert inside["w"].dtype == jnp.bfloat16 and inside["n"].dtype == tree["n"].dtype
    assert_same(np.asarray(inside["w"]), np.asarray(policy.cast_to_compute(tree)["w"]))
    many = jax.jit(lambda tree: gpucast.cast_many(tree, "FLOAT8E5M2", rounding="stochastic", seed=1))(tree)
    for name, wanted in gpucast.cast_many(tree, "FLOAT8E5M2", rounding="stochastic", seed=1).items():
        assert_same(np.asarray(many[name]), np.asarray(wanted))
    like = jax.jit(gpucast.cast_like)(tree["w"], jnp.zeros(0, jnp.float16))
    assert like.dtype == jnp.float16


@pytest.mark.parametrize(
    ("to", "keywords", "error", "message"),
    [
        ("FLOAT6E2M3", {}, TypeError, "cast: to=FLOAT6E2M3 is no type of JAX"),
        ("STRING", {}, TypeError, "cast: to=STRING is no type of JAX"),
        ("FLOAT16", {"device": "cpu"}, ValueError, "cast: device= cannot be used within a transform of JAX"),
        ("FLOAT16", {"amax": np.zeros(1, np.float32)}, ValueError, "cast: amax= cannot be used within a transform"),
        ("FLOAT16", {"out": np.zeros(3, np.float16)}, ValueError, "cast: out= cannot be used within a transform"),
        ("INT8", {"rounding": "neerest"}, ValueError, "cast: rounding='neerest'"),
        ("FLOAT16", {"scale": -1.0}, ValueError, "cast: scale=-1.0 must be finite"),
        ("FLOAT16", {"rounding": "stochastic"}, ValueError, "seed"),
    ],
)
def test_what_is_wrong_is_said_when_the_function_is_traced(
    to: str, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda x: gpucast.cast(x, to, **keywords), jnp.ones(3, jnp.float32))


def test_sixty_four_bits_need_jaxs_consent_within_jit_too() -> None:
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(TypeError, match=r"cast: to=INT64 needs jax\.config\.update"):
        jax.jit(lambda x: gpucast.cast(x, "INT64"))(jnp.ones(3, jnp.float32))


def test_flags_of_gradients_need_values() -> None:
    with pytest.raises(ValueError, match="finite= cannot be told within a transform of torch.func or JAX"):
        jax.jit(lambda x: gpucast.cast_many([x], "FLOAT16", finite=np.ones(1, bool)))(jnp.ones(3, jnp.float32))
    with pytest.raises(TypeError, match="unscale: x is being traced by JAX and has no values"):
        jax.jit(lambda g: mixed.StaticLossScale(2.0).unscale(g)[0])(jnp.ones(3, jnp.float32))
