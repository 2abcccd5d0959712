# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike as layers of a network, with a forward and a backward pass.

Example::

    layer = gpucast.layers.Cast("FLOAT8E4M3FN", lda_coeff=0.5)
    y = layer.forward(x)
    dx = layer.backward(dy)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpucast.arrays import adapters
from gpucast.arrays.operand import operand
from gpucast.arrays.packed import as_array
from gpucast.casting import dispatch
from gpucast.casting.cast import cast, cast_like
from gpucast.casting.fused import rule_of
from gpucast.core.checks import as_double, is_real
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.options import Options
from gpucast.core.rule import resolve

__all__ = ["Cast", "CastLike"]


class _Layer:
    """What both layers share: the attributes and the backward pass."""

    def __init__(
        self,
        *,
        saturate: bool = True,
        round_mode: str = "up",
        training: bool = True,
        lda_coeff: float = 1.0,
        name: str = "",
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{self._caller}: name={name!r} must be a string")
        if not isinstance(training, (bool, np.bool_)):
            raise TypeError(f"{self._caller}: training={training!r} must be True or False")
        # Nothing is cast here: any pair of types checks whether the attributes are legal.
        options = Options(saturate=saturate, round_mode=round_mode, caller=self._caller)
        resolve(dtype("FLOAT"), dtype("FLOAT8E8M0"), options)
        self.name = name
        self.saturate = saturate
        self.round_mode = round_mode
        #: Whether `forward` keeps what `backward` needs: x's type and y's shape, but not the arrays.
        self.training = bool(training)
        #: The factor of the gradient in the backward pass.
        self.lda_coeff = self._coefficient(lda_coeff)
        self._seen: tuple[DType, tuple[int, ...]] | None = None

    @property
    def _caller(self) -> str:
        return f"layers.{type(self).__name__}"

    def _coefficient(self, value: Any) -> float:
        if not is_real(value):
            raise TypeError(f"{self._caller}: lda_coeff={value!r} must be a number")
        number = as_double(value)
        if not math.isfinite(number):
            raise ValueError(f"{self._caller}: lda_coeff={value!r} must be finite, as a DOUBLE")
        return number

    def _keep(self, x: Any, y: Any) -> None:
        self._seen = (dtype(x.dtype), tuple(y.shape)) if self.training else None

    def backward(self, dy: Any) -> Any:
        """The gradient of x from the gradient of y: `dy` cast back to x's type, times `lda_coeff`, in one pass.

        `dy` is an array of y's shape, of any type but STRING, on the host or a device. The result is an array of the
        same library and device, of the type of the x that `forward` got last. The layer's `saturate` and `round_mode`
        apply.

        With lda_coeff 1 this is ``gpucast.cast(dy, x.dtype)``. Otherwise every value of dy is converted to DOUBLE
        (exact for all but 64-bit integers, which are rounded once), multiplied with lda_coeff as DOUBLE (rounded once,
        IEEE 754, subnormals kept), and the product is cast to x's type by the rules of a cast from DOUBLE. So an
        integer x gets the truncated product. NaN keeps its sign; infinity times 0 is the positive NaN.

        RuntimeError if the layer is not training, or before `forward`. TypeError where x or dy is STRING, which has no
        gradient. If lda_coeff is not 1, TypeError for a dy that is neither a NumPy or CuPy array nor a PackedArray.
        ValueError for a shape other than y's.
        """
        caller = f"{self._caller}.backward" + (f" of {self.name!r}" if self.name else "")
        if not self.training:
            raise RuntimeError(f"{caller}: the layer is not training; make it with training=True")
        if self._seen is None:
            raise RuntimeError(f"{caller}: nothing went forward yet; call forward(x) first, with training=True")
        dst, shape = self._seen
        dy = _with_dtype(dy)
        src = dtype(dy.dtype, caller=f"{caller}: dy.dtype=")
        for role, kind in (("x was", dst), ("dy is", src)):
            if kind.family == "string":
                raise TypeError(f"{caller}: {role} STRING, which has no gradient")
        if tuple(dy.shape) != shape:
            raise ValueError(f"{caller}: dy has shape {tuple(dy.shape)}; y had {shape}")
        coefficient = self._coefficient(self.lda_coeff)
        if coefficient == 1:
            return cast(dy, dst, saturate=self.saturate, round_mode=self.round_mode)
        if adapters.find(dy) is not None:
            raise TypeError(
                f"{caller}: dy is a {type(dy).__name__}; with lda_coeff={coefficient} expected a NumPy or CuPy array "
                "or a "
                "PackedArray"
            )
        options = Options(saturate=self.saturate, round_mode=self.round_mode, scale=coefficient, caller=caller)
        rule = rule_of(src, dst, options)
        source = operand(as_array(dy, caller), src)
        return dispatch.cast(source, rule, None, None, caller, FusedInputs(scale=coefficient)).array


def _with_dtype(x: Any) -> Any:
    """Lists and Python scalars as NumPy arrays, anything else unchanged."""
    return x if hasattr(x, "dtype") else np.asarray(x)


class Cast(_Layer):
    """The operator Cast as a layer, with the attributes of the Cast node of Graiphic's deep-learning toolkit.

    Parameters
    ----------
    to, saturate, round_mode
        As for `gpucast.cast`.
    training
        Whether there will be a backward pass. False: `forward` keeps nothing and `backward` is an error.
    lda_coeff
        The factor of the gradient in the backward pass, a finite number.
    name
        For messages.

    Raises
    ------
    TypeError and ValueError for illegal attributes, as for `gpucast.cast`.
    """

    def __init__(
        self,
        to: Any,
        *,
        saturate: bool = True,
        round_mode: str = "up",
        training: bool = True,
        lda_coeff: float = 1.0,
        name: str = "",
    ) -> None:
        super().__init__(saturate=saturate, round_mode=round_mode, training=training, lda_coeff=lda_coeff, name=name)
        self.to = dtype(to, caller=f"{self._caller}: to=")

    def forward(self, x: Any) -> Any:
        """``gpucast.cast(x, to)`` with the layer's attributes."""
        x = _with_dtype(x)
        y = cast(x, self.to, saturate=self.saturate, round_mode=self.round_mode)
        self._keep(x, y)
        return y

    __call__ = forward


class CastLike(_Layer):
    """The operator CastLike as a layer, with the parameters of `Cast` except `to`."""

    def forward(self, x: Any, like: Any) -> Any:
        """``gpucast.cast_like(x, like)`` with the layer's attributes. `like` gets no gradient."""
        x = _with_dtype(x)
        y = cast_like(x, like, saturate=self.saturate, round_mode=self.round_mode)
        self._keep(x, y)
        return y

    __call__ = forward
