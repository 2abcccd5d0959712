# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.cast_many` for lists of arrays of one class.

On the host the module casts them by a plan for each dtype, and looks at the arrays. On a device a plan serves
contiguous arrays on one device, and outs of one class; a planner describes the arrays, and the plan fits a call whose
descriptions are equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from gpucast import casting, kernel
from gpucast.arrays import libraries
from gpucast.arrays.bitpacking import address_of, namespace
from gpucast.arrays.libraries import BatchPlanner, one_class
from gpucast.arrays.overlap import Table, batch_is_disjoint, is_clear, share_memory
from gpucast.arrays.packed import LibraryPackedArray, PackedArray
from gpucast.casting import plans
from gpucast.casting.engine import Call, Launch
from gpucast.casting.fuse import resolve_fuse
from gpucast.core.dtypes import DType
from gpucast.core.extension import MODULE
from gpucast.core.fuse import Fuse
from gpucast.core.rule import CastRule, Options
from gpucast.kernel import ON_NEW_DRIVER, streams

#: The most plans of one kind of call on devices; they differ in the dtypes, shapes and layouts of their arrays.
_MOST = 8


class HostKind(NamedTuple):
    """A class of arrays of the host that the module looks at."""

    #: ``plan(rule, fuses, scaled)``: that of a cast, or None.
    plan: Callable[[CastRule, bool, bool], Any]
    #: ``make(rule, works)``: a plan of other works for arrays of the rule's types, or None.
    make: Callable[[CastRule, bytes], Any]
    #: What the module asks of a library of tensors.
    library: Any = None


#: Other libraries add theirs.
HOST_KINDS: dict[type, HostKind] = {np.ndarray: HostKind(plans.of_arrays, plans.of_works)}


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
            casting.cuda.check_allocation()
            return [casting.cuda.new(x.shape, dst) for x in arrays]

        return allocate

    def stream(self, device: int) -> int:
        driver = kernel.driver.driver()
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
    #: Elements of the scale and of `amax`.
    sizes: tuple[int, int]
    device: int
    #: The places of the arrays that have elements; None for all.
    used: list[int] | None
    src_bytes: Table
    dst_bytes: Table
    launch: Launch


@dataclass(slots=True)
class ListPlan:
    """What a kind of call (destination, keywords, class of arrays) keeps."""

    rounding: Any
    #: Of the host, by the dtype of an array.
    by_dtype: dict[Any, Any] = field(default_factory=dict)
    #: Of devices, the latest first.
    launches: tuple[BatchPlan, ...] = ()
    plan: Any = None

    def run(
        self, given: list[Any], seed: Any, offset: Any, scale: Any, amax: Any, outs: Any, finite: Any, floating: Any
    ) -> Any:
        """The results of a call on a device. None, nothing done, if only the checked path can serve it."""
        if not self.launches or floating is not False or not (outs is None or type(outs) is list):
            return None
        try:
            ready = self._ready(given, outs, Options(seed=seed, offset=offset, scale=scale, amax=amax), finite)
        except Exception:  # The checked path takes it, or tells what is wrong.
            return None
        if ready is None:
            return None
        plan, fused, src, to = ready
        stream = _PLANNERS[type(given[0])].stream(plan.device)
        others = [x for x in (scale, amax, finite) if x is not None and type(x) is not float]
        if outs is not None and type(outs[0]) is not type(given[0]):
            others.append(outs[0])
        with streams.on({plan.device: stream}, map(streams.owner, others)), kernel.driver.driver().on(plan.device):
            if plan.allocate is not None:
                outs = plan.allocate(given)
                to = _addresses(outs, plan)
            assert to is not None
            plan.launch(src, to, fused)
        return outs

    def _ready(
        self, given: Sequence[Any], outs: Sequence[Any] | None, options: Options, finite: Any
    ) -> tuple[BatchPlan, Fuse, Table, Table | None] | None:
        """The plan of a call, and the addresses of arrays and outs; None where only the checked path can tell whether
        they may be used."""
        arrays, described = _described(given), None if outs is None else _described(outs)
        same = described, (_size(options.scale), _size(options.amax))
        alike = [plan for plan in self.launches if plan.arrays == arrays and (plan.outs, plan.sizes) == same]
        if not alike:
            return None
        device, count = alike[0].device, len(given)
        check_scale(given, options)
        fused = resolve_fuse(options._replace(rounding=self.rounding), (device,), finite, count)
        plan = next((plan for plan in alike if plan.scaling == fused.scaling), None)
        if plan is None:
            return None
        src, to = _addresses(given, plan), None if outs is None else _addresses(outs, plan)
        # Tensors may have no memory.
        if not (src.all() and (to is None or to.all()) and _is_disjoint(src, to, plan, fused)):
            return None
        if outs is not None:
            _PLANNERS[type(outs[0])].written(outs)
        return plan, fused, src, to


#: The most kinds of call, and what they keep.
_MOST_KINDS = 256
_KNOWN: dict[tuple[Any, ...], ListPlan] = {}
# Plans hold kernels of the driver with which they were made.
ON_NEW_DRIVER.append(_KNOWN.clear)


def _list_plan(kind: type, dst: DType, fuses: bool, scaled: bool, attributes: tuple[Any, ...]) -> ListPlan:
    """What a kind of call keeps. The values of keywords go with their types, because 1, 1.0 and True are equal."""
    key = (kind, dst, fuses, scaled, attributes, *map(type, attributes))
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST_KINDS:
            _KNOWN.clear()
        rounding = attributes[Options._fields.index("rounding")]
        found = _KNOWN[key] = ListPlan(rounding)
        library = HOST_KINDS[kind].library if kind in HOST_KINDS else None
        found.plan = plans.make("list", found.run, kernels=found.by_dtype, library=library)
    return found


def run(given: list[Any], outs: list[Any] | None, to: Any, options: Options, finite: Any) -> Sequence[Any] | None:
    """The results of a call like an earlier one; None, nothing done, where only the checked path can tell."""
    results: Sequence[Any] | None = plans.hit_list(given, to, *options[:9], None, outs, True, finite, False)
    return results


def keep(calls: Sequence[Call], outs: list[Any] | None, to: Any, dst: DType, options: Options, finite: Any) -> None:
    """Keep the plan of a successful call, if there may be one."""
    if MODULE is None or dst.family == "string" or not plans.is_lasting(to, *options[:5]):
        return
    given = [call.given for call in calls]
    kind, scaled = type(given[0]), options.scale is not None
    fuses = scaled or not (options.amax is options.seed is finite is None)
    known = _list_plan(kind, dst, fuses, scaled, options[:5])
    if kind in HOST_KINDS and max(_size(options.scale), _size(options.amax)) <= 1:
        for call in calls:
            if type(call.given) is kind and _is_plain(call):
                plan = HOST_KINDS[kind].plan(call.rule, fuses, scaled)
                if plan is not None:
                    known.by_dtype[call.given.dtype] = plan
    launch = _batch_plan(calls, outs, dst, options)
    if launch is not None:
        known.launches = (launch, *known.launches[: _MOST - 1])
    if known.by_dtype or known.launches:
        plans.KINDS.add(kind)
        plans.keep_list(given, to, *options[:9], None, outs, True, finite, False, known.plan)


def check_scale(given: Sequence[Any], options: Options) -> None:
    """ValueError for a scale that its library would not cast its own arrays with."""
    adapter = None if options.scale is None else libraries.find(options.scale)
    if adapter is not None and any(libraries.find(x) is adapter for x in given):
        adapter.check_scale(options.scale, options.caller)


def _is_plain(call: Call) -> bool:
    """Whether the module can read the array of a call of the host."""
    source = call.source
    # Objects may be numbers, which were copied into another array.
    if source.device is not None or source.packed or not (call.library or call.given is source.array):
        return False
    return call.rule.src.family != "string" and bool(source.data.dtype.isnative)


def _size(x: Any) -> int:
    """Elements of a scale or an `amax`; 0 for none."""
    return 0 if x is None else math.prod(np.shape(x))


def _described(arrays: Sequence[Any]) -> Any:
    kind = type(arrays[0])
    return kind, _PLANNERS[kind].describe(arrays)


def _addresses(arrays: Sequence[Any], plan: BatchPlan) -> Table:
    # A tensor without memory is at 0.
    found = np.asarray(_PLANNERS[type(arrays[0])].addresses(arrays), np.uint64)
    return found if plan.used is None else found[plan.used]


def _is_disjoint(src: Table, to: Table | None, plan: BatchPlan, fused: Fuse) -> bool:
    """Whether bounds alone show that targets overlap nothing else; `to`: None for memory to be made."""
    src_end = src + plan.src_bytes
    scale = None if isinstance(fused.scale, float) else fused.scale
    small = [x for x in (fused.finite, fused.amax, scale) if x is not None]
    written = small if scale is None else small[:-1]
    if not all(is_clear(address_of(x), x.nbytes, src, src_end) for x in written):
        return False
    if written and any(share_memory(x, y) for x, y in itertools.combinations(small, 2)):
        return False
    if to is None:
        return True
    end = to + plan.dst_bytes
    return batch_is_disjoint(to, end, src, src_end) and all(is_clear(address_of(x), x.nbytes, to, end) for x in small)


def _batch_plan(calls: Sequence[Call], outs: Sequence[Any] | None, dst: DType, options: Options) -> BatchPlan | None:
    """That of a successful call on a device, if it can have one."""
    given = [call.given for call in calls]
    used = [i for i, call in enumerate(calls) if call.source.size]
    first = calls[0]
    device = first.source.device
    if (
        device is None
        # Of each the library may be another one, and with it the stream.
        or isinstance(first.given, LibraryPackedArray)
        or len(used) < 2
        or any(call.source.device != device or call.library is not first.library for call in calls)
        or (outs is None and first.library is not None and dst.packed)
        # The scales and `amax` of arrays without elements are left out.
        or (len(used) < len(calls) and max(_size(options.scale), _size(options.amax)) > 1)
    ):
        return None
    live = [(calls[i], target) for i in used if (target := calls[i].target) is not None]
    if len(live) < len(used) or not all(call.source.contiguous and target.contiguous for call, target in live):
        return None
    try:
        for x in {type(x): x for x in (*given, *(outs or [call.result for call in calls]))}.values():
            _register(x)
        arrays, described = _described(given), None if outs is None else _described(outs)
    except Exception:  # Arrays that no plan is for.
        return None
    return BatchPlan(
        arrays,
        described,
        _PLANNERS[type(given[0])].allocator(given, dst) if outs is None else None,
        live[0][0].fuse.scaling,
        (_size(options.scale), _size(options.amax)),
        device,
        None if len(used) == len(calls) else used,
        np.array([call.source.data.nbytes for call, _ in live], np.uint64),
        np.array([target.data.nbytes for _, target in live], np.uint64),
        casting.cuda_batches.prepare([call for call, _ in live], device),
    )


def _register(x: Any) -> None:
    """Find how plans look at arrays of x's class. TypeError for a class that no plan is for."""
    kind = type(x)
    if kind in _PLANNERS:
        return
    adapter = libraries.find(x)
    planner = None if adapter is None else adapter.planner(kind)
    if adapter is None and kind is getattr(namespace(x), "ndarray", None):
        planner = CupyPlanner()
    if planner is None:
        raise TypeError(f"no plan is for {kind.__name__}")
    _PLANNERS[kind] = planner
