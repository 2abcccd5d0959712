# SPDX-License-Identifier: Apache-2.0
"""Works out from types, shapes and the block size in config.json how tensors that are named like codes and scales store
a quantized tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucast.convert.scales import comfyui
from gpucast.convert.scales.scale_styles import ENTRY, stored
from gpucast.convert.scales.stored import Packing, Stored, words
from gpucast.convert.streaming.pieces import axis
from gpucast.core.dtypes import DType, dtype
from gpucast.files import Spec, Tensor
from gpucast.quantization import quantized_files
from gpucast.quantization.formats import Block, Format, ScaleRule

#: The blocks that are tried first, in this order, with scales of any type.
_UNSPLIT: tuple[Block, ...] = ("tensor", "axis")
_SQUARE = (128, 128)
#: Usual lengths of groups.
_GROUPS = (128, 64, 32, 16)
_FLOAT, _E4M3, _E8M0 = dtype("FLOAT"), dtype("FLOAT8E4M3FN"), dtype("FLOAT8E8M0")
_EXACT = (_FLOAT, dtype("FLOAT16"), dtype("BFLOAT16"))
#: The bytes of a group of gpt-oss.
_GROUP_BYTES = 16


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
    # Without a word of it, blocks of float8 may have other lengths than the usual ones.
    blocks = [*_UNSPLIT, *also, *([configured] if configured else [] if is_block_wise else [_SQUARE])]
    for block in blocks:
        format = Format("found", element, scale, block, rule, zero_points, scale is _E4M3)
        if scales_shape in _shapes(format, shape):
            return format
    if configured is None and len(scales_shape) == len(shape):
        # The experts of Llama 4, which transformers stores as (E, 1, columns) and, of down_proj, (E, columns, 1); and
        # weights [inputs, outputs]. Of a square nobody can tell rows from columns.
        of_columns = [(*shape[:-2], 1, shape[-1])] + [(*shape[:-2], shape[-1], 1)] * (shape[-2:-1] != shape[-1:])
        is_column = len(shape) > 1 and shape[-1] > 1 and scales_shape in of_columns[: len(shape) - 1]
        if is_column and (len(shape) > 2 or shape[0] != shape[1]):
            height = next(n for n in range(min(_SQUARE[0], shape[-2]), 0, -1) if shape[-2] % n == 0)
            return Format("found", element, scale, (height, 1), rule, zero_points, scale is _E4M3)
        is_turned = is_block_wise and len(shape) > 2 and shape[-1] == shape[-2] > 1 and scales_shape == (*shape[:-1], 1)
        if is_turned:
            raise ValueError(
                f"{caller}: its scales {name!r} have the shape {scales_shape}, and rows and columns are equally many; "
                f"Llama 4 means columns there, others rows; for rows say weight_block_size: [1, {shape[-1]}] in the "
                "quantization_config of config.json"
            )
        lengths = _lengths(shape[-1], scales_shape[-1])
        if scales_shape[:-1] == shape[:-1] and lengths:
            return Format("found", element, scale, (_only(lengths, caller, name),), rule, zero_points, scale is _E4M3)
        if is_block_wise and len(shape) > 1 and scales_shape[:-2] == shape[:-2]:
            pairs = list(zip(shape[-2:], scales_shape[-2:], strict=True))
            if all(any(-(-size // n) == count for n in _GROUPS) for size, count in pairs):
                # One block holds all elements, whatever its length.
                rows, columns = (_SQUARE[0] if n == 1 else _only(_lengths(size, n), caller, name) for size, n in pairs)
                return Format("found", element, scale, (rows, columns), rule)
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
    wanted = format.scales_shape(shape, axis(format, len(shape)))
    return [wanted, (*wanted, *[1] * (len(shape) - 1))] if format.block == "axis" else [wanted]


def _lengths(size: int, count: int) -> list[int]:
    """The lengths that `count` groups of a dimension may have: the equal division, and usual lengths."""
    if not count:
        return []
    equal = [size // count] if size % count == 0 else []
    usual = [n for n in _GROUPS if -(-size // n) == count]
    # One group holds all elements, whatever its length.
    return equal if count == 1 else list(dict.fromkeys(equal + usual))


def _only(lengths: list[int], caller: str, name: str) -> int:
    if len(lengths) > 1:
        raise ValueError(
            f"{caller}: its scales {name!r} may be for groups of {lengths[0]} or {lengths[1]}; weight_block_size of a "
            "quantization_config in config.json decides for float8"
        )
    return lengths[0]


def is_narrow(data: Tensor) -> bool:
    """Whether a tensor can hold codes. If not, it is an ordinary weight under any name."""
    element = data.dtype
    if element is None:
        return False
    if data.name.endswith("_packed") or element.name == "UINT8":
        return True
    return (element.is_float or element.name == "INT8") and element.bits <= 8


def stored_by_gpucast(base: str, tensors: Mapping[str, Tensor], text: str) -> Stored:
    """How a tensor is stored in gpucast's own style; `text` is its metadata entry. ValueError if it is malformed."""
    caller = f"tensor {base!r}"
    format, kept = quantized_files.parse_entry(text, caller, ENTRY + base)
    data = tensors["data"]
    if not data.size or len(data.shape) < format.min_ndim:
        raise ValueError(f"{caller} has shape {data.shape}, which convert does not quantize as {format.name}")
    expected = stored("gpucast", data.name, data.shape, format, dtype("FLOAT"), asked_for=True)
    if kept["axis"] != axis(format, len(data.shape)) or kept["scale_layout"] != "linear":
        raise ValueError(
            f"{caller} has axis {kept['axis']!r}, scale_layout {kept['scale_layout']!r}, not as convert writes"
        )
    for part, spec in expected.specs.items():
        if part not in tensors:
            raise ValueError(f"{caller}: {spec.name!r} is missing")
        _expect(tensors[part], spec.dtype, [spec.shape])
    return Stored(data.name, data.shape, format, expected.specs)


def stored_by_others(
    base: str,
    tensors: Mapping[str, Tensor],
    layer: Mapping[str, Any] | None,
    block: tuple[int, int] | None,
) -> Stored:
    """How a tensor is stored in the style of another program. ValueError for a form that is not known.

    `layer` is ComfyUI's description of the layer, `block` the block size in config.json.
    """
    data, scales = tensors["data"], tensors["scales"]
    caller = f"tensor {data.name!r}"
    _check_parts(tensors, caller)
    assert data.dtype is not None
    if layer is not None and (swizzled := comfyui.stored_swizzled(data.name, tensors, layer)) is not None:
        return swizzled
    if layer is not None and not comfyui.is_plain(layer, data.dtype):
        raise ValueError(
            f"{caller} of {data.dtype.name} has ComfyUI's format {comfyui.shown(layer)}, which is not known here"
        )
    symmetric = "zero_points" not in tensors
    element, shape, packing = _codes(tensors, symmetric, caller)
    scale_dtype = _scale_dtype(scales, caller)
    if not symmetric and (element.is_float or scale_dtype is not _FLOAT):
        raise ValueError(
            f"{caller}: zero points {tensors['zero_points'].name!r} go with codes of integers and scales of FLOAT, "
            f"FLOAT16 or BFLOAT16, not with {element.name} and {scale_dtype.name}"
        )
    format = detect_format(element, scale_dtype, shape, scales.shape, not symmetric, block, scales.name, caller)
    if packing == "bytes" and format.block != (16 if scale_dtype is _E4M3 else 32,):
        raise ValueError(f"{caller} of {data.kind} has scales, {scales.name!r}, in a form that is not known here")
    specs = _checked_specs(tensors, format, shape, packing, caller)
    return Stored(base, shape, format, specs, packing, "global_scale" in tensors)


def _check_parts(tensors: Mapping[str, Tensor], caller: str) -> None:
    """ValueError for parts that change the numbers in ways that are not known, or twice."""
    if "g_idx" in tensors:
        raise ValueError(f"{caller} has an order of its groups ({tensors['g_idx'].name!r}), which is not known here")
    if "pre_quant_scale" in tensors:
        raise ValueError(f"{caller} is for inputs times {tensors['pre_quant_scale'].name!r}, which is not known here")
    if {"global_scale", "second_scale"} <= tensors.keys():
        names = " and ".join(repr(tensors[part].name) for part in ("global_scale", "second_scale"))
        raise ValueError(f"{caller} has two global scales, {names}; expected one of them")


def _codes(tensors: Mapping[str, Tensor], symmetric: bool, caller: str) -> tuple[DType, tuple[int, ...], Packing]:
    """The type of the codes, their shape, and how they are packed."""
    data, scales = tensors["data"], tensors["scales"]
    element, shape = data.dtype, data.shape
    assert element is not None
    packing: Packing = "plain"
    # Integers have no scales of this type: their bytes are pairs of codes.
    pairs = element.name == "INT8" and _bytes_of(scales)
    if element.name == "UINT8" or pairs:
        if not shape or not ({"global_scale", "second_scale"} & tensors.keys() or _bytes_of(scales)):
            raise ValueError(
                f"{caller} of {element.name} has scales, {scales.name!r}, in a form that is not known here"
            )
        # MXFP6 has 24 bytes for a scale, MXFP4 has 16.
        is_mxfp6 = not pairs and scales.shape[-1:] == (shape[-1] / 24,)
        element = dtype("FLOAT6E2M3" if is_mxfp6 else "FLOAT4E2M1")
        shape, packing = (*shape[:-1], shape[-1] * 8 // element.bits), "bytes"
    elif element.name == "INT32":
        shape = _shape(tensors, caller)
        packing, element = "words", _integer(caller, shape, data.shape, symmetric)
    if any(n == 0 for n in shape):
        raise ValueError(f"{caller} has no elements")
    return element, shape, packing


def _checked_specs(
    tensors: Mapping[str, Tensor], format: Format, shape: tuple[int, ...], packing: Packing, caller: str
) -> dict[str, Spec]:
    """The parts of a format. ValueError for parts of other types or shapes, and for one too many or too few."""
    scales = tensors["scales"]
    specs = {"data": _spec(tensors["data"]), "scales": _spec(scales)}
    second = tensors.get("global_scale", tensors.get("second_scale"))
    if second is not None:
        _expect(second, _FLOAT, [(), (1,)])
        if not format.global_scale:
            raise ValueError(f"{caller}: {second.name!r} goes with scales of FLOAT8E4M3FN, not of {format.scale.name}")
        specs["global_scale"] = _spec(second)
    elif format.global_scale:
        raise ValueError(f"{caller} has scales of FLOAT8E4M3FN, and no global scale")
    if (zero := tensors.get("zero_points")) is not None:
        if packing == "words":
            rows = shape[0]
            _expect(zero, dtype("INT32"), [(words(rows, format.element.bits), math.prod(scales.shape) // rows)])
        else:
            _expect(zero, dtype("INT8"), [scales.shape])
        specs["zero_points"] = _spec(zero)
    return specs


def _spec(tensor: Tensor) -> Spec:
    return Spec(tensor.name, tensor.dtype, tensor.shape)


def _bytes_of(scales: Tensor) -> bool:
    """Whether the scales are FLOAT8E8M0, also if stored as plain bytes."""
    return scales.dtype is not None and scales.dtype.name in ("UINT8", "FLOAT8E8M0") and len(scales.shape) > 1


def _expect(tensor: Tensor, expected: DType | None, shapes: Sequence[tuple[int, ...]]) -> None:
    if tensor.dtype is not expected or tensor.shape not in shapes:
        wanted = f"{expected.name if expected else None} {' or '.join(map(str, shapes))}"
        raise ValueError(f"tensor {tensor.name!r} is {tensor.kind} {tensor.shape}; expected {wanted}")


def _scale_dtype(scales: Tensor, caller: str) -> DType:
    stored_as = scales.dtype
    if stored_as in _EXACT:
        return _FLOAT
    if stored_as is _E4M3 or stored_as is _E8M0:
        return stored_as
    if stored_as is not None and stored_as.name == "UINT8":
        return _E8M0
    raise ValueError(
        f"{caller}: its scales {scales.name!r} are {scales.kind}, which is not known here; expected FLOAT, FLOAT16, "
        "BFLOAT16, FLOAT8E4M3FN, or FLOAT8E8M0 (also as UINT8)"
    )


def _shape(tensors: Mapping[str, Tensor], caller: str) -> tuple[int, ...]:
    if "shape" not in tensors:
        raise ValueError(f"{caller} is packed, and its weight_shape is missing")
    shape_tensor = tensors["shape"]
    if shape_tensor.shape != (2,) or shape_tensor.dtype is None or shape_tensor.dtype.name not in ("INT64", "INT32"):
        raise ValueError(
            f"tensor {shape_tensor.name!r} is {shape_tensor.kind} {shape_tensor.shape}; expected INT64 (2,)"
        )
    rows, columns = shape_tensor.read().tolist()
    data = tensors["data"].shape
    if len(data) != 2 or rows != data[0] or not 0 < columns <= data[1] * 32:
        raise ValueError(
            f"{caller} of shape {data} cannot hold the shape ({rows}, {columns}) that {shape_tensor.name!r} tells"
        )
    return rows, columns


def _integer(caller: str, shape: tuple[int, ...], packed: tuple[int, ...], symmetric: bool) -> DType:
    """The type of the codes; their width follows from the number of packed words."""
    widths = [bits for bits in (2, 4, 8) if words(shape[1], bits) == packed[1]]
    if len(widths) != 1:
        raise ValueError(f"{caller}: {packed[1]} words for rows of {shape[1]} codes leave open how wide a code is")
    return dtype(f"{'INT' if symmetric else 'UINT'}{widths[0]}")


# ---- names of codes and scales ----


@dataclass(frozen=True)
class Source:
    """How checkpoints name the codes and scales of a weight."""

    style: str
    #: What the names of the scales, the weight and its codes end in.
    scales: str
    weight: str = ""
    codes: str = ""
    #: The types without which such tensors are something else; "" for any.
    codes_type: str = ""
    scales_type: str = ""
    #: How a weight is stored, from its name, codes and scales; ValueError for a form that is not known. None for a form
    #: that `stored_by_others` tells from types and shapes.
    stored: Callable[[str, Tensor, Tensor], Stored] | None = None
    #: What follows the name of the weight in those of further parts; after a "~" without its "weight".
    more: Mapping[str, str] = field(default_factory=dict)

    def fits(self, codes: Tensor, scales: Tensor) -> bool:
        """Whether these tensors can be the scales of such codes, by their types."""
        pairs = ((codes, self.codes_type), (scales, self.scales_type))
        return all(not name or (part.dtype is not None and part.dtype.name == name) for part, name in pairs)

    def parts(self, base: str, codes: str, scales: str) -> dict[str, str]:
        """The names of the tensors that may store a weight, by part."""
        stem = base.removesuffix("weight")
        more = {part: stem + end[1:] if end[0] == "~" else base + end for part, end in self.more.items()}
        return {"data": codes, "scales": scales, **more}


def _gpt_oss(base: str, codes: Tensor, scales: Tensor) -> Stored:
    if len(codes.shape) != 4 or codes.shape[-1] != _GROUP_BYTES or scales.shape != codes.shape[:-1] or not codes.size:
        raise ValueError(
            f"tensor {codes.name!r} has shape {codes.shape}, and its scales {scales.name!r} have {scales.shape}; "
            f"expected (experts, rows, groups, {_GROUP_BYTES}) and (experts, rows, groups)"
        )
    if scales.dtype is None or scales.dtype.name not in ("UINT8", "FLOAT8E8M0"):
        raise ValueError(f"tensor {scales.name!r} is {scales.kind}; expected UINT8 or FLOAT8E8M0")
    experts, rows, groups, _ = codes.shape
    format = Format("found", dtype("FLOAT4E2M1"), _E8M0, (32,), "floor")
    specs = {"data": _spec(codes), "scales": _spec(scales)}
    return Stored(base, (experts, rows, groups * 32), format, specs, "bytes", transposed=True)


_COMPRESSED = {
    "zero_points": "_zero_point",
    "global_scale": "_global_scale",
    "second_scale": "_scale_2",
    "shape": "_shape",
    "g_idx": "_g_idx",
    "pre_quant_scale": "~pre_quant_scale",
}
#: The first whose codes are there counts.
SOURCES = (
    # Where an entry of the metadata describes the weight.
    Source("gpucast", ".scales", more={"zero_points": ".zero_points", "global_scale": ".global_scale"}),
    Source("deepseek", "_scale_inv"),
    Source("comfyui", "scale_weight", "weight", "weight"),
    # Weights of FLOAT8E4M3FN have a scale for each block of 128x128; those of routed experts (expert_dtype fp4) are
    # pairs of FLOAT4E2M1 in INT8, the first in the low half, with a scale for each 32 elements of a row. Sources:
    # deepseek-ai/DeepSeek-V4-Flash (quantization_config: scale_fmt ue8m0, weight_block_size [128, 128]); transformers,
    # integrations/finegrained_fp8.py Fp8Dequantize and quantizers/quantizer_finegrained_fp8.py, which renames `.scale`.
    Source("deepseek-v4", ".scale", ".weight", ".weight", scales_type="FLOAT8E8M0"),
    # The experts: X_blocks UINT8 of shape (..., groups, 16), X_scales UINT8 of shape (..., groups). A byte of blocks is
    # two codes, the first in the low half. The rows are the outputs of the layer, whereas the weight X of the model has
    # them last: (experts, inputs, outputs). Source: transformers, integrations/mxfp4.py convert_moe_packed_tensors
    # (`out.transpose(1, 2)`).
    Source("gpt-oss", "_scales", "", "_blocks", "UINT8", stored=_gpt_oss),
    # And ModelOpt.
    Source("compressed-tensors", "_scale", "", "_packed", more=_COMPRESSED),
    Source("compressed-tensors", "_scale", more=_COMPRESSED),
)
