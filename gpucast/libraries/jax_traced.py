# SPDX-License-Identifier: Apache-2.0
"""Casts of JAX arrays that have no values yet: within ``jax.jit``, ``grad``, ``vmap`` and the like.

A compiled function calls the extension module (`gpucast.libraries.jax_ffi`), or, where that is missing, Python on the
host. Both give the same bits as everywhere; of XLA's own conversions none promises them (they flush subnormals, keep
payloads of NaN, and do not saturate).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from gpucast.arrays import libraries
from gpucast.casting.cast import cast_with
from gpucast.casting.cast import times as array_times
from gpucast.casting.fuse import resolve_scale
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.errors import say_gradient_is_narrow
from gpucast.core.fuse import Scaling, resolve_random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import Options, resolve
from gpucast.libraries import jax_ffi


def cast(x: Any, dst: DType, options: Options, coefficient: float | None = None) -> Any:
    """The cast of a traced array. Errors are those of `gpucast.cast`, raised while the function is traced.

    `coefficient` is the factor of a layer. The gradient is then cast back with the same options and multiplied with it.
    """
    caller = options.caller
    for name in ("amax", "out", "device"):
        if getattr(options, name) is not None:
            raise ValueError(f"{caller}: {name}= cannot be used within a transform of JAX; call gpucast outside")
    src = dtype(x.dtype, caller=f"{caller}: x.dtype=")
    if dst.family == "string" or dst.bits == 6 or dst.numpy.names:
        raise TypeError(
            f"{caller}: to={dst.name} is no type of JAX; within its transforms results are JAX arrays. Call it "
            "outside; gpucast.layers.Cast has the gradient of such a cast"
        )
    resolve(src, dst, options)
    resolve_random(options.rounding, options.seed, options.offset, caller)
    scale, number = options.scale, None
    if isinstance(scale, jax.Array):
        if scale.size != 1 or scale.dtype not in (np.float32, np.float64):
            raise TypeError(f"{caller}: scale is {scale.dtype} of shape {scale.shape}; expected one FLOAT or DOUBLE")
    elif scale is not None:
        scale, number = None, resolve_scale(scale, None, caller)
    if src is dst and scale is number is None and not options.copy:
        return x
    # Without the array the options are a constant of the function.
    options = options._replace(scale=number)
    back = Options(caller=caller, scale=number)
    if coefficient is not None:
        back = options._replace(scale=None if coefficient == 1 else coefficient)
    return _cast(dst, options, back, x, scale)


def times(x: Any, dst: DType, options: Options) -> Any:
    """The cast of a traced array times ``options.scale``, a number of any sign."""
    resolve(dtype(x.dtype), dst, options)
    return _cast(dst, options, Options(caller=options.caller, scale=options.scale), x, None)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _cast(dst: DType, options: Options, back: Options, x: Any, scale: Any) -> Any:
    """The cast by `options`, times the array `scale` or the number ``options.scale``. `back`: the cast of the
    gradient.
    """
    if not (isinstance(x, jax.core.Tracer) or isinstance(scale, jax.core.Tracer)):
        # As where `grad` is not within `jit`: there are values.
        library = libraries.find(x)
        if _is_times(options) and library is not None:
            return library.cast_times(array_times, x, dst, options)
        return cast_with(x, dst, options if scale is None else options._replace(scale=scale))
    src = dtype(x.dtype)
    random = resolve_random(options.rounding, options.seed, options.offset, options.caller)
    kind: Scaling | None = None if scale is None else "narrow" if scale.dtype == np.float32 else "wide"
    rule = resolve(src, dst, options if scale is None else options._replace(scale=scale))
    wanted = jax_ffi.ProgramCast(rule, kind or options.scale, random)
    given = (_codes(x, src),) if scale is None else (_codes(x, src), scale)
    if jax_ffi.can_cast(wanted):
        y = jax_ffi.cast(wanted, *given)
    else:
        like: Any = jax.ShapeDtypeStruct(x.shape, jax_ffi.held_as(dst))  # type: ignore[no-untyped-call]
        on_host = partial(_on_host, src, dst, options)
        y = jax.pure_callback(on_host, like, *given, vmap_method=wanted.vmap_method)
    return _of_codes(_varying(y, _axes(x)), dst)


def _axes(x: Any) -> frozenset[str]:
    """The axes of a mesh along which a traced array varies, within shard_map. Versions of JAX name them differently."""
    kind = getattr(x.aval, "manual_axis_type", None)
    return frozenset(getattr(kind, "varying", ()) or getattr(x.aval, "vma", ()))


def _varying(y: Any, axes: frozenset[str]) -> Any:
    """A result that is said to differ along axes: calls of foreign functions do not say so."""
    missing = tuple(sorted(axes - _axes(y)))
    if not missing:
        return y
    lax: Any = jax.lax
    return lax.pcast(y, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(y, missing)


def _is_times(options: Options) -> bool:
    """Whether options belong to `times`, or to a cast with a number that does the same."""
    return options.scale is not None and options.rounding != STOCHASTIC


def _codes(x: Any, kind: DType) -> Any:
    """The codes of an array in whole bytes: XLA would move floats of 8 bits as wider ones, and NaNs would change."""
    held = jax_ffi.held_as(kind)
    if kind.packed:
        return jax.lax.bitcast_convert_type(x, dtype(f"UINT{kind.bits}").numpy).astype(held)
    return x if held == kind.numpy else jax.lax.bitcast_convert_type(x, held)


def _of_codes(codes: Any, kind: DType) -> Any:
    if kind.packed:
        codes = codes.astype(dtype(f"UINT{kind.bits}").numpy)
    return codes if codes.dtype == kind.numpy else jax.lax.bitcast_convert_type(codes, kind.numpy)


@exact()
def _on_host(src: DType, dst: DType, options: Options, x: Any, scale: Any = None) -> np.ndarray[Any, Any]:
    array = np.asarray(x).view(src.numpy)
    if _is_times(options):
        y = np.asarray(array_times(array, dst, options))
    else:
        y = np.asarray(cast_with(array, dst, options if scale is None else options._replace(scale=np.asarray(scale))))
    return y.view(jax_ffi.held_as(dst))


def _forward(dst: DType, options: Options, back: Options, x: Any, scale: Any) -> tuple[Any, Any]:
    if dst.is_float and dst.bits <= 8 and dtype(x.dtype).is_float:
        say_gradient_is_narrow(options.caller, dst.name)
    # An empty array says what x was: its type, as residuals are arrays.
    return _cast(dst, options, back, x, scale), (jax.lax.broadcast(x, (0,)), scale)


def _backward(dst: DType, options: Options, back: Options, kept: tuple[Any, Any], dy: Any) -> tuple[Any, Any]:
    like, scale = kept
    shape, src = like.shape[1:], dtype(like.dtype)
    dx: Any
    if not src.is_float:
        dx = np.zeros(shape, jax.dtypes.float0)
    elif not dst.is_float:
        dx = jax.numpy.sum(like, 0, dtype=like.dtype)  # Zeros that differ along the axes of a mesh, as x does.
    else:
        dx = _cast(src, back, Options(caller=back.caller, scale=back.scale), dy, scale)
    return dx, None if scale is None else jax.numpy.zeros_like(scale)


_cast.defvjp(_forward, _backward)
