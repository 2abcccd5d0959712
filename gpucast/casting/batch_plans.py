# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.cast_many`: a call with arrays like those of an earlier one needs little more than their addresses.

A plan is for arrays of one class, all of them contiguous and on one device, and for outs of one class. Each class has a
planner that describes what they are like; plans whose descriptions are equal to those of a call serve it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from gpucast import gpu, native
from gpucast.arrays import adapters
from gpucast.arrays.adapters import BatchAdapter, BatchPlanner, one_class
from gpucast.arrays.batch_item import BatchItem, Launch, Table
from gpucast.arrays.batch_overlap import disjoint, is_clear
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.operand import operand
from gpucast.arrays.overlap import share_memory
from gpucast.arrays.packed import LibraryPackedArray, PackedArray
from gpucast.casting import batch_host, plan_cache
from gpucast.casting.fused_options import resolve_finite, resolve_scale
from gpucast.core.dtypes import DType
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.options import Options
from gpucast.core.random import resolve_random

#: The most plans under one key; they differ in the dtypes, shapes and layouts of their arrays.
_PLANS_OF_KEY = 8


class NumpyPlanner(BatchPlanner):
    """Arrays of NumPy, where compiled code looks at them."""

    def __init__(self, lists: native.calls.Lists) -> None:
        self._lists = lists

    def describe(self, arrays: Sequence[Any]) -> bytes:
        return self._lists.describe(arrays)

    def addresses(self, arrays: Sequence[Any]) -> Table:
        return self._lists.addresses(arrays)

    def allocator(self, arrays: Sequence[Any], dst: DType) -> Callable[[Sequence[Any]], list[Any]]:
        return partial(self._lists.new, dtype=dst.numpy)

    def stream(self, device: int) -> int:
        raise AssertionError("the host has no streams")


class CupyPlanner(BatchPlanner):
    """Arrays of CuPy."""

    describe_one: Callable[[Any], Any] = attrgetter("dtype", "shape", "_c_contiguous", "data.device_id")
    address: Callable[[Any], int] = attrgetter("data.ptr")

    def describe(self, arrays: Sequence[Any]) -> list[Any]:
        one_class(arrays)
        return list(map(self.describe_one, arrays))

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        return list(map(self.address, arrays))

    def allocator(self, arrays: Sequence[Any], dst: DType) -> Callable[[Sequence[Any]], list[Any]]:
        def allocate(arrays: Sequence[Any]) -> list[Any]:
            gpu.cast.check_allocation()
            return [gpu.cast.new(x.shape, dst) for x in arrays]

        return allocate

    def stream(self, device: int) -> int:
        driver = gpu.driver.driver()
        with driver.on(device):
            return driver.stream()


class PackedPlanner(CupyPlanner):
    """PackedArrays over CuPy's."""

    describe_one = attrgetter("dtype", "shape", "data.data.device_id")
    address = attrgetter("data.data.ptr")


#: By the classes of arrays.
_PLANNERS: dict[type, BatchPlanner] = {
    PackedArray: PackedPlanner(),
    LibraryPackedArray: PackedPlanner(),
}


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The launch for calls whose arrays and outs have these descriptions."""

    arrays: Any
    #: None for new arrays.
    outs: Any
    #: Makes new arrays; None where there are outs.
    allocate: Callable[[Sequence[Any]], list[Any]] | None
    scaling: str
    #: None for the host.
    device: int | None
    #: The places of the arrays that have elements; None for all.
    used: list[int] | None
    src_bytes: Table
    dst_bytes: Table
    #: Gives the launch for arrays at these addresses, the second being None for memory to be made; None where there is
    #: nothing that casts them.
    launch: Callable[[Table, Table | None], Launch | None]


@dataclass(frozen=True, slots=True)
class BatchPlans:
    """What `gpucast.casting.plan_cache.PLANS` has for a kind of call."""

    plans: tuple[BatchPlan, ...]
    dtypes: frozenset[DType]


def run(
    given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, options: Options, finite: Any
) -> Sequence[Any] | None:
    """The results of a call for which there is a plan; None, nothing done, where only the checked path can tell."""
    if not given:
        return None
    try:
        found = _found(given, outs, dst, options, finite)
        if found is None:
            return None
        plan, fused = found
        planner = _PLANNERS[type(given[0])]
        src, to = _addresses(given, plan), None if outs is None else _addresses(outs, plan)
        # Tensors may have no memory.
        if not (src.all() and (to is None or to.all()) and _is_disjoint(src, to, plan, fused)):
            return None
        launch = plan.launch(src, to)
        if launch is None:
            return None
        if outs is not None:
            _PLANNERS[type(outs[0])].written(outs)
    except Exception:  # The checked path takes it, or tells what is wrong.
        return None
    device = plan.device
    with contextlib.nullcontext() if device is None else gpu.driver.driver().using(planner.stream(device), device):
        if plan.allocate is not None:
            outs = plan.allocate(given)
            to = _addresses(outs, plan)
        assert to is not None
        launch(src, to, fused)
    return outs


def _key(
    given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, options: Options, finite: Any
) -> tuple[Any, ...]:
    """What can be said of a call before its arrays are looked at: a key of `PLANS`."""
    return (
        len(given), type(given[0]), None if outs is None else type(outs[0]), dst, type(options.saturate),
        options.saturate, options.round_mode, type(options.opset), options.opset, options.rounding, options.overflow,
        finite is None,
    )  # fmt: skip


def _found(
    given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, options: Options, finite: Any
) -> tuple[BatchPlan, FusedInputs] | None:
    known = plan_cache.PLANS.get(_key(given, outs, dst, options, finite))
    if known is None:
        return None
    arrays, described = _described(given), None if outs is None else _described(outs)
    alike = [plan for plan in known.plans if plan.arrays == arrays and plan.outs == described]
    if not alike:
        return None
    device = alike[0].device
    fused = FusedInputs(
        scale=None if options.scale is None else resolve_scale(options.scale, device, options.caller),
        finite=None if finite is None else resolve_finite(finite, device, options.caller),
        random=resolve_random(options.rounding, options.seed, options.offset, options.caller),
    )
    return next(((plan, fused) for plan in alike if plan.scaling == fused.scaling), None)


def _described(arrays: Sequence[Any]) -> Any:
    return _PLANNERS[type(arrays[0])].describe(arrays)


def _addresses(arrays: Sequence[Any], plan: BatchPlan) -> Table:
    found = np.asarray(_PLANNERS[type(arrays[0])].addresses(arrays), np.uint64)
    return found if plan.used is None else found[plan.used]


def _is_disjoint(src: Table, to: Table | None, plan: BatchPlan, fused: FusedInputs) -> bool:
    """Whether bounds alone tell that what is written is disjoint from all else; `to`: None for memory to be made."""
    src_end, finite = src + plan.src_bytes, fused.finite
    scale = None if isinstance(fused.scale, float) else fused.scale
    if finite is not None and (
        not is_clear(_address(finite), 1, src, src_end) or (scale is not None and share_memory(finite, scale))
    ):
        return False
    if to is None:
        return True
    end = to + plan.dst_bytes
    return disjoint(to, end, src, src_end) and all(
        is_clear(_address(x), x.nbytes, to, end) for x in (scale, finite) if x is not None
    )


def _address(x: Any) -> int:
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr)


def keep(items: Sequence[BatchItem], outs: Sequence[Any] | None, dst: DType, options: Options, finite: Any) -> None:
    """Make the plan of a call that went well, if there can be one."""
    given = [item.given for item in items]
    used = [i for i, item in enumerate(items) if item.source.size]
    first = items[0]
    device, key = first.source.device, _key(given, outs, dst, options, finite)
    if (
        not plan_cache.is_lasting(key)
        or dst.family == "string"
        or len(used) < 2
        or any(item.source.device != device or item.adapter is not first.adapter for item in items)
        or (outs is None and first.adapter is not None and dst.packed)
    ):
        return
    if device is None:
        # Results of the host's own arrays have not been looked at.
        live = [(items[i], items[i].target or operand(items[i].result, dst)) for i in used]
    else:
        live = [(items[i], target) for i in used if (target := items[i].target) is not None]
    if (
        len(live) < len(used)
        or not all(item.source.contiguous and target.contiguous for item, target in live)
        or (device is None and not batch_host.Casts.take(live))
    ):
        return
    nbytes = sum(item.source.data.nbytes for item, _ in live)
    try:
        for x in {type(x): x for x in (*given, *(outs or [item.result for item in items]))}.values():
            _register(x, nbytes)
        arrays, described = _described(given), None if outs is None else _described(outs)
    except Exception:  # Arrays that no plan is for.
        return
    launch: Callable[[Table, Table | None], Launch | None]
    if device is None:
        launch = batch_host.Casts(live).launch
    else:
        launch = partial(_always, gpu.batch.prepare([item for item, _ in live], device))
    fused = live[0][0].fused
    plan = BatchPlan(
        arrays,
        described,
        _PLANNERS[type(given[0])].allocator(given, dst) if outs is None else None,
        "none" if fused is None else fused.scaling,
        device,
        None if len(used) == len(items) else used,
        np.array([item.source.data.nbytes for item, _ in live], np.uint64),
        np.array([target.data.nbytes for _, target in live], np.uint64),
        launch,
    )
    known = plan_cache.PLANS.get(key)
    plans = (plan, *(() if known is None else known.plans[: _PLANS_OF_KEY - 1]))
    dtypes = frozenset(item.rule.src for item, _ in live) | {dst}
    plan_cache.keep(key, BatchPlans(plans, dtypes if known is None else dtypes | known.dtypes))


def _always(launch: Launch, src: Table, to: Table | None) -> Launch:
    return launch


def _register(x: Any, nbytes: int) -> None:
    """Find how plans look at arrays of x's class. TypeError for a class that no plan is for; `nbytes`: bytes that are
    about to be cast."""
    kind = type(x)
    if kind in _PLANNERS:
        return
    adapter = adapters.find(x)
    planner: BatchPlanner | None = None
    if kind is np.ndarray:
        lists = native.calls.lists(nbytes)
        planner = None if lists is None else NumpyPlanner(lists)
    elif isinstance(adapter, BatchAdapter):
        planner = adapter.planner(kind)
    elif adapter is None and kind is getattr(namespace(x), "ndarray", None):
        planner = CupyPlanner()
    if planner is None:
        raise TypeError(f"no plan is for {kind.__name__}")
    _PLANNERS[kind] = planner
