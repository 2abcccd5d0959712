# SPDX-License-Identifier: Apache-2.0
"""What tensors that are named like codes and scales stand for, told from their types and shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucast.checkpoints.scales import comfyui
from gpucast.checkpoints.scales.blocks import found_format
from gpucast.checkpoints.scales.stored import Packing, Stored, words
from gpucast.checkpoints.scales.styles import ENTRY, stored
from gpucast.core.dtypes import DType, dtype
from gpucast.files import Spec, Tensor
from gpucast.quantization import files as quantized_files

_FLOAT, _E4M3, _E8M0 = dtype("FLOAT"), dtype("FLOAT8E4M3FN"), dtype("FLOAT8E8M0")
_EXACT = (_FLOAT, dtype("FLOAT16"), dtype("BFLOAT16"))


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


def is_narrow(data: Tensor) -> bool:
    """Whether these can be codes; another tensor with a name like this is a weight like all."""
    row = data.row
    if row is None:
        return False
    if data.name.endswith("_packed") or row.name == "UINT8":
        return True
    return (row.is_float or row.name == "INT8") and row.bits <= 8


def own(candidate: Candidate, tensors: Mapping[str, Tensor], text: str) -> Stored:
    who = f"tensor {candidate.base!r}"
    format, kept = quantized_files.parse_entry(text, who, ENTRY + candidate.base)
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


def others(
    candidate: Candidate,
    tensors: Mapping[str, Tensor],
    layer: Mapping[str, Any] | None,
    block: tuple[int, int] | None,
) -> Stored:
    """`layer`: what ComfyUI says of it; `block`: what config.json says of blocks."""
    data, scales = tensors["data"], tensors["scales"]
    who = f"tensor {data.name!r}"
    if "g_idx" in tensors:
        raise _Problem(f"{who} has an order of its groups ({tensors['g_idx'].name!r}), which is not known here")
    if "pre_quant_scale" in tensors:
        raise _Problem(f"{who} is for inputs times {tensors['pre_quant_scale'].name!r}, which is not known here")
    shape, packing, element = data.shape, "plain", data.row
    assert element is not None
    if layer is not None and not comfyui.is_plain(layer, element):
        raise _Problem(f"{who} of {element.name} has ComfyUI's format {dict(layer)}, which is not known here")
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
    format = found_format(element, scale_row, shape, scales.shape, not symmetric, block, scales.name, who)
    if packing == "bytes" and format.block != (16 if scale_row is _E4M3 else 32,):
        # MXFP6 is packed in bytes too: its groups seem to be of 48.
        raise _Problem(f"{who} of UINT8 has scales, {scales.name!r}, in a form that is not known here")
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
