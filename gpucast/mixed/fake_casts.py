# SPDX-License-Identifier: Apache-2.0
"""Fake casts: the values that a narrow type leaves, in the type that they had, with a gradient that is straight
through.

>>> x = np.float32([0.1, 100.0, -0.3])
>>> fake_cast(x, "FLOAT8E4M3FN", scale=4.0)  # 400 is no number of that type, and 416 / 4 is near
array([  0.1015625, 104.       ,  -0.3125   ], dtype=float32)
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.array import Array
from gpucast.arrays.overlap import bounds_meet
from gpucast.casting import calls, engines
from gpucast.casting import plans as cast_plans
from gpucast.casting.engine import Call
from gpucast.casting.fuse import of_rule, resolve_fuse
from gpucast.casting.list_plans import HOST_KINDS
from gpucast.core.arithmetic import exact
from gpucast.core.checks import integer
from gpucast.core.dtypes import DType, dtype
from gpucast.core.errors import nearest
from gpucast.core.extension import MODULE
from gpucast.core.fuse import Fuse, fuse_of, scaling_of
from gpucast.core.rounding import Rounding
from gpucast.core.rule import CastRule, Options, OverflowKeyword, RoundMode, resolve, rule_of
from gpucast.host import loops, numbers
from gpucast.kernel import streams
from gpucast.mixed import cuda
from gpucast.quantization import recipes
from gpucast.quantization.call_choices import by_numbers
from gpucast.quantization.cuda_plans import Ask, Asked
from gpucast.quantization.formats import FORMATS, Format
from gpucast.quantization.plans import Repeats
from gpucast.quantization.quantize_array import dequantize, quantize_for
from gpucast.quantization.quantized import of_library, source_array

CALLER = "fake_cast"
_DEFAULT = Options()
#: Of blocks, where none is given.
_AXIS = -1


def fake_cast(
    x: Any,
    to: Any,
    *,
    saturate: bool = True,
    round_mode: RoundMode = "up",
    rounding: Rounding | None = None,
    overflow: OverflowKeyword | None = None,
    seed: int | None = None,
    offset: int = 0,
    scale: Any = None,
    amax: Any = None,
    axis: int = _AXIS,
    out: Any = None,
) -> Any:
    """Cast `x` to a narrow type and back: one pass over memory, one launch, and a gradient that is straight through.

    The values are those of two casts, ``cast(cast(x, to, scale=scale, ...), x.dtype, scale=inverse)``, where `inverse`
    is 1 / scale as a FLOAT, or as a DOUBLE for a scale that FLOAT does not hold. Between such casts a library that
    differentiates has an array of the narrow type, and keeps the gradient in that type, too: small ones become 0. Here
    the gradient of x is that of the result, in x's type, whatever the element was.

    Parameters
    ----------
    x
        An array of FLOAT, FLOAT16, BFLOAT16 or DOUBLE, as `gpucast.cast` takes it.
    to
        A type of numbers, as `gpucast.cast` takes it; or a format with blocks, as `gpucast.quantize` takes it
        ("mxfp8e4m3", "nvfp4"): then the values are those of ``dequantize(quantize(x, to, ...), x.dtype)``, which are
        several launches.
    saturate, round_mode, rounding, overflow, seed, offset
        As for `gpucast.cast`. With a format only `rounding`, `seed` and `offset`.
    scale
        Multiply every value by this before the cast, and divide the result by it: a finite number above 0, or an array
        of one FLOAT or DOUBLE as for `gpucast.cast`. With a format as for `gpucast.quantize`.
    amax
        An array of one FLOAT that takes the largest magnitude in x, as for `gpucast.cast`. With a format as for
        `gpucast.quantize`.
    axis
        The axis along which the blocks of a format run. Only with a format.
    out
        An array of x's shape and type, which is written and returned.

    Returns
    -------
    An array of x's shape, type and library. Through tensors of PyTorch and arrays of JAX gradients pass, in
    `torch.compile`, ``torch.func`` and ``jax.jit`` too. `scale` and `amax` get no gradient. There formats with blocks
    are for calls outside of ``torch.func`` and ``jax.jit``, and `amax` outside of both. Within ``jax.jit`` the inverse
    of a traced scale above 2^126 is 0, because XLA flushes subnormal numbers.

    Raises
    ------
    TypeError
        For an x of another type, and for a `to` that holds no numbers.
    ValueError
        For a scale that is not above 0 or has no finite inverse, keywords that a format does not have, and as
        `gpucast.cast` and `gpucast.quantize` do.
    """
    options = Options(
        saturate, round_mode, _DEFAULT.opset, rounding, overflow, seed, offset, scale, amax, out=out, caller=CALLER
    )
    with_gradient = libraries.function_of(x, CALLER)
    if with_gradient is not None:
        return with_gradient(x, to, options, axis)
    return there_and_back(x, to, options, axis)


def there_and_back(x: Any, to: Any, options: Options, axis: Any) -> Any:
    """The values, without a gradient, for an array of any library."""
    # In the order of a cast's, because the module runs plans of both.
    return REPEATS.call(_checked, x, to, (*options[:9], None, options.out, True, axis))


def _ask_on_device(to: Any, saturate: Any, round_mode: Any, opset: Any, rounding: Any, *others: Any) -> Ask | None:
    """How plans ask for calls on devices."""
    # Its amax is only read.
    is_format = isinstance(narrow_type(to), Format)

    def ask(x: Any, seed: Any, offset: Any, scale: Any, amax: Any, out: Any) -> Asked | None:
        found = by_numbers([x], scale, rounding, seed, offset)
        if found is None:
            return None
        read, key, random = found
        updated: tuple[Any, ...] = ()
        if amax is not None and is_format:
            read.append(amax)
        elif amax is not None:
            updated = (amax,)
        # Another library's arrays may be written on another stream.
        if any(type(one) is not type(x) for one in (*read, *updated)):
            return None
        return Asked(read, out, key, random, updated, caller=CALLER)

    return ask


def _host_plan(x: Any, to: Any, keywords: tuple[Any, ...], y: Any) -> Any:
    """The plan of a call on the host, if there may be one."""
    narrow, scale, amax = narrow_type(to), keywords[7], keywords[8]
    if isinstance(narrow, Format):
        return _blocks_plan(to, dtype(x.dtype), keywords[3], keywords[-1]) if type(x) in HOST_KINDS else None
    if type(x) not in HOST_KINDS:
        return None
    rule, scaled = CastRule(dtype(x.dtype), dtype(x.dtype)), scale is not None
    there = rule_of(rule.src, narrow, Options(*keywords[:9])._replace(caller=CALLER))
    back = rule_of(narrow, rule.src, Options(scale=scale))
    fuses = scaled or amax is not None or keywords[5] is not None
    kind: Any = type(x)
    return _made_plan(kind, rule, there, back, fuses, scaled)


@lru_cache(maxsize=256)
def _blocks_plan(to: Any, src: DType, rounding: Any, axis: Any) -> Any:
    """Into a new array: the plans of both calls."""

    def run(x: Any, seed: Any, offset: Any, scale: Any, amax: Any, out: Any) -> Any:
        if out is not None:
            return None
        return dequantize(quantize_for(CALLER, x, to, axis, rounding, seed, offset, scale, amax), src)

    return cast_plans.make("", run)


@lru_cache(maxsize=1024)
def _made_plan(kind: Any, rule: CastRule, there: CastRule, back: CastRule, fuses: bool, scaled: bool) -> Any:
    if not (cast_plans.has_arrays(there) and cast_plans.has_arrays(back)):
        return None
    # By any scale, and by one that FLOAT has, with inverses that are alike.
    examples = ((0.1, 0.1), (2.0, 0.5)) if scaled else ((None, None),)
    try:
        works = [
            loops.there_and_back(there, back, Fuse(scale=scale, amax=fuses or None), inverse)
            for scale, inverse in examples
        ]
    except LookupError:
        return None
    return HOST_KINDS[kind].make(rule, works[0] + works[-1] if fuses else works[0])


#: `amax` is written.
REPEATS = Repeats(
    "kkkkkf.ffk.kk", _ask_on_device, _host_plan,
    **dict(zip(Options._fields[:9], _DEFAULT[:9], strict=True)), device=None, out=None, copy=True, axis=_AXIS,
)  # fmt: skip


def narrow_type(to: Any) -> DType | Format:
    """The type or format that `to` names. TypeError for any other object, and for types that hold no numbers."""
    try:
        dst = dtype(to, caller=f"{CALLER}: to=")
    except TypeError:
        try:
            return recipes.find(to, CALLER)
        except (TypeError, ValueError):
            near = nearest(to.lower(), [*FORMATS, *recipes.RECIPES], 3) if isinstance(to, str) else None
            if near:
                raise TypeError(
                    f"{CALLER}: to={to!r} is neither a type nor a format; did you mean one of {', '.join(near)}?"
                ) from None
        raise
    if dst.family in ("bool", "string"):
        raise TypeError(f"{CALLER}: to={dst.name} holds no numbers; expected a type that does")
    return dst


def check_keywords(to: Any, is_format: bool, options: Options, axis: Any) -> None:
    """TypeError or ValueError for keywords that are not for formats, or not for types."""
    if not is_format:
        if integer(axis, f"{CALLER}: axis") != _AXIS:
            raise ValueError(f"{CALLER}: axis={axis!r} is for formats with blocks, not for the type {to}")
        return
    for name in ("saturate", "round_mode", "overflow"):
        given = getattr(options, name)
        if getattr(given, "shape", ()) or given != getattr(_DEFAULT, name):
            raise ValueError(f"{CALLER}: {name}={given!r} is for types, not for the format {to}")


@exact()
def _checked(x: Any, to: Any, *given: Any) -> Any:
    *of_cast, _device, out, _copy, axis = given
    options = Options(*of_cast)._replace(out=out, caller=CALLER)
    with streams.visit(x, options.out, options.scale, options.amax):
        (array, src), narrow = source_array(x, CALLER), narrow_type(to)
        source = Array.of(array, src)
        there = engines.of(source.device)
        target = None if out is None else calls.target_of(source, resolve(src, src), out, there, CALLER)
        check_keywords(narrow, isinstance(narrow, Format), options, axis)
        if isinstance(narrow, Format):
            random = options.rounding, options.seed, options.offset
            q = quantize_for(CALLER, array, to, axis, *random, options.scale, options.amax)
            y = dequantize(q, src, out=None if target is None else target.array)
        else:
            y = _cast(source, narrow, options, target).array
        return of_library(y, libraries.library_of(x)) if out is None else out


def _cast(source: Array, dst: DType, options: Options, target: Array | None) -> Array:
    there = rule_of(source.dtype, dst, options)
    back = rule_of(dst, source.dtype, Options(scale=options.scale))
    fuse = of_rule(resolve_fuse(options, (source.device,)), there, CALLER)
    calls.check_fuse(Call(CALLER, source, there, fuse, target))
    return engines.of(source.device).pick(_on_host, _on_device)(source, there, back, target, fuse)


def inverse_of(scale: float) -> float:
    """1 / scale, as a FLOAT where FLOAT holds the scale. ValueError where it is not a finite number above 0."""
    with np.errstate(all="ignore"):
        inverse = float(np.float32(1) / np.float32(scale) if scaling_of(scale) == "narrow" else np.float64(1) / scale)
    if not (scale > 0 and 0 < inverse < math.inf):
        raise ValueError(f"{CALLER}: scale={scale!r} must be above 0 and finite, and so must 1 / scale")
    return inverse


def _on_device(source: Array, there: CastRule, back: CastRule, target: Array | None, fuse: Fuse) -> Array:
    return cuda.fake.apply(source, there, back, target, fuse)


def _on_host(source: Array, there: CastRule, back: CastRule, target: Array | None, fuse: Fuse) -> Array:
    inverse = None if fuse.scale is None else inverse_of(fuse.scale)
    try:
        work = None if MODULE is None else loops.there_and_back(there, back, fuse, inverse)
    except LookupError:
        # A type that came after the module was built: `numbers.into` says so.
        work = None
    if work is None:
        first = Call(CALLER, source, there, fuse)
        engines.HOST.run((first,))
        second = Call(CALLER, first.written, back, fuse_of(inverse), target)
        engines.HOST.run((second,))
        return second.written
    result = engines.HOST.empty_like(source, source.dtype)
    if target is not None and not bounds_meet(source.data, target.data):
        result = target
    if source.size:
        largest, _ = MODULE.cast(work, source.data, 0, result.data, 0, source.size)
        numbers.keep(fuse, largest, True)
    if target is not None and result is not target:
        target.data[...] = result.data
    return result if target is None else target
