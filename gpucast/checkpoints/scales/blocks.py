# SPDX-License-Identifier: Apache-2.0
"""Which elements share a scale, told from the shape of the scales, and from what config.json says of blocks."""

from __future__ import annotations

from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import Block, Format, ScaleRule

_FLOAT, _E4M3, _E8M0 = dtype("FLOAT"), dtype("FLOAT8E4M3FN"), dtype("FLOAT8E8M0")
#: The blocks that are tried, first to last: what FLOAT, FLOAT8E8M0 and FLOAT8E4M3FN scales are used with.
_WHOLE: tuple[Block, ...] = ("tensor", "axis")
_SQUARE = (128, 128)
#: Usual lengths of groups.
_GROUPS = (128, 64, 32, 16)


def detect_format(
    element: DType,
    scale: DType,
    shape: tuple[int, ...],
    found: tuple[int, ...],
    zero_points: bool,
    told: tuple[int, int] | None,
    name: str,
    who: str,
) -> Format:
    """The format of a tensor of this shape whose scales, `name`, have the shape `found`.

    `told`: the lengths of the blocks of float8 with FLOAT scales, from config.json. ValueError where the shapes fit
    nothing that is known, or more than one thing.
    """
    rule: ScaleRule = "floor" if scale is _E8M0 else "amax"
    is_block_wise = scale is _FLOAT and element.is_float and element.bits == 8
    told = told if is_block_wise else None
    blocks = [*_WHOLE, told or _SQUARE]
    for block in blocks:
        format = Format("found", element, scale, block, rule, zero_points, scale is _E4M3)
        if found in _shapes(format, shape):
            return format
    if told is None and len(found) == len(shape):
        lengths = _lengths(shape[-1], found[-1])
        if found[:-1] == shape[:-1] and lengths:
            return Format("found", element, scale, (_one(lengths, who, name),), rule, zero_points, scale is _E4M3)
        if is_block_wise and len(shape) > 1 and found[:-2] == shape[:-2]:
            rows = _lengths(shape[-2], found[-2])
            if _is_usual(shape[-2], found[-2]) and _is_usual(shape[-1], found[-1]):
                return Format("found", element, scale, (_one(rows, who, name), _one(lengths, who, name)), rule)
    raise ValueError(
        f"{who} has shape {shape}, and its scales {name!r} have {found}; expected one scale, one for each of the "
        f"{shape[0] if shape else 0} rows, for each block of {'x'.join(map(str, told or _SQUARE))}"
        + (" (config.json)" if told else ", or for equal groups of each row")
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
    """The lengths that `count` groups of a dimension may have: all equal ones, or the usual."""
    if not count:
        return []
    equal = [size // count] if size % count == 0 else []
    usual = [n for n in _GROUPS if -(-size // n) == count]
    # All that hold the whole are the same.
    return equal if count == 1 else list(dict.fromkeys(equal + usual))


def _is_usual(size: int, count: int) -> bool:
    """Whether so many groups come of a usual length."""
    return any(-(-size // n) == count for n in _GROUPS)


def _one(lengths: list[int], who: str, name: str) -> int:
    if len(lengths) > 1:
        raise ValueError(f"{who}: its scales {name!r} may be for groups of {lengths[0]} or {lengths[1]}")
    return lengths[0]
