# SPDX-License-Identifier: Apache-2.0
"""Casts in kernels of numba-cuda: ``cast(x, "FLOAT8E4M3FN")`` of one value, as `gpucast.cast` casts it.

Numbers of Numba's own types come and go as such: float16, float32, float64, boolean and integers. Other types are held
by their codes, in uint8 or uint16. The third argument names the type of such a code::

    from numba import cuda
    from gpucast.interop.numba import cast


    @cuda.jit
    def scaled(x, codes, scale):
        i = cuda.grid(1)
        if i < x.size:
            codes[i] = cast(x[i] * scale, "FLOAT8E4M3FN")


    @cuda.jit
    def numbers(codes, x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = cast(codes[i], "FLOAT", "FLOAT8E4M3FN")

Types are named by constant text. The attributes of a cast have their defaults; for others, and for several values at a
time, give `gpucast.device_functions` to ``cuda.declare_device``. In Numba's simulator (NUMBA_ENABLE_CUDASIM=1) the same
function casts on the host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

try:
    from numba import cuda, types
    from numba.core import config
except ImportError as error:
    raise ImportError(f"gpucast.interop.numba needs Numba ({error}): pip install numba-cuda") from error

from gpucast.casting.cast import cast as cast_array
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.user_kernels.device_functions import device_function, held_as

#: The types that Numba has; it holds all others by their codes.
_INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_OWN = {kind: kind.numpy.name for kind in map(dtype, ("FLOAT16", "FLOAT", "DOUBLE", "BOOL", *_INTEGERS))}


def _simulated(x: Any, to: Any, src: Any = None) -> Any:
    """The cast of a number, or of a code of the type `src`."""
    value = np.asarray(x)
    if src is not None:
        kind = dtype(src, caller="cast: src=")
        value = value.astype(kind.code_numpy).view(kind.numpy)
    y = cast_array(value, to)
    kind = dtype(y.dtype)
    return (y if kind in _OWN else y.view(kind.code_numpy))[()]


def _typed(context: Any, x: Any, to: Any, src: Any = None) -> Any:
    """The signature of a call and its lowering. None while a type is not constant: Numba offers such types first."""
    literal = types.StringLiteral
    if not isinstance(to, literal) or not (src is None or isinstance(src, literal)):
        return None
    source = str(types.unliteral(x)) if src is None else src.literal_value
    rule = resolve(dtype(source, caller="cast: x="), dtype(to.literal_value, caller="cast: to="))
    name, code = _source(rule)
    result = getattr(types, _OWN.get(rule.dst, rule.dst.code_numpy.name).replace("bool", "boolean"))
    one = types.unliteral(x) if src is None else getattr(types, rule.src.code_numpy.name)

    def lower(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = target.cast(builder, arguments[0], signature.args[0], one)
        # C has bytes in place of bits.
        held = [ir.IntType(8) if kind is types.boolean else target.get_value_type(kind) for kind in (result, one)]
        if one is types.boolean:
            value = builder.zext(value, held[1])
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(held[0], held[1:]), name)
        target.active_code_library.add_linking_file(code)
        y = builder.call(function, [value])
        return builder.trunc(y, ir.IntType(1)) if result is types.boolean else y

    return result(x, to, types.Omitted(None) if src is None else src), lower


@lru_cache
def _source(rule: CastRule) -> tuple[str, Any]:
    """A function with C's calling convention, and the code to link."""
    name = rule.function.replace("gpucast_", "gpucast_numba_", 1)
    result, argument = (held_as(kind).replace("bool", "unsigned char") for kind in (rule.dst, rule.src))
    call = f"{rule.function}({'x != 0' if rule.src.family == 'bool' else 'x'})"
    line = f'extern "C" __device__ {result} {name}({argument} x) {{ return {call}; }}\n'
    return name, cuda.CUSource(device_function(rule.src, rule.dst) + line, name=f"{name}.cu")


if config.ENABLE_CUDASIM:
    cast = _simulated
else:
    from llvmlite import ir
    from numba.cuda import cgutils
    from numba.cuda.extending import intrinsic

    _typed.__name__ = "cast"
    cast = intrinsic(_typed)
