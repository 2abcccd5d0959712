# SPDX-License-Identifier: Apache-2.0
"""The public cast of many arrays: all of them are checked, then those of each device are cast in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpucast import gpu
from gpucast.arrays import adapters, tree
from gpucast.arrays.adapters import ArrayAdapter, untraced
from gpucast.arrays.item import Leaf, Names
from gpucast.arrays.packed import PackedArray
from gpucast.casting import batch_items as many_leaves
from gpucast.casting import batch_plans as many_plans
from gpucast.casting import dispatch as placement
from gpucast.casting import fused as fused_cast
from gpucast.casting.cast import inner as cast
from gpucast.core.dtypes import DType, dtype
from gpucast.core.options import Call
from gpucast.core.rule import CAST_VERSIONS, DEFAULT_OPSET
from gpucast.cpu import cast as host_cast


def cast_many(
    arrays: Any,
    to: Any,
    *,
    saturate: bool = True,
    round_mode: str = "up",
    opset: int = DEFAULT_OPSET,
    rounding: str | None = None,
    overflow: str | None = None,
    seed: int | None = None,
    offset: int = 0,
    scale: Any = None,
    finite: Any = None,
    out: Any = None,
) -> Any:
    """Cast all arrays of a tree to the type `to`, those of each device in one launch.

    Parameters
    ----------
    arrays
        A dict, list, tuple or named tuple of arrays, nested in any way, None included; or one array. The arrays are
        what `gpucast.cast` takes, in any mix of types, shapes, libraries and devices; each stays where it is. A list of
        numbers is as many arrays of shape ().
    to, saturate, round_mode, opset, rounding, overflow
        As for `gpucast.cast`, the same for all arrays.
    seed, offset
        For ``rounding="stochastic"``, as for `gpucast.cast`: the random bits of each array, in the tree's order (a
        dict's keys as they were inserted), go on where those of the one before end. The next call goes on at `offset`
        plus the number of all elements.
    scale
        As for `gpucast.cast`: every value is multiplied with it before it is rounded. An array of one element is on the
        host, or on the device of all arrays.
    finite
        An array of one BOOL or UINT8 element where the arrays are: it becomes 0 if a value of a source is infinite or
        NaN, and is left as it is otherwise. Nothing waits for it.
    out
        A tree of the same structure (dicts in any order): its arrays are written, each as the `out` of a
        `gpucast.cast`, and it is returned. They are apart in memory from each other and from all other sources.

    Returns
    -------
    A tree of the same structure with the results, which are those of `gpucast.cast`.

    Contiguous arrays on a device (row-major, or with the same order of axes on both sides) share one launch for every
    800 or more of them, with a CUDA before 12.1 for every 100, whatever their types. Arrays with other strides take a
    launch each, and so do those of JAX and of other libraries but PyTorch, and all of them within a transform of
    ``torch.func``. CuPy arrays are cast on CuPy's current stream, tensors on torch's. With `out` nothing is allocated
    or copied, so that a call that has been made before can be captured in a CUDA graph.

    Raises
    ------
    As `gpucast.cast`, with the path of the array, such as ``arrays['encoder'][3]``; ValueError for an `out` of another
    structure, or whose arrays share memory. Nothing is written then.
    """
    call = Call(
        saturate, round_mode, opset, rounding, overflow, seed, offset, scale, None, None, None, True, "cast_many",
        CAST_VERSIONS,
    )  # fmt: skip
    return untraced(_cast_many, arrays, to, call, finite, out)


def cast_leaves(
    leaves: list[Any], to: Any, names: Names, who: str, *, scale: Any = None, finite: Any = None, out: Any = None
) -> Any:
    """`cast_many` of a list, for a caller that errors call `who`: what it was given has the `names`."""
    call = Call(True, "up", DEFAULT_OPSET, None, None, None, 0, scale, None, None, None, True, who, CAST_VERSIONS)
    dst = dtype(to, who=f"{who}: to=")
    return untraced(_cast_leaves, leaves, out, names, dst, call, finite)


def _cast_many(arrays: Any, to: Any, call: Call, finite: Any, out: Any) -> Any:
    who = call.who
    leaves, structure = tree.flatten(arrays, f"{who}: arrays")
    outs = None if out is None else tree.leaves_like(structure, out, f"{who}: out")
    names = Names("arrays", lambda: tree.paths(structure))
    results = _cast_leaves(leaves, outs, names, dtype(to, who=f"{who}: to="), call, finite)
    return tree.unflatten(structure, results) if out is None else out


def _cast_leaves(
    leaves: list[Any], out: list[Any] | None, names: Names, dst: DType, call: Call, finite: Any
) -> Sequence[Any]:
    if call.scale is not None:
        _check_scale(leaves, call)
    results = many_plans.run(leaves, out, dst, call, finite)
    if results is None and _is_transforming(leaves):
        results = _one_by_one(leaves, out, names, dst, call, finite)
    if results is None:
        checked = many_leaves.checked(leaves, out, names, dst, call, finite)
        _run(checked)
        if checked:
            many_plans.keep(checked, out, dst, call, finite)
        if out is None:
            _attach(checked, call.scale)
        results = [leaf.result for leaf in checked]
    return results


def _check_scale(leaves: list[Any], call: Call) -> None:
    """ValueError for a scale that its library would not cast its own arrays with."""
    adapter = adapters.find(call.scale)
    if adapter is not None and any(adapters.find(leaf) is adapter for leaf in leaves):
        adapter.check_scale(call.scale, call.who)


def _is_transforming(leaves: list[Any]) -> bool:
    """Whether the arrays are those of a library that transforms a function at the moment."""
    found = (adapters.find(leaf) for leaf in leaves)
    return any(adapter is not None and adapter.is_transforming() for adapter in found)


def _one_by_one(
    leaves: list[Any], out: list[Any] | None, names: Names, dst: DType, call: Call, finite: Any
) -> list[Any]:
    """The same casts within a transform of ``torch.func``, whose tensors have no memory to look at."""
    if finite is not None:
        raise ValueError(f"{call.who}: finite= cannot be told within a transform of torch.func; call it outside")
    results: list[Any] = []
    for leaf, target, path in zip(leaves, out or [None] * len(leaves), names.paths(), strict=True):
        who = f"{call.who}: {names.parameter}{path}"
        results.append(cast(leaf, dst, call._replace(out=target, who=who)))
        if call.seed is not None:
            adapter = adapters.find(leaf)
            shape = np.shape(leaf) if adapter is None else adapter.shape(leaf)
            call = call._replace(offset=call.offset + math.prod(shape))
    return results


def _run(leaves: Sequence[Leaf]) -> None:
    texts = [leaf for leaf in leaves if "string" in (leaf.rule.src.family, leaf.rule.dst.family)]
    numbers = [leaf for leaf in leaves if "string" not in (leaf.rule.src.family, leaf.rule.dst.family)]
    alone = [leaf for leaf in numbers if leaf.is_alone]
    together = [leaf for leaf in numbers if not leaf.is_alone]
    # What may fail comes first: text that is no number, what another library does not take, memory.
    read = [_cast_text(leaf) for leaf in texts]
    for leaf in alone:
        if leaf.target is None:
            _cast_alone(leaf)
    for leaf in together:
        if leaf.target is None:
            _make_room(leaf)
    # Devices work while the host does; kernels that cannot be loaded are found before the host writes.
    _cast_on_devices([leaf for leaf in together if leaf.home is not None])
    for leaf in alone:
        if leaf.target is not None:
            _cast_alone(leaf)
    for leaf, text in zip(texts, read, strict=True):
        if leaf.target is None:
            leaf.result = text
        else:
            leaf.target[...] = text
    for leaf in together:
        if leaf.home is None:
            _cast_on_host(leaf)


def _attach(leaves: Sequence[Leaf], scale: Any) -> None:
    """Let libraries differentiate through the cast."""
    by_adapter: dict[ArrayAdapter, list[Leaf]] = {}
    for leaf in leaves:
        if leaf.adapter is not None:
            by_adapter.setdefault(leaf.adapter, []).append(leaf)
    for adapter, own in by_adapter.items():
        results = adapter.attach([leaf.given for leaf in own], [leaf.result for leaf in own], scale)
        for leaf, result in zip(own, results, strict=True):
            leaf.result = result


def _make_room(leaf: Leaf) -> None:
    if leaf.adapter is not None:
        leaf.result, leaf.target = leaf.adapter.empty_like(leaf.given, leaf.rule.dst, leaf.who)
    elif leaf.home is not None:
        with gpu.driver.driver().on(leaf.home):
            leaf.result = leaf.target = gpu.cast.room(leaf.array, leaf.rule.dst)


def _cast_alone(leaf: Leaf) -> None:
    """The cast of an array of another library, which makes something of the result."""

    def inner(x: Any, to: Any, call: Call) -> Any:
        return _cast(leaf, x, call.out if leaf.target is None else leaf.target)

    adapter, who = leaf.adapter, leaf.who
    assert adapter is not None
    call = Call(True, "up", DEFAULT_OPSET, None, None, None, 0, None, None, None, leaf.result, True, who, CAST_VERSIONS)
    leaf.result = adapter.cast(inner, leaf.given, leaf.rule.dst, call)


def _cast(leaf: Leaf, x: Any, out: Any) -> Any:
    """The cast of the array of a leaf alone, into `out` if there is one."""
    if leaf.home is not None:
        return placement.cast(x, leaf.rule, None, out, leaf.who, leaf.fusion)
    if leaf.fusion is None:
        return host_cast.apply(x, leaf.rule, out)
    return fused_cast.apply(x, leaf.rule, leaf.fusion, out)


def _cast_text(leaf: Leaf) -> Any:
    try:
        return _cast(leaf, leaf.array, None)
    except (TypeError, ValueError, OverflowError) as error:
        # Of a text that is no number, and says so for `cast`.
        raise type(error)(f"{leaf.who}: {str(error).removeprefix('cast: ')}") from None


def _cast_on_host(leaf: Leaf) -> None:
    target = leaf.target
    # The result of an array with one element per byte is such an array too; that of a tensor is packed.
    pack = isinstance(target, PackedArray) and not isinstance(leaf.array, PackedArray)
    y = _cast(leaf, leaf.array, None if pack else target)
    if pack:
        target.data[...] = PackedArray.pack(y).data
    elif target is None:
        leaf.result = y


def _cast_on_devices(leaves: Sequence[Leaf]) -> None:
    if not leaves:
        return
    driver = gpu.driver.driver()
    groups: dict[tuple[int, int], list[Leaf]] = {}
    streams: dict[tuple[int, Any], int] = {}
    for leaf in leaves:
        assert leaf.home is not None
        key = (leaf.home, leaf.adapter)
        if key not in streams:
            with driver.on(leaf.home):
                streams[key] = driver.stream() if leaf.adapter is None else leaf.adapter.stream(leaf.home)
        groups.setdefault((leaf.home, streams[key]), []).append(leaf)
    ready = []
    for (device, stream), group in groups.items():
        with driver.using(stream, device):
            ready.append((device, stream, gpu.batch.launches(group, device)))
    # A kernel that cannot be loaded for one device leaves the others as they were.
    for device, stream, launches in ready:
        with driver.using(stream, device):
            for run in launches:
                run()
