# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.cast_many`: a call with arrays like those of an earlier one needs little more than their addresses.

A plan is for arrays of one class, all of them contiguous and on one device, and for outs of one class. What such an
array is like is described in a tuple; plans whose descriptions are equal to those of a call serve it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpucast import gpu
from gpucast.arrays import adapters
from gpucast.arrays.adapters import ArrayAdapter
from gpucast.arrays.batch_overlap import apart, is_clear
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.item import Leaf
from gpucast.arrays.overlap import share_memory
from gpucast.arrays.packed import PackedArray
from gpucast.casting import plan_cache as plans
from gpucast.casting.fused_options import resolve_finite, resolve_scale
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.fused_ops import Fusion
from gpucast.core.options import Call
from gpucast.core.random import resolve_random

if TYPE_CHECKING:
    from gpucast.gpu.batch import Launch

#: Kinds of calls, and for each of them the plans that differ in their arrays.
_CALLS, _SHAPES = 256, 8


class Cupy(ArrayAdapter):
    """Arrays of CuPy, which are ours: how plans look at them."""

    describe_one: Callable[[Any], Any] = attrgetter("dtype", "shape", "_c_contiguous", "data.device_id")
    address: Callable[[Any], int] = attrgetter("data.ptr")

    def describe(self, arrays: Sequence[Any]) -> list[Any]:
        return list(map(self.describe_one, arrays))

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        return list(map(self.address, arrays))

    def allocate(self, arrays: Sequence[Any], row: DType) -> list[Any]:
        if not arrays:
            return []
        return [gpu.cast.room(arrays[0], row), *(gpu.cast.new(x.shape, row) for x in arrays[1:])]

    def stream(self, device: int) -> int:
        driver = gpu.driver.driver()
        with driver.on(device):
            return driver.stream()


class Packed(Cupy):
    """PackedArrays over CuPy's."""

    describe_one = attrgetter("dtype", "shape", "data.data.device_id")
    address = attrgetter("data.data.ptr")


#: By the classes of arrays.
_ADAPTERS: dict[type, ArrayAdapter] = {PackedArray: Packed()}


@dataclass(frozen=True, slots=True)
class Plan:
    """The launch of casts of arrays that are like these into outs (None: new arrays) that are like those."""

    arrays: list[Any]
    outs: list[Any] | None
    scaling: str
    device: int
    #: The places of the arrays that have elements; None for all.
    used: list[int] | None
    src_bytes: npt.NDArray[np.uint64]
    dst_bytes: npt.NDArray[np.uint64]
    launch: Launch


def run(given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, call: Call, finite: Any) -> Sequence[Any] | None:
    """The results of a call for which there is a plan; None, nothing done, where only the whole path can tell."""
    if not plans.OF_MANY or not given:
        return None
    try:
        found = _found(given, outs, dst, call, finite)
        if found is None:
            return None
        plan, fusion = found
        adapter = _ADAPTERS[type(given[0])]
        src, to = _addresses(given, plan), None if outs is None else _addresses(outs, plan)
        if not _is_apart(src, to, plan, fusion):
            return None
        if outs is not None:
            _ADAPTERS[type(outs[0])].written(outs)
    except Exception:  # The whole path takes it, or tells what is wrong.
        return None
    device = plan.device
    with gpu.driver.driver().using(adapter.stream(device), device):
        if outs is None or to is None:
            outs = adapter.allocate(given, dst)
            to = _addresses(outs, plan)
        plan.launch(src, to, fusion)
    return outs


def _key(given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, call: Call, finite: Any) -> tuple[Any, ...]:
    """What can be said of a call before its arrays are looked at. Types are named because 1 and True are equal."""
    return (
        len(given), type(given[0]), None if outs is None else type(outs[0]), dst, type(call.saturate), call.saturate,
        call.round_mode, type(call.opset), call.opset, call.rounding, call.overflow, finite is None,
    )  # fmt: skip


def _found(
    given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, call: Call, finite: Any
) -> tuple[Plan, Fusion] | None:
    known = plans.OF_MANY.get(_key(given, outs, dst, call, finite))
    if known is None:
        return None
    arrays, described = _described(given), None if outs is None else _described(outs)
    alike = [plan for plan in known if plan.arrays == arrays and plan.outs == described]
    if not alike:
        return None
    device = alike[0].device
    fusion = Fusion(
        scale=None if call.scale is None else resolve_scale(call.scale, device, call.who),
        finite=None if finite is None else resolve_finite(finite, device, call.who),
        random=resolve_random(call.rounding, call.seed, call.offset, call.who),
    )
    return next(((plan, fusion) for plan in alike if plan.scaling == fusion.scaling), None)


def _described(arrays: Sequence[Any]) -> list[Any]:
    kind = type(arrays[0])
    if set(map(type, arrays)) != {kind}:
        raise TypeError("arrays of several classes")
    return _ADAPTERS[kind].describe(arrays)


def _addresses(arrays: Sequence[Any], plan: Plan) -> npt.NDArray[np.uint64]:
    found = np.array(_ADAPTERS[type(arrays[0])].addresses(arrays), np.uint64)
    return found if plan.used is None else found[plan.used]


def _is_apart(src: npt.NDArray[np.uint64], to: npt.NDArray[np.uint64] | None, plan: Plan, fusion: Fusion) -> bool:
    """Whether bounds alone tell that what is written is apart from all else; `to`: None where it is yet to be made."""
    src_end, finite = src + plan.src_bytes, fusion.finite
    scale = None if isinstance(fusion.scale, float) else fusion.scale
    if finite is not None and (
        not is_clear(gpu.cast.address(finite), 1, src, src_end) or (scale is not None and share_memory(finite, scale))
    ):
        return False
    if to is None:
        return True
    end = to + plan.dst_bytes
    return apart(to, end, src, src_end) and all(
        is_clear(gpu.cast.address(x), x.nbytes, to, end) for x in (scale, finite) if x is not None
    )


def keep(leaves: Sequence[Leaf], outs: Sequence[Any] | None, dst: DType, call: Call, finite: Any) -> None:
    """Make the plan of a call that went well, if there can be one."""
    given = [leaf.given for leaf in leaves]
    used = [i for i, leaf in enumerate(leaves) if leaf.array.size]
    live = [leaves[i] for i in used]
    first = leaves[0]
    device, key = first.home, _key(given, outs, dst, call, finite)
    if (
        device is None
        or dst.family == "string"
        or any(leaf.target is None for leaf in live)
        or not all(type(value) in (bool, int, str, type, type(None)) for value in key[4:])
        or len(live) < 2
        or any(leaf.home != device or leaf.adapter is not first.adapter for leaf in leaves)
        or not all(gpu.cast.is_contiguous(leaf.array) and gpu.cast.is_contiguous(leaf.target) for leaf in live)
        or any(row not in DTYPES for row in {leaf.rule.src for leaf in live} | {dst})
        or (outs is None and first.adapter is not None and dst.packed)
    ):
        return
    try:
        for x in {type(x): x for x in (*given, *(outs or [leaf.result for leaf in leaves]))}.values():
            _register(x)
        arrays, described = _described(given), None if outs is None else _described(outs)
    except Exception:  # Arrays that no plan is for.
        return
    fusion = live[0].fusion
    plan = Plan(
        arrays,
        described,
        "none" if fusion is None else fusion.scaling,
        device,
        None if len(used) == len(leaves) else used,
        np.array([leaf.array.nbytes for leaf in live], np.uint64),
        np.array([leaf.target.nbytes for leaf in live], np.uint64),
        gpu.batch.prepare(live, device),
    )
    if len(plans.OF_MANY) >= _CALLS:
        plans.OF_MANY.clear()
    plans.OF_MANY[key] = [plan, *plans.OF_MANY.get(key, [])[: _SHAPES - 1]]


def _register(x: Any) -> None:
    """Find the adapter of x's class. TypeError for a class that no plan is for."""
    kind = type(x)
    if kind in _ADAPTERS:
        return
    adapter = adapters.find(x)
    if adapter is None and kind is getattr(namespace(x), "ndarray", None) and kind is not np.ndarray:
        _ADAPTERS[kind] = Cupy()
    elif adapter is not None and adapter.has_plans(kind):
        _ADAPTERS[kind] = adapter
    else:
        raise TypeError(f"no plan is for {kind.__name__}")
