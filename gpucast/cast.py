# SPDX-License-Identifier: Apache-2.0
"""The public casts: check the call, place it on the host or a device, and route it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast import device as devices
from gpucast import host_cast, placement
from gpucast.dtypes import DType, dtype
from gpucast.out import check_out
from gpucast.packed import PackedArray, as_array, home
from gpucast.rule import CAST_VERSIONS, CASTLIKE_VERSIONS, DEFAULT_OPSET, Rule, resolve


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
        NumPy or CuPy array (types that they lack with the ml_dtypes dtype), PackedArray, scalar or list (taken as
        ``numpy.asarray`` takes them), or strings (object, ``<U``, ``S``, StringDType).
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
    An array of x's shape and kind, in the memory order of x (order "K"). Types that NumPy and CuPy lack have the
    ml_dtypes dtype; those below one byte take a byte per element on the host, unless x is a PackedArray, and are
    PackedArrays on a device. STRING is an object array of str, always on the host.

    Raises
    ------
    TypeError
        For what is no dtype, complex, a type newer than the opset, or an `out` of another dtype.
    ValueError
        For illegal attributes, text that is no number (with its index), an `out` of another shape or that overlaps x.
    OverflowError
        For integer text outside the destination's range (with its index).
    RuntimeError
        When a CUDA graph is captured and the cast would have to allocate or to load its kernel.
    DeviceUnavailable
        When a GPU is asked for that cannot be used.

    Source: ONNX Cast, versions 1 to 28. Where the text leaves a choice, see docs/conformance.md.
    """
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
    opset, versions = (DEFAULT_OPSET, CAST_VERSIONS) if opset is None else (opset, CASTLIKE_VERSIONS)
    kind = getattr(like, "dtype", None)
    if kind is None:
        kind = np.asarray(like).dtype
        if kind.kind == "O":
            raise TypeError(f"cast_like: like is a {type(like).__name__}; expected an array, a scalar or a list")
    to = dtype(kind, who="cast_like: like.dtype=")
    return _cast(
        x, to, device, out, copy, "cast_like",
        dict(saturate=saturate, round_mode=round_mode, opset=opset, rounding=rounding, overflow=overflow),
        versions,
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
    source = home(x)
    remote = source is not None or home(out) is not None or place not in (None, "cpu")
    if out is not None:
        check_out(x, rule, out, remote, who)
    elif not copy and place in (None, "cpu" if source is None else f"cuda:{source}") and _unchanged(x, rule):
        return x
    return placement.cast(x, rule, place, out, who) if remote else host_cast.apply(x, rule, out)


def _unchanged(x: Any, rule: Rule) -> bool:
    """True where a cast would give back x as it is: same type, and already in the one form that results have."""
    row = rule.src
    if row is not rule.dst:
        return False
    if home(x) is not None:
        # To look at bits there would mean to wait for them.
        return not (row.packed or row.family == "bool")
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
