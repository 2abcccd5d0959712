# SPDX-License-Identifier: Apache-2.0
"""JAX: `gpucast.cast` of JAX arrays gives JAX arrays.

On the CPU memory is shared in both directions, except for types below one byte: JAX packs these and does not export
them, so they are copied. On a GPU arrays are exchanged through DLPack, and a cast waits for its kernel, because JAX may
reuse the memory of an array as soon as the array is gone. Results of types below one byte are a `PackedArray` over CuPy
memory there.

JAX has neither FLOAT6E2M3 nor FLOAT6E3M2 nor text: such results are a `PackedArray` or a NumPy array of str. 64-bit
types need ``jax_enable_x64``; without it JAX would narrow them silently, so they are refused. JAX arrays are immutable,
so none is accepted as `out`.

Casts work within ``jax.jit``, ``grad`` and ``vmap``, with the same bits, and for every type that JAX has. A compiled
function casts by a handler of the extension module, on the CPU or on XLA's stream of a GPU; XLA fuses nothing with it.
Only without that module gpucast is called back on the host. Outside of ``jit`` nothing is called back, not even in
``grad``. For ``y = cast(x, to, ...)`` between floating types the gradient is ``cast(dy, x.dtype)`` with the defaults,
with a `scale` or the coefficient of a layer times that; casts to and from integers and BOOL have none (zeros), and
forward mode is not supported. A `scale` may be an array of the function, and gets no gradient; `seed` and `offset` are
constants of the compiled function; `amax`, `out` and `device` are for calls outside. In a ``vmap`` each part of the
batch gets the same random bits, as if it were cast alone.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

try:
    import jax
except ImportError as error:
    raise ImportError(f"gpucast.interop.jax needs JAX ({error}): pip install jax") from error

from gpucast.arrays.libraries import CastFunction, Lent, Library, visit
from gpucast.arrays.packed import PackedArray
from gpucast.casting import engines, plans
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.core.rule import Options, destination, resolve
from gpucast.libraries import dlpack, jax_traced

__all__ = ["LIBRARY", "take"]

#: XLA shares host memory only if its address is a multiple of this; otherwise it copies.
_ALIGNMENT = 64


def take(x: Any, caller: str, writing: bool = False) -> Any:
    """An array over the memory of a JAX array; a copy of types below one byte."""
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            f"{caller}: x is being traced by JAX and has no values; within jit only casts work: call it outside, or "
            "through jax.pure_callback"
        )
    if writing:
        raise ValueError(f"{caller}: out is a JAX array, which cannot be written")
    if len(x.devices()) != 1:
        raise ValueError(f"{caller}: x is spread over {len(x.devices())} devices; expected an array on one")
    if not isinstance(x.dtype, np.dtype):
        # JAX's own dtypes, such as those of random keys.
        raise TypeError(f"{caller}: x.dtype={x.dtype!s} is not a type that Cast takes")
    if dtype(x.dtype, caller=f"{caller}: x.dtype=").packed:
        if not _is_on_cpu(x):
            raise TypeError(
                f"{caller}: JAX does not lend the memory of {x.dtype} on a GPU; cast x.astype('int8') or a float"
            )
        return np.asarray(x)
    return dlpack.take(x, caller)


def _is_on_cpu(x: Any) -> bool:
    return all(device.platform == "cpu" for device in x.devices())


def _shareable(dst: DType) -> bool:
    return dst.family != "string" and not dst.packed


def _is_narrowed(dst: DType) -> bool:
    """Whether JAX would narrow a type, of 64 bits."""
    return dst.bits == 64 and bool(jax.dtypes.canonicalize_dtype(dst.numpy) != dst.numpy)


def _check_width(dst: DType, caller: str) -> None:
    """TypeError for a type that JAX would narrow."""
    if _is_narrowed(dst):
        raise TypeError(f"{caller}: to={dst.name} needs jax.config.update('jax_enable_x64', True)")


def _aligned(shape: tuple[int, ...], dst: DType) -> np.ndarray[Any, Any]:
    nbytes = math.prod(shape) * dst.code_numpy.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes].view(dst.numpy).reshape(shape)


def _to_jax(y: Any, like: Any) -> Any:
    """A result as a JAX array if JAX has its type, on the device of `like` where that is a CPU; None: the first one."""
    if isinstance(y, PackedArray):
        # What JAX packs on a device it does not take.
        return y if y.dtype.bits == 6 or engines.of_array(y).packs else _to_jax(y.get(), like)
    if y.dtype == object or y.dtype.names:
        return y
    if not isinstance(y, np.ndarray):
        return jax.dlpack.from_dlpack(dlpack.Export(y))
    if dtype(y.dtype).bits == 6:
        return PackedArray.pack(y)
    of_like = like is not None and _is_on_cpu(like)
    return jax.device_put(y, next(iter(like.devices())) if of_like else jax.devices("cpu")[0])


def _view(x: Any) -> Any:
    """The numbers of an array on one CPU; None for any other."""
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) or not isinstance(x.dtype, np.dtype):
        return None
    if len(x.devices()) != 1 or not _is_on_cpu(x):
        return None
    try:
        return np.asarray(x)
    except RuntimeError:
        # Such as one that was given away.
        return None


@lru_cache(maxsize=1024)
def _plan(to: Any, dst: DType, *keyed: Any) -> Any:
    """The plan of casts of arrays on a CPU: that of NumPy's, into memory that JAX shares if it does not pack."""
    if MODULE is None:
        return None

    def run(x: Any, seed: Any, offset: Any, scale: Any, amax: Any, out: Any) -> Any:
        native = None if out is not None else _view(x)
        # What JAX is told to narrow changes.
        if native is None or _is_narrowed(dst):
            return None
        y = _aligned(native.shape, dst) if _shareable(dst) else None
        y = plans.hit(native, to, *keyed, seed, offset, scale, amax, None, y, True)
        return None if y is None else jax.device_put(y, next(iter(x.devices())))

    return plans.make("", run)


class JaxLibrary(Library):
    """JAX arrays."""

    settles = True
    take = staticmethod(take)

    def cast(self, cast: CastFunction, x: Any, to: Any, options: Options) -> Any:
        return self.cast_layer(cast, x, to, options, None)

    def cast_layer(self, cast: CastFunction, x: Any, to: Any, options: Options, coefficient: float | None) -> Any:
        with visit(x, options.out, options.scale, options.amax, device=options.device):
            return self._cast(cast, x, to, options, coefficient)

    def cast_times(self, times: CastFunction, x: Any, to: Any, options: Options) -> Any:
        if isinstance(x, jax.core.Tracer):
            return jax_traced.times(x, destination(to, options), options)
        return super().cast_times(times, x, to, options)

    def _cast(self, cast: CastFunction, x: Any, to: Any, options: Options, coefficient: float | None) -> Any:
        caller, out = options.caller, options.out
        traced = isinstance(x, jax.core.Tracer)
        array = x if traced else take(x, caller)
        dst = destination(to, options)
        if out is None:
            _check_width(dst, caller)
        if traced or isinstance(options.scale, jax.core.Tracer):
            return jax_traced.cast(x, dst, options, coefficient)
        inside = options
        if out is None and _shareable(dst) and options.copy is True:
            there = engines.named(options.device, caller, engines.of_array(array))
            empty: Any = there.pick(_aligned, there.empty)
            inside = options._replace(out=empty(array.shape, dst))
        y = cast(array, to, inside)
        if out is not None:
            return out
        # JAX has no types of 6 bits.
        is_known = inside is not options or (dst.packed and dst.bits < 6 and options.copy is True)
        if is_known and isinstance(array, np.ndarray) and isinstance(y, np.ndarray):
            plans.keep(x, to, options, resolve(dtype(x.dtype), dst, options), _plan(to, dst, *options[:5]))
        return x if y is array else _to_jax(y, x)

    def view(self, x: Any) -> Any:
        return _view(x)

    def is_transforming(self, x: Any) -> bool:
        return isinstance(x, jax.core.Tracer)

    def lent(self, x: Any) -> Lent | None:
        return None if isinstance(x, jax.core.Tracer) or _is_on_cpu(x) else dlpack.lent(x)

    def from_array(self, x: Any) -> Any:
        _check_width(dtype(x.dtype), "cast")
        return _to_jax(x, None)


LIBRARY = JaxLibrary()
