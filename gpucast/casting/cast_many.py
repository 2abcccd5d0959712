# SPDX-License-Identifier: Apache-2.0
"""The public cast of many arrays: checks all arrays first, then casts the arrays of each device in one launch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpucast.arrays import libraries, tree
from gpucast.arrays.array import Array
from gpucast.arrays.libraries import Library, untraced
from gpucast.arrays.tree import floating
from gpucast.casting import calls, engines, list_plans
from gpucast.casting.calls import Names
from gpucast.casting.cast import cast_with, run
from gpucast.casting.engine import Call, Engine
from gpucast.casting.plans import hit_list
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


#: Said before anything is written, `amax` too.
_NO_VECTOR = "a scale for each array is not differentiable; pass x.detach(), or one scale for all"


@exact()
def _cast_arrays(
    given: list[Any], outs: list[Any] | None, names: Names, to: Any, dst: DType, options: Options, finite: Any
) -> Sequence[Any]:
    list_plans.check_scale(given, options)
    is_one_scale = _is_one_number(options.scale)
    library = libraries.find(given[0]) if given and outs is None else None
    numbers = None if library is None else library.without_gradients(given, dst if is_one_scale else None)
    if library is not None and numbers is not None:
        # Plans are for numbers alone.
        return library.attach(given, [*_cast_arrays(numbers, None, names, to, dst, options, finite)], options.scale)
    results = list_plans.run(given, outs, to, options, finite)
    if results is None and _is_transforming(given):
        results = _one_by_one(given, outs, names, dst, options, finite)
    if results is None:
        batch = calls.of_arrays(given, outs, names, dst, options, finite)
        if outs is None and dst.is_float and not is_one_scale:
            for call in batch:
                if call.library is not None:
                    call.library.check_constant(call.given, call.caller, _NO_VECTOR)
        _run(batch, (options.scale, options.amax, finite))
        if batch:
            list_plans.keep(batch, outs, to, dst, options, finite)
        if outs is None:
            _attach(batch, options.scale)
        results = [call.result for call in batch]
    return results


def _is_one_number(scale: Any) -> bool:
    """Whether a scale is none with one for each array. What is no scale at all is refused by the cast."""
    try:
        return math.prod(getattr(scale, "shape", ())) == 1
    except RuntimeError:
        # A nested tensor has no shape.
        return True


def _is_transforming(given: list[Any]) -> bool:
    """Tell whether some arrays have no values yet: their library transforms a function, or is lazy."""
    found = ((libraries.find(x), x) for x in given)
    return any(library is not None and library.is_transforming(x) for library, x in found)


def _one_by_one(
    given: list[Any], outs: list[Any] | None, names: Names, dst: DType, options: Options, finite: Any
) -> list[Any]:
    """Cast arrays that have no memory one by one: within a transform of ``torch.func`` or JAX, or lazily."""
    for name, given_one in (("finite", finite), ("amax", options.amax), ("out", outs)):
        if given_one is not None:
            raise ValueError(
                f"{options.caller}: {name}= does not work within a transform of torch.func or JAX, nor for lazy "
                "arrays; call it outside"
            )
    if not _is_one_number(options.scale):
        raise ValueError(
            f"{options.caller}: scale= has one number for each array, which does not work within a transform of "
            "torch.func or JAX, nor for lazy arrays; expected one number"
        )
    results: list[Any] = []
    for x, path in zip(given, names.paths(), strict=True):
        caller = f"{options.caller}: {names.parameter}{path}"
        with _told_by(caller):
            results.append(cast_with(x, dst, options._replace(caller=caller)))
        if options.seed is not None:
            library = libraries.find(x)
            shape = np.shape(x) if library is None else library.shape(x)
            options = options._replace(offset=options.offset + math.prod(shape))
    return results


def _run(batch: Sequence[Call], shared: Sequence[Any]) -> None:
    """Run the calls of a batch. `shared`: scale, amax, finite, as the caller has them."""
    texts: list[Call] = []
    alone: list[Call] = []
    together: list[Call] = []
    for call in batch:
        is_alone = call.library is not None and not call.library.batches
        (texts if call.rule.is_text else alone if is_alone else together).append(call)
    # What may fail comes first: text that is no number, what another library does not take, memory.
    read = [_cast_text(call) for call in texts]
    for call in alone:
        if call.target is None:
            _cast_alone(call, shared)
    for call in together:
        if call.target is None and call.library is not None:
            call.result, target = call.library.empty_like(call.given, call.rule.dst, call.caller)
            call.target = Array.of(target, call.rule.dst)
    # Devices work while the host does; kernels that cannot be loaded are found before the host writes.
    ready = _prepared(together)
    for call in alone:
        if call.target is not None:
            _cast_alone(call, shared)
    for call, text in zip(texts, read, strict=True):
        if call.target is None:
            call.result = text.array
        else:
            call.target.data[...] = text.data
    for engine, stream, group, launches in ready:
        with engine.using(stream, map(streams.owner, (*shared, *(call.result for call in group)))):
            for launch in launches:
                launch()
        for call in group:
            call.result = call.written.array if call.result is None else call.result


def _prepared(batch: Sequence[Call]) -> list[tuple[Engine, int | None, list[Call], list[Callable[[], None]]]]:
    """Calls by engine and stream, with their launches; those of the host last."""
    known: dict[tuple[Engine, Any], int | None] = {}
    groups: dict[tuple[Engine, int | None], list[Call]] = {}
    for call in batch:
        engine = engines.of(call.source.device)
        key = engine, call.library
        if key not in known:
            known[key] = engine.stream(call.library)
        groups.setdefault((engine, known[key]), []).append(call)
    ready = []
    for (engine, stream), group in sorted(groups.items(), key=lambda item: item[0][0].waits):
        with engine.using(stream):
            ready.append((engine, stream, group, engine.prepare(group)))
    return ready


def _attach(batch: Sequence[Call], scale: Any) -> None:
    """Let libraries differentiate through the cast."""
    by_library: dict[Library, list[Call]] = {}
    for call in batch:
        if call.library is not None:
            by_library.setdefault(call.library, []).append(call)
    for library, own in by_library.items():
        results = library.attach([call.given for call in own], [call.result for call in own], scale)
        for call, result in zip(own, results, strict=True):
            call.result = result


def _cast_alone(call: Call, shared: Sequence[Any]) -> None:
    """Cast an array of another library, which makes its own result."""

    def cast(x: Any, to: Any, options: Options) -> Any:
        target = call.target
        if target is None and options.out is not None:
            target = Array.of(options.out, call.rule.dst)
        return _cast(replace(call, source=Array.of(x, call.rule.src), target=target)).array

    assert call.library is not None
    with streams.visit(call.given, *shared):
        call.result = call.library.cast(cast, call.given, call.rule.dst, Options(out=call.result, caller=call.caller))


def _cast(call: Call) -> Array:
    """Cast one array alone where it is; texts to the host."""
    here = engines.of(call.source.device)
    return run(call, here, engines.HOST if call.rule.is_text else here)


def _cast_text(call: Call) -> Array:
    with _told_by(call.caller), streams.visit(call.given):
        return _cast(replace(call, target=None))


@contextlib.contextmanager
def _told_by(caller: str) -> Iterator[None]:
    """Errors of a cast inside begin with the caller: those of text that is no number, and of the operators and
    transforms of other libraries, begin with "cast: "."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        said = str(error)
        if not said.startswith("cast: "):
            raise
        raise type(error)(f"{caller}: {said.removeprefix('cast: ')}") from None
