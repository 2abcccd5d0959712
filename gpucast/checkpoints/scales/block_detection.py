# SPDX-License-Identifier: Apache-2.0
"""Detects which elements share a scale, from the shape of the scales and the block size in config.json."""

from __future__ import annotations

from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import Block, Format, ScaleRule

_FLOAT, _E4M3, _E8M0 = dtype("FLOAT"), dtype("FLOAT8E4M3FN"), dtype("FLOAT8E8M0")
#: The blocks that are tried first, in this order, with scales of any type.
_UNSPLIT: tuple[Block, ...] = ("tensor", "axis")
_SQUARE = (128, 128)
#: Usual lengths of groups.
_GROUPS = (128, 64, 32, 16)


def detect_format(
    element: DType,
    scale: DType,
    shape: tuple[int, ...],
    scales_shape: tuple[int, ...],
    zero_points: bool,
    configured: tuple[int, int] | None,
    name: str,
    caller: str,
) -> Format:
    """The format of a tensor of shape `shape` whose scales, `name`, have the shape `scales_shape`.

    `configured`: the block size that config.json gives for float8 with FLOAT scales. ValueError if the shapes fit no
    known format, or more than one.
    """
    rule: ScaleRule = "floor" if scale is _E8M0 else "amax"
    is_block_wise = scale is _FLOAT and element.is_float and element.bits == 8
    # Beside scales of FLOAT8E8M0 a config.json may tell of other weights.
    also = [configured] if configured and scale is _E8M0 else []
    configured = configured if is_block_wise else None
    blocks = [*_UNSPLIT, *also, configured or _SQUARE]
    for block in blocks:
        format = Format("found", element, scale, block, rule, zero_points, scale is _E4M3)
        if scales_shape in _shapes(format, shape):
            return format
    if configured is None and len(scales_shape) == len(shape):
        lengths = _lengths(shape[-1], scales_shape[-1])
        if scales_shape[:-1] == shape[:-1] and lengths:
            return Format("found", element, scale, (_only(lengths, caller, name),), rule, zero_points, scale is _E4M3)
        if is_block_wise and len(shape) > 1 and scales_shape[:-2] == shape[:-2]:
            rows = _lengths(shape[-2], scales_shape[-2])
            if _is_usual(shape[-2], scales_shape[-2]) and _is_usual(shape[-1], scales_shape[-1]):
                return Format("found", element, scale, (_only(rows, caller, name), _only(lengths, caller, name)), rule)
    raise ValueError(
        f"{caller} has shape {shape}, and its scales {name!r} have {scales_shape}; expected one scale, one for each of "
        f"the {shape[0] if shape else 0} rows, for each block of {'x'.join(map(str, configured or _SQUARE))}"
        + (" (config.json)" if configured else ", or for equal groups of each row")
    )


def _shapes(format: Format, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes that the scales of a tensor may have."""
    if format.block == "tensor":
        return [(), (1,), (1,) * len(shape)] if shape else []
    if len(shape) < format.min_ndim:
        return []
    wanted = format.scales_shape(shape, 0 if format.block == "axis" else len(shape) - 1)
    return [wanted, (*wanted, *[1] * (len(shape) - 1))] if format.block == "axis" else [wanted]


def _lengths(size: int, count: int) -> list[int]:
    """The lengths that `count` groups of a dimension may have: the equal division, and usual lengths."""
    if not count:
        return []
    equal = [size // count] if size % count == 0 else []
    usual = [n for n in _GROUPS if -(-size // n) == count]
    # One group holds all elements, whatever its length.
    return equal if count == 1 else list(dict.fromkeys(equal + usual))


def _is_usual(size: int, count: int) -> bool:
    """Whether groups of a usual length would be `count` many."""
    return any(-(-size // n) == count for n in _GROUPS)


def _only(lengths: list[int], caller: str, name: str) -> int:
    if len(lengths) > 1:
        raise ValueError(f"{caller}: its scales {name!r} may be for groups of {lengths[0]} or {lengths[1]}")
    return lengths[0]
