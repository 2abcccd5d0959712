# SPDX-License-Identifier: Apache-2.0
"""gpucast.mixed.fake_cast of JAX arrays: the values of arrays, and the gradient of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpucast.core import errors
from gpucast.core.errors import NarrowGradientWarning
from gpucast.mixed import fake_cast

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)


@pytest.mark.parametrize(
    ("to", "keywords"),
    [
        ("FLOAT8E4M3FN", {}),
        ("FLOAT8E5M2", {"scale": 3.0}),
        ("INT8", {"scale": np.float32(40), "rounding": "nearest_even"}),
        ("FLOAT4E2M1", {"rounding": "stochastic", "seed": 3}),
    ],
)
def test_values_and_gradients(to: str, keywords: Any) -> None:
    def call(x: Any) -> Any:
        return fake_cast(x, to, **keywords)

    wanted, x = call(X), jnp.asarray(X)
    for function in (call, jax.jit(call), jax.vmap(call) if "seed" not in keywords else call):
        assert np.asarray(function(x)).tobytes() == wanted.tobytes()
    for gradient in (jax.grad, lambda loss: jax.jit(jax.grad(loss))):
        assert (gradient(lambda x: (call(x) * 3).sum())(x) == 3).all()


def test_scales_of_the_function() -> None:
    def call(x: Any, scale: Any) -> Any:
        return fake_cast(x, "FLOAT8E4M3FN", scale=scale)

    scale = jnp.float32(3)
    assert np.asarray(jax.jit(call)(X, scale)).tobytes() == call(X, np.float32(3)).tobytes()
    dx, ds = jax.grad(lambda x, s: (call(x, s) * 3).sum(), argnums=(0, 1))(jnp.asarray(X), scale)
    assert (dx == 3).all() and ds == 0


def test_formats_are_for_calls_outside() -> None:
    assert np.asarray(fake_cast(jnp.asarray(X), "mxfp4")).tobytes() == fake_cast(X, "mxfp4").tobytes()
    with pytest.raises(TypeError, match=r"^fake_cast: mxfp4 has blocks, which no transform of JAX casts"):
        jax.jit(lambda x: fake_cast(x, "mxfp4"))(X)
    with pytest.raises(ValueError, match=r"^fake_cast: axis=0 is for formats with blocks, not for the type INT8"):
        jax.jit(lambda x: fake_cast(x, "INT8", axis=0))(X)


def test_a_gradient_in_a_narrow_type_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpucast

    monkeypatch.setattr(errors, "_is_said", False)
    x = jnp.ones(4)
    gpucast.cast(x, "FLOAT8E4M3FN")
    jax.grad(lambda x: gpucast.cast(x, "BFLOAT16").sum().astype("float32"))(x)
    with pytest.warns(NarrowGradientWarning, match="^cast: the gradient of this cast arrives in FLOAT8E4M3FN") as told:
        jax.grad(lambda x: gpucast.cast(x, "FLOAT8E4M3FN").astype("float32").sum())(x)
    assert told[0].filename == __file__
