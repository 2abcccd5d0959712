# SPDX-License-Identifier: Apache-2.0
"""The public cast of many arrays: checks all arrays first, then casts the arrays of each device in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpucast import casting, kernel
from gpucast.arrays import libraries, tree
from gpucast.arrays.array import Array
from gpucast.arrays.batch_item import BatchItem, Names
from gpucast.arrays.libraries import BatchLibrary, untraced
from gpucast.arrays.tree import floating
from gpucast.casting import batch_items, list_plans
from gpucast.casting.cast import apply, cast_array, cast_with
from gpucast.casting.plans import KINDS, hit_list
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import Rounding
from gpucast.core.rule import Options, OverflowKeyword, RoundMode
from gpucast.kernel import streams


def cast_many(
    arrays: Any,
    to: Any,
    *,
    saturate: bool = True,
    round_mode: RoundMode = "up",
    opset: int | None = None,
    rounding: Rounding | None = None,
    overflow: OverflowKeyword | None = None,
    seed: int | None = None,
    offset: int = 0,
    scale: Any = None,
    amax: Any = None,
    finite: Any = None,
    out: Any = None,
    floating_only: bool = False,
) -> Any:
    """Cast all arrays of a tree to the type `to`, with one launch per device.

    Parameters
    ----------
    arrays
        Arrays in dicts, lists, tuples and named tuples, nested in any way, or one array. None is kept. The arrays are
        those of `gpucast.cast`, in any mix of types, shapes, libraries and devices. Each stays on its device. A number
        in a list is an array of shape ().
    to, saturate, round_mode, opset, rounding, overflow
        As for `gpucast.cast`, the same for all arrays.
    seed, offset
        For ``rounding="stochastic"``, as for `gpucast.cast`. The random bits continue from array to array in the tree's
        order (dicts in the order of insertion). The next call continues at `offset` plus the number of all elements.
    scale
        Multiply every value by this, as in `gpucast.cast`: a number, or an array of one element on the host or on the
        device of all arrays. A vector on that device has one scale for each array that is cast, in the tree's order.
        Tensors that require a gradient take no vector.
    amax
        As in `gpucast.cast`: an array of one FLOAT takes the largest magnitude of all arrays. A vector takes one for
        each array that is cast, in the tree's order. It is on the host, or on the device of all arrays.
    finite
        An array of one BOOL or UINT8 element on the arrays' device. It becomes 0 if a source has an infinity or NaN,
        and does not change otherwise. The call does not wait for it.
    out
        A tree of the same structure (dicts in any order), which is written and returned. Each array is like the `out`
        of `gpucast.cast`. The arrays share no memory with each other or with the sources of other arrays.
    floating_only
        True: cast only arrays of floating types, as in the state dict of a model. Other arrays, numbers and texts are
        returned unchanged, and an `out` keeps its own. Other objects are a TypeError.

    Returns
    -------
    A tree of the same structure with the results, which are those of `gpucast.cast`.

    Contiguous arrays on a device (row-major, or with the same order of axes on both sides) share launches of 800 or
    more, whatever their types (100 before CUDA 12.1). Arrays with other strides take a launch each. So do arrays of JAX
    and of other libraries except PyTorch, and all arrays within a transform of ``torch.func``. CuPy arrays are cast on
    CuPy's current stream, tensors on torch's. With `out` nothing is allocated or copied, so a CUDA graph can capture a
    repeated call.

    Raises
    ------
    As `gpucast.cast`, with the path of the array, such as ``arrays['encoder'][3]``. ValueError for an `out` of another
    structure, or whose arrays share memory. After an error nothing is written.
    """
    if type(arrays) is list and arrays and type(arrays[0]) in KINDS:
        results = hit_list(
            arrays, to, saturate, round_mode, opset, rounding, overflow, seed, offset, scale, amax, None, out, True,
            finite, floating_only,
        )  # fmt: skip
        if results is not None:
            return results
    options = Options(
        saturate, round_mode, opset, rounding, overflow, seed, offset, scale, amax, caller="cast_many"
    )  # fmt: skip
    if not isinstance(floating_only, (bool, np.bool_)):
        raise TypeError(f"cast_many: floating_only={floating_only!r} must be True or False")
    return untraced(_cast_tree, arrays, to, options, finite, out, floating_only)


def cast_arrays(
    arrays: list[Any], to: Any, names: Names, caller: str, *, scale: Any = None, finite: Any = None, out: Any = None
) -> Any:
    """`cast_many` of a list, under another name in errors; `names` are the names of its arrays."""
    dst = dtype(to, caller=f"{caller}: to=")
    return untraced(_cast_arrays, arrays, out, names, dst, dst, Options(scale=scale, caller=caller), finite)


@exact()
def _cast_tree(arrays: Any, to: Any, options: Options, finite: Any, out: Any, floating_only: bool) -> Any:
    caller = options.caller
    leaves, structure = tree.flatten(arrays, f"{caller}: arrays")
    outs = None if out is None else tree.leaves_like(structure, out, f"{caller}: out")
    dst = dtype(to, caller=f"{caller}: to=")
    if not floating_only:
        names = Names("arrays", lambda: tree.paths(structure))
        results = _cast_arrays(leaves, outs, names, to, dst, options, finite)
    else:
        results = list(leaves)
        indices = floating(leaves, lambda: tree.paths(structure), f"{caller}: arrays")
        names = Names("arrays", lambda: tree.paths(structure, indices))
        given, targets = [leaves[i] for i in indices], None if outs is None else [outs[i] for i in indices]
        for i, result in zip(indices, _cast_arrays(given, targets, names, to, dst, options, finite), strict=True):
            results[i] = result
    return tree.unflatten(structure, results) if out is None else out


@exact()
def _cast_arrays(
    given: list[Any], outs: list[Any] | None, names: Names, to: Any, dst: DType, options: Options, finite: Any
) -> Sequence[Any]:
    list_plans.check_scale(given, options)
    results = list_plans.run(given, outs, to, options, finite)
    if results is None and _is_transforming(given):
        results = _one_by_one(given, outs, names, dst, options, finite)
    if results is None:
        items = batch_items.checked(given, outs, names, dst, options, finite)
        _run(items, (options.scale, options.amax, finite))
        if items:
            list_plans.keep(items, outs, to, dst, options, finite)
        if outs is None:
            _attach(items, options.scale)
        results = [item.result for item in items]
    return results


def _is_transforming(given: list[Any]) -> bool:
    """Tell whether some arrays have no values yet: their library transforms a function, or is lazy."""
    found = ((libraries.find(x), x) for x in given)
    return any(adapter is not None and adapter.is_transforming(x) for adapter, x in found)


def _one_by_one(
    given: list[Any], outs: list[Any] | None, names: Names, dst: DType, options: Options, finite: Any
) -> list[Any]:
    """Cast arrays that have no memory one by one: within a transform of ``torch.func`` or JAX, or lazily."""
    if finite is not None or options.amax is not None:
        name = "amax" if finite is None else "finite"
        raise ValueError(
            f"{options.caller}: {name}= cannot be told within a transform of torch.func or JAX, nor of lazy arrays; "
            "call it outside"
        )
    results: list[Any] = []
    for x, out, path in zip(given, outs or [None] * len(given), names.paths(), strict=True):
        caller = f"{options.caller}: {names.parameter}{path}"
        results.append(cast_with(x, dst, options._replace(out=out, caller=caller)))
        if options.seed is not None:
            adapter = libraries.find(x)
            shape = np.shape(x) if adapter is None else adapter.shape(x)
            options = options._replace(offset=options.offset + math.prod(shape))
    return results


def _run(items: Sequence[BatchItem], shared: Sequence[Any]) -> None:
    texts = [item for item in items if "string" in (item.rule.src.family, item.rule.dst.family)]
    numbers = [item for item in items if "string" not in (item.rule.src.family, item.rule.dst.family)]
    alone = [item for item in numbers if item.is_alone]
    together = [item for item in numbers if not item.is_alone]
    # What may fail comes first: text that is no number, what another library does not take, memory.
    read = [_cast_text(item) for item in texts]
    for item in alone:
        if item.target is None:
            _cast_alone(item, shared)
    for item in together:
        if item.target is None:
            _allocate(item)
    # Devices work while the host does; kernels that cannot be loaded are found before the host writes.
    _cast_on_devices([item for item in together if item.source.device is not None], shared)
    for item in alone:
        if item.target is not None:
            _cast_alone(item, shared)
    for item, text in zip(texts, read, strict=True):
        if item.target is None:
            item.result = text.array
        else:
            item.target.data[...] = text.data
    for item in together:
        if item.source.device is None:
            _cast_on_host(item)


def _attach(items: Sequence[BatchItem], scale: Any) -> None:
    """Let libraries differentiate through the cast."""
    by_adapter: dict[BatchLibrary, list[BatchItem]] = {}
    for item in items:
        if isinstance(item.adapter, BatchLibrary):
            by_adapter.setdefault(item.adapter, []).append(item)
    for adapter, own in by_adapter.items():
        results = adapter.attach([item.given for item in own], [item.result for item in own], scale)
        for item, result in zip(own, results, strict=True):
            item.result = result


def _allocate(item: BatchItem) -> None:
    if isinstance(item.adapter, BatchLibrary):
        item.result, target = item.adapter.empty_like(item.given, item.rule.dst, item.caller)
        item.target = Array.of(target, item.rule.dst)
    elif item.source.device is not None:
        with kernel.driver.driver().on(item.source.device):
            item.target = casting.cuda.empty_like(item.source, item.rule.dst)
        item.result = item.target.array


def _cast_alone(item: BatchItem, shared: Sequence[Any]) -> None:
    """Cast an array of another library, which makes its own result."""

    def cast(x: Any, to: Any, options: Options) -> Any:
        target = item.target
        if target is None and options.out is not None:
            target = Array.of(options.out, item.rule.dst)
        return _cast(item, Array.of(x, item.rule.src), target).array

    assert item.adapter is not None
    with streams.visit(item.given, *shared):
        item.result = item.adapter.cast(cast, item.given, item.rule.dst, Options(out=item.result, caller=item.caller))


def _cast(item: BatchItem, source: Array, target: Array | None) -> Array:
    """Cast the array of one item alone, into a target if there is one."""
    return cast_array(source, item.rule, None, target, item.caller, item.fused)


def _cast_text(item: BatchItem) -> Array:
    try:
        with streams.visit(item.given):
            return _cast(item, item.source, None)
    except (TypeError, ValueError, OverflowError) as error:
        # The error of a text that is no number, which begins with "cast: ".
        raise type(error)(f"{item.caller}: {str(error).removeprefix('cast: ')}") from None


def _cast_on_host(item: BatchItem) -> None:
    y = apply(item.source, item.rule, item.target, item.fused)
    if item.target is None:
        item.result = y.array


def _cast_on_devices(items: Sequence[BatchItem], shared: Sequence[Any]) -> None:
    """Cast arrays on devices, those of a stream together. `shared`: scale, amax, finite, as the caller has them."""
    if not items:
        return
    cuda = kernel.driver.driver()
    groups: dict[tuple[int, int], list[BatchItem]] = {}
    found: dict[tuple[int, Any], int] = {}
    for item in items:
        device = item.source.device
        assert device is not None
        key = (device, item.adapter)
        if key not in found:
            stream = None if item.adapter is None else item.adapter.stream(device)
            with cuda.on(device):
                found[key] = cuda.stream() if stream is None else stream
        groups.setdefault((device, found[key]), []).append(item)
    ready = []
    for (device, stream), group in groups.items():
        with cuda.using(stream, device):
            ready.append((device, stream, group, casting.cuda_batches.launches(group, device)))
    # A kernel that cannot be loaded for one device leaves the others as they were.
    for device, stream, group, launches in ready:
        owners = map(streams.owner, (*shared, *(item.result for item in group)))
        with streams.on({device: stream}, owners), cuda.on(device):
            for run in launches:
                run()
