# SPDX-License-Identifier: Apache-2.0
"""The checks of casts: of the arrays that a call writes, and of all arrays of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.array import Array, check_out
from gpucast.arrays.overlap import Place, check_disjoint, share_memory
from gpucast.arrays.packed import PackedArray, as_array
from gpucast.casting import engines
from gpucast.casting.engine import Call, Engine
from gpucast.casting.fuse import of_rule, resolve_fuse
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import EMPTY, Fuse, fuse_of
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.kernel import devices


class Names(NamedTuple):
    """The names of a call's arrays in error messages."""

    #: The caller's parameter: "arrays".
    parameter: str
    #: Where in it the arrays are, such as "['encoder'][3]".
    paths: Callable[[], Sequence[str]]


_ONE = Names("x", lambda: [""])


def add_target(call: Call, there: Engine) -> None:
    """Check the `out` of a call of `gpucast.cast`, whose result belongs there."""
    if call.result is not None:
        call.target = target_of(call.source, call.rule, call.result, there, call.caller)
    check_fuse(call)


def check_fuse(call: Call) -> None:
    """ValueError where a call for one array writes memory that it shares with another array of the call."""
    if call.fuse.arrays:
        _check_disjoint([call], _ONE, call.fuse, call.caller)


def target_of(source: Array, rule: CastRule, out: Any, there: Engine, caller: str) -> Array:
    """The `out` of a call, of any library, as a native array that takes a result which belongs there. Errors as for
    `check_out`; ValueError elsewhere."""
    library = libraries.find(out)
    if library is not None:
        out = library.take(out, caller, writing=True)
    target = check_out(source, rule, out, there.packs, caller)
    if target.device != there.device:
        own, wanted = devices.name(target.device), devices.name(there.device)
        raise ValueError(f"{caller}: out is on {own}; the result belongs on {wanted}")
    return target


def packed_target(source: Array, rule: CastRule, out: Any, caller: str) -> Array:
    """The packed `out` of a tensor of the host, which takes one as its own result is packed."""
    dst = rule.dst
    # No PackedArray is a place for whole bytes: that is refused by name.
    packed = PackedArray(np.empty(dst.nbytes(source.size), np.uint8), dst, source.shape) if dst.packed else None
    target = target_of(source if packed is None else Array.of(packed), rule, out, engines.HOST, caller)
    if share_memory(target.data, source.data):
        raise ValueError(f"{caller}: out overlaps x; expected separate memory")
    return target


def of_arrays(
    given: Sequence[Any], outs: Sequence[Any] | None, names: Names, dst: DType, options: Options, finite: Any
) -> list[Call]:
    """The calls of a batch after all checks."""
    rules: dict[DType, CastRule] = {}
    known: dict[Any, DType] = {}
    calls: list[Call] = []
    for x, out, path in zip(given, outs or [None] * len(given), names.paths(), strict=True):
        caller = f"{options.caller}: {names.parameter}{path}"
        library = libraries.find(x)
        array = as_array(x, caller) if library is None else library.take(x, caller)
        kind = known.get(array.dtype)
        if kind is None:
            kind = known[array.dtype] = dtype(array.dtype, caller=f"{caller}: x.dtype=")
            rules[kind] = resolve(kind, dst, options._replace(caller=caller))
        calls.append(Call(caller, Array.of(array, kind), rules[kind], given=x, library=library, result=out))
    if not calls:
        # The attributes are checked all the same, for the source that takes any of them.
        resolve(dtype("FLOAT"), dst, options)
    places = {call.source.device for call in calls}
    for device in places:
        engines.of(device).require(options.caller)
    fuse = resolve_fuse(options, places, finite, len(calls))
    start = 0
    for i, call in enumerate(calls):
        if call.result is not None:
            call.target = _target(call)
        call.start = start
        if fuse is not EMPTY:
            call.fuse = _own(fuse, i, call)
        start += call.source.size
    _check_disjoint(calls, names, fuse, options.caller)
    return calls


def _own(fuse: Fuse, i: int, call: Call) -> Fuse:
    """The fuse of call i: its elements of the arrays that have one for each, and its random words."""
    scale, amax, random = fuse.scale, fuse.amax, fuse.random
    if scale is not None and not isinstance(scale, float) and scale.size > 1:
        scale = scale.reshape(-1)[i : i + 1]
        scale = engines.of_array(scale).number(scale)
    if amax is not None and amax.size > 1:
        amax = amax.reshape(-1)[i : i + 1]
    if random is not None:
        random = random._replace(offset=random.offset + call.start)
    return of_rule(fuse_of(scale, amax, fuse.finite, random), call.rule, call.caller)


def _target(call: Call) -> Array:
    """The `out` of a call of a batch as a native array that takes the result."""
    out, source, dst = call.result, call.source, call.rule.dst
    if call.library is not None:
        call.library.check_constant(call.given, call.caller, "out= is not differentiable; pass x.detach(), or no out")
    there = engines.HOST if call.rule.is_text else engines.of(source.device)
    if dst.packed and isinstance(out, PackedArray) and call.library and not (source.packed or there.packs):
        return packed_target(source, call.rule, out, call.caller)
    return target_of(source, call.rule, out, there, call.caller)


def _check_disjoint(calls: Sequence[Call], names: Names, fuse: Fuse, caller: str) -> None:
    """ValueError where an array that is written shares memory with another one of the batch."""
    arrays = fuse.arrays
    # A target in another place is written by a copy of the result. `check_out` compares it with x.
    targets = [(i, call.target) for i, call in enumerate(calls) if call.target is not None]
    targets = [(i, target) for i, target in targets if target.device == calls[i].source.device]
    if not targets and not arrays.keys() - {"scale"}:
        return
    paths = names.paths()
    written = [Place(f"out{paths[i]}", target.data, i) for i, target in targets]
    written += [Place(name, arrays[name]) for name in ("finite", "amax") if name in arrays]
    read = [Place(f"{names.parameter}{paths[i]}", call.source.data, i) for i, call in enumerate(calls)]
    read += [Place("scale", arrays["scale"])] if "scale" in arrays else []
    check_disjoint(written, read, caller)
