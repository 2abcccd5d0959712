# SPDX-License-Identifier: Apache-2.0
"""The public casts: check the call, place it on the host or a device, and route it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np
import numpy.typing as npt

from gpucast import casting, host
from gpucast.arrays import libraries
from gpucast.arrays.array import Array, check_out
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.packed import PackedArray, as_array, device_index, register_cast
from gpucast.casting import cuda_plans, plans
from gpucast.casting.fused_options import check_fused, resolve_fused, rule_of
from gpucast.casting.plans import KINDS, by_plan, hit
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rounding import STOCHASTIC, Rounding
from gpucast.core.rule import (
    CAST_VERSIONS,
    CASTLIKE_VERSIONS,
    DEFAULT_OPSET,
    CastRule,
    Options,
    OverflowKeyword,
    RoundMode,
    destination,
    resolve,
)
from gpucast.host import cast_on_host
from gpucast.kernel import devices, streams
from gpucast.kernel.fused_kernel import PLAIN

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
    opset: int = ...,
    device: Literal["cpu"] | None = None,
    out: npt.NDArray[Any] | None = None,
    **keywords: Unpack[CastKeywords],
) -> npt.NDArray[Any]: ...
@overload
def cast(
    x: Any, to: Any, *, opset: int = ..., device: Any = None, out: Any = None, **keywords: Unpack[CastKeywords]
) -> Any: ...
@by_plan
def cast(
    x: Any,
    to: Any,
    *,
    saturate: bool = True,
    round_mode: RoundMode = "up",
    opset: int = DEFAULT_OPSET,
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
        1 to 28: follow the newest Cast version up to this opset, with its types, attributes and rules.
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
        check it before you divide by it.
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
    opset, versions = (DEFAULT_OPSET, CAST_VERSIONS) if opset is None else (opset, CASTLIKE_VERSIONS)
    kind = getattr(like, "dtype", None)
    if kind is None:
        kind = np.asarray(like).dtype
        if kind.kind == "O":
            raise TypeError(f"cast_like: like is a {type(like).__name__}; expected an array, a scalar or a list")
    return cast_with(x, kind, Options(
        saturate, round_mode, opset, rounding, overflow, seed, offset, scale, amax, device, out, copy,
        "cast_like", versions,
    ))  # fmt: skip


register_cast(cast)


def cast_with(x: Any, to: Any, options: Options) -> Any:
    """Cast by options."""
    if options.versions is CAST_VERSIONS and type(x) in KINDS:
        result = hit(x, to, *options[:12])
        if result is not None:
            return result
    return _checked(x, to, options)


def _checked(x: Any, to: Any, options: Options) -> Any:
    """Cast with all checks."""
    adapter = libraries.find(x)
    if adapter is not None:
        return adapter.cast(cast_with, x, to, options)
    return libraries.untraced(_checked_array, x, to, options)


def _checked_array(x: Any, to: Any, options: Options) -> Any:
    """Cast a native array, or an object that becomes one, and keep a plan for later calls like this one."""
    # A native array alone has no other stream than the current one, and no numbers are computed with here.
    if options.out is options.scale is options.amax is None:
        return _cast_array(x, to, options)
    with exact(), streams.visit(x, options.out, options.scale, options.amax):
        return _cast_array(x, to, options)


def _cast_array(x: Any, to: Any, options: Options) -> Any:
    caller, out = options.caller, options.out
    # What is an array of NumPy's numbers stays as it is.
    if type(x) is not np.ndarray or x.dtype.kind == "O" or x.dtype.names is not None:
        array = as_array(x, caller)
        if array is not x:
            return cast_with(array, to, options)
    source = Array.of(x, dtype(x.dtype, caller=f"{caller}: x.dtype="))
    dst = destination(to, caller)
    # What a plain cast of a NumPy array does without is not asked.
    if options.fuses:
        rule = rule_of(source.dtype, dst, options)
        fused = resolve_fused(options, rule, source.device)
    else:
        rule, fused = resolve(source.dtype, dst, options), None
    if not isinstance(options.copy, (bool, np.bool_)):
        raise TypeError(f"{caller}: copy={options.copy!r} must be True or False")
    place = None if options.device is None else devices.parse(options.device, caller)
    target = None
    if out is not None:
        adapter = libraries.find(out)
        if adapter is not None:
            cast_with(x, to, options._replace(out=adapter.take(out, caller, writing=True)))
            return out
        remote = source.device is not None or device_index(out) is not None or place not in (None, "cpu")
        target = check_out(source, rule, out, remote, caller)
    elif (
        fused is None
        and not options.copy
        and place in (None, devices.place(source.device))
        and _unchanged(source, rule)
    ):
        return x
    if fused is not None:
        check_fused(fused, source, target, caller)
    result = cast_array(source, rule, place, target, caller, fused)
    # A cast of a type to itself ignores its seed, which the key of plans does not hold.
    if options.seed is None or rule.rounding == STOCHASTIC:
        _keep_plan(x, to, options, source, rule, fused)
    return result.array


def _keep_plan(x: Any, to: Any, options: Options, source: Array, rule: CastRule, fused: FusedInputs | None) -> None:
    """Keep the plan of a successful cast, if there may be one."""
    if "string" in (rule.src.family, rule.dst.family):
        return
    if source.device is None:
        if type(x) is np.ndarray and x.dtype.isnative:
            fuses = not (options.seed is options.scale is options.amax is None)
            plans.keep(x, to, options, rule, plans.of_arrays(rule, fuses, options.scale is not None))
    elif type(source.data) is namespace(source.data).ndarray and type(x) in (type(source.data), PackedArray):
        ops = PLAIN if fused is None else casting.cuda.ops_of(fused)
        plans.keep(x, to, options, rule, cuda_plans.of_source(source, rule, ops))


def _unchanged(source: Array, rule: CastRule) -> bool:
    """Tell whether a cast would return an equal array: the type is the same, and the array has the form of results."""
    kind, x = source.dtype, source.data
    if kind is not rule.dst:
        return False
    if source.device is not None:
        # To look at bits there would mean to wait for the device.
        return not (kind.packed or kind.family == "bool")
    if kind.family == "string":
        return bool(x.dtype == object) and all(type(text) is str for text in x.flat)
    if source.packed:
        used = source.size * kind.bits % 8
        return used == 0 or not x[-1] >> used
    if not x.dtype.isnative:
        return False
    if kind.family == "bool" or kind.packed:
        limit = 1 if kind.family == "bool" else kind.code_mask
        return x.size == 0 or int(x.view(np.uint8).max()) <= limit
    return True


def cast_array(
    source: Array,
    rule: CastRule,
    place: str | None,
    target: Array | None,
    caller: str,
    fused: FusedInputs | None = None,
) -> Array:
    """Cast to where `place` says, into `target` if there is one; None is where the source is.

    The cast runs on the side of the bus that leaves fewer bytes to cross it; text is read and written on the host. A
    fused cast runs where the source is.
    """
    if source.device is None and place in (None, "cpu") and (target is None or target.device is None):
        return apply(source, rule, target, fused)
    devices.require(caller)
    device = _device_of_result(source, rule, place, caller)
    if target is not None and target.device != device:
        there, here = devices.name(target.device), devices.name(device)
        raise ValueError(f"{caller}: out is on {there}; the result belongs on {here}")
    if source.device == device:
        return apply(source, rule, target, fused)
    if fused is not None or rule.src.family == "string" or 0 < rule.dst.bits < rule.src.bits:
        return _moved(apply(source, rule, None, fused), device, source.packed, target)
    x = casting.cuda.to_host(source.array) if device is None else casting.cuda.to_device(source.array, device)
    return apply(Array.of(x, rule.src), rule, target)


def times(x: Any, to: Any, options: Options) -> Any:
    """The cast of a NumPy or CuPy array times ``options.scale``, a number of any sign, as gradients need it."""
    src, dst = dtype(x.dtype), destination(to, options.caller)
    target = None if options.out is None else Array.of(options.out, dst)
    fused = FusedInputs(scale=options.scale)
    return cast_array(Array.of(x, src), rule_of(src, dst, options), None, target, options.caller, fused).array


def apply(source: Array, rule: CastRule, target: Array | None = None, fused: FusedInputs | None = None) -> Array:
    """Cast where the source is; on a device in one launch.

    The result is `target`, or a new array of the source's kind and in its memory order. With `fused` the rule is a
    `gpucast.casting.fused_options.fused_rule`.
    """
    if source.device is not None:
        return casting.cuda.apply(source, rule, target, fused)
    if "string" in (rule.src.family, rule.dst.family):
        return host.text_on_host.apply(source, rule, target)
    return cast_on_host.apply(source, rule, target, fused)


def _device_of_result(source: Array, rule: CastRule, place: str | None, caller: str) -> int | None:
    device = source.device if place is None else None if place == "cpu" else devices.index(place, caller)
    if rule.dst.family != "string":
        return device
    if device is not None and place is not None:
        raise ValueError(f"{caller}: device={place!r} cannot hold STRING; expected None or 'cpu'")
    return None


def _moved(y: Array, device: int | None, packed: bool, target: Array | None) -> Array:
    """Move a finished result to the other side. On the host only PackedArrays give PackedArrays, on a device all arrays
    do."""
    if device is None:
        x = casting.cuda.to_host(y.array)
        y = Array.of(x.get() if isinstance(x, PackedArray) and not packed else x, y.dtype)
        if target is None:
            return y
        target.data[...] = y.data
        return target
    x = PackedArray.pack(y.array) if y.dtype.packed and not y.packed and y.device is None else y.array
    y = Array.of(casting.cuda.to_device(x, device), y.dtype)
    return y if target is None else casting.cuda.apply(y, resolve(y.dtype, y.dtype), target)
