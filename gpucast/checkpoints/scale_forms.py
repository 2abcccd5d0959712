# SPDX-License-Identifier: Apache-2.0
"""What tensors that are named like codes and scales stand for, told from their types and shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucast.checkpoints.scale_styles import ENTRY, stored
from gpucast.checkpoints.stored import Packing, Stored, words
from gpucast.dtypes import DType, dtype
from gpucast.files import Spec, Tensor
from gpucast.quantization import files as quantized_files
from gpucast.quantization.formats import Block, Format, ScaleRule

_FLOAT, _E4M3, _E8M0 = dtype("FLOAT"), dtype("FLOAT8E4M3FN"), dtype("FLOAT8E8M0")
_EXACT = (_FLOAT, dtype("FLOAT16"), dtype("BFLOAT16"))
#: The blocks that are tried, first to last: what FLOAT, FLOAT8E8M0 and FLOAT8E4M3FN scales are used with.
_BLOCKS: tuple[Block, ...] = ("tensor", "axis", (128, 128))
#: Usual lengths of groups.
_GROUPS = (128, 64, 32, 16)


@dataclass(frozen=True)
class Candidate:
    style: str
    #: The name of the tensor that was quantized.
    base: str
    scale: str
    data: str
    more: Mapping[str, str]


class _Problem(ValueError):
    pass


def is_narrow(data: Tensor, tensors: Mapping[str, Tensor]) -> bool:
    """Whether these can be codes; another tensor with a name like this is a weight like all."""
    row = data.row
    if row is None:
        return False
    if data.name.endswith("_packed") or row.name == "UINT8":
        return True
    return (row.is_float or row.name == "INT8") and row.bits <= 8


def own(candidate: Candidate, tensors: Mapping[str, Tensor], text: str) -> Stored:
    who = f"tensor {candidate.base!r}"
    format, kept = quantized_files.described(text, who, ENTRY + candidate.base)
    data = tensors["data"]
    if not data.size or len(data.shape) < format.min_ndim:
        raise _Problem(f"{who} has shape {data.shape}, which convert does not quantize as {format.name}")
    expected = stored("gpucast", data.name, data.shape, format, dtype("FLOAT"), asked_for=True)
    if kept["axis"] != (0 if format.block == "axis" else len(data.shape) - 1) or kept["scale_layout"] != "linear":
        raise _Problem(f"{who} has axis {kept['axis']!r}, scale_layout {kept['scale_layout']!r}, not as convert writes")
    for part, spec in expected.specs.items():
        if part not in tensors:
            raise _Problem(f"{who}: {spec.name!r} is missing")
        _expect(tensors[part], spec.row, [spec.shape])
    return Stored(data.name, data.shape, format, expected.specs)


def others(candidate: Candidate, tensors: Mapping[str, Tensor], comfy: bool) -> Stored:
    data, scales = tensors["data"], tensors["scales"]
    who = f"tensor {data.name!r}"
    if "g_idx" in tensors:
        raise _Problem(f"{who} has an order of its groups ({tensors['g_idx'].name!r}), which is not known here")
    shape, packing, element = data.shape, "plain", data.row
    assert element is not None
    symmetric = "zero_points" not in tensors
    if element.name == "UINT8":
        if not shape or not ({"global_scale", "second_scale"} & tensors.keys() or _bytes_of(scales)):
            raise _Problem(f"{who} of UINT8 has scales, {scales.name!r}, in a form that is not known here")
        shape, packing, element = (*shape[:-1], shape[-1] * 2), "bytes", dtype("FLOAT4E2M1")
    elif element.name == "INT32":
        shape = _shape(tensors, who)
        packing, element = "words", _integer(who, shape, data.shape, symmetric)
    if any(n == 0 for n in shape):
        raise _Problem(f"{who} has no elements")
    scale_row = _scale_row(scales, who)
    if comfy and scale_row is not _FLOAT:
        # Their scales lie in the order of cuBLAS.
        raise _Problem(f"{who} has scales of {scale_row.name} in ComfyUI's order, which is not known here")
    format = _format(element, scale_row, shape, scales.shape, not symmetric, scales.name, who)
    specs = {"data": _spec(data), "scales": _spec(scales)}
    divides = "global_scale" in tensors
    second = tensors.get("global_scale", tensors.get("second_scale"))
    if second is not None:
        _expect(second, _FLOAT, [(), (1,)])
        if not format.global_scale:
            raise _Problem(f"{who}: {second.name!r} goes with scales of FLOAT8E4M3FN, not of {scale_row.name}")
        specs["global_scale"] = _spec(second)
    elif format.global_scale:
        raise _Problem(f"{who} has scales of FLOAT8E4M3FN, and no global scale")
    if not symmetric:
        zero = tensors["zero_points"]
        if packing == "words":
            rows = shape[0]
            _expect(zero, dtype("INT32"), [(words(rows, element.bits), math.prod(scales.shape) // rows)])
        else:
            _expect(zero, dtype("INT8"), [scales.shape])
        specs["zero_points"] = _spec(zero)
    kind: Packing = "words" if packing == "words" else "bytes" if packing == "bytes" else "plain"
    return Stored(candidate.base, shape, format, specs, kind, divides)


def _spec(tensor: Tensor) -> Spec:
    return Spec(tensor.name, tensor.row, tensor.shape)


def _bytes_of(scales: Tensor) -> bool:
    """Whether these are exponents of FLOAT8E8M0 as bytes."""
    return scales.row is not None and scales.row.name in ("UINT8", "FLOAT8E8M0") and len(scales.shape) > 1


def _expect(tensor: Tensor, row: DType | None, shapes: Sequence[tuple[int, ...]]) -> None:
    if tensor.row is not row or tensor.shape not in shapes:
        said = " or ".join(map(str, shapes))
        raise _Problem(
            f"tensor {tensor.name!r} is {tensor.kind} {tensor.shape}; expected {row.name if row else None} {said}"
        )


def _scale_row(scales: Tensor, who: str) -> DType:
    row = scales.row
    if row in _EXACT:
        return _FLOAT
    if row is _E4M3 or row is _E8M0:
        return row
    if row is not None and row.name == "UINT8":
        return _E8M0
    raise _Problem(f"{who}: its scales {scales.name!r} are {scales.kind}, which is not known here")


def _format(
    element: DType, scale: DType, shape: tuple[int, ...], found: tuple[int, ...], zero_points: bool, name: str, who: str
) -> Format:
    """The format whose scales have the shape that was found."""
    rule: ScaleRule = "floor" if scale is _E8M0 else "amax"
    blocks = list(_BLOCKS)
    if len(found) == len(shape) and found[-1:] and found[-1]:
        # Groups along the last dimension: whole ones, or the usual lengths.
        equal = [shape[-1] // found[-1]] if shape[-1] % found[-1] == 0 else []
        usual = [n for n in _GROUPS if -(-shape[-1] // n) == found[-1]]
        blocks += [(n,) for n in dict.fromkeys(equal + usual)]
    for block in blocks:
        format = Format("found", element, scale, block, rule, zero_points, scale is _E4M3)
        if len(shape) < max(format.min_ndim, 1 if block == "tensor" else 0):
            continue
        wanted = format.scales_shape(shape, 0 if block == "axis" else len(shape) - 1)
        accepted = [wanted]
        if block == "tensor":
            accepted = [(), (1,), (1,) * len(shape)]
        elif block == "axis":
            accepted += [(*wanted, *[1] * (len(shape) - 1))]
        if found in accepted:
            lengths = blocks[len(_BLOCKS) :]
            if block in lengths and len(lengths) > 1 and found[-1] > 1:
                raise _Problem(f"{who}: its scales {name!r} may be for groups of {lengths[0][0]} or {lengths[1][0]}")
            return format
    raise _Problem(
        f"{who} has shape {shape}, and its scales {name!r} have {found}; expected one scale, one for each of the "
        f"{shape[0] if shape else 0} rows, for each block of 128x128, or for equal groups of each row"
    )


def _shape(tensors: Mapping[str, Tensor], who: str) -> tuple[int, ...]:
    if "shape" not in tensors:
        raise _Problem(f"{who} is packed, and its weight_shape is missing")
    told = tensors["shape"]
    if told.shape != (2,) or told.row is None or told.row.name not in ("INT64", "INT32"):
        raise _Problem(f"tensor {told.name!r} is {told.kind} {told.shape}; expected INT64 (2,)")
    rows, columns = told.read().tolist()
    data = tensors["data"].shape
    if len(data) != 2 or rows != data[0] or not 0 < columns <= data[1] * 32:
        raise _Problem(f"{who} of shape {data} cannot hold the shape ({rows}, {columns}) that {told.name!r} tells")
    return rows, columns


def _integer(who: str, shape: tuple[int, ...], packed: tuple[int, ...], symmetric: bool) -> DType:
    """The type of the codes: as wide as the packed words tell."""
    widths = [bits for bits in (2, 4, 8) if words(shape[1], bits) == packed[1]]
    if len(widths) != 1:
        raise _Problem(f"{who}: {packed[1]} words for rows of {shape[1]} codes leave open how wide a code is")
    return dtype(f"{'INT' if symmetric else 'UINT'}{widths[0]}")
