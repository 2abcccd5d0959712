# SPDX-License-Identifier: Apache-2.0
"""Groups of rows of the host, quantized or cast one group after the other; and plans of such calls, which the module
does in one (``kernels/host/groups.hpp``)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.packed import PackedArray
from gpucast.casting import plans
from gpucast.casting.cast import cast
from gpucast.casting.list_plans import HOST_KINDS
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import Options, resolve
from gpucast.host import loops
from gpucast.quantization import block_loops, host_calls, host_plans, quantize_on_host, recipes, swizzle
from gpucast.quantization.call_choices import by_numbers
from gpucast.quantization.formats import Format


def fill(
    parts: list[Any],
    x: Any,
    offsets: Any,
    element: DType,
    format: Format | None,
    scale: Any,
    pad: int,
    layout: str,
    random: Random | None,
) -> None:
    """Fill the parts of a result: codes, scales, ends of groups, and the number of valid ones, as `Grouped` has them.

    `format`: None for a cast to `element`. `scale`: a float, or an array with one for all groups or one for each.
    """
    data, scales, ends, valid = parts
    codes = np.zeros(data.shape, element.numpy)
    linear = None
    if format is not None:
        linear = np.zeros((data.shape[0], data.shape[1] // format.block[-1]), format.scale.numpy)
    begin = to = count = 0
    for i, end in enumerate(offsets.tolist()):
        if not begin <= end <= len(x):
            break
        rows = x[begin:end]
        factor = scale if isinstance(scale, float) else scale[i % scale.size]
        # A group has the words of its place in x.
        own = None if random is None else random._replace(offset=random.offset + begin * x.shape[1])
        if not rows.size:
            # Its words may begin behind the last ones.
            pass
        elif format is None:
            at_random: Any = {} if own is None else {"rounding": STOCHASTIC, **own._asdict()}
            codes[to : to + len(rows)] = _unpacked(
                cast(rows, element, scale=np.asarray(factor, np.float32), **at_random)
            )
        else:
            given = factor if format.global_scale else None
            found = quantize_on_host.quantize(rows, format, scale=given, random=own)
            codes[to : to + len(rows)] = found.data
            linear[to : to + len(rows)] = found.scales  # type: ignore[index]
        to += -(-len(rows) // pad) * pad
        ends[i], begin, count = to, end, i + 1
    ends[count:], valid[...] = to, count
    if isinstance(data, PackedArray):
        data.data[...] = PackedArray.pack(codes).data
    else:
        data[...] = codes
    if linear is not None:
        scales[...] = linear if layout == "linear" else swizzle.swizzle(linear, layout=layout)  # type: ignore[arg-type]


def _unpacked(y: Any) -> Any:
    return y.get() if isinstance(y, PackedArray) else y


# ---- plans ----

#: The most shapes of a plan.
_MOST = 256


class _Groups(NamedTuple):
    """What calls need whose arrays have equal shapes."""

    #: For ``MODULE.group``.
    how: bytes
    #: The parts of results, as `_looks` tells.
    looks: list[Any]
    #: New parts.
    makes: tuple[Any, ...]
    #: Of x.
    size: int


def _looks(grouped: Any) -> list[Any]:
    """What decides on whether a result can be written to, as far as the module does not look."""
    return [(type(part), getattr(part, "dtype", None), getattr(part, "shape", None)) for part in grouped]


class _GroupedPlan:
    """What calls keep that differ in the shapes of their arrays, and in their numbers, alone."""

    def __init__(self, kind: Any, grouped: Any, rounding: Any) -> None:
        self.asked, self.asked_of_new = HOST_KINDS[kind].library, HOST_KINDS[kind].library_of_new
        self.kind, self.grouped, self.rounding = kind, grouped, rounding
        self.known: dict[Any, _Groups] = {}
        self.plan = plans.make("", self.run)

    def run(self, x: Any, offsets: Any, scale: Any, seed: Any, offset: Any, out: Any) -> Any:
        found = by_numbers([], scale, self.rounding, seed, offset) if type(offsets) is self.kind else None
        try:
            known = None if found is None else self.known.get((x.shape, offsets.shape, offsets.dtype))
        except RuntimeError:
            # A nested tensor has no shape; the checked path refuses it by name.
            return None
        if found is None or known is None:
            return None
        arrays, number, random = found
        # Beyond there are no words.
        if random is not None and random.offset + known.size > 1 << 64:
            return None
        given: Any = None
        if number is not None:
            # The module knows which ones it takes.
            given = host_plans.number_of(scale)
            if given is None:
                return None
        elif arrays:
            given = arrays[0]
            if type(given) is not self.kind or dtype(given.dtype).name != "FLOAT":
                return None
        if out is not None and not (type(out) is self.grouped and _looks(out) == known.looks):
            return None
        parts = [MODULE.new_part(make) for make in known.makes] if out is None else list(out)
        codes = parts[0].data if isinstance(parts[0], PackedArray) else parts[0]
        asked = self.asked_of_new if out is None else self.asked
        if not MODULE.group(known.how, asked, x, offsets, codes, *parts[1:], given, *(random or (None, 0))):
            return None
        return self.grouped(*parts) if out is None else out


@lru_cache(maxsize=256)
def _plan(src: DType, to: Any, kind: Any, grouped: Any, pad: int, layout: Any, rounding: Any) -> _GroupedPlan:
    return _GroupedPlan(kind, grouped, rounding)


def planned(x: Any, to: Any, keywords: tuple[Any, ...], result: Any) -> Any:
    """The plan of a call on groups that gave a result, if there may be one. The layout of a cast is None."""
    offsets, _, pad, layout, rounding, _, _, _ = keywords
    kind: Any = type(x)
    if kind not in HOST_KINDS or type(offsets) is not kind or type(pad) is not int:
        return None
    library, rows, columns = libraries.library_of(x), *map(int, x.shape)
    # What a library packs has another shape. Later results look like this one, whose parts may be those of an `out` of
    # another library.
    others = [part for part in result if not (part is None or isinstance(part, PackedArray))]
    if result.data.shape[1] != columns or any(libraries.library_of(part) != library for part in others):
        return None
    src, data, ends = dtype(x.dtype), result.data, dtype(offsets.dtype)
    format = None if layout is None else recipes.find(to, "quantize_grouped")
    # The module packs the codes of formats, and writes those of casts one to a byte.
    if dtype(data.dtype).bits < 8 and isinstance(data, PackedArray) == (format is None):
        return None
    quantizing, works, order = block_loops.Quantizing(), 2 * bytes(MODULE.WORK_BYTES), block_loops.OrderOfScales()
    block: Any = 0
    bits = dtype(data.dtype).bits if isinstance(data, PackedArray) else 8 * data.dtype.itemsize
    if format is None:
        try:
            rule = resolve(src, dtype(to), Options(rounding=rounding, scale=1.0))
            works = loops.fused(rule, True)
        except LookupError:
            return None
    else:
        found = host_calls.quantizing(format, src, (1, columns), 1)
        if found is None:
            return None
        quantizing, block = block_loops.Quantizing.from_buffer_copy(found), format.block[-1]
        scales = int(data.shape[0]), columns // block
        order = host_calls.order_of(layout, scales, format.scale.code_numpy.itemsize)
    how = block_loops.Grouping(
        rows, columns, int(data.shape[0]), int(offsets.shape[0]), pad, src.code_numpy.itemsize,
        ends.code_numpy.itemsize, bits, block, quantizing, order,
    )  # fmt: skip
    makes = tuple(host_plans.make_of(part) for part in result)
    if any((make is None) != (part is None) for make, part in zip(makes, result, strict=True)):
        return None
    call: list[Any] = [to if format is None else format, kind, type(result), pad, layout, rounding]
    plan = _plan(src, *call)
    if len(plan.known) >= _MOST:
        plan.known.clear()
    plan.known[x.shape, offsets.shape, offsets.dtype] = _Groups(
        bytes(how) + works, _looks(result), makes, rows * columns
    )
    return plan.plan
