# SPDX-License-Identifier: Apache-2.0
"""The public casts: check the call, and run it where its array is or where its result goes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np
import numpy.typing as npt

from gpucast.arrays import libraries
from gpucast.arrays.array import Array
from gpucast.arrays.packed import PackedArray, as_array, register_cast
from gpucast.casting import calls, engines, plans
from gpucast.casting.engine import Call, Engine
from gpucast.casting.fuse import of_rule, resolve_fuse
from gpucast.casting.plans import by_plan, hit
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import EMPTY, fuse_of
from gpucast.core.rounding import STOCHASTIC, Rounding
from gpucast.core.rule import (
    CAST_VERSIONS,
    CASTLIKE_VERSIONS,
    Options,
    OverflowKeyword,
    RoundMode,
    destination,
    resolve,
    rule_of,
)
from gpucast.kernel import streams

#: What a cast on the host makes NumPy arrays of.
HostInput = np.ndarray[Any, Any] | np.generic | float | str | bytes | list[Any] | tuple[Any, ...]


class CastKeywords(TypedDict, total=False):
    """The keywords of `gpucast.cast` that have no part in the kind of its result, for type checkers."""

    saturate: bool
    round_mode: RoundMode
    rounding: Rounding | None
    overflow: OverflowKeyword | None
    seed: int | None
    offset: int
    scale: Any
    amax: Any
    copy: bool


if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def cast(
    x: HostInput,
    to: Any,
    *,
    opset: int | None = ...,
    device: Literal["cpu"] | None = None,
    out: npt.NDArray[Any] | None = None,
    **keywords: Unpack[CastKeywords],
) -> npt.NDArray[Any]: ...
@overload
def cast(
    x: Any, to: Any, *, opset: int | None = ..., device: Any = None, out: Any = None, **keywords: Unpack[CastKeywords]
) -> Any: ...
@by_plan(hit)
def cast(
    x: Any,
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
    device: Any = None,
    out: Any = None,
    copy: bool = True,
) -> Any:
    """Cast an array of any shape to the type `to`, with the same bits on every machine: the ONNX Cast operator.

    Integers wrap: 300 to INT8 is 44. `saturate` does not change this, because it acts on float8 and FLOAT8E8M0 only.
    ``overflow="saturate"`` clamps to 127. ``rounding="nearest_even"`` rounds to integers instead of truncating.

    Parameters
    ----------
    x
        A NumPy or CuPy array, with the ml_dtypes dtype for types that these libraries lack. A PackedArray, a scalar or
        a list, which becomes an array as in ``numpy.asarray``. Strings (object, ``<U``, ``S``, StringDType). A PyTorch
        tensor, a JAX array, a Dask array (it stays lazy) or any object with DLPack: the result is of the same library
        (see `gpucast.libraries.torch`, ``jax``, ``dask``, ``dlpack``). An object with only
        ``__cuda_array_interface__`` gives a CuPy array.
    to
        Anything that `gpucast.dtype` takes: "FLOAT16", 10, ``np.float16``, ``ml_dtypes.float8_e4m3fn``, ...
    saturate
        ONNX `saturate`: float8 and FLOAT8E8M0 destinations clamp (True) or give infinity or NaN (False). It has no
        effect on other destinations.
    round_mode
        ONNX `round_mode`, for FLOAT8E8M0 only: "up", "down" or "nearest".
    opset
        1 to 28: follow the newest Cast version up to this opset, with its types, attributes and rules. None follows
        `DEFAULT_OPSET`, and takes the types that no opset has, too.
    rounding
        To integers: "truncate" or "toward_zero" (the default), "nearest_even" or "nearest_away" (ties away from zero).
        To floats: "nearest_even" (the default), "nearest_away", "toward_zero", "upward", "downward", or "odd" (if it is
        not exact, to the neighbour whose last bit is 1). To floats of 16 bits or fewer also "stochastic": up or down at
        random, so that the mean is the number. This needs a `seed`.
    overflow
        To integers: "wrap" (the default, keeps the low bits) or "saturate". To FLOAT16, BFLOAT16, FLOAT and DOUBLE:
        None (infinity) or "saturate" (the largest finite value, also for infinities). To smaller floats "saturate" is
        what they do unless `saturate` is False, and stronger than that. A cast of a type to itself keeps infinities.
    seed, offset
        For "stochastic", each from 0 to 2^64 - 1. Equal seeds give equal bits everywhere. The next cast continues with
        ``offset + x.size``. Element i in row-major order takes word ``(offset + i) % 4`` of block ``(offset + i) // 4``
        of Philox4x32-10 with the key `seed`.
    scale
        Multiply every value by this before the cast. A finite number that is not negative, or an array of one FLOAT or
        DOUBLE: of NumPy, or of x's library on x's device (read when the cast runs, not checked). The value becomes
        DOUBLE, the product is rounded to DOUBLE, and then cast as any DOUBLE. The product of two FLOATs is exact in
        DOUBLE, so it is rounded only once. NaN keeps its sign. Infinity times 0 is the positive NaN. A product beyond
        DOUBLE is infinite, and stays infinite in a cast to DOUBLE.
    amax
        An array of one FLOAT that the call updates: of NumPy for a host array, else of x's library on x's device. It
        becomes the largest magnitude in x, before `scale` and rounded to FLOAT, if that is larger than its old value.
        Start with 0. NaN counts as the largest. An infinity in x, or a number beyond FLOAT, makes it infinity, so
        check it before you divide by it. On the host it may be the memory of `scale`, which is read before.
    device
        Where the result is: "cpu", "cuda", "cuda:N" or a ``torch.device``. None: where x is.
    out
        An array of the result's shape, dtype and kind: written and returned.
    copy
        False: return x itself if nothing changes.

    Returns
    -------
    An array of x's shape, library and memory order (order "K"). Types that NumPy and CuPy lack have the ml_dtypes
    dtype. Types below one byte take one byte per element on the host, unless x is a PackedArray. On a device they are
    PackedArrays. STRING is an object array of str, always on the host.

    Raises
    ------
    TypeError
        For an unknown or complex dtype, a type newer than the opset, or an `out`, `scale` or `amax` of another dtype.
    ValueError
        For illegal attributes, text that is not a number (with its index), an `out` of another shape or that overlaps
        x, a missing seed, a `scale` that is negative or not finite, or memory shared with `scale` or `amax`.
    OverflowError
        For integer text outside the destination's range (with its index).
    RuntimeError
        When a CUDA graph is captured and the cast would have to allocate or to load its kernel.
    DeviceUnavailable
        When a GPU is asked for that cannot be used.

    With `scale`, `amax` or random rounding it is still one pass over x and one launch; the cast runs where x is.

    Source: ONNX Cast, versions 1 to 28. Where the text leaves a choice, see docs/conformance.md. Random bits: Salmon et
    al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return _checked(x, to, Options(
        saturate, round_mode, opset, rounding, overflow, seed, offset, scale, amax, device, out, copy,
    ))  # fmt: skip


@overload
def cast_like(
    x: HostInput,
    like: Any,
    *,
    opset: int | None = None,
    device: Literal["cpu"] | None = None,
    out: npt.NDArray[Any] | None = None,
    **keywords: Unpack[CastKeywords],
) -> npt.NDArray[Any]: ...
@overload
def cast_like(
    x: Any,
    like: Any,
    *,
    opset: int | None = None,
    device: Any = None,
    out: Any = None,
    **keywords: Unpack[CastKeywords],
) -> Any: ...
def cast_like(
    x: Any,
    like: Any,
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
    device: Any = None,
    out: Any = None,
    copy: bool = True,
) -> Any:
    """Cast `x` to the type of the array `like`, whose shape and values do not matter: the ONNX CastLike operator.

    Keywords, result and errors as for `cast`. An `opset` (15 to 28) follows CastLike's own versions, which never took
    float6; None takes all types and the newest rules.
    """
    versions = CAST_VERSIONS if opset is None else CASTLIKE_VERSIONS
    kind = getattr(like, "dtype", None)
    if kind is None:
        kind = np.asarray(like).dtype
        if kind.kind == "O":
            raise TypeError(f"cast_like: like is a {type(like).__name__}; expected an array, a scalar or a list")
    return cast_with(x, kind, Options(
        saturate, round_mode, opset, rounding, overflow, seed, offset, scale, amax, device, out, copy,
        "cast_like", versions, "like.dtype",
    ))  # fmt: skip


register_cast(cast)


def cast_with(x: Any, to: Any, options: Options) -> Any:
    """Cast by options."""
    if options.versions is CAST_VERSIONS:
        result = hit(x, to, *options[:12])
        if result is not None:
            return result
    return _checked(x, to, options)


def _checked(x: Any, to: Any, options: Options) -> Any:
    """Cast with all checks."""
    library = libraries.find(x)
    if library is not None:
        return library.cast(cast_with, x, to, options)
    # A native array alone has no other stream than the current one, and no numbers are computed with here.
    alone = options.out is options.scale is options.amax is None
    return libraries.untraced(_cast_array if alone else _cast_several, x, to, options)


def _cast_several(x: Any, to: Any, options: Options) -> Any:
    """Cast a native array where other arrays take part."""
    with exact(), streams.visit(x, options.out, options.scale, options.amax):
        return _cast_array(x, to, options)


def _cast_array(x: Any, to: Any, options: Options) -> Any:
    """Cast a native array, or an object that becomes one, and keep a plan for later calls like this one."""
    caller, out = options.caller, options.out
    # Arrays of numbers stay as they are.
    if type(x) not in libraries.NATIVE or x.dtype.kind == "O" or x.dtype.names is not None:
        array = as_array(x, caller)
        if array is not x:
            return cast_with(array, to, options)
    call = _call_of(x, to, options)
    if not isinstance(options.copy, (bool, np.bool_)):
        raise TypeError(f"{caller}: copy={options.copy!r} must be True or False")
    if out is not None and (library := libraries.find(out)) is not None:
        cast_with(x, to, options._replace(out=library.take(out, caller, writing=True)))
        return out
    here = engines.of(call.source.device)
    there = here if options.device is None else engines.named(options.device, caller)
    if call.rule.dst.family == "string" and not there.has_text:
        if options.device is not None:
            raise ValueError(f"{caller}: device={options.device!r} cannot hold STRING; expected None or 'cpu'")
        there = engines.HOST
    if not options.copy and out is None and there is here and call.fuse is EMPTY and here.is_unchanged(call):
        return x
    if out is not None or call.fuse is not EMPTY:
        calls.add_target(call, there)
    y = run(call, here, there)
    # A cast of a type to itself ignores its seed, which the key of plans does not hold.
    if options.seed is None or call.rule.rounding == STOCHASTIC:
        plans.keep(x, to, options, call.rule, here.plan(call))
    return y.array


def _call_of(x: Any, to: Any, options: Options) -> Call:
    """The call of `gpucast.cast` for an array of NumPy or CuPy or a PackedArray, but for its target (`add_target`)."""
    caller = options.caller
    source = Array.of(x, dtype(x.dtype, caller=f"{caller}: x.dtype="))
    rule = rule_of(source.dtype, destination(to, options), options)
    fuse = EMPTY
    if options.fuses:
        fuse = of_rule(resolve_fuse(options, (source.device,)), rule, caller)
    return Call(caller, source, rule, fuse, given=x, result=options.out)


def check_packed_out(x: Any, dst: DType, out: PackedArray, options: Options) -> None:
    """The checks of an `out` of elements that share bytes, for the memory of a tensor of the host."""
    call = _call_of(x, dst, options)
    call.target = calls.packed_target(call.source, call.rule, out, call.caller)
    calls.check_fuse(call)


def run(call: Call, here: Engine, there: Engine) -> Array:
    """Cast an array that is here to the result there, a given one if there is one.

    The cast runs on the side of the bus that leaves fewer bytes to cross it; text is read and written on the host. A
    fused cast runs where the source is.
    """
    rule = call.rule
    if there is here:
        here.run((call,))
        assert call.target is not None, "an engine gives every call one"
        return call.target
    here.require(call.caller)
    if call.fuse is not EMPTY or rule.src.family == "string" or 0 < rule.dst.bits < rule.src.bits:
        first = replace(call, target=None)
        here.run((first,))
        y = there.received(first.written, call.source.packed)
        if call.target is None:
            return y
        there.copy(y, call.target)
        return call.target
    moved = replace(call, source=Array.of(there.take(call.source.array), rule.src))
    there.run((moved,))
    return moved.written


def times(x: Any, to: Any, options: Options) -> Any:
    """The cast of a NumPy or CuPy array times ``options.scale``, a number of any sign, as gradients need it."""
    src, dst = dtype(x.dtype), destination(to, options)
    target = None if options.out is None else Array.of(options.out, dst)
    call = Call(options.caller, Array.of(x, src), resolve(src, dst, options), fuse_of(options.scale), target)
    engines.of_array(x).run((call,))
    return call.written.array
