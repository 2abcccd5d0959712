# SPDX-License-Identifier: Apache-2.0
"""The keywords of fused casts, `seed`, `offset`, `scale` and `amax` (and `finite` of `cast_many`), checked."""

from __future__ import annotations

import math
import numbers
from dataclasses import replace
from typing import Any

import numpy as np

from gpucast import casting
from gpucast.arrays import libraries
from gpucast.arrays.array import Array
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.overlap import Place, check_disjoint
from gpucast.arrays.packed import device_index, unmasked
from gpucast.core.arithmetic import exact
from gpucast.core.checks import as_double, is_real
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs, resolve_random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.kernel import devices

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
_DEFAULT = Options()
_BOOL, _UINT8 = dtype("BOOL"), dtype("UINT8")


def resolve_fused(options: Options, rule: CastRule, device: int | None) -> FusedInputs | None:
    """The fused inputs of a cast of an array on a device (None: the host); None for a plain cast.

    Errors as for `gpucast.core.fused_ops.resolve_random` and below. ValueError for `scale` and `amax` where text is
    read or written.
    """
    scale, amax, caller = options.scale, options.amax, options.caller
    random = resolve_random(options.rounding, options.seed, options.offset, caller)
    if rule.rounding != STOCHASTIC:
        random = None
    if random is scale is amax is None:
        return None
    if "string" in (rule.src.family, rule.dst.family):
        name = "amax" if scale is None else "scale"
        raise ValueError(f"{caller}: {name}= does not apply to text; {rule.src.name} to {rule.dst.name} takes neither")
    if scale is not None:
        scale = resolve_scale(scale, device, caller)
    if amax is not None:
        amax = resolve_amax(amax, device, caller)
    return FusedInputs(scale, amax, random=random)


def resolve_scale(scale: Any, device: int | None, caller: str, count: int = 1) -> Any:
    """The keyword `scale` of a cast of arrays on a device (None: the host), as `FusedInputs` has it; of `count` arrays
    one for all, or an array of as many in a row.

    TypeError unless it is a number or an array of FLOAT or DOUBLE; ValueError for a number that is negative or
    not finite, for another size than 1, and for an array on another device. Values of arrays are not looked at: one on
    the host is read, but not checked.
    """
    # From the smallest normal number on: a negative subnormal is no less than 0 where the processor flushes it.
    if type(scale) is float and 2.0**-1022 <= scale < math.inf:
        return scale
    if is_real(scale):
        number = as_double(scale)
        with exact():
            allowed = math.isfinite(number) and number >= 0
        if not allowed:
            raise ValueError(f"{caller}: scale={scale!r} must be finite, as a DOUBLE, and not negative")
        return number
    array = _array("scale", scale, (_FLOAT, _DOUBLE), caller, writing=False, count=count)
    if device_index(array) is None:
        if array.size == 1:
            return as_double(array.reshape(())[()])
    _check_place("scale", array, device, caller)
    return array


def resolve_amax(amax: Any, device: int | None, caller: str, count: int = 1) -> Any:
    """The keyword `amax`, as `resolve_scale`: an array of one FLOAT that can be written, on x's side; of `count` arrays
    of one for all, or of as many in a row."""
    # As most calls have it: what follows takes longer than a small cast.
    if device is None and type(amax) is np.ndarray and amax.dtype is _FLOAT.numpy:
        if amax.size == 1 and amax.flags.writeable:
            return amax
    array = _array("amax", amax, (_FLOAT,), caller, writing=True, count=count)
    _check_place("amax", array, device, caller)
    if device is None and not (array.flags.writeable and array.dtype.isnative):
        raise ValueError(f"{caller}: amax is read-only or of foreign byte order; expected an array that can be written")
    return array


def resolve_finite(finite: Any, device: int | None, caller: str) -> Any:
    """The keyword `finite` of `gpucast.cast_many`, as `resolve_scale`: an array of one BOOL or UINT8, to be written."""
    array = _array("finite", finite, (_BOOL, _UINT8), caller, writing=True)
    _check_place("finite", array, device, caller)
    if device is None and not array.flags.writeable:
        raise ValueError(f"{caller}: finite is read-only; expected an array that can be written")
    return array


def check_fused(fused: FusedInputs, source: Array, target: Array | None, caller: str) -> None:
    """ValueError if amax or the target shares memory with an array that is read."""
    scale, amax = None if isinstance(fused.scale, float) else fused.scale, fused.amax
    if scale is None and amax is None:
        return
    # A target on the other side is written by a copy of the result. `check_out` compares it with x.
    out = None if target is None or target.device != source.device else target.data
    written = [Place(name, array, item) for name, array, item in (("amax", amax, None), ("out", out, 0))
               if array is not None]  # fmt: skip
    read = [Place("x", source.data, 0), *([] if scale is None else [Place("scale", scale)])]
    check_disjoint(written, read, caller)


def _array(name: str, value: Any, kinds: tuple[DType, ...], caller: str, *, writing: bool, count: int = 1) -> Any:
    """An array of one element of some kinds, or of `count`."""
    adapter = None if isinstance(value, numbers.Number) else libraries.find(value)
    array = value if adapter is None else adapter.take(value, f"{caller}: {name}", writing)
    unmasked(array, f"{caller}: {name}")
    if isinstance(array, np.ndarray):
        # Such as np.matrix change what reshaping means.
        array = np.asarray(array)
    if namespace(array) is None:
        number = "" if writing else "a number or "
        more = "; gpucast.quantize finds scales, also of blocks" if name == "scale" else ""
        raise TypeError(f"{caller}: {name}={value!r} must be {number}an array of one {_names(kinds)}{more}")
    if array.dtype.newbyteorder("=") not in [kind.numpy for kind in kinds]:
        raise TypeError(f"{caller}: {name} has dtype {array.dtype}; expected {_names(kinds)}")
    if array.size not in (1, count):
        many = "" if count == 1 else f", or {count}: one for each array"
        raise ValueError(f"{caller}: {name} has shape {array.shape}; expected one element{many}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{caller}: {name} is not contiguous; expected its elements in a row")
    return array


def _names(kinds: tuple[DType, ...]) -> str:
    return " or ".join(kind.name for kind in kinds)


def _check_place(name: str, array: Any, device: int | None, caller: str) -> None:
    index = device_index(array)
    if index != device:
        raise ValueError(f"{caller}: {name} is on {devices.name(index)}; x is on {devices.name(device)}")
    if device is not None and not casting.cuda.is_aligned(array):
        raise ValueError(f"{caller}: {name} begins at an odd address; expected a multiple of {array.itemsize} bytes")


def fused_rule(src: DType, dst: DType, options: Options = _DEFAULT, *, scaled: bool) -> CastRule:
    """The rule of a fused cast; `scaled`: the rule from DOUBLE to `dst`. Attributes and errors as for `resolve`."""
    rule = resolve(src, dst, options)
    return replace(resolve(_DOUBLE, dst, options), src=src) if scaled else rule


def rule_of(src: DType, dst: DType, options: Options) -> CastRule:
    """The rule of a call for one array. Errors as for `resolve`."""
    return fused_rule(src, dst, options, scaled=options.scale is not None)
