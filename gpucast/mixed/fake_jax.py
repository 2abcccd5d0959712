# SPDX-License-Identifier: Apache-2.0
"""`gpucast.mixed.fake_cast` of JAX arrays: the gradient is that of the result, within ``jax.jit`` too."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpucast.casting.cast import cast_with
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import Options
from gpucast.mixed import fake_casts
from gpucast.mixed.fake_casts import CALLER


def fake_cast(x: Any, to: Any, options: Options, axis: Any) -> Any:
    """The values with their gradient."""
    narrow, scale = fake_casts.narrow_type(to), options.scale
    if not (isinstance(x, jax.core.Tracer) or isinstance(scale, jax.core.Tracer)):
        return fake_casts.there_and_back(x, to, options, axis)
    if not isinstance(narrow, DType):
        raise TypeError(f"{CALLER}: {narrow} has blocks, which no transform of JAX casts; call it outside")
    fake_casts.check_keywords(narrow, False, options, axis)
    if isinstance(scale, jax.Array):
        return _fake_cast(narrow, options._replace(scale=None), x, scale)
    return _fake_cast(narrow, options, x, None)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fake_cast(dst: DType, options: Options, x: Any, scale: Any) -> Any:
    """Two casts: a compiled function has nothing between them that would have to be differentiated."""
    inverse: Any = None
    if scale is not None:
        options, inverse = options._replace(scale=scale), jnp.ones_like(scale) / scale
    elif options.scale is not None:
        inverse = fake_casts.inverse_of(float(np.asarray(options.scale).reshape(())))
    y = cast_with(x, dst, options)
    return cast_with(y, dtype(x.dtype), Options(scale=inverse, caller=CALLER))


def _forward(dst: DType, options: Options, x: Any, scale: Any) -> tuple[Any, Any]:
    return _fake_cast(dst, options, x, scale), scale


def _backward(dst: DType, options: Options, scale: Any, dy: Any) -> tuple[Any, Any]:
    return dy, None if scale is None else jnp.zeros_like(scale)


_fake_cast.defvjp(_forward, _backward)
