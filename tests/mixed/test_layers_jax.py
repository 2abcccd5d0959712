# SPDX-License-Identifier: Apache-2.0
"""What JAX differentiates through layers: the gradient has the layer's coefficient, within transforms and outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast import layers

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402


@pytest.mark.parametrize("coefficient", [1, 0.5, -0.375])
@pytest.mark.parametrize("to", ["FLOAT4E2M1", "FLOAT8E4M3FN", "BFLOAT16"])
def test_layers_differentiate_with_their_coefficient(to: str, coefficient: float) -> None:
    x = jnp.asarray([[1e9, 0.5], [-2.0, 0.0]], jnp.float32)
    wanted = np.full((2, 2), 2 * coefficient, np.float32)
    like = gpucast.cast(x, to)
    layer, of_like = layers.Cast(to, lda_coeff=coefficient), layers.CastLike(lda_coeff=coefficient)
    for forward in (layer.forward, lambda x: of_like.forward(x, like)):

        def loss(x: Any, forward: Any = forward) -> Any:
            return (gpucast.cast(forward(x), "FLOAT") * 2).sum()

        gradient = jax.grad(loss)
        for transformed in (gradient, jax.jit(gradient), jax.vmap(gradient), jax.jit(jax.vmap(gradient))):
            assert_same(np.asarray(transformed(x)), wanted)
        assert_same(np.asarray(jax.jit(forward)(x)), np.asarray(like))
        y, pull = jax.vjp(forward, x)
        assert_same(np.asarray(pull(y)[0]), layer_backward(to, coefficient, np.asarray(y)))


def layer_backward(to: str, coefficient: float, dy: np.ndarray) -> np.ndarray:
    layer = layers.Cast(to, lda_coeff=coefficient)
    layer.forward(np.ones(dy.shape, np.float32))
    return np.asarray(layer.backward(dy))


def test_what_jax_has_no_type_for_names_the_layer() -> None:
    x = jnp.ones(2, jnp.float32)
    with pytest.raises(TypeError, match=r"to=FLOAT6E2M3 is no type of JAX; .*gpucast\.layers\.Cast has the gradient"):
        jax.grad(lambda x: gpucast.cast(x, "FLOAT6E2M3"))(x)
    layer = layers.Cast("FLOAT6E2M3", lda_coeff=0.5)
    layer.forward(x)
    assert layer.backward(jnp.asarray([2.0, -3.0])).tolist() == [1.0, -1.5]
