# SPDX-License-Identifier: Apache-2.0
"""Loss scales: a loss times a large number keeps small gradients above a narrow type's smallest values.

Unlike jmp's, the objects change in place: a loop need not pass them from step to step, and a captured CUDA graph finds
the state at the same address each time. `adjust` returns its object, so code written for jmp works unchanged.

    loss = scale.scale(loss)
    grads, finite = scale.unscale(grads)
    scale.adjust(finite)
    params = select_tree(finite, update(params, grads), params)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpucast.arrays import tree as trees
from gpucast.arrays.packed import as_array, device_index
from gpucast.arrays.tree import all_floating, floating, is_floating
from gpucast.casting import engines
from gpucast.casting.calls import Names
from gpucast.casting.cast import cast
from gpucast.casting.cast_many import cast_arrays
from gpucast.core.arithmetic import exact
from gpucast.core.checks import count, positive, state_with_keys
from gpucast.core.dtypes import dtype
from gpucast.kernel import devices, streams
from gpucast.mixed import cuda
from gpucast.mixed.flag import checked_flag, new_flag

_FLOAT = dtype("FLOAT")
#: The largest number of steps, and how it is written.
_MOST = (2**32 - 1, "2^32 - 1")


class LossScale:
    """The base class of loss scales, with a scale of 1."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.state_dict().items())
        return f"{type(self).__name__}({settings})"

    @property
    def loss_scale(self) -> Any:
        """The factor of the loss: a number, or a FLOAT array of shape () on the device of the state."""
        return 1.0

    @exact()
    def scale(self, tree: Any, *, to: Any = None) -> Any:
        """The loss, or a tree of initial gradients, times the scale, in one pass.

        Floating leaves are multiplied as `gpucast.cast` with `scale=` does and rounded once, to their own types or to
        `to`. Python floats become FLOAT arrays on the device of the first array, or without arrays on the
        device of the state. Arrays of other types, integers and texts are returned as they are; TypeError for anything
        else, such as an iterator or a model.
        """
        dst = None if to is None else dtype(to, caller="scale: to=")
        leaves, structure = trees.flatten(tree, "scale: tree")
        indices = self._floating(leaves, structure, "scale: tree")
        factor = self._factors(leaves[indices[0]])[0] if indices else None
        for i in indices:
            leaves[i] = cast(leaves[i], dst or leaves[i].dtype, scale=factor, copy=factor is not None)
        return trees.unflatten(structure, leaves)

    @exact()
    def unscale(
        self,
        grads: Any,
        *,
        to: Any = "FLOAT",
        out: Any = None,
        finite: Any = None,
    ) -> tuple[Any, Any]:
        """Gradients divided by the scale, and whether all of them are finite. Each is read once.

        Parameters
        ----------
        grads
            A tree of arrays on one device. Floating leaves are multiplied with 1 / scale (rounded to FLOAT) as
            `gpucast.cast` with `scale=` does, and rounded once; Python floats and all other leaves are handled as in
            `scale`.
        to
            The type of the results. The default is FLOAT, because in a narrow type small gradients, which the scale
            preserved, would be lost again.
        out
            A tree with the structure of `grads`. Its floating leaves are written, and it is returned.
        finite
            For gradients that come in several calls: an array of one BOOL or UINT8 element on their device, which is
            combined with the outcome by a logical and, and returned. None: a new BOOL array of shape ().

        Returns
        -------
        ``(grads, finite)``. On a device nothing waits; ``bool(finite)`` does. `finite` tells whether the sources are
        finite, so a destination that saturates does not hide an overflow.

        TypeError and ValueError as for `gpucast.cast_many`, and ValueError for an `out` of another structure.
        """
        leaves, structure = trees.flatten(grads, "unscale: grads")
        targets = None if out is None else trees.leaves_like(structure, out, "unscale: out")
        indices = self._floating(leaves, structure, "unscale: grads")
        first = leaves[indices[0]] if indices else None
        if finite is None:
            finite = new_flag(_device_of(first))
        else:
            checked_flag(finite, "unscale")
        if indices:
            # Most trees have no other leaves.
            chosen = leaves if len(indices) == len(leaves) else [leaves[i] for i in indices]
            names = Names("grads", lambda: trees.paths(structure, indices))
            outs = None if targets is None else [targets[i] for i in indices]
            inverse = self._factors(first)[1]
            results = cast_arrays(chosen, to, names, "unscale", scale=inverse, finite=finite, out=outs)
            if chosen is leaves:
                leaves = results
            else:
                for i, leaf in zip(indices, results, strict=True):
                    leaves[i] = leaf
        return (trees.unflatten(structure, leaves) if out is None else out), finite

    def adjust(self, finite: Any) -> Any:
        """Adjust the scale to the outcome of a step, a bool or the flag from `unscale`; returns self. Nothing waits."""
        checked_flag(finite, "adjust")
        return self

    def state_dict(self) -> dict[str, Any]:
        """The state as Python numbers (waits for the device that holds it)."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`. ValueError or TypeError, and no change, for anything else."""
        self._checked_state(state)

    def _floating(self, leaves: list[Any], structure: trees.Structure, caller: str) -> list[int]:
        """The places of floating leaves, Python floats among them: arrays take their places."""
        if all_floating(leaves):
            return list(range(len(leaves)))
        # NumPy's float64 scalars are instances of float too, but are cast by their own dtype.
        numbers = [i for i, leaf in enumerate(leaves) if isinstance(leaf, float) and not isinstance(leaf, np.floating)]
        if numbers:
            first = next(filter(is_floating, leaves), None)
            device = devices.place(self._device_index() if first is None else _device_of(first))
            for i in numbers:
                leaves[i] = cast(leaves[i], _FLOAT, device=device)
        return floating(leaves, lambda: trees.paths(structure), caller, all_of_them=True)

    def _factors(self, leaf: Any) -> tuple[Any, Any]:
        """The scale and its inverse for an array, as `gpucast.cast` takes them."""
        return None, None

    def _device_index(self) -> int | None:
        """The index of the device that holds the state; None for the host."""
        return None

    def _checked_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return state_with_keys(state, sorted(self.state_dict()), f"{type(self).__name__}.load_state_dict")


class NoOpLossScale(LossScale):
    """The scale 1: the loss stays, gradients are cast and checked."""


class StaticLossScale(LossScale):
    """One scale for the whole run: a number of at least 2^-126, so that its inverse is finite too."""

    def __init__(self, loss_scale: float) -> None:
        self._scale = positive(loss_scale, "StaticLossScale: loss_scale", normal=True)

    @property
    def loss_scale(self) -> Any:
        return self._scale

    def state_dict(self) -> dict[str, Any]:
        return {"loss_scale": self._scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scale = type(self)(**self._checked_state(state))._scale

    @exact()
    def _factors(self, leaf: Any) -> tuple[Any, Any]:
        return self._scale, float(_inverse(self._scale))


class DynamicLossScale(LossScale):
    """The largest scale that keeps gradients finite, by the method of jmp, apex and PyTorch.

    After `period` consecutive steps with finite gradients the scale is multiplied with `factor`, unless the product is
    not finite as FLOAT. After any other step it is divided by `backoff` (None: by `factor`, too), but does not fall
    below `min_loss_scale`. (PyTorch's growth_factor is `factor`, its backoff_factor 1 / `backoff`.) All arithmetic is
    FLOAT.

    The state follows the last gradients to their device; leaving a device waits for it.

    TypeError for values that are no numbers. ValueError for a `factor` or `backoff` that is not above 1, a `period`
    below 1, and scales that are not finite, below 2^-126, or below `min_loss_scale`.
    """

    def __init__(
        self,
        loss_scale: float = 32768.0,
        *,
        period: int = 2000,
        factor: float = 2.0,
        backoff: float | None = None,
        min_loss_scale: float = 1.0,
        counter: int = 0,
    ) -> None:
        caller = "DynamicLossScale"
        self.period = count(period, f"{caller}: period", 1, *_MOST)
        self.factor = positive(factor, f"{caller}: factor", normal=True)
        self.backoff = self.factor if backoff is None else positive(backoff, f"{caller}: backoff", normal=True)
        self.min_loss_scale = positive(min_loss_scale, f"{caller}: min_loss_scale", normal=True)
        scale = positive(loss_scale, f"{caller}: loss_scale", normal=True)
        steps = count(counter, f"{caller}: counter", 0, *_MOST)
        for name, given, number in (("factor", factor, self.factor), ("backoff", backoff, self.backoff)):
            if number <= 1:
                raise ValueError(f"{caller}: {name}={given!r} must be above 1, as a FLOAT")
        if scale < self.min_loss_scale:
            raise ValueError(f"{caller}: loss_scale={loss_scale!r} is below min_loss_scale={min_loss_scale!r}")
        if steps >= self.period:
            raise ValueError(f"{caller}: counter={counter!r} must be below period={period!r}")
        #: ``struct LossScale`` of kernels/loss_scale.cu: the bits of the scale and of its inverse, and the counter.
        self._state: Any = np.zeros(3, np.uint32)
        self._write(np.float32(scale), steps)

    @property
    def loss_scale(self) -> Any:
        return cast(_floats(self._state)[0], _FLOAT)

    @property
    def counter(self) -> Any:
        """Steps with finite gradients since the scale changed: a UINT32 array of shape () on the state's device."""
        return cast(self._state[2:].reshape(()), "UINT32")

    @exact()
    def adjust(self, finite: Any) -> Any:
        with streams.visit(None, finite):
            return self._adjust(checked_flag(finite, "adjust"))

    def _adjust(self, flag: Any) -> Any:
        there = engines.of_any(flag, self._state)
        self._move(there.device)
        there.pick(self._adjust_on_host, self._adjust_on_device)(flag)
        return self

    def _adjust_on_device(self, flag: Any) -> None:
        settings = self.factor, self.backoff, self.min_loss_scale, self.period
        cuda.kernels.adjust(self._state, engines.of_array(self._state).take(flag), *settings)

    def _adjust_on_host(self, flag: Any) -> None:
        scale, counter = _floats(self._state)[0][()], int(self._state[2]) + 1
        less, more = scale / np.float32(self.backoff), scale * np.float32(self.factor)
        if not flag:
            scale, counter = max(less, np.float32(self.min_loss_scale)), 0
        elif counter >= self.period:
            scale, counter = more if np.isfinite(more) else scale, 0
        self._write(scale, counter)

    @exact()
    def state_dict(self) -> dict[str, Any]:
        state = cast(self._state, "UINT32", device="cpu")
        return {
            "loss_scale": float(_floats(state)[0]),
            "period": self.period,
            "factor": self.factor,
            "backoff": self.backoff,
            "min_loss_scale": self.min_loss_scale,
            "counter": int(state[2]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        other = type(self)(**self._checked_state(state))
        self.period, self.min_loss_scale = other.period, other.min_loss_scale
        self.factor, self.backoff = other.factor, other.backoff
        # Written into the same memory, because a CUDA graph may have captured its address.
        cast(other._state, "UINT32", out=self._state, device=devices.place(self._device_index()))

    def _factors(self, leaf: Any) -> tuple[Any, Any]:
        self._move(_device_of(leaf))
        return _floats(self._state)

    def _device_index(self) -> int | None:
        return device_index(self._state)

    def _move(self, device: int | None) -> None:
        if self._device_index() != device:
            self._state = cast(self._state, "UINT32", device=devices.place(device))

    @exact()
    def _write(self, scale: Any, counter: int) -> None:
        """Set the state on the host."""
        floats = self._state[:2].view(np.float32)
        floats[0], floats[1], self._state[2] = scale, _inverse(scale), counter


def _floats(state: Any) -> tuple[Any, Any]:
    """The scale and its inverse as arrays of shape () over the state."""
    floats = state[:2].view(np.float32)
    return floats[:1].reshape(()), floats[1:].reshape(())


@exact()
def _inverse(scale: Any) -> Any:
    """1 / scale as FLOAT, subnormal for the largest scales."""
    return np.float32(1) / np.float32(scale)


def _device_of(leaf: Any) -> int | None:
    """The index of the device that holds an array of any library; None for the host, and for None."""
    return None if leaf is None else device_index(as_array(leaf, "unscale"))
