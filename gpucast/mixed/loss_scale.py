# SPDX-License-Identifier: Apache-2.0
"""Loss scales: a loss times a large number keeps small gradients above a narrow type's smallest values.

The objects change in place (unlike jmp's): a NumPy or CuPy loop carries nothing from step to step, and a CUDA graph
of a step finds the state at the same address each time. `adjust` returns its object, so jmp's line reads the same.

    loss = scale.scale(loss)
    grads, finite = scale.unscale(grads)
    scale.adjust(finite)
    params = select_tree(finite, update(params, grads), params)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpucast.arrays import tree as trees
from gpucast.arrays.batch_item import Names
from gpucast.arrays.packed import as_array, device_index
from gpucast.casting.batch import cast_arrays
from gpucast.casting.cast import cast
from gpucast.core.checks import as_double, integer, is_real
from gpucast.core.dtypes import dtype
from gpucast.mixed import gpu
from gpucast.mixed.flag import checked_flag, flag_on, new_flag
from gpucast.mixed.leaves import is_floating, paths

_FLOAT = dtype("FLOAT")


class LossScale:
    """What all loss scales have. Theirs is 1, unless they say otherwise."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.state_dict().items())
        return f"{type(self).__name__}({settings})"

    @property
    def loss_scale(self) -> Any:
        """What the loss is multiplied with: a number, or a FLOAT array of shape () where the state lies."""
        return 1.0

    def scale(self, tree: Any, *, to: Any = None) -> Any:
        """The loss, or a tree of gradients to start from, times the scale, in one pass.

        Floating leaves are multiplied as `gpucast.cast` with `scale=` does and rounded once, to their own types or to
        `to`; Python's floats become FLOAT arrays where the arrays lie, or else the state. All other leaves are returned
        as they are.
        """
        dst = None if to is None else dtype(to, who="scale: to=")
        leaves, structure = trees.flatten(tree, "scale: tree")
        leaves = self._arrays(leaves)
        places = [i for i, leaf in enumerate(leaves) if is_floating(leaf)]
        factor = self._factors(leaves[places[0]])[0] if places else None
        for i in places:
            leaves[i] = cast(leaves[i], dst or leaves[i].dtype, scale=factor, copy=factor is not None)
        return trees.unflatten(structure, leaves)

    def unscale(self, grads: Any, *, to: Any = "FLOAT", out: Any = None, finite: Any = None) -> tuple[Any, Any]:
        """Gradients without the scale, and whether all of them are finite: one pass that reads each of them once.

        Parameters
        ----------
        grads
            A tree of arrays in one place. Floating leaves are multiplied with 1 / scale (rounded to FLOAT) as
            `gpucast.cast` with `scale=` does, and rounded once; Python's floats are taken as by `scale`. All other
            leaves are returned as they are.
        to
            The type of the results. FLOAT, because small gradients that the scale saved would be lost again in a
            narrow type.
        out
            A tree of the structure of `grads`: its floating leaves are written, and it is returned.
        finite
            An array of one BOOL or UINT8 element where the gradients are, to be and-ed with the outcome and returned:
            for gradients that come in several calls. None: a new one, BOOL of shape ().

        Returns
        -------
        ``(grads, finite)``. On a device nothing waits; ``bool(finite)`` does. Finiteness is that of the sources: a
        destination that saturates hides nothing.

        TypeError and ValueError as for `gpucast.cast_many`, and ValueError for an `out` of another structure.
        """
        leaves, structure = trees.flatten(grads, "unscale: grads")
        leaves = self._arrays(leaves)
        targets = None if out is None else trees.leaves_like(structure, out, "unscale: out")
        places = [i for i, leaf in enumerate(leaves) if is_floating(leaf)]
        first = leaves[places[0]] if places else None
        if finite is None:
            finite = new_flag(_device_of(first))
        else:
            checked_flag(finite, "unscale")
        if places:
            results = cast_arrays(
                [leaves[i] for i in places],
                to,
                Names("grads", lambda: paths(structure, places)),
                "unscale",
                scale=self._factors(first)[1],
                finite=finite,
                out=None if targets is None else [targets[i] for i in places],
            )
            for i, leaf in zip(places, results, strict=True):
                leaves[i] = leaf
        return (trees.unflatten(structure, leaves) if out is None else out), finite

    def adjust(self, finite: Any) -> Any:
        """Take the outcome of a step in, a bool or what `unscale` gave, and return self. Nothing waits."""
        checked_flag(finite, "adjust")
        return self

    def state_dict(self) -> dict[str, Any]:
        """The state as Python's numbers (waits for a device that holds it)."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave. ValueError or TypeError, and nothing changed, for anything else."""
        self._checked_state(state)

    def _arrays(self, leaves: list[Any]) -> list[Any]:
        """The leaves, in a new list, with arrays in place of Python's floats."""
        leaves = list(leaves)
        # NumPy's float64 scalars are Python's floats too, but have a type of their own.
        numbers = [i for i, leaf in enumerate(leaves) if isinstance(leaf, float) and not isinstance(leaf, np.floating)]
        if numbers:
            first = next(filter(is_floating, leaves), None)
            device = _device_name(self._device_index() if first is None else _device_of(first))
            for i in numbers:
                leaves[i] = cast(leaves[i], _FLOAT, device=device)
        return leaves

    def _factors(self, leaf: Any) -> tuple[Any, Any]:
        """The scale and its inverse for an array, as `gpucast.cast` takes them."""
        return None, None

    def _device_index(self) -> int | None:
        """The index of the device that holds the state; None for the host."""
        return None

    def _checked_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        who, expected = f"{type(self).__name__}.load_state_dict", list(self.state_dict())
        if not isinstance(state, Mapping):
            raise TypeError(f"{who}: state is {type(state).__name__}; expected a dict")
        if set(state) != set(expected):
            raise ValueError(f"{who}: state has the keys {sorted(map(str, state))}; expected {sorted(expected)}")
        return {name: state[name] for name in expected}


class NoOpLossScale(LossScale):
    """The scale 1: the loss is not touched, gradients are cast and checked."""


class StaticLossScale(LossScale):
    """One scale for the whole run: a number from 2^-126 on, so that its inverse is finite too."""

    def __init__(self, loss_scale: float) -> None:
        self._scale = _number(loss_scale, "StaticLossScale: loss_scale")

    @property
    def loss_scale(self) -> Any:
        return self._scale

    def state_dict(self) -> dict[str, Any]:
        return {"loss_scale": self._scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scale = type(self)(**self._checked_state(state))._scale

    def _factors(self, leaf: Any) -> tuple[Any, Any]:
        return self._scale, float(_inverse(self._scale))


class DynamicLossScale(LossScale):
    """The largest scale that keeps gradients finite, found as jmp, apex and PyTorch find it.

    After `period` steps in a row with finite gradients it grows by `factor`, unless it would be no finite FLOAT; after
    a step with others it shrinks by `factor`, not below `min_loss_scale`. All arithmetic is FLOAT.

    The state lies where the gradients lie that it saw last, and moves there by itself; leaving a device waits for it.

    TypeError for what is no number, ValueError for a `factor` that is not above 1, a `period` below 1, and scales that
    are not finite, below 2^-126, or below `min_loss_scale`.
    """

    def __init__(
        self,
        loss_scale: float = 2.0**15,
        *,
        period: int = 2000,
        factor: float = 2.0,
        min_loss_scale: float = 1.0,
        counter: int = 0,
    ) -> None:
        who = "DynamicLossScale"
        self.period = _count(period, 1, f"{who}: period")
        self.factor = _number(factor, f"{who}: factor")
        self.min_loss_scale = _number(min_loss_scale, f"{who}: min_loss_scale")
        scale = _number(loss_scale, f"{who}: loss_scale")
        steps = _count(counter, 0, f"{who}: counter")
        if self.factor <= 1:
            raise ValueError(f"{who}: factor={factor!r} must be above 1, as a FLOAT")
        if scale < self.min_loss_scale:
            raise ValueError(f"{who}: loss_scale={loss_scale!r} is below min_loss_scale={min_loss_scale!r}")
        if steps >= self.period:
            raise ValueError(f"{who}: counter={counter!r} must be below period={period!r}")
        #: ``struct LossScale`` of kernels/loss_scale.cu: the bits of the scale and of its inverse, and the counter.
        self._state: Any = np.zeros(3, np.uint32)
        self._write(np.float32(scale), steps)

    @property
    def loss_scale(self) -> Any:
        return cast(_floats(self._state)[0], _FLOAT)

    @property
    def counter(self) -> Any:
        """Steps with finite gradients since the scale has changed: an UINT32 array of shape () where the state lies."""
        return cast(self._state[2:].reshape(()), "UINT32")

    def adjust(self, finite: Any) -> Any:
        flag = checked_flag(finite, "adjust")
        if device_index(flag) is not None:
            self._move(device_index(flag))
        device = self._device_index()
        if device is not None:
            by = gpu.kernels.Adjustment(self.factor, self.min_loss_scale, self.period)
            gpu.kernels.adjust(self._state, flag_on(flag, device), by)
            return self
        scale, counter, factor = _floats(self._state)[0][()], int(self._state[2]) + 1, np.float32(self.factor)
        with np.errstate(over="ignore", under="ignore"):
            less, more = scale / factor, scale * factor
        if not flag:
            scale, counter = max(less, np.float32(self.min_loss_scale)), 0
        elif counter >= self.period:
            scale, counter = more if np.isfinite(more) else scale, 0
        self._write(scale, counter)
        return self

    def state_dict(self) -> dict[str, Any]:
        state = self._state if self._device_index() is None else cast(self._state, "UINT32", device="cpu")
        return {
            "loss_scale": float(_floats(state)[0]),
            "period": self.period,
            "factor": self.factor,
            "min_loss_scale": self.min_loss_scale,
            "counter": int(state[2]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        other = type(self)(**self._checked_state(state))
        self.period, self.factor, self.min_loss_scale = other.period, other.factor, other.min_loss_scale
        # Into the same memory: a CUDA graph may know its address.
        cast(other._state, "UINT32", out=self._state, device=_device_name(self._device_index()))

    def _factors(self, leaf: Any) -> tuple[Any, Any]:
        self._move(_device_of(leaf))
        return _floats(self._state)

    def _device_index(self) -> int | None:
        return device_index(self._state)

    def _move(self, device: int | None) -> None:
        if self._device_index() != device:
            self._state = cast(self._state, "UINT32", device=_device_name(device))

    def _write(self, scale: Any, counter: int) -> None:
        """Set the state on the host."""
        floats = self._state[:2].view(np.float32)
        floats[0], floats[1], self._state[2] = scale, _inverse(scale), counter


def _floats(state: Any) -> tuple[Any, Any]:
    """The scale and its inverse as arrays of shape () over the state."""
    floats = state[:2].view(np.float32)
    return floats[:1].reshape(()), floats[1:].reshape(())


def _inverse(scale: Any) -> Any:
    """1 / scale as FLOAT, subnormal for the largest scales."""
    with np.errstate(under="ignore"):
        return np.float32(1) / np.float32(scale)


def _device_of(leaf: Any) -> int | None:
    """The index of the device that holds an array of any library; None for the host, and for None."""
    return None if leaf is None else device_index(as_array(leaf, "unscale"))


def _device_name(device: int | None) -> str:
    return "cpu" if device is None else f"cuda:{device}"


def _number(value: Any, who: str) -> float:
    """A scale or factor as FLOAT has it."""
    if not is_real(value):
        raise TypeError(f"{who}={value!r} must be a number")
    with np.errstate(over="ignore", under="ignore"):
        number = float(np.float32(as_double(value)))
    if not (math.isfinite(number) and number >= 2.0**-126):
        raise ValueError(f"{who}={value!r} must be finite and 2^-126 or more, as a FLOAT")
    return number


def _count(value: Any, least: int, who: str) -> int:
    count = integer(value, who)
    if not least <= count < 2**32:
        raise ValueError(f"{who}={value!r} must be from {least} to 2^32 - 1")
    return count
