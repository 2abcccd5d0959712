# SPDX-License-Identifier: Apache-2.0
"""The public casts: check the call, place it on the host or a device, and route it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import device as devices
from gpucast import host, host_strings
from gpucast.dtypes import DType, dtype
from gpucast.packed import PackedArray, namespace, pack_codes, unpack_codes
from gpucast.rule import CAST_VERSIONS, CASTLIKE_VERSIONS, DEFAULT_OPSET, Rule, resolve

#: Elements of a PackedArray that are unpacked at a time: whole bytes of every layout, and few enough for the cache.
_CHUNK = 1 << 16


def cast(
    x: Any,
    to: Any,
    *,
    saturate: bool = True,
    round_mode: str = "up",
    opset: int = DEFAULT_OPSET,
    rounding: str | None = None,
    overflow: str | None = None,
    device: str | None = None,
    out: Any = None,
    copy: bool = True,
) -> Any:
    """Cast an array of any shape to the type `to`: the ONNX Cast operator, bit for bit the same everywhere.

    Parameters
    ----------
    x
        NumPy array (types that NumPy lacks as ml_dtypes), PackedArray, scalar or list (taken as ``numpy.asarray``
        takes them), or strings (object, ``<U``, ``S``, StringDType).
    to
        Anything that `gpucast.dtype` takes: "FLOAT16", 10, ``np.float16``, ``ml_dtypes.float8_e4m3fn``, ...
    saturate
        ONNX `saturate`: float8 and FLOAT8E8M0 destinations clamp (True) or give infinity or NaN (False).
    round_mode
        ONNX `round_mode`, for FLOAT8E8M0 only: "up", "down" or "nearest".
    opset
        1 to 28: the newest Cast version up to it, with its types, attributes and rules.
    rounding
        To integers: "truncate" (what None means) or "nearest_even".
    overflow
        To integers: "wrap" (what None means: the low bits are kept) or "saturate". To FLOAT16, BFLOAT16, FLOAT and
        DOUBLE: None (infinity) or "saturate" (the largest finite value).
    device
        None: where x is; "cpu", "cuda", "cuda:N": there.
    out
        An array of the result's shape, dtype and kind: written and returned.
    copy
        False: x itself may be returned where nothing changes.

    Returns
    -------
    An array of x's shape and kind, in the memory order of x (order "K"). Types that NumPy lacks are ml_dtypes, one
    element per byte; a PackedArray gives a PackedArray for types below one byte; STRING is an object array of str.

    Raises
    ------
    TypeError
        For what is no dtype, complex, a type newer than the opset, or an `out` of another dtype.
    ValueError
        For illegal attributes, text that is no number (with its index), an `out` of another shape or that overlaps x.
    OverflowError
        For integer text outside the destination's range (with its index).
    DeviceUnavailable
        When a GPU is asked for that cannot be used.

    Source: ONNX Cast, versions 1 to 28. Where the text leaves a choice, see docs/conformance.md.
    """
    if opset is None:
        raise TypeError("cast: opset=None must be an integer")
    return _cast(
        x, dtype(to, who="cast: to="), device, out, copy, "cast",
        dict(saturate=saturate, round_mode=round_mode, opset=opset, rounding=rounding, overflow=overflow),
        CAST_VERSIONS,
    )  # fmt: skip


def cast_like(
    x: Any,
    like: Any,
    *,
    saturate: bool = True,
    round_mode: str = "up",
    opset: int | None = None,
    rounding: str | None = None,
    overflow: str | None = None,
    device: str | None = None,
    out: Any = None,
    copy: bool = True,
) -> Any:
    """Cast `x` to the type of the array `like`, whose shape and values do not matter: the ONNX CastLike operator.

    Keywords, result and errors as for `cast`. An `opset` (15 to 28) follows CastLike's own versions, which never took
    float6; None takes all 26 types and the newest rules.
    """
    kind = getattr(like, "dtype", None)
    to = dtype(np.asarray(like).dtype if kind is None else kind, who="cast_like: like.dtype=")
    return _cast(
        x, to, device, out, copy, "cast_like",
        dict(saturate=saturate, round_mode=round_mode, opset=opset, rounding=rounding, overflow=overflow),
        CASTLIKE_VERSIONS,
    )  # fmt: skip


def _cast(
    x: Any,
    dst: DType,
    device: Any,
    out: Any,
    copy: Any,
    who: str,
    attributes: dict[str, Any],
    versions: tuple[int, ...],
) -> Any:
    x = as_array(x, who)
    rule = resolve(dtype(x.dtype, who=f"{who}: x.dtype="), dst, **attributes, versions=versions, who=who)
    if not isinstance(copy, (bool, np.bool_)):
        raise TypeError(f"{who}: copy={copy!r} must be True or False")
    place = devices.parse(device, who)
    if on_device(x) or on_device(out) or place not in (None, "cpu"):
        return devices.cast(x, rule, place, out, who)
    if out is not None:
        _check_out(x, rule, out, who)
    elif not copy and _unchanged(x, rule):
        return x
    return _cast_packed(x, rule, out) if isinstance(x, PackedArray) else _cast_array(x, rule, out)


def as_array(x: Any, who: str) -> Any:
    """`x` as an array that `cast` takes. Masks would be lost, so masked arrays are refused."""
    if isinstance(x, PackedArray) or namespace(x) is not None:
        masked = sys.modules.get("numpy.ma")
        if masked is not None and isinstance(x, masked.MaskedArray):
            raise TypeError(f"{who}: x is a masked array, whose mask a cast would lose; pass x.data or x.filled(value)")
        return x
    return np.asarray(x)


def on_device(x: Any) -> bool:
    """True for a CuPy array and a PackedArray over one."""
    return namespace(x.data if isinstance(x, PackedArray) else x) not in (None, np)


def _cast_array(x: npt.NDArray[Any], rule: Rule, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    if "string" in (rule.src.family, rule.dst.family):
        # All of it before `out` is touched: a text that is no number leaves `out` as it was.
        result = (host_strings.parse if rule.src.family == "string" else host_strings.format)(x, rule)
    elif out is None or np.may_share_memory(x, out):
        result = np.empty_like(x, dtype=rule.dst.numpy, order="K", subok=False)
        host.apply(x, rule, result)
    else:
        host.apply(x, rule, out)
        return out
    if out is None:
        return result
    out[...] = result
    return out


def _cast_packed(x: PackedArray, rule: Rule, out: Any) -> Any:
    src, dst = rule.src, rule.dst
    if out is None:
        whole = np.empty(dst.nbytes(x.size), np.uint8) if dst.packed else np.empty(x.shape, dst.numpy)
        out = PackedArray(whole, dst, x.shape) if dst.packed else whole
    if dst.family == "string":
        out[...] = host_strings.format(x.get(), rule)
        return out
    # In place (equal layouts) each chunk is unpacked before it is written.
    flat = out.data if dst.packed else out.reshape(-1) if out.flags.c_contiguous else np.empty(x.size, dst.numpy)
    for start in range(0, x.size, _CHUNK):
        count = min(_CHUNK, x.size - start)
        first = src.nbytes(start)
        codes = unpack_codes(x.data[first : first + src.nbytes(count)], src.bits, count).view(src.numpy)
        if dst.packed:
            first = dst.nbytes(start)
            flat[first : first + dst.nbytes(count)] = pack_codes(_applied(codes, rule).view(np.uint8), dst.bits)
        else:
            host.apply(codes, rule, flat[start : start + count])
    if not dst.packed and not out.flags.c_contiguous:
        out[...] = flat.reshape(out.shape)
    return out


def _applied(x: npt.NDArray[Any], rule: Rule) -> npt.NDArray[Any]:
    result = np.empty(x.shape, rule.dst.numpy)
    host.apply(x, rule, result)
    return result


def _unchanged(x: Any, rule: Rule) -> bool:
    """True where a cast would give back x as it is: same type, and already in the one form that results have."""
    row = rule.src
    if row is not rule.dst:
        return False
    if row.family == "string":
        return bool(x.dtype == object) and all(type(text) is str for text in x.flat)
    if isinstance(x, PackedArray):
        used = x.size * row.bits % 8
        return used == 0 or not x.data[-1] >> used
    if not x.dtype.isnative:
        return False
    if row.family == "bool" or row.packed:
        limit = 1 if row.family == "bool" else row.code_mask
        return x.size == 0 or int(x.view(np.uint8).max()) <= limit
    return True


def _check_out(x: Any, rule: Rule, out: Any, who: str) -> None:
    packed = isinstance(x, PackedArray) and rule.dst.packed
    if packed != isinstance(out, PackedArray) or not (packed or isinstance(out, np.ndarray)):
        wanted = "a PackedArray" if packed else "a NumPy array"
        raise TypeError(f"{who}: out is {type(out).__name__}; expected {wanted} of {rule.dst.name} and shape {x.shape}")
    if out.dtype != (rule.dst if packed else rule.dst.numpy):
        raise TypeError(f"{who}: out has dtype {out.dtype}; expected {rule.dst if packed else rule.dst.numpy}")
    if out.shape != x.shape:
        raise ValueError(f"{who}: out has shape {out.shape}; expected {x.shape}")
    src_data, out_data = (array.data if isinstance(array, PackedArray) else array for array in (x, out))
    if not out_data.flags.writeable:
        raise ValueError(f"{who}: out is read-only")
    if _overlap(src_data, out_data) and not _same_layout(src_data, out_data):
        raise ValueError(f"{who}: out overlaps x; expected separate memory, or exactly x's own elements of equal size")


def _overlap(x: npt.NDArray[Any], out: npt.NDArray[Any]) -> bool:
    if not np.may_share_memory(x, out):
        return False
    try:
        return np.shares_memory(x, out, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _same_layout(x: npt.NDArray[Any], out: npt.NDArray[Any]) -> bool:
    """True where element i of both is the same memory."""
    one, other = x.__array_interface__, out.__array_interface__
    return (
        one["data"][0] == other["data"][0]
        and x.itemsize == out.itemsize
        and x.strides == out.strides
        and x.shape == out.shape
    )
