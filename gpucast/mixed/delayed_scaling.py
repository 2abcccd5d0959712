# SPDX-License-Identifier: Apache-2.0
"""Delayed scaling: narrow tensors whose scales come from the steps before, so that one pass casts and measures.

>>> scaling = DelayedScaling("FLOAT8E4M3FN", tensors=2)
>>> x, y = np.float32([0.5, 3.5]), np.float32([0.5])
>>> codes = scaling.cast(x, 0)  # x times scaling.scale[0]
>>> many = scaling.cast_many([x, y])  # in one launch
>>> scaling.update().scale  # once in a step
array([128., 896.], dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpucast.arrays import tree as trees
from gpucast.arrays.packed import as_array, device_index
from gpucast.casting import engines
from gpucast.casting.cast import cast
from gpucast.casting.cast_many import cast_many
from gpucast.core.arithmetic import exact
from gpucast.core.checks import count, integer, state_with_keys
from gpucast.core.dtypes import dtype, finfo
from gpucast.kernel import devices, streams
from gpucast.mixed import cuda
from gpucast.mixed.fake_casts import fake_cast

#: Rows of the state before the history, as kernels/delayed_scaling.cu has them.
_ROWS = ("scale", "inverse", "amax", "place")
_FINITE = np.finfo(np.float32)


class DelayedScaling:
    """Scales that fill a narrow type's range, one for each tensor, from the magnitudes of the last steps.

    `cast` multiplies a tensor by its scale, casts it, and measures its largest magnitude (amax) in the same pass.
    `update`, once in a step, moves all magnitudes into the history and sets ``scale = largest / amax / 2**margin``,
    where amax is the largest of the last `history` steps and `largest` that of the type. A scale stays while its
    history holds only zeros, or an infinity or NaN. It is kept between 2^-126 and the largest FLOAT. All arithmetic is
    FLOAT. Source: the recipe DelayedScaling of NVIDIA's Transformer Engine, with amax_compute_algo="max".

    The state follows the last tensor to its device; leaving a device waits for it. On a
    device nothing else waits, and after the first step a CUDA graph can capture both methods.

    Parameters
    ----------
    to
        The type of results: a float of at most 16 bits.
    tensors
        How many tensors have scales of their own here. `update` is one launch for all.
    history
        Steps that count. Transformer Engine's default is 1024; 1 takes the last step alone.
    margin
        How many times scales are halved: room for tensors that grow.
    power_of_two
        Round scales down to powers of two, so that neither scaling nor its inverse rounds anything.

    TypeError for other types and for counts that are no integers, ValueError for counts out of range.
    """

    def __init__(
        self, to: Any, *, tensors: int = 1, history: int = 16, margin: int = 0, power_of_two: bool = False
    ) -> None:
        caller = "DelayedScaling"
        self.to = dtype(to, caller=f"{caller}: to=")
        if self.to.family != "float" or self.to.bits > 16:
            raise TypeError(f"{caller}: to is {self.to.name}; expected a float type of at most 16 bits")
        self.tensors = count(tensors, f"{caller}: tensors", 1, 2**20)
        self.history = count(history, f"{caller}: history", 1, 2**16)
        self.margin = count(margin, f"{caller}: margin", 0, 64)
        if not isinstance(power_of_two, (bool, np.bool_)):
            raise TypeError(f"{caller}: power_of_two={power_of_two!r} must be True or False")
        self.power_of_two = bool(power_of_two)
        self._state: Any = np.zeros((len(_ROWS) + self.history, self.tensors), np.uint32)
        self._row("scale")[...] = self._row("inverse")[...] = 1
        self._begun = False

    @property
    def begun(self) -> bool:
        """Whether `update` has been called, or a state loaded that knows of such a call: before, all scales are 1."""
        return self._begun

    def __repr__(self) -> str:
        return (
            f"DelayedScaling({self.to.name!r}, tensors={self.tensors}, history={self.history}, "
            f"margin={self.margin}, power_of_two={self.power_of_two})"
        )

    @property
    def scale(self) -> Any:
        """The scales, FLOAT of shape (tensors,): a view of the state, of NumPy or CuPy."""
        return self._row("scale")

    @property
    def inverse(self) -> Any:
        """1 / scale for each tensor, to dequantize the results; ``torch._scaled_mm`` takes it."""
        return self._row("inverse")

    @property
    def amax(self) -> Any:
        """The largest magnitudes since `update`, likewise. Over several ranks reduce this vector in place by its
        maximum before `update`, so that all ranks keep equal scales."""
        return self._row("amax")

    @exact()
    def cast(self, x: Any, tensor: int = 0, *, out: Any = None) -> Any:
        """x times the scale of `tensor`, cast to the narrow type; one pass over x, as `gpucast.cast` does it.

        IndexError for a `tensor` that is not below `tensors`; otherwise errors as of `gpucast.cast`.
        """
        scale, amax = self._scale_of(x, tensor, "DelayedScaling.cast")
        return cast(x, self.to, scale=scale, amax=amax, out=out)

    @exact()
    def fake_cast(self, x: Any, tensor: int = 0, *, out: Any = None) -> Any:
        """Round x to the values that `cast` leaves, in x's type, with a gradient: `gpucast.mixed.fake_cast` with the
        scale of `tensor`. It measures x, too. Errors as of both."""
        scale, amax = self._scale_of(x, tensor, "DelayedScaling.fake_cast")
        return fake_cast(x, self.to, scale=scale, amax=amax, out=out)

    @exact()
    def cast_many(self, arrays: Any, *, out: Any = None) -> Any:
        """Cast a tree of arrays, one for each scale, in one launch per device.

        ValueError for another number of arrays; otherwise as `gpucast.cast_many`.
        """
        leaves, _ = trees.flatten(arrays, "DelayedScaling.cast_many: arrays")
        if len(leaves) != self.tensors:
            raise ValueError(f"DelayedScaling.cast_many: {len(leaves)} arrays; expected {self.tensors}")
        self._move(device_index(as_array(leaves[0], "DelayedScaling.cast_many")))
        return cast_many(arrays, self.to, scale=self.scale, amax=self.amax, out=out)

    @exact()
    def update(self) -> DelayedScaling:
        """Set the scales of the next step and start its measurement; returns self. Nothing waits."""
        self._begun = True
        largest, margin = float(np.float32(finfo(self.to).max)), math.ldexp(1.0, -self.margin)
        engines.of_array(self._state).pick(self._update_on_host, self._update_on_device)(largest, margin)
        return self

    def _update_on_device(self, largest: float, margin: float) -> None:
        with streams.visit(None, self._state):
            cuda.kernels.rescale(self._state, self.tensors, largest, margin, self.history, self.power_of_two)

    def _update_on_host(self, largest: float, margin: float) -> None:
        state, place = self._state, int(self._state[3, 0])
        state[len(_ROWS) + place], state[2] = state[2], 0
        state[3] = (place + 1) % self.history
        # The bits of magnitudes are in the order of the numbers, and those of NaN come last.
        bits = state[len(_ROWS) :].max(0)
        usable = (bits > 0) & (bits < np.uint32(0x7F800000))
        with np.errstate(over="ignore"):
            scale = np.float32(largest) / np.where(usable, bits, np.uint32(0x3F800000)).view(np.float32)
        scale = np.clip(scale * np.float32(margin), _FINITE.tiny, _FINITE.max)
        if self.power_of_two:
            scale = (scale.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
        self.scale[usable] = scale[usable]
        self.inverse[usable] = np.float32(1) / scale[usable]

    @exact()
    def state_dict(self) -> dict[str, Any]:
        """The settings as Python values and ``"state"``, a UINT32 NumPy array (waits for the device that holds it)."""
        return self._settings() | {"state": cast(self._state, "UINT32", device="cpu")}

    @exact()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict` of an object with equal settings. ValueError or TypeError, and no change,
        for anything else."""
        caller = "DelayedScaling.load_state_dict"
        expected = self._settings()
        state = state_with_keys(state, [*expected, "state"], caller)
        for name, value in expected.items():
            if state[name] != value:
                raise ValueError(f"{caller}: state has {name}={state[name]!r}; this object has {value!r}")
        words = np.asarray(state["state"])
        if words.dtype != np.uint32 or words.shape != self._state.shape:
            raise ValueError(
                f"{caller}: state has {words.dtype} words of shape {words.shape}; expected uint32 {self._state.shape}"
            )
        floats = np.delete(words, _ROWS.index("place"), 0).view(np.float32)
        if (
            (words[3] >= self.history).any()
            or (words[3] != words[3, 0]).any()
            or not ((floats[:2] > 0) & np.isfinite(floats[:2])).all()
        ):
            raise ValueError(f"{caller}: state holds scales or places that no step leaves")
        self._begun = bool(words[_ROWS.index("place") :].any())
        # Written into the same memory, because a CUDA graph may have captured its address.
        device = devices.place(device_index(self._state))
        cast(np.ascontiguousarray(words), "UINT32", out=self._state, device=device)

    def _scale_of(self, x: Any, tensor: Any, caller: str) -> tuple[Any, Any]:
        """The scale and the magnitude of a tensor, where x is."""
        i = integer(tensor, f"{caller}: tensor")
        if not 0 <= i < self.tensors:
            raise IndexError(f"{caller}: tensor={i} must be from 0 to {self.tensors - 1}")
        self._move(device_index(as_array(x, caller)))
        scale, amax = (self._row(name)[i : i + 1].reshape(()) for name in ("scale", "amax"))
        return scale, amax

    def _settings(self) -> dict[str, Any]:
        return {
            "to": self.to.name,
            "tensors": self.tensors,
            "history": self.history,
            "margin": self.margin,
            "power_of_two": self.power_of_two,
        }

    def _row(self, name: str) -> Any:
        return self._state[_ROWS.index(name)].view(np.float32)

    def _move(self, device: int | None) -> None:
        if device_index(self._state) != device:
            self._state = cast(self._state, "UINT32", device=devices.place(device))
