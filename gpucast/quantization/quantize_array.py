# SPDX-License-Identifier: Apache-2.0
"""The public functions: they check the arguments and call the engine of the host or of a device."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.array import Array, check_written
from gpucast.arrays.bitpacking import address_of, namespace
from gpucast.arrays.libraries import untraced
from gpucast.arrays.overlap import Place
from gpucast.arrays.packed import PackedArray, as_array, device_index
from gpucast.casting import engines
from gpucast.casting.plans import by_plan
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.kernel import devices, streams
from gpucast.quantization import engine, plans, quantize_on_host, recipes
from gpucast.quantization.block_call import BlockCall, ResultSpec
from gpucast.quantization.formats import Format, Hadamard, Parts
from gpucast.quantization.option_checks import (
    check_constant,
    check_format,
    check_runs,
    resolve_hadamard,
    resolve_random,
)
from gpucast.quantization.quantized import Quantized, check_layout, checked_axis, source_array
from gpucast.quantization.scale_orders import ScaleLayout

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CALLER = "quantize"


class QuantizeKeywords(TypedDict, total=False):
    """The keywords of `quantize` but `transpose`, which decides on the number of results, for type checkers."""

    axis: int
    scale_layout: ScaleLayout
    rounding: Literal["stochastic"] | None
    seed: int | None
    offset: int
    scale: Any
    amax: Any
    scales_of: Quantized | None
    hadamard: Any
    signs: Any
    device: Any
    out: Any


@overload
def quantize(x: Any, format: Any, *, transpose: bool = False, **keywords: Unpack[QuantizeKeywords]) -> Quantized: ...
@overload
def quantize(
    x: Any, format: Any, *, transpose: Literal["both"], **keywords: Unpack[QuantizeKeywords]
) -> tuple[Quantized, Quantized]: ...
@by_plan(plans.QUANTIZE.hit)
def quantize(
    x: Any,
    format: Any,
    *,
    axis: int = -1,
    scale_layout: ScaleLayout = "linear",
    transpose: bool | Literal["both"] = False,
    rounding: Literal["stochastic"] | None = None,
    seed: int | None = None,
    offset: int = 0,
    scale: Any = None,
    amax: Any = None,
    scales_of: Quantized | None = None,
    hadamard: Any = None,
    signs: Any = None,
    device: Any = None,
    out: Any = None,
) -> Any:
    """Quantize an array to narrow codes with a scale for each block, with the same bits on every machine.

    `gpucast.quantization.reference` defines every step.

    Parameters
    ----------
    x
        An array of FLOAT, FLOAT16, BFLOAT16 or DOUBLE, as `gpucast.cast` takes it.
    format
        A name in ``gpucast.quantization.FORMATS`` ("mxfp4", "int4_128", ...), also with another rule for the scales
        ("mxfp4_even", "int4_128_full_range"); a recipe in ``gpucast.quantization.RECIPES`` ("deepgemm-ue8m0"), which
        has the bits of another library; or a ``Format`` of your own.
    axis
        The axis along which blocks run, as in ONNX QuantizeLinear. In "..._axis" formats each index of this axis has a
        scale. "..._tensor" formats ignore it.
    scale_layout
        "linear", or an order of ``gpucast.quantization.swizzle``: "128x4" as cuBLAS reads it, "8x4", or "mn_major" as
        DeepGEMM reads it. The first two need one-byte scales, and one-dimensional blocks along the last axis that
        divide its length; "mn_major" needs a matrix.
    transpose
        True: quantize ``swapaxes(x, -1, -2)``, with blocks along the former columns. "both": return two results, first
        the plain one, then the transposed one. The notes say how often a device reads x.
    rounding, seed, offset
        ``rounding="stochastic"`` with a seed rounds float elements at random, as in `gpucast.cast`. None: to nearest,
        ties to even. With `hadamard`, and without `signs`, the seed also gives the signs.
    scale
        Given scales, for formats with FLOAT scales and without zero points: a number, or an array that broadcasts to
        the scales' shape. NVFP4 takes the global scale, and a recipe the number that its library calls the scale. An
        array of the result's shape without its last axis (or with 1 for it) has a global scale for each row (token),
        where blocks run along the last of several axes. Scales must be finite and above 0. This is not checked for an
        array on a device.
    amax
        For NVFP4: find the global scale from this magnitude, such as the one of an earlier step, instead of the largest
        in x. A number, or an array of one element, or one of each row as for `scale`: on a device a FLOAT array there,
        which is not waited for. It must be finite and not below 0. This is not checked for an array on a device.
    scales_of
        A `Quantized` of this format, shape and axis, on x's device: the result has its scales, zero points and global
        scale, and the codes nearest to x by these. So numbers that were dequantized get their codes back (the page on
        quantization says when they do not by new scales). Not with `scale`, `amax`, `transpose`, `hadamard` and `out`.
    hadamard
        16, 32, 64 or 128: quantize ``gpucast.hadamard(x, hadamard, axis=axis, ...)`` in place of x, without that array
        in memory where a device has a kernel for it. With transpose="both" also a pair, such as ``(None, 16)``: one
        length for the plain result and one for the transposed, each along its own `axis`; each result then has a global
        scale of its own. Not for "..._axis" formats and recipes.
    signs
        The signs of the transform: a sequence of as many numbers, +1 or -1. None: the seed gives
        them, by other random words than rounding takes. Without a seed: no signs.
    device
        Where to quantize: "cpu", "cuda" or "cuda:N". None: where x is.
    out
        A `Quantized` of an earlier, equal call, which is written and returned. With transpose="both" a tuple of two. On
        a device it also keeps the call's other memory, including a copy of codes that are not at a multiple of 16
        bytes. From the second call on nothing is allocated, so a CUDA graph can capture it.

    Returns
    -------
    A `Quantized`; with transpose="both" a tuple of two.

    Raises
    ------
    TypeError
        For a type that cannot be quantized, or an `out` that is not a `Quantized`.
    ValueError
        For an unknown format, a shape or option that the format or the layout does not allow, or an `out` that differs
        from the result or shares memory with x.
    RuntimeError
        When a CUDA graph is captured and the call would have to allocate memory.

    Notes
    -----
    A device reads x once for blocks of 16, 32, 64 or 128 elements and for squares of these sides, along any axis; with
    transpose True or "both", along one of the last two. NVFP4 takes one more read for its global scale, unless `scale`
    or `amax` is given. "..._tensor" takes two reads, also with transpose. "..._axis" and blocks of other lengths take
    two reads for each result, and a transposed result reads a copy. The same holds for a result whose rows end inside a
    byte (an odd number of 4-bit elements), and for many matrices that are far smaller than a tile of 64 x 128 elements.
    An array that is neither in C order nor the transpose of such an array is copied first.
    """
    keywords = axis, scale_layout, transpose, rounding, seed, offset, scale, amax, hadamard, signs, device, out
    if scales_of is not None:
        return untraced(partial(_quantize, scales_of=scales_of), x, format, *keywords)
    return plans.QUANTIZE.checked(_quantize, x, format, keywords)


def quantize_for(
    caller: str, x: Any, format: Any, axis: Any, rounding: Any, seed: Any, offset: Any, scale: Any, amax: Any
) -> Quantized:
    """As `quantize`, for another function, whose name its errors have."""
    keywords = axis, "linear", False, rounding, seed, offset, scale, amax, None, None, None, None
    q: Quantized | None = plans.QUANTIZE.hit(x, format, *keywords)
    return plans.QUANTIZE.checked(partial(_quantize, caller=caller), x, format, keywords) if q is None else q


class _QuantizeOptions(NamedTuple):
    """The keywords of `quantize`, unchecked."""

    axis: Any
    scale_layout: Any
    transpose: Any
    rounding: Any
    seed: Any
    offset: Any
    scale: Any
    amax: Any
    hadamard: Any
    signs: Any
    device: Any
    out: Any
    scales_of: Any = None
    caller: str = _CALLER


@exact()
def _quantize(x: Any, format: Any, *keywords: Any, scales_of: Any = None, caller: str = _CALLER) -> Any:
    request = _QuantizeOptions(*keywords)._replace(scales_of=scales_of, caller=caller)
    outs = request.out if isinstance(request.out, (tuple, list)) else [request.out]
    owned = [q.owned for q in (*outs, request.scales_of) if isinstance(q, Quantized)]
    with streams.visit(x, request.scale, request.amax, *owned, device=request.device):
        return _quantize_array(x, format, request)


def _quantize_array(x: Any, format: Any, request: _QuantizeOptions) -> Any:
    axis, scale_layout, transpose = request.axis, request.scale_layout, request.transpose
    asked, format = format, recipes.find(format, request.caller)
    array, src = source_array(x, request.caller)
    check_constant(x, request.caller)
    recipes.check_source(asked, format, src, request.caller)
    if not isinstance(transpose, (bool, np.bool_, str)):
        raise TypeError(f"{request.caller}: transpose={transpose!r} must be False, True or 'both'")
    if transpose not in (False, True, "both"):
        raise ValueError(f"{request.caller}: transpose={transpose!r} must be False, True or 'both'")
    if transpose and array.ndim < 2:
        raise ValueError(f"{request.caller}: transpose={transpose!r} needs two dimensions; x has shape {array.shape}")
    hadamards = _hadamards(request, format)
    # A seed of signs alone rounds nothing.
    of_signs = any(hadamards) and request.signs is None and request.rounding is None
    seed = None if of_signs else request.seed
    random = resolve_random(format, request.rounding, seed, request.offset, request.caller)
    array = engines.named(request.device, request.caller, engines.of_array(array)).take(array)
    here = engine.of(array)

    def quantized(parts: Parts, on: int) -> Quantized:
        return Quantized(
            **vars(parts), format=format, dtype=src, axis=on, scale_layout=scale_layout,
            library=libraries.library_of(x),
        )  # fmt: skip

    if request.scales_of is not None:
        known = _known_scales(request, format, array)
        on = request.scales_of.axis
        return quantized(here.quantize_by(array, format, known, on, random, scale_layout), on)
    specs = []
    for swapped, how in zip((False, True) if transpose == "both" else (bool(transpose),), hadamards, strict=True):
        shape = ResultSpec(swapped, 0).shape(array.shape)
        on = checked_axis(axis, shape, format, request.caller)
        rows = () if transpose == "both" else format.rows_shape(shape, on)
        scale, amax = _global_scale(request, format, array, rows)
        check_layout(scale_layout, shape, on, format, request.caller)
        _check_choice(format, shape, on, request.caller)
        if how is not None:
            check_runs(how, shape, on, request.caller)
        if request.amax is None:
            scale = _scale(scale, format, format.scales_shape(shape, on), rows, array, request.caller)
        specs.append(ResultSpec(swapped, on, scale, how))
    call = BlockCall(array, format, specs, random, amax=amax, layout=scale_layout)
    if request.out is not None:
        outs, targets = checked_outs(request.out, call, src, request.caller)
        here.quantize(call._replace(targets=targets, workspace=outs[0].workspace(request.caller)))
        return request.out
    results = [quantized(parts, spec.axis) for parts, spec in zip(here.quantize(call), specs, strict=True)]
    return tuple(results) if transpose == "both" else results[0]


@by_plan(plans.DEQUANTIZE.hit)
def dequantize(
    q: Quantized,
    to: Any = "FLOAT",
    *,
    hadamard: int | None = None,
    signs: Any = None,
    seed: int | None = None,
    out: Any = None,
) -> Any:
    """Turn a `Quantized` into an array of numbers, each rounded once to `to` (FLOAT, FLOAT16, BFLOAT16 or DOUBLE).

    The result has q's shape and is on q's device. Numbers out of the range of `to` become infinity, as in a cast.

    `hadamard`, with the `signs` or `seed` of `gpucast.quantize`: transform the numbers back, which are FLOAT then,
    before they become `to`.

    `out`: an array of q's shape and of the type `to` on q's device, which is written and returned. From the second call
    on nothing is allocated, so a CUDA graph can capture it.

    TypeError if q is not a Quantized, or for an `out` of another type. ValueError for an `out` of another shape, on
    another device, or that shares memory with q. RuntimeError when a CUDA graph is captured and the call would have to
    allocate memory.
    """
    if not isinstance(q, Quantized):
        raise TypeError(
            f"dequantize: q is {type(q).__name__}; expected a Quantized: gpucast.Quantized(data, scales, format) takes "
            "parts from elsewhere"
        )
    return q.dequantize(to, hadamard=hadamard, signs=signs, seed=seed, out=out)


def _hadamards(request: _QuantizeOptions, format: Format) -> list[Hadamard | None]:
    """The transform of each result."""
    both = request.transpose == "both"
    if isinstance(request.hadamard, (tuple, list)):
        if not both or len(request.hadamard) != 2:
            raise ValueError(f"{request.caller}: hadamard={request.hadamard!r} is a pair for transpose='both'")
        lengths = list(request.hadamard)
    else:
        lengths = [request.hadamard] * (1 + both)
    if request.signs is not None and lengths.count(None) == len(lengths):
        raise ValueError(f"{request.caller}: signs= goes with hadamard=")
    hadamards = [
        None if length is None else resolve_hadamard(length, request.signs, request.seed, f"{request.caller}: hadamard")
        for length in lengths
    ]
    if any(hadamards):
        check_format(format, request.caller)
    return hadamards


def _known_scales(request: _QuantizeOptions, format: Format, x: Any) -> Parts:
    """The parts of `scales_of`, with its scales in the linear layout."""
    q = request.scales_of
    if not isinstance(q, Quantized):
        raise TypeError(f"{request.caller}: scales_of is {type(q).__name__}; expected a Quantized")
    for name in ("scale", "amax", "hadamard", "signs", "out"):
        if getattr(request, name) is not None:
            raise ValueError(f"{request.caller}: {name}= and scales_of= do not go together")
    if request.transpose:
        raise ValueError(f"{request.caller}: transpose={request.transpose!r} and scales_of= do not go together")
    axis = checked_axis(request.axis, x.shape, format, request.caller)
    check_layout(request.scale_layout, x.shape, axis, format, request.caller)
    linear = q.with_layout("linear").native(request.caller)
    for name, got, expected in (
        ("format", q.format, format),
        ("shape", q.shape, x.shape),
        ("axis", q.axis, axis),
        ("device", devices.name(device_index(linear.scales)), devices.name(device_index(x))),
    ):
        if got != expected:
            raise ValueError(f"{request.caller}: scales_of has {name} {got}; expected {expected}")
    return linear


def _check_choice(format: Format, shape: tuple[int, ...], axis: int, caller: str) -> None:
    """ValueError for blocks between whose two scales no kernel chooses."""
    if format.rule == "4over6" and (not shape or axis != len(shape) - 1 or shape[axis] % 16):
        raise ValueError(
            f"{caller}: {format} needs whole blocks along the last axis; axis={axis} of shape {shape} (with "
            "transpose=True the former columns are rows)"
        )


def _global_scale(request: _QuantizeOptions, format: Format, x: Any, rows: tuple[int, ...]) -> tuple[Any, Any]:
    """The caller's scales, among them a global scale from an `amax` on the host; and an `amax` on the device of x."""
    if request.amax is None:
        return request.scale, None
    if not format.global_scale:
        raise ValueError(f"{request.caller}: amax= is for formats with a global scale, not for {format}")
    if request.scale is not None:
        raise ValueError(f"{request.caller}: amax= and scale= both give the global scale; expected one of them")
    amax = as_array(request.amax, request.caller)
    if isinstance(amax, PackedArray) or dtype(amax.dtype, caller=request.caller).family not in ("float", "int"):
        raise TypeError(f"{request.caller}: amax= has dtype {amax.dtype}; expected numbers")
    amax = _one_or_of_rows(amax, rows, "amax=", "expected one element", request.caller)
    if not isinstance(amax, np.ndarray) and device_index(amax) == device_index(x):
        if amax.dtype != np.float32:
            raise TypeError(f"{request.caller}: amax= has dtype {amax.dtype}; expected FLOAT on the device of x")
        return None, amax
    numbers = np.asarray(engines.to_host(amax).astype(np.float32))
    usable = (numbers >= 0) & (numbers < math.inf)
    if not usable.all():
        raise ValueError(
            f"{request.caller}: amax={_first(numbers, usable)!r} must be finite and not below 0, as a FLOAT"
        )
    scale = np.asarray(quantize_on_host.global_scale(numbers, format, dtype(x.dtype)))
    # A row of zeros has what the formula gives, as on a device.
    if not scale.ndim and not 0 < scale < math.inf:
        raise ValueError(
            f"{request.caller}: amax={float(numbers)!r} gives {format} the global scale {float(scale)!r}; expected one "
            "above 0 and finite"
        )
    return scale, None


def _first(numbers: Any, usable: Any) -> float:
    """The first number that is not usable."""
    return float(numbers[~usable].flat[0])


def _one_or_of_rows(numbers: Any, rows: tuple[int, ...], name: str, wanted: str, caller: str) -> Any:
    """An array of shape (), or of one number for each of several rows. ValueError for another one."""
    if math.prod(rows) != 1 and numbers.shape in (rows, (*rows, 1)):
        return numbers.reshape(rows)
    if numbers.size != 1:
        more = f", or one for each row, shape {rows}" if rows else ""
        raise ValueError(f"{caller}: {name} has shape {numbers.shape}; {wanted}{more}")
    return numbers.reshape(())


def _scale(scale: Any, format: Format, shape: tuple[int, ...], rows: tuple[int, ...], x: Any, caller: str) -> Any:
    """The caller's scales for x. Scales on the host, or for an x on the host, are converted to FLOAT and checked."""
    if scale is None:
        return None
    if format.steps is not None and format.steps.code_needs_amax:
        raise ValueError(f"{caller}: scale= is not for {format}, whose codes need more than the scale")
    if format.zero_points or not (format.global_scale or format.scale.name == "FLOAT"):
        raise ValueError(f"{caller}: scale= is for formats with FLOAT scales and without zero points, not for {format}")
    library = libraries.find(scale)
    if library is not None:
        library.check_scale(scale, caller)
        scale = library.take(scale, caller)
    given = scale if namespace(scale) is not None else np.asarray(scale)
    if given.dtype.kind not in "fiu":
        raise TypeError(f"{caller}: scale={scale!r} has dtype {given.dtype}; expected a number or an array of them")
    if isinstance(x, np.ndarray):
        given = engines.to_host(given)
    if isinstance(given, np.ndarray):
        given = given.astype(np.float32)
        usable = np.isfinite(given) & (given > 0)
        if not usable.all():
            raise ValueError(f"{caller}: scale={_first(given, usable)!r} must be finite and above 0, as a FLOAT")
    if format.global_scale:
        return _one_or_of_rows(given, rows, "scale=", "the scales have ()", caller)
    if math.prod(shape) == 1 and given.size == 1:
        return given.reshape(shape)
    try:
        np.broadcast_to(np.empty(given.shape, bool), shape)
    except ValueError:
        raise ValueError(f"{caller}: scale= has shape {given.shape}; the scales have {shape}") from None
    return given


def checked_outs(out: Any, call: BlockCall, src: DType, caller: str) -> tuple[list[Quantized], list[Parts]]:
    """The `out` of a call as a list, and the native parts. TypeError or ValueError where it cannot take the results."""
    x, format, specs, amax = call.x, call.format, call.results, call.amax
    of_rows = specs[0].scale if amax is None else amax
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(outs) != len(specs) or not all(isinstance(q, Quantized) for q in outs):
        wanted = "a Quantized" if len(specs) == 1 else "a tuple of two Quantized"
        raise TypeError(f"{caller}: out is {_named(out)}; expected {wanted}")
    parts = [q.native(caller, writing=True) for q in outs]
    for q, native, spec in zip(outs, parts, specs, strict=True):
        pairs: tuple[tuple[str, Any, Any], ...] = (
            ("format", q.format, format),
            ("shape", q.shape, spec.shape(x.shape)),
            ("axis", q.axis, spec.axis),
            ("scale_layout", q.scale_layout, call.layout),
            ("dtype", q.dtype, src),
            ("device", devices.name(device_index(native.data)), devices.name(device_index(x))),
            ("global scales of shape", np.shape(native.global_scale), np.shape(of_rows) if format.global_scale else ()),
        )
        for name, got, expected in pairs:
            if got != expected:
                raise ValueError(f"{caller}: out has {name} {got}; expected {expected}")
    written = [
        Place(f"out.{name}", part) for native in parts for name, part in vars(native).items() if part is not None
    ]
    # The place of the scales themselves only stays as it is.
    scales = [spec.scale for spec in specs if spec.scale is not None]
    given = [Place("scale", scale) for scale in scales if not any(_same(scale, place.data) for place in written)]
    read = [Place("x", x), *given, *([] if amax is None else [Place("amax", amax)])]
    # The plain and the transposed result have the same global scale, and the same only one.
    common = ["out.global_scale"]
    if outs[0].format.block == "tensor":
        common += ["out.scales", "out.zero_points"]
    # One array for both counts once, though each result may have an object of its own over it.
    once = {
        (place.name, Array.of(place.array).address if place.name in common else i): place
        for i, place in enumerate(written)
    }
    check_written(list(once.values()), read, caller)
    return outs, parts


def _same(scale: Any, part: Any) -> bool:
    """Whether an array is the part of a result, whole and in its order."""
    one, other = ((address_of(a), a.shape, a.dtype, a.flags.c_contiguous) for a in (scale, part))
    return one == other


def _named(out: Any) -> str:
    if isinstance(out, (tuple, list)):
        return f"a {type(out).__name__} of {', '.join(type(q).__name__ for q in out) or 'nothing'}"
    return type(out).__name__
