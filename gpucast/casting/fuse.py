# SPDX-License-Identifier: Apache-2.0
"""The keywords of fused casts, `seed`, `offset`, `scale` and `amax` (and `finite` of `cast_many`), checked."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.bitpacking import is_writable, namespace
from gpucast.arrays.packed import device_index, unmasked
from gpucast.casting import engines
from gpucast.core.arithmetic import exact
from gpucast.core.checks import as_double, is_real
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import EMPTY, Fuse, fuse_of, resolve_random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options
from gpucast.kernel import devices

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
_BOOL, _UINT8 = dtype("BOOL"), dtype("UINT8")


def resolve_fuse(options: Options, places: Collection[int | None], finite: Any = None, count: int = 1) -> Fuse:
    """The checked keywords of a call for `count` arrays, which are in these places: indices of devices, None for the
    host. Without places an array may be anywhere. Errors as for `gpucast.core.fuse.resolve_random` and below."""
    scale, amax, caller = options.scale, options.amax, options.caller
    random = resolve_random(options.rounding, options.seed, options.offset, caller)
    if random is scale is amax is finite is None:
        return EMPTY
    if scale is not None:
        for place in places or [_place(scale, caller)]:
            scale = resolve_scale(options.scale, place, caller, count)
    if amax is not None:
        for place in places or [_place(amax, caller)]:
            amax = resolve_amax(options.amax, place, caller, count)
    if finite is not None:
        given = finite
        for place in places or [_place(finite, caller)]:
            finite = resolve_finite(given, place, caller)
    return Fuse(scale, amax, finite, random)


def _place(x: Any, caller: str) -> int | None:
    library = libraries.find(x)
    return device_index(x if library is None else library.take(x, caller))


def of_rule(fuse: Fuse, rule: CastRule, caller: str) -> Fuse:
    """The part of a fuse that a rule has a use for. ValueError for a scale and the like where text is read or
    written."""
    if rule.is_text and not (fuse.scale is fuse.amax is fuse.finite is None):
        name = next(name for name in ("scale", "amax", "finite") if getattr(fuse, name) is not None)
        raise ValueError(f"{caller}: {name}= does not apply to text; {rule.src.name} to {rule.dst.name} takes none")
    if fuse.random is None or rule.rounding == STOCHASTIC:
        return fuse
    return fuse_of(fuse.scale, fuse.amax, fuse.finite)


def resolve_scale(scale: Any, device: int | None, caller: str, count: int = 1) -> Any:
    """The keyword `scale` of a cast of arrays on a device (None: the host), as `Fuse` has it; of `count` arrays
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
    if array.size == 1:
        number = engines.of_array(array).number(array)
        if isinstance(number, float):
            return number
    _check_place("scale", array, device, caller)
    return array


def resolve_amax(amax: Any, device: int | None, caller: str, count: int = 1) -> Any:
    """The keyword `amax`, as `resolve_scale`: an array of one FLOAT that can be written, on x's side; of `count` arrays
    of one for all, or of as many in a row."""
    array = _array("amax", amax, (_FLOAT,), caller, writing=True, count=count)
    _check_place("amax", array, device, caller)
    if not (is_writable(array) and array.dtype.isnative):
        raise ValueError(f"{caller}: amax is read-only or of foreign byte order; expected an array that can be written")
    return array


def resolve_finite(finite: Any, device: int | None, caller: str) -> Any:
    """The keyword `finite` of `gpucast.cast_many`, as `resolve_scale`: an array of one BOOL or UINT8, to be written."""
    array = _array("finite", finite, (_BOOL, _UINT8), caller, writing=True)
    _check_place("finite", array, device, caller)
    if not is_writable(array):
        raise ValueError(f"{caller}: finite is read-only; expected an array that can be written")
    return array


def _array(name: str, value: Any, kinds: tuple[DType, ...], caller: str, *, writing: bool, count: int = 1) -> Any:
    """An array of one element of some kinds, or of `count`."""
    # As most calls have it: what follows takes longer than a small cast.
    if type(value) is np.ndarray and value.size == 1 and value.dtype in [kind.numpy for kind in kinds]:
        return value
    library = None if isinstance(value, numbers.Number) else libraries.find(value)
    array = value if library is None else library.take(value, f"{caller}: {name}", writing)
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
    here = engines.of_array(array)
    if here.device != device:
        raise ValueError(f"{caller}: {name} is on {devices.name(here.device)}; x is on {devices.name(device)}")
    if not here.reads(array):
        raise ValueError(f"{caller}: {name} begins at an odd address; expected a multiple of {array.itemsize} bytes")
