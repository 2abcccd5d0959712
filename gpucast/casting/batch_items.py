# SPDX-License-Identifier: Apache-2.0
"""The arrays of a call of `gpucast.cast_many`, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.array import Array, check_out
from gpucast.arrays.batch_item import BatchItem, Names
from gpucast.arrays.overlap import Place, check_disjoint
from gpucast.arrays.packed import PackedArray, as_array, device_index
from gpucast.casting.fused_options import resolve_amax, resolve_finite, resolve_scale, rule_of
from gpucast.core.checks import as_double
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs, resolve_random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options
from gpucast.kernel import devices

_NOTHING = FusedInputs()


def checked(
    given: Sequence[Any],
    outs: Sequence[Any] | None,
    names: Names,
    dst: DType,
    options: Options,
    finite: Any,
) -> list[BatchItem]:
    """The items of a call after all checks."""
    random = resolve_random(options.rounding, options.seed, options.offset, options.caller)
    paths = names.paths()
    items = _items(given, outs, [f"{options.caller}: {names.parameter}{path}" for path in paths])
    if any(item.source.device is not None for item in items):
        devices.require(options.caller)
    fused = _fused(items, options, finite)
    if not items:
        # The attributes are checked all the same, for the source that takes any of them.
        rule_of(dtype("FLOAT"), dst, options)
    rules: dict[DType, CastRule] = {}
    start = 0
    for i, item in enumerate(items):
        rule = rules.get(item.source.dtype)
        if rule is None:
            rule = rules[item.source.dtype] = rule_of(item.source.dtype, dst, options._replace(caller=item.caller))
            if fused is not _NOTHING and "string" in (rule.src.family, rule.dst.family):
                named = {"scale": options.scale, "amax": options.amax, "finite": finite}
                name = next(name for name, value in named.items() if value is not None)
                raise ValueError(
                    f"{item.caller}: {name}= does not apply to text; {rule.src.name} to {rule.dst.name} takes none"
                )
        item.rule = rule
        if item.result is not None:
            item.target = _target(item)
        own = _own(fused, i)
        if random is not None and rule.rounding == STOCHASTIC:
            item.fused = own._replace(random=random._replace(offset=random.offset + start))
        elif fused is not _NOTHING:
            item.fused = own
        item.start = start
        start += item.source.size
    written = {"finite": fused.finite, "amax": fused.amax}
    _check_disjoint(items, paths, fused.scale, written, names.parameter, options.caller)
    return items


def _items(given: Sequence[Any], outs: Sequence[Any] | None, whos: Sequence[str]) -> list[BatchItem]:
    """The items of a call; only their arrays are checked yet."""
    items = []
    known: dict[Any, DType] = {}
    for x, out, caller in zip(given, outs or [None] * len(given), whos, strict=True):
        adapter = libraries.find(x)
        array = as_array(x, caller) if adapter is None else adapter.take(x, caller)
        kind = known.get(array.dtype)
        if kind is None:
            kind = known[array.dtype] = dtype(array.dtype, caller=f"{caller}: x.dtype=")
        items.append(BatchItem(caller, x, adapter, Array.of(array, kind), out))
    return items


def _fused(items: Sequence[BatchItem], options: Options, finite: Any) -> FusedInputs:
    if options.scale is None and options.amax is None and finite is None:
        return _NOTHING
    fused = FusedInputs()
    places = {item.source.device for item in items}
    # Without items there is no device to be on: each is checked for its own.
    for place in places or {_device(options.scale, options.caller)}:
        if options.scale is not None:
            fused = fused._replace(scale=resolve_scale(options.scale, place, options.caller, len(items)))
    for place in places or {_device(options.amax, options.caller)}:
        if options.amax is not None:
            fused = fused._replace(amax=resolve_amax(options.amax, place, options.caller, len(items)))
    for place in places or {_device(finite, options.caller)}:
        if finite is not None:
            fused = fused._replace(finite=resolve_finite(finite, place, options.caller))
    return fused


def _own(fused: FusedInputs, i: int) -> FusedInputs:
    """The inputs of item i: its elements of the arrays that have one for each item."""
    scale, amax = fused.scale, fused.amax
    if scale is not None and not isinstance(scale, float) and scale.size > 1:
        scale = scale.reshape(-1)[i : i + 1]
        if isinstance(scale, np.ndarray):
            scale = as_double(scale[0])
    if amax is not None and amax.size > 1:
        amax = amax.reshape(-1)[i : i + 1]
    return fused if scale is fused.scale and amax is fused.amax else fused._replace(scale=scale, amax=amax)


def _device(x: Any, caller: str) -> int | None:
    adapter = libraries.find(x)
    return device_index(x if adapter is None else adapter.take(x, caller))


def _target(item: BatchItem) -> Array:
    """The `out` of an item as a native array that can take the result."""
    adapter, source, dst = libraries.find(item.result), item.source, item.rule.dst
    if item.adapter is not None:
        item.adapter.check_into(item.given, item.caller)
    out = item.result if adapter is None else adapter.take(item.result, item.caller, writing=True)
    device = device_index(out)
    if source.device is None and dst.packed and isinstance(out, PackedArray) and item.adapter is not None:
        if not source.packed:
            # A tensor of the host takes a packed `out`, as its own result is packed: checked as for a packed source.
            source = Array.of(PackedArray(np.empty(dst.nbytes(source.size), np.uint8), dst, source.shape))
    target = check_out(source, item.rule, out, source.device is not None or device is not None, item.caller)
    place = None if dst.family == "string" else source.device
    if device != place:
        raise ValueError(
            f"{item.caller}: out is on {devices.name(device)}; the result belongs on {devices.name(place)}"
        )
    return target


def _check_disjoint(
    items: Sequence[BatchItem],
    paths: Sequence[str],
    scale: Any,
    also_written: Mapping[str, Any],
    parameter: str,
    caller: str,
) -> None:
    numbered = list(enumerate(zip(items, paths, strict=True)))
    written = [Place(f"out{path}", item.target.data, i) for i, (item, path) in numbered if item.target is not None]
    written += [Place(name, array) for name, array in also_written.items() if array is not None]
    if not written:
        return
    read = [Place(f"{parameter}{path}", item.source.data, i) for i, (item, path) in numbered]
    if scale is not None and not isinstance(scale, float):
        read.append(Place("scale", scale))
    check_disjoint(written, read, caller)
