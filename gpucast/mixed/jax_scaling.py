# SPDX-License-Identifier: Apache-2.0
"""Delayed scaling for ``jax.jit``: a pytree with pure methods and the scales of `gpucast.mixed.DelayedScaling`.

>>> @jax.jit
... def step(scales, x):
...     codes, scales = scales.cast(x, "FLOAT8E4M3FN")
...     return codes, scales.update("FLOAT8E4M3FN")
>>> codes, scales = step(DelayedScales.start(), jnp.float32([0.5, 3.5]))
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpucast.casting.cast import cast
from gpucast.core.checks import count, integer
from gpucast.core.dtypes import dtype, finfo

#: The largest scale: XLA flushes the inverse of a larger one to zero.
_MOST = math.ldexp(1.0, 126)


class DelayedScales(NamedTuple):
    """Scales of some tensors, from the largest magnitudes of the last steps: arrays of FLOAT and INT32, to be carried
    from step to step, sharded or saved as any pytree."""

    #: Of each tensor: what it is multiplied with, 1 / scale, and the largest magnitude since `update`. Over several
    #: devices reduce `amax` by its maximum (``jax.lax.pmax``) before `update`.
    scale: Any
    inverse: Any
    amax: Any
    #: The magnitudes of the last steps, a row each, and the row that the next `update` replaces.
    history: Any
    place: Any

    @classmethod
    def start(cls, tensors: int = 1, history: int = 16) -> DelayedScales:
        """Scales of 1. TypeError or ValueError for counts that `gpucast.mixed.DelayedScaling` refuses."""
        n = count(tensors, "DelayedScales: tensors", 1, 2**20)
        steps = count(history, "DelayedScales: history", 1, 2**16)
        one = jnp.ones(n, jnp.float32)
        return cls(one, one, jnp.zeros_like(one), jnp.zeros((steps, n), jnp.float32), jnp.int32(0))

    def cast(self, x: Any, to: Any, tensor: int = 0) -> tuple[Any, DelayedScales]:
        """x times the scale of `tensor`, as `gpucast.cast` gives it, and the scales with its magnitude. The gradient is
        that of the cast. IndexError for a `tensor` that has no scale, where its value is known before the call runs."""
        if not isinstance(tensor, jax.core.Tracer):
            # JAX would take the scale of another tensor, and drop the magnitude.
            tensor = integer(tensor, "DelayedScales.cast: tensor")
            if not 0 <= tensor < len(self.scale):
                raise IndexError(f"DelayedScales.cast: tensor={tensor} must be from 0 to {len(self.scale) - 1}")
        codes = cast(x, to, scale=self.scale[tensor])
        kind = dtype(x.dtype, caller="DelayedScales.cast: x.dtype=")
        x = jax.lax.stop_gradient(x)
        if not kind.has_negative_zero or kind.bits not in (8, 16, 32):
            # These codes are not a sign before magnitudes with NaN last, or XLA may lack integers of as many bits.
            x, kind = cast(x, "FLOAT"), dtype("FLOAT")
        # As integers, because XLA flushes subnormal numbers. Those of NaN are the largest.
        bits = jax.lax.bitcast_convert_type(x, kind.code_numpy) & kind.code_numpy.type(kind.sign_code - 1)
        largest = jax.lax.bitcast_convert_type(jnp.max(bits, initial=0), kind.numpy)
        measured = _bits(cast(largest, "FLOAT"))
        measured = jnp.where(measured > 0x7F800000, 0x7FC00000, measured)
        seen = _bits(self.amax).at[tensor].max(measured)
        return codes, self._replace(amax=_floats(seen))

    def update(self, to: Any, margin: int = 0, power_of_two: bool = False) -> DelayedScales:
        """The scales of the next step, once in a step for all tensors: as `gpucast.mixed.DelayedScaling.update`, but no
        scale is above 2^126."""
        history = _bits(self.history).at[self.place].set(_bits(self.amax))
        place = (self.place + 1) % len(history)
        bits = history.max(0)
        usable = (bits > 0) & (bits < 0x7F800000)
        largest = float(np.float32(finfo(to).max))
        factor = math.ldexp(1.0, -count(margin, "DelayedScales.update: margin", 0, 64))
        scale = jnp.clip(largest / _floats(jnp.where(usable, bits, 0x3F800000)) * factor, 2.0**-126, _MOST)
        if power_of_two:
            scale = _floats(_bits(scale) & 0x7F800000)
        scale = jnp.where(usable, scale, self.scale)
        return DelayedScales(scale, 1 / scale, jnp.zeros_like(self.amax), _floats(history), place)


def _bits(x: Any) -> Any:
    return jax.lax.bitcast_convert_type(x, jnp.int32)


def _floats(bits: Any) -> Any:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
