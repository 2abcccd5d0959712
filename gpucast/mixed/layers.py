# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike as layers of a network, with a forward and a backward pass.

PyTorch differentiates through a layer when the tensor requires a gradient, and JAX within ``jax.grad``. Both use the
layer's `lda_coeff`.

Example::

    layer = gpucast.layers.Cast("FLOAT8E4M3FN", lda_coeff=0.5)
    y = layer.forward(x)
    dx = layer.backward(dy)
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.packed import PackedArray, as_array
from gpucast.casting.cast import cast, cast_like, cast_with, times
from gpucast.core.checks import as_double, is_real
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import (
    CAST_VERSIONS,
    CASTLIKE_VERSIONS,
    Options,
    RoundMode,
    newest_version,
    resolve,
)

__all__ = ["Cast", "CastLike"]


class _Layer:
    """The common part of both layers: the attributes and the backward pass."""

    #: The versions of the operator.
    _VERSIONS: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        *,
        saturate: bool = True,
        round_mode: RoundMode = "up",
        opset: int | None = None,
        training: bool = True,
        lda_coeff: float = 1.0,
        name: str = "",
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{self._caller}: name={name!r} must be a string")
        if not isinstance(training, (bool, np.bool_)):
            raise TypeError(f"{self._caller}: training={training!r} must be True or False")
        #: As for `gpucast.cast`; None: the newest rules.
        self.opset = opset
        # Nothing is cast here: a pair of types that every version has checks whether the attributes are legal.
        resolve(
            dtype("FLOAT"),
            dtype("FLOAT"),
            Options(saturate=saturate, round_mode=round_mode, opset=self._cast_opset, caller=self._caller),
        )
        self.name = name
        self.saturate = saturate
        self.round_mode = round_mode
        #: Whether `forward` keeps what `backward` needs: the types of x and y and y's shape, but not the arrays.
        self.training = bool(training)
        #: The factor of the gradient in the backward pass.
        self.lda_coeff = self._coefficient(lda_coeff)
        #: The dtypes of the last x and y, and y's shape.
        self._seen: tuple[DType, DType, tuple[int, ...]] | None = None

    def __repr__(self) -> str:
        return f"{self._caller}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """The attributes that differ from their defaults, as keywords."""
        defaults = {"saturate": True, "round_mode": "up", "opset": None, "training": True, "lda_coeff": 1.0, "name": ""}
        given = {name: getattr(self, name) for name in defaults}
        return ", ".join(f"{name}={given[name]!r}" for name, default in defaults.items() if given[name] != default)

    @property
    def _cast_opset(self) -> int | None:
        """The opset whose Cast has the rules that the layer follows; None for the newest."""
        if self.opset is None:
            return None
        return newest_version(self.opset, self._VERSIONS, self._caller)

    @property
    def _caller(self) -> str:
        return f"layers.{type(self).__name__}"

    def _coefficient(self, value: Any) -> float:
        if not is_real(value):
            raise TypeError(f"{self._caller}: lda_coeff={value!r} must be a number")
        number = as_double(value)
        # math.isfinite is unknown to torch.compile, for which the number may be a symbol.
        if number - number != 0:
            raise ValueError(f"{self._caller}: lda_coeff={value!r} must be finite, as a DOUBLE")
        return number

    def _keep(self, x: Any, y: Any) -> None:
        self._seen = (dtype(x.dtype), dtype(y.dtype), _shape(y)) if self.training else None

    def backward(self, dy: Any) -> Any:
        """The gradient of x from the gradient of y: `dy` cast back to x's type, times `lda_coeff`, in one pass.

        The gradient is straight through: rounding and clamping count as the identity for every element. `dy` is an
        array of y's shape, of any type except STRING. The result is of the same library and device, and has the type of
        the last x that `forward` took. The layer's `saturate`, `round_mode` and `opset` apply.

        With lda_coeff 1 this is ``gpucast.cast(dy, x.dtype)``. Otherwise every value of dy becomes DOUBLE (exact except
        for 64-bit integers, which are rounded once) and is multiplied by lda_coeff in DOUBLE (rounded once, IEEE 754,
        subnormals kept). The product is cast to x's type as any DOUBLE. NaN keeps its sign. Infinity times 0 is the
        positive NaN.

        RuntimeError if the layer is not training, or before `forward`. TypeError if x or y is an integer, BOOL or
        STRING, because such a cast has no gradient. TypeError for a dy of STRING, and, if lda_coeff is not 1, for a dy
        that is neither an array of NumPy, CuPy, PyTorch or JAX nor a PackedArray; an object with DLPack that tells no
        dtype counts as one of NumPy or CuPy. ValueError for a shape other than y's.
        """
        caller = f"{self._caller}.backward" + (f" of {self.name!r}" if self.name else "")
        if not self.training:
            raise RuntimeError(f"{caller}: the layer is not training; make it with training=True")
        if self._seen is None:
            raise RuntimeError(f"{caller}: nothing went forward yet; call forward(x) first, with training=True")
        src, dst, shape = self._seen
        for role, kind in (("x", src), ("y", dst)):
            if not kind.is_float:
                raise TypeError(
                    f"{caller}: {role} was {kind.name}, which has no gradient; only casts between floating types "
                    "have one"
                )
        dy = _with_dtype(dy, caller)
        if dtype(dy.dtype, caller=f"{caller}: dy.dtype=").family == "string":
            raise TypeError(f"{caller}: dy is STRING, which is no gradient; expected numbers")
        if _shape(dy) != shape:
            raise ValueError(f"{caller}: dy has shape {_shape(dy)}; y had {shape}")
        return self.gradient(dy, src, caller)

    def gradient(self, dy: Any, to: DType, caller: str) -> Any:
        """`dy` cast to x's type `to`, times `lda_coeff`, as `backward` says; errors begin with `caller`."""
        coefficient = self._coefficient(self.lda_coeff)
        if coefficient == 1:
            return cast(dy, to, saturate=self.saturate, round_mode=self.round_mode, opset=self._cast_opset)

        options = self._options(caller)._replace(scale=coefficient)
        library = libraries.find(dy)
        if library is None:
            return times(as_array(dy, caller), to, options)
        if libraries.library_of(dy) is None and not isinstance(dy, PackedArray):
            raise TypeError(
                f"{caller}: dy is a {type(dy).__name__}; with lda_coeff={coefficient} expected a NumPy or CuPy array, "
                "a PackedArray, a tensor of PyTorch or an array of JAX"
            )
        if isinstance(dy, PackedArray):
            return library.cast(times, dy, to, options)
        return library.cast_times(times, dy, to, options)

    def _options(self, caller: str) -> Options:
        return Options(saturate=self.saturate, round_mode=self.round_mode, opset=self._cast_opset, caller=caller)

    def _through(self, x: Any, to: Any, options: Options) -> Any:
        """The cast of an array of another library, through which that differentiates."""
        library = libraries.find(x)
        assert library is not None
        return library.cast_layer(cast_with, x, to, options, self._coefficient(self.lda_coeff))


def _with_dtype(x: Any, caller: str) -> Any:
    """Lists, Python scalars and objects with DLPack alone as arrays of NumPy or CuPy, anything else unchanged."""
    if hasattr(x, "dtype"):
        return x
    with libraries.visit(None, x):
        return as_array(x, caller)


def _shape(x: Any) -> tuple[int, ...]:
    """The shape of the elements: a tensor of pairs has half as many along the last axis."""
    library = None if isinstance(x, PackedArray) else libraries.find(x)
    return tuple(x.shape) if library is None else tuple(library.shape(x))


class Cast(_Layer):
    """The operator Cast as a layer, with the attributes of the Cast node of Graiphic's deep-learning toolkit.

    Parameters
    ----------
    to, saturate, round_mode, opset
        As for `gpucast.cast`; an `opset` of None means the newest rules. 19 gives the tables of that node.
    training
        Whether there will be a backward pass. False: `forward` keeps nothing and `backward` is an error.
    lda_coeff
        The factor of the gradient in the backward pass, a finite number.
    name
        The name in messages.

    Raises
    ------
    TypeError and ValueError for illegal attributes, as for `gpucast.cast`.

    As a module of PyTorch: `gpucast.interop.torch.Cast`.
    """

    _VERSIONS = CAST_VERSIONS

    def __init__(
        self,
        to: Any,
        *,
        saturate: bool = True,
        round_mode: RoundMode = "up",
        opset: int | None = None,
        training: bool = True,
        lda_coeff: float = 1.0,
        name: str = "",
    ) -> None:
        super().__init__(
            saturate=saturate, round_mode=round_mode, opset=opset, training=training, lda_coeff=lda_coeff, name=name
        )
        self.to = dtype(to, caller=f"{self._caller}: to=")
        resolve(dtype("FLOAT"), self.to, Options(opset=self._cast_opset, caller=self._caller))

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [repr(self.to.name), super().extra_repr()]))

    def forward(self, x: Any) -> Any:
        """``gpucast.cast(x, to)`` with the layer's attributes."""
        x = _with_dtype(x, self._caller)
        y = self.result(x)
        self._keep(x, y)
        return y

    def result(self, x: Any) -> Any:
        """The result of `forward`, without keeping anything for `backward`."""
        if libraries.find(x) is not None:
            return self._through(x, self.to, self._options("cast"))
        return cast(x, self.to, saturate=self.saturate, round_mode=self.round_mode, opset=self._cast_opset)

    __call__ = forward


class CastLike(_Layer):
    """The operator CastLike as a layer, with the parameters of `Cast` except `to`; `opset` is 15 to 28."""

    _VERSIONS = CASTLIKE_VERSIONS

    def forward(self, x: Any, like: Any) -> Any:
        """``gpucast.cast_like(x, like)`` with the layer's attributes. `like` gets no gradient."""
        x = _with_dtype(x, self._caller)
        y = self.result(x, like)
        self._keep(x, y)
        return y

    def result(self, x: Any, like: Any) -> Any:
        """The result of `forward`, without keeping anything for `backward`."""
        keywords: Any = {"saturate": self.saturate, "round_mode": self.round_mode, "opset": self.opset}
        if libraries.find(x) is None:
            return cast_like(x, like, **keywords)
        # A scalar or a list has the type that it has there.
        to = like.dtype if hasattr(like, "dtype") else cast_like(np.empty(0), like).dtype
        options = self._options("cast_like")
        if self.opset is not None:
            options = options._replace(opset=self.opset, versions=CASTLIKE_VERSIONS)
        return self._through(x, to, options)

    __call__ = forward
