# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.cast_many` for lists of arrays of one class.

On the host the module casts them by a plan for each dtype, and looks at the arrays. On a device it repeats the launches
of an earlier call for contiguous arrays of equal classes, dtypes and shapes (``kernels/host/programs.hpp``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from gpucast import casting, kernel
from gpucast.arrays import libraries
from gpucast.arrays.libraries import Library
from gpucast.arrays.packed import PackedArray
from gpucast.casting import plans
from gpucast.casting.engine import Call
from gpucast.core.dtypes import DType
from gpucast.core.extension import MODULE
from gpucast.core.fuse import NO_WORDS, Random, scaling_of
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options
from gpucast.kernel import ON_NEW_DRIVER

#: The most that a kind of call on devices keeps: classes, dtypes and shapes of arrays, and of each where they begin.
_MOST_CALLS, _MOST = 64, 8


class HostKind(NamedTuple):
    """A class of arrays of the host that the module looks at."""

    #: ``plan(rule, fuses, scaled)``: that of a cast, or None.
    plan: Callable[[CastRule, bool, bool], Any]
    #: ``make(rule, works)``: a plan of other works for arrays of the rule's types, or None.
    make: Callable[[CastRule, bytes], Any]
    #: What the module asks of a library of tensors, which is told of those that were written.
    library: Any = None

    @property
    def library_of_new(self) -> Any:
        """The same for results that are new, of which nothing is told."""
        return None if self.library is None else (*self.library[:4], None)


#: Other libraries add theirs.
HOST_KINDS: dict[type, HostKind] = {np.ndarray: HostKind(plans.of_arrays, plans.of_works)}


class ListCalls(NamedTuple):
    """Calls on a device whose arrays have equal classes, dtypes and shapes."""

    device: int
    #: That of the arrays; None for CuPy.
    library: Library | None
    #: Whether some arrays are PackedArrays.
    packed: bool
    #: How many arrays are read, beside those of the list: a scale, or none.
    scales: int
    #: New results for arrays, and their addresses, or None where a graph is captured; None where there are outs.
    new: Callable[[list[Any]], tuple[list[Any], list[int]] | None] | None
    #: Of `MODULE.program`, the latest first. They differ in where arrays begin, modulo 64 bytes.
    programs: tuple[Any, ...] = ()

    def serve(self, given: list[Any], others: list[Any], outs: Any, random: Random, number: float) -> Any:
        """Repeat a call: its results; None, nothing done, where only the checked path can tell."""
        cuda, library = kernel.driver.driver(), self.library
        arrays = [*given, *others]
        if library is not None:
            # A scale takes no part in differentiation, like all that is written.
            sources, more = library.placed(given), library.placed(others, writing=True)
            if sources is None or more is None or sources[0] != self.device or (others and more[0] != self.device):
                return None
            arrays = [*sources[1], *more[1]]
        elif self.packed:
            arrays = [x.data if type(x) is PackedArray else x for x in arrays]
        stream = None if library is None else library.stream(self.device)
        with cuda.on(self.device) if stream is None else cuda.using(stream, self.device):
            # Results are made where a program serves.
            new: Any = (lambda: (outs, [])) if self.new is None else partial(self.new, given)
            for program in self.programs:
                results = MODULE.repeat(program, arrays, new, *random, number)
                if results is not None:
                    if library is not None:
                        library.written(others[self.scales :])
                    return results
        return None


@dataclass(slots=True)
class ListPlan:
    """What a kind of call (destination, keywords, class of arrays) keeps."""

    #: Whether it rounds at random.
    is_random: bool
    #: Of the host, by the dtype of an array.
    by_dtype: dict[Any, Any] = field(default_factory=dict)
    #: Of devices, by `_key`; and the latest of arrays of CuPy with what was asked: the module looks at these itself.
    calls: dict[Any, ListCalls] = field(default_factory=dict)
    latest: tuple[Any, ListCalls] | None = None
    plan: Any = None

    def run(
        self, given: list[Any], seed: Any, offset: Any, scale: Any, amax: Any, outs: Any, finite: Any, floating: Any
    ) -> Any:
        """The results of a call on a device. None, nothing done, if only the checked path can serve it."""
        if not self.calls or floating is not False or not (outs is None or type(outs) is list):
            return None
        random = NO_WORDS
        if self.is_random:
            random = Random(seed, offset)
            if type(seed) is not int or type(offset) is not int or not (0 <= seed <= _LAST and 0 <= offset <= _FAR):
                return None
        elif seed is not None or type(offset) is not int or offset:
            return None
        try:
            asked, others, number = _asked(given, scale, outs, amax, finite)
        except (AttributeError, TypeError, ValueError, OverflowError):
            return None
        latest = None if self.latest is None or self.latest[0] != asked else self.latest[1]
        results = None if latest is None else latest.serve(given, others, outs, random, number)
        if results is not None:
            return results
        try:
            known = self.calls.get(_key(asked, given, others))
        except (AttributeError, TypeError, ValueError):
            return None
        if known is None or known is latest:
            return None
        results = known.serve(given, others, outs, random, number)
        if results is not None and known.library is None and not known.packed:
            self.latest = asked, known
        return results


#: The numbers that a scale may be, the last offset, which leaves room for the words of all arrays, and the last seed.
_NUMBERS = frozenset({float, int, np.float32, np.float64})
_FAR, _LAST = 2**62, 2**64 - 1
_LAYOUT, _POINTER = attrgetter("__class__", "dtype", "shape"), attrgetter("data.ptr")
_BYTE = np.dtype(np.uint8)


def _asked(given: list[Any], scale: Any, outs: Any, amax: Any, finite: Any) -> tuple[Any, list[Any], float]:
    """What decides on the launches of a call beside its arrays; its other arrays, those that are written last; and the
    number that it multiplies with. Any exception for what no plan is for."""
    others: list[Any] = []
    number, scaling = 1.0, "none"
    if type(scale) in _NUMBERS:
        number = float(scale)
        # Of smaller ones the processor may make zeros.
        if not 2.0**-1022 <= number < math.inf:
            raise ValueError(scale)
        scaling = scaling_of(number)
    elif scale is not None:
        others.append(scale)
        scaling = "array"
    if outs is not None:
        others += outs
    if amax is not None:
        others.append(amax)
    if finite is not None:
        others.append(finite)
    return (len(given), scaling, outs is None, amax is None, finite is None), others, number


def _key(asked: Any, given: list[Any], others: list[Any]) -> tuple[Any, ...]:
    """All that decides on the launches of a call, and the device. Any exception for arrays that no plan is for."""
    device = given[0].device
    # CuPy's objects have no hash.
    return *asked, getattr(device, "id", device), *map(_LAYOUT, given), *map(_LAYOUT, others)


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
        found = _KNOWN[key] = ListPlan(STOCHASTIC in attributes)
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
    _keep_on_device(known, calls, outs, options, finite)
    if known.by_dtype or known.calls:
        plans.keep_list(given, to, *options[:9], None, outs, True, finite, False, known.plan)


def check_scale(given: Sequence[Any], options: Options) -> None:
    """ValueError for a scale that its library would not cast its own arrays with."""
    library = None if options.scale is None else libraries.find(options.scale)
    if library is not None and any(libraries.find(x) is library for x in given):
        library.check_scale(options.scale, options.caller)


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


def _keep_on_device(
    known: ListPlan, calls: Sequence[Call], outs: list[Any] | None, options: Options, finite: Any
) -> None:
    """Keep a successful call, if it was one on a device that can be repeated."""
    library, device, dst = calls[0].library, calls[0].source.device, calls[0].rule.dst
    live = [i for i, call in enumerate(calls) if call.source.size]
    if (
        device is None
        or len(live) < 2
        or any(call.source.device != device or call.library is not library for call in calls)
        # Those of a library whose arrays share no launches have no target of ours.
        or not all(call.source.contiguous and call.target is not None and call.target.contiguous for call in calls)
        or (outs is None and library is not None and dst.packed)
        # The scales and `amax` of arrays without elements are left out.
        or (len(live) < len(calls) and max(_size(options.scale), _size(options.amax)) > 1)
        or (options.offset or 0) > _FAR
    ):
        return
    given, made = [call.given for call in calls], [call.result for call in calls] if outs is None else []
    try:
        asked, others, _ = _asked(given, options.scale, outs, options.amax, finite)
        key = _key(asked, given, others)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return
    arrays = _placed([*given, *others, *made], library)
    if arrays is None:
        return
    count, reads = len(given) + len(others), len(given) + (key[1] == "array")
    first = count if outs is None else reads
    places = {"src": live, "dst": [first + i for i in live], "scale_at": [len(given)] * (reads - len(given))}
    places |= {"amax": [count - 1 - (finite is not None)] * (options.amax is not None)}
    places |= {"finite": [count - 1] * (finite is not None)}
    steps = casting.cuda_launches.CastBatch([calls[i] for i in live], device).steps(places)
    program = kernel.recording.repeated(steps, arrays[:count], reads, [one.address for one in arrays[count:]], device)
    before = known.calls.get(key)
    if before is None:
        if len(known.calls) >= _MOST_CALLS:
            known.calls.clear()
        packed = any(type(x) is PackedArray for x in (*given, *others))
        new = _new(calls, library) if outs is None else None
        before = ListCalls(device, library, packed, reads - len(given), new)
    known.latest = None
    known.calls[key] = before._replace(programs=(program, *before.programs[: _MOST - 1]))


def _placed(arrays: list[Any], library: Library | None) -> list[Any] | None:
    """Each as `gpucast.kernel.recording.Given`, if all are such as plans serve."""
    held = [x.data if type(x) is PackedArray else x for x in arrays]
    found = kernel.recording.placed(held, library, len(held))
    given = kernel.recording.Given
    return found and [given(type(x), x.shape, x.dtype, x.nbytes, at) for x, at in zip(held, found[1], strict=True)]


def _new(calls: Sequence[Call], library: Library | None) -> Callable[[list[Any]], tuple[list[Any], list[int]] | None]:
    """`ListCalls.new` of calls like these."""
    dst, shapes = calls[0].rule.dst, [call.source.shape for call in calls]
    if library is not None:

        def new(given: list[Any]) -> tuple[list[Any], list[int]] | None:
            made = library.empty_all(given, dst)
            found = library.placed(made)
            return None if found is None else (made, found[1])

        return new
    own, packs = kernel.driver.driver(), dst.packed
    sizes, kind = [(dst.nbytes(math.prod(shape)),) for shape in shapes], dst.numpy

    def new_of_cupy(given: list[Any]) -> tuple[list[Any], list[int]] | None:
        if own.capturing():
            return None
        made = own.empty_all(sizes, _BYTE) if packs else own.empty_all(shapes, kind)
        addresses = list(map(_POINTER, made))
        if packs:
            made = [casting.cuda.packed(x, dst, shape) for x, shape in zip(made, shapes, strict=True)]
        return made, addresses

    return new_of_cupy
