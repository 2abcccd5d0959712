# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.cast_many` on devices: a repeated call needs little more than addresses.

A plan serves contiguous arrays of one class on one device, and outs of one class. Each class has a planner that
describes its arrays. A plan fits a call if their descriptions are equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from gpucast import gpu
from gpucast.arrays import adapters
from gpucast.arrays.adapters import BatchAdapter, BatchPlanner, one_class
from gpucast.arrays.batch_item import BatchItem, Launch
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.overlap import Table, batch_is_disjoint, is_clear, share_memory
from gpucast.arrays.packed import LibraryPackedArray, PackedArray
from gpucast.casting.fused_options import resolve_amax, resolve_finite, resolve_scale
from gpucast.casting.plans import is_lasting
from gpucast.core.dtypes import DType
from gpucast.core.fused_ops import FusedInputs, resolve_random
from gpucast.core.rule import Options
from gpucast.gpu import streams

#: The most plans under one key; they differ in the dtypes, shapes and layouts of their arrays.
_PLANS_OF_KEY = 8
_NOTHING = FusedInputs()


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
            gpu.cast_on_gpu.check_allocation()
            return [gpu.cast_on_gpu.new(x.shape, dst) for x in arrays]

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
    device: int
    #: The places of the arrays that have elements; None for all.
    used: list[int] | None
    src_bytes: Table
    dst_bytes: Table
    launch: Launch


#: The most kinds of call.
_KEPT = 256
#: Plans by the `_key` of calls.
_PLANS: dict[tuple[Any, ...], tuple[BatchPlan, ...]] = {}
# Plans hold kernels of the driver with which they were made.
gpu.ON_NEW_DRIVER.append(_PLANS.clear)


def run(
    given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, options: Options, finite: Any
) -> Sequence[Any] | None:
    """The results of a call by its plan. None, with nothing done, if only the checked path can serve it."""
    if not given:
        return None
    try:
        found = _found(given, outs, dst, options, finite)
        if found is None:
            return None
        plan, fused = found
        planner = _PLANNERS[type(given[0])]
        ready = _checked(given, outs, plan, fused)
        if ready is None:
            return None
        src, to = ready
    except Exception:  # The checked path takes it, or tells what is wrong.
        return None
    stream = planner.stream(plan.device)
    others = [x for x in (options.scale, options.amax, finite) if x is not None and type(x) is not float]
    if outs is not None and type(outs[0]) is not type(given[0]):
        others.append(outs[0])
    with streams.on({plan.device: stream}, map(streams.owner, others)), gpu.driver.driver().on(plan.device):
        if plan.allocate is not None:
            outs = plan.allocate(given)
            to = _addresses(outs, plan)
        assert to is not None
        plan.launch(src, to, fused)
    return outs


def _checked(
    given: Sequence[Any], outs: Sequence[Any] | None, plan: BatchPlan, fused: FusedInputs
) -> tuple[Table, Table | None] | None:
    """The addresses of arrays and outs; None where only the checked path can tell whether they may be used."""
    src, to = _addresses(given, plan), None if outs is None else _addresses(outs, plan)
    # Tensors may have no memory.
    if not (src.all() and (to is None or to.all()) and _is_disjoint(src, to, plan, fused)):
        return None
    if outs is not None:
        _PLANNERS[type(outs[0])].written(outs)
    return src, to


def _key(
    given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, options: Options, finite: Any
) -> tuple[Any, ...]:
    """The part of a call that does not depend on its arrays: a key of `_PLANS`."""
    return (
        len(given), type(given[0]), None if outs is None else type(outs[0]), dst, type(options.saturate),
        options.saturate, options.round_mode, type(options.opset), options.opset, options.rounding, options.overflow,
        finite is None, _size(options.scale), _size(options.amax),
    )  # fmt: skip


def _size(x: Any) -> int:
    """Elements of a scale or an `amax`; 0 for none."""
    return 0 if x is None else math.prod(np.shape(x))


def _found(
    given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, options: Options, finite: Any
) -> tuple[BatchPlan, FusedInputs] | None:
    alike, fused = _alike(given, outs, dst, options, finite)
    return next(((plan, fused) for plan in alike if plan.scaling == fused.scaling), None)


def _alike(
    given: Sequence[Any], outs: Sequence[Any] | None, dst: DType, options: Options, finite: Any
) -> tuple[list[BatchPlan], FusedInputs]:
    """The plans that differ from what the call needs at most in the kind of scale, and its fused inputs."""
    known = _PLANS.get(_key(given, outs, dst, options, finite))
    if known is None:
        return [], _NOTHING
    arrays, described = _described(given), None if outs is None else _described(outs)
    alike = [plan for plan in known if plan.arrays == arrays and plan.outs == described]
    if not alike:
        return [], _NOTHING
    device = alike[0].device
    fused = FusedInputs(
        scale=None if options.scale is None else resolve_scale(options.scale, device, options.caller, len(given)),
        amax=None if options.amax is None else resolve_amax(options.amax, device, options.caller, len(given)),
        finite=None if finite is None else resolve_finite(finite, device, options.caller),
        random=resolve_random(options.rounding, options.seed, options.offset, options.caller),
    )
    return alike, fused


def _described(arrays: Sequence[Any]) -> Any:
    return _PLANNERS[type(arrays[0])].describe(arrays)


def _addresses(arrays: Sequence[Any], plan: BatchPlan) -> Table:
    # A tensor without memory is at 0.
    found = np.asarray(_PLANNERS[type(arrays[0])].addresses(arrays), np.uint64)
    return found if plan.used is None else found[plan.used]


def _is_disjoint(src: Table, to: Table | None, plan: BatchPlan, fused: FusedInputs) -> bool:
    """Whether bounds alone show that targets overlap nothing else; `to`: None for memory to be made."""
    src_end = src + plan.src_bytes
    scale = None if isinstance(fused.scale, float) else fused.scale
    small = [x for x in (fused.finite, fused.amax, scale) if x is not None]
    written = small if scale is None else small[:-1]
    if not all(is_clear(_address(x), x.nbytes, src, src_end) for x in written):
        return False
    if written and any(share_memory(x, y) for x, y in itertools.combinations(small, 2)):
        return False
    if to is None:
        return True
    end = to + plan.dst_bytes
    return batch_is_disjoint(to, end, src, src_end) and all(is_clear(_address(x), x.nbytes, to, end) for x in small)


def _address(x: Any) -> int:
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr)


def keep(
    items: Sequence[BatchItem],
    outs: Sequence[Any] | None,
    dst: DType,
    options: Options,
    finite: Any,
) -> None:
    """Make the plan of a successful call, if it can have one."""
    given = [item.given for item in items]
    used = [i for i, item in enumerate(items) if item.source.size]
    first = items[0]
    device, key = first.source.device, _key(given, outs, dst, options, finite)
    if (
        device is None
        # Of each the library may be another one, and with it the stream.
        or isinstance(first.given, LibraryPackedArray)
        or not is_lasting(*options[:5])
        or dst.family == "string"
        or len(used) < 2
        or any(item.source.device != device or item.adapter is not first.adapter for item in items)
        or (outs is None and first.adapter is not None and dst.packed)
        # The scales and `amax` of arrays without elements are left out.
        or (len(used) < len(items) and max(_size(options.scale), _size(options.amax)) > 1)
    ):
        return
    live = [(items[i], target) for i in used if (target := items[i].target) is not None]
    if len(live) < len(used) or not all(item.source.contiguous and target.contiguous for item, target in live):
        return
    try:
        for x in {type(x): x for x in (*given, *(outs or [item.result for item in items]))}.values():
            _register(x)
        arrays, described = _described(given), None if outs is None else _described(outs)
    except Exception:  # Arrays that no plan is for.
        return
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
        gpu.batch_on_gpu.prepare([item for item, _ in live], device),
    )
    if len(_PLANS) >= _KEPT:
        _PLANS.clear()
    _PLANS[key] = (plan, *_PLANS.get(key, ())[: _PLANS_OF_KEY - 1])


def _register(x: Any) -> None:
    """Find how plans look at arrays of x's class. TypeError for a class that no plan is for."""
    kind = type(x)
    if kind in _PLANNERS:
        return
    adapter = adapters.find(x)
    planner: BatchPlanner | None = None
    if isinstance(adapter, BatchAdapter):
        planner = adapter.planner(kind)
    elif adapter is None and kind is getattr(namespace(x), "ndarray", None):
        planner = CupyPlanner()
    if planner is None:
        raise TypeError(f"no plan is for {kind.__name__}")
    _PLANNERS[kind] = planner
