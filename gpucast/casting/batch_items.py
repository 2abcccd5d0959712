# SPDX-License-Identifier: Apache-2.0
"""The arrays of a call of `gpucast.cast_many`, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpucast.arrays import adapters
from gpucast.arrays.batch_overlap import Place, check_apart
from gpucast.arrays.item import Leaf, Names
from gpucast.arrays.overlap import check_out
from gpucast.arrays.packed import PackedArray, as_array, home
from gpucast.casting import fused as fused_cast
from gpucast.casting.fused_options import resolve_finite, resolve_scale
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import Fusion
from gpucast.core.options import Call
from gpucast.core.random import resolve_random
from gpucast.core.rule import STOCHASTIC, Rule
from gpucast.gpu import devices

_NOTHING = Fusion()


def checked(
    given: Sequence[Any],
    outs: Sequence[Any] | None,
    names: Names,
    dst: DType,
    call: Call,
    finite: Any,
) -> list[Leaf]:
    """The leaves of a call, of which nothing is wrong."""
    random = resolve_random(call.rounding, call.seed, call.offset, call.who)
    leaves = []
    paths = names.paths()
    for x, out, path in zip(given, outs or [None] * len(given), paths, strict=True):
        who, adapter = f"{call.who}: {names.parameter}{path}", adapters.find(x)
        array = as_array(x, who) if adapter is None else adapter.take(x, who)
        leaves.append(Leaf(who, x, adapter, array, home(array), out))
    if any(leaf.home is not None for leaf in leaves):
        devices.require(call.who)
    fusion = _fusion(leaves, call, finite)
    if not leaves:
        # The attributes are checked all the same, for the source that takes any of them.
        fused_cast.rule_of(call, dtype("FLOAT"), dst, call.who)
    rules: dict[Any, Rule] = {}
    start = 0
    for leaf in leaves:
        rule = rules.get(leaf.array.dtype)
        if rule is None:
            rule = rules[leaf.array.dtype] = fused_cast.rule_of(
                call, dtype(leaf.array.dtype, who=f"{leaf.who}: x.dtype="), dst, leaf.who
            )
            if fusion is not _NOTHING and "string" in (rule.src.family, dst.family):
                name = "finite" if call.scale is None else "scale"
                raise ValueError(
                    f"{leaf.who}: {name}= does not apply to text; {rule.src.name} to {dst.name} takes none"
                )
        leaf.rule = rule
        if leaf.result is not None:
            leaf.target = _target(leaf)
        if random is not None and rule.rounding == STOCHASTIC:
            leaf.fusion = fusion._replace(random=random._replace(offset=random.offset + start))
        elif fusion is not _NOTHING:
            leaf.fusion = fusion
        leaf.start = start
        start += leaf.array.size
    _check_apart(leaves, paths, fusion, names.parameter, call.who)
    return leaves


def _fusion(leaves: Sequence[Leaf], call: Call, finite: Any) -> Fusion:
    if call.scale is None and finite is None:
        return _NOTHING
    fusion = Fusion()
    places = {leaf.home for leaf in leaves}
    # Without leaves each may be anywhere.
    for place in places or {_home(call.scale, call.who)}:
        if call.scale is not None:
            fusion = fusion._replace(scale=resolve_scale(call.scale, place, call.who))
    for place in places or {_home(finite, call.who)}:
        if finite is not None:
            fusion = fusion._replace(finite=resolve_finite(finite, place, call.who))
    return fusion


def _home(x: Any, who: str) -> int | None:
    adapter = adapters.find(x)
    return home(x if adapter is None else adapter.take(x, who))


def _target(leaf: Leaf) -> Any:
    """The `out` of a leaf as an array of ours that can take the cast."""
    out, adapter, x, dst = leaf.result, adapters.find(leaf.result), leaf.array, leaf.rule.dst
    if leaf.adapter is not None:
        leaf.adapter.check_into(leaf.given, leaf.who)
    target = out if adapter is None else adapter.take(out, leaf.who, writing=True)
    if isinstance(x, np.ndarray) and dst.packed and isinstance(target, PackedArray) and leaf.adapter is not None:
        # A tensor of the host, whose result is packed: into that goes what it would be packed.
        x = PackedArray(np.empty(dst.nbytes(x.size), np.uint8), dst, x.shape)
    check_out(x, leaf.rule, target, leaf.home is not None or home(target) is not None, leaf.who)
    place = None if dst.family == "string" else leaf.home
    if home(target) != place:
        there, here = devices.name(home(target)), devices.name(place)
        raise ValueError(f"{leaf.who}: out is on {there}; the result belongs on {here}")
    return target


def _check_apart(leaves: Sequence[Leaf], paths: Sequence[str], fusion: Fusion, parameter: str, who: str) -> None:
    written = [
        Place(f"out{path}", i, leaf.target)
        for i, (leaf, path) in enumerate(zip(leaves, paths, strict=True))
        if leaf.target is not None
    ]
    read = [
        Place(f"{parameter}{path}", i, leaf.array) for i, (leaf, path) in enumerate(zip(leaves, paths, strict=True))
    ]
    if fusion.finite is not None:
        written.append(Place("finite", -1, fusion.finite))
    if fusion.scale is not None and not isinstance(fusion.scale, float):
        read.append(Place("scale", -2, fusion.scale))
    check_apart(written, read, who)
