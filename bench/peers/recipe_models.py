# SPDX-License-Identifier: Apache-2.0
"""What other libraries' quantizers compute, in NumPy, written from their public source at the commits in
`gpucast.quantization.RECIPES`. Each function follows its library's order of operations, so that its results are
evidence for the recipe of that name; none uses gpucast. Numbers are finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

NDArray = npt.NDArray[Any]
#: Codes, scales and the global scale (1 where there is none) of a matrix.
Found = tuple[NDArray, NDArray, Any]

_E4M3, _E5M2, _E2M1, _E8M0 = (
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu,
)  # fmt: skip
_E2M3, _E3M2 = ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn
_LIMIT = {_E4M3: 448.0, _E5M2: 57344.0, _E2M1: 6.0, _E2M3: 7.5, _E3M2: 28.0}
_MX = {"8": _E4M3, "8-e5m2": _E5M2, "6-e2m3": _E2M3, "6-e3m2": _E3M2, "4": _E2M1}
_F32 = np.float32
_finfo: Any = ml_dtypes.finfo
_TOP = np.finfo(np.float32).max


def models() -> dict[str, Callable[[NDArray], Found]]:
    """The functions by the names of recipes."""
    return {
        "deepgemm": lambda x: _deepgemm(x, (1, 128), False),
        "deepgemm-128x128": lambda x: _deepgemm(x, (128, 128), False),
        "deepgemm-ue8m0": lambda x: _deepgemm(x, (1, 128), True),
        "deepgemm-ue8m0-128x128": lambda x: _deepgemm(x, (128, 128), True),
        "deepgemm-cuda": lambda x: _deepgemm(x, (1, 128), False, True),
        "deepgemm-cuda-128x128": lambda x: _deepgemm(x, (128, 128), False, True),
        "tilekernels": lambda x: _tilekernels(x, (1, 128)),
        "tilekernels-128x128": lambda x: _tilekernels(x, (128, 128)),
        "torchao-mxfp8-floor": lambda x: _torchao_mx(x, _E4M3, "floor"),
        "torchao-mxfp8-even": lambda x: _torchao_mx(x, _E4M3, "even"),
        "torchao-mxfp8-rceil": lambda x: _torchao_mx(x, _E4M3, "rceil"),
        "torchao-mxfp4-floor": lambda x: _torchao_mx(x, _E2M1, "floor"),
        "torchao-mxfp4-even": lambda x: _torchao_mx(x, _E2M1, "even"),
        "torchao-mxfp4-rceil": lambda x: _torchao_mx(x, _E2M1, "rceil"),
        "torchao-0.18-mxfp8-floor": lambda x: _torchao_mx(x, _E4M3, "floor", normal=True),
        "torchao-0.18-mxfp8-even": lambda x: _torchao_mx(x, _E4M3, "even", normal=True),
        "torchao-0.18-mxfp4-floor": lambda x: _torchao_mx(x, _E2M1, "floor", normal=True),
        "torchao-0.18-mxfp4-even": lambda x: _torchao_mx(x, _E2M1, "even", normal=True),
        "torchao-float8-row": lambda x: _torchao_float8(x, (1, x.shape[1])),
        "torchao-float8-tensor": lambda x: _torchao_float8(x, x.shape),
        "torchao-float8-cuda-row": lambda x: _torchao_float8(x, (1, x.shape[1]), True),
        "torchao-float8-cuda-tensor": lambda x: _torchao_float8(x, x.shape, True),
        "torchao-float8-training-row": lambda x: _torchao_training(x, (1, x.shape[1])),
        "torchao-float8-training-tensor": lambda x: _torchao_training(x, x.shape),
        "torchao-nvfp4": lambda x: _torchao_nvfp4(x, True),
        "torchao-nvfp4-cuda": lambda x: _torchao_nvfp4(x, True, True),
        "torchao-nvfp4-one-level": lambda x: _torchao_nvfp4(x, False),
        "torchao-int4-32": lambda x: _torchao_int(x, 4, (1, 32)),
        "torchao-int4-128": lambda x: _torchao_int(x, 4, (1, 128)),
        "torchao-int8-row": lambda x: _torchao_int(x, 8, (1, x.shape[1])),
        "compressed-tensors-fp8": lambda x: _compressed(x, x.shape, 448.0, None),
        "compressed-tensors-fp8-row": lambda x: _compressed(x, (1, x.shape[1]), 448.0, None),
        "compressed-tensors-fp8-128x128": lambda x: _compressed(x, (128, 128), 448.0, None),
        "compressed-tensors-int4-128": lambda x: _compressed(x, (1, 128), 7.5, 8),
        "compressed-tensors-int4-32": lambda x: _compressed(x, (1, 32), 7.5, 8),
        "compressed-tensors-int4-row": lambda x: _compressed(x, (1, x.shape[1]), 7.5, 8),
        "compressed-tensors-int8-128": lambda x: _compressed(x, (1, 128), 127.5, 128),
        "compressed-tensors-int8-row": lambda x: _compressed(x, (1, x.shape[1]), 127.5, 128),
        "comfy-kitchen-fp8": lambda x: _comfy_float8(x, _E4M3),
        "comfy-kitchen-fp8-e5m2": lambda x: _comfy_float8(x, _E5M2),
        "comfy-kitchen-nvfp4": _comfy_nvfp4,
        "compressed-tensors-mxfp4": lambda x: _compressed_mx(x, _E2M1, 2),
        "compressed-tensors-mxfp8": lambda x: _compressed_mx(x, _E4M3, 8),
        "compressed-tensors-nvfp4": _compressed_nvfp4,
        "te-float8-current": lambda x: _te_float8(x, x.shape, _E4M3, False),
        "te-float8-current-e5m2": lambda x: _te_float8(x, x.shape, _E5M2, False),
        "te-float8-block": lambda x: _te_float8(x, (1, 128), _E4M3, True),
        "te-float8-block-128x128": lambda x: _te_float8(x, (128, 128), _E4M3, True),
        "te-mxfp8": lambda x: _te_mxfp8(x, _E4M3),
        "te-mxfp8-e5m2": lambda x: _te_mxfp8(x, _E5M2),
        "te-nvfp4": lambda x: _te_nvfp4(x, (1, 16)),
        "te-nvfp4-16x16": lambda x: _te_nvfp4(x, (16, 16)),
        "modelopt-nvfp4": _modelopt_nvfp4,
        "modelopt-nvfp4-cuda": lambda x: _modelopt_nvfp4(x, True),
        "modelopt-fp8-cuda": lambda x: _modelopt_fp8(x, True),
        "modelopt-fp8": _modelopt_fp8,
        "vllm-fp8-token": lambda x: _vllm_fp8(x, (1, x.shape[1]), "token"),
        "vllm-fp8-tensor": lambda x: _vllm_fp8(x, x.shape, "tensor"),
        "vllm-fp8-group": lambda x: _vllm_fp8(x, (1, 128), "group"),
        "vllm-nvfp4": _vllm_nvfp4,
        "flashinfer-nvfp4-exact": _flashinfer_nvfp4,
        "flashinfer-nvfp4": _vllm_nvfp4,
        **{f"microxcaling-mxfp{name}": _microxcaling(element, "away") for name, element in _MX.items()},
        **{f"microxcaling-mxfp{name}-round-even": _microxcaling(element, "even") for name, element in _MX.items()},
    }


def spread(of_blocks: Any, block: tuple[int, ...]) -> Any:
    """What belongs to blocks, for each of their elements."""
    return of_blocks.repeat(block[0], 0).repeat(block[1], 1)


def _over(a: Any, number: float, cuda: bool) -> Any:
    """A tensor divided by a number in PyTorch, which multiplies by the reciprocal on a GPU (BinaryDivTrueKernel.cu)."""
    if not cuda:
        return a / a.dtype.type(number)
    return (a.astype(_F32) * (_F32(1) / _F32(number))).astype(a.dtype)


def _amax(x: NDArray, block: tuple[int, ...]) -> Any:
    rows, columns = x.shape[0] // block[0], x.shape[1] // block[1]
    return np.abs(x).reshape(rows, block[0], columns, block[1]).max((1, 3))


def _narrow(q: Any, element: Any) -> Any:
    """To a narrow float, which saturates."""
    limit = _F32(_LIMIT[element])
    return np.clip(q, -limit, limit).astype(element)


def _next_power(scale: Any) -> Any:
    """The biased exponent of a FLOAT, one more where a bit of its mantissa is set; subnormals as E8M0 has them."""
    bits = scale.view(np.uint32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    return np.minimum(exponent + np.where(exponent == 0, mantissa > 0x400000, mantissa != 0), 254).astype(np.uint8)


def _powers(codes: Any) -> Any:
    return codes.view(_E8M0).astype(_F32)


# ---- DeepSeek: DeepGEMM (deep_gemm/utils/math.py), TileKernels (tile_kernels/torch/cast.py) ----


def _deepgemm(x: NDArray, block: tuple[int, ...], powers: bool, cuda: bool = False) -> Found:
    amax = np.maximum(_amax(x, block).astype(_F32), _F32(1e-4))
    scale = _over(amax, 448, cuda)
    if powers:
        scale = _powers(np.maximum(_next_power(scale), 1))
    codes = _narrow(x.astype(_F32) * spread(_F32(1) / scale, block), _E4M3)
    return codes, scale, 1


def _tilekernels(x: NDArray, block: tuple[int, ...]) -> Found:
    amax = np.maximum(_amax(x, block).astype(_F32), _F32(1e-4))
    return _narrow(x.astype(_F32) * spread(_F32(448) / amax, block), _E4M3), amax / _F32(448), 1


# ---- torchao: mx_tensor.py, nvfp4_tensor.py, float8_utils.py, quant_primitives.py ----


def _torchao_mx(x: NDArray, element: Any, mode: str, normal: bool = False) -> Found:
    amax = _amax(x, (1, 32)).astype(_F32)
    if mode == "rceil":
        codes = _next_power(amax * _F32(1 / _LIMIT[element]))
    else:
        bits = amax.view(np.int32)
        if mode == "even":
            bits = bits + (1 << (23 - _finfo(element).nmant - 1))
        power = int(np.floor(np.log2(_LIMIT[element])))
        codes = np.clip((bits >> 23 & 0xFF) - 127 - power, -127, 127) + 127
    scale = _powers(codes.astype(np.uint8))
    factor = _F32(1) / (np.maximum(scale, np.finfo(_F32).smallest_normal) if normal else scale)
    return _narrow(x.astype(_F32) * spread(factor, (1, 32)), element), scale, 1


def _torchao_float8(x: NDArray, block: tuple[int, ...], cuda: bool = False) -> Found:
    scale = _over(_amax(x, block), 448, cuda).astype(_F32)
    return _narrow(x.astype(_F32) / spread(scale, block), _E4M3), scale, 1


def _torchao_training(x: NDArray, block: tuple[int, ...]) -> Found:
    factor = (448 / np.maximum(_amax(x, block).astype(np.float64), 1e-12)).astype(_F32)
    return _narrow(x.astype(_F32) * spread(factor, block), _E4M3), _F32(1) / factor, 1


def _torchao_nvfp4(x: NDArray, two_levels: bool, cuda: bool = False) -> Found:
    g = _over(np.abs(x).max().astype(_F32), 448 * 6, cuda) if two_levels else _F32(1)
    scale = _over(_amax(x, (1, 16)).astype(_F32), 6, cuda)
    scale = np.clip(scale / g, _F32(2**-6), _F32(448)).astype(_E4M3)
    factor = _F32(1) / g / scale.astype(_F32)
    return _narrow(x.astype(_F32) * spread(factor, (1, 16)), _E2M1), scale, g


def _torchao_int(x: NDArray, bits: int, block: tuple[int, ...]) -> Found:
    kind, half = x.dtype.type, 1 << bits - 1
    scale = np.maximum(_amax(x, block) / kind((2 * half - 1) / 2), _finfo(x.dtype).smallest_normal)
    codes = np.rint(x * spread(kind(1) / scale, block))
    return np.clip(codes, -half, half - 1).astype(np.int8), scale.astype(_F32), 1


# ---- compressed-tensors: quantization/utils, lifecycle/forward_helpers.py ----


def _compressed(x: NDArray, block: tuple[int, ...], most: float, half: int | None) -> Found:
    scale = _amax(x, block) / x.dtype.type(most)
    scale = np.where(scale == 0, _finfo(x.dtype).eps, scale)
    q = x / spread(scale, block)
    if half is None:
        return _narrow(q.astype(_F32), _E4M3), scale.astype(_F32), 1
    codes = np.rint(np.clip(q, x.dtype.type(-half), x.dtype.type(half - 1)))
    return codes.astype(np.int8), scale.astype(_F32), 1


# ---- comfy-kitchen: backends/eager/quantization.py ----


def _comfy_float8(x: NDArray, element: Any) -> Found:
    kind, limit = x.dtype.type, x.dtype.type(_LIMIT[element])
    scale = (np.abs(x).max() / limit).astype(_F32)
    q = x * (_F32(1) / scale).astype(kind)
    return np.clip(q, -limit, limit).astype(element), scale, 1


def _comfy_nvfp4(x: NDArray) -> Found:
    one = (np.abs(x).max() / x.dtype.type(2688)).astype(_F32)
    scale = np.minimum(_amax(x, (1, 16)).astype(_F32) / _F32(6) / one, _F32(448)).astype(_E4M3)
    total = spread(one * scale.astype(_F32), (1, 16))
    q = np.where(total == 0, _F32(0), x.astype(_F32) / np.where(total == 0, _F32(1), total))
    return _narrow(q, _E2M1), scale, one


def _compressed_mx(x: NDArray, element: Any, offset: int) -> Found:
    amax = _amax(x, (1, 32)).astype(_F32)
    exponent = ((amax.view(np.int32) + (1 << 21)) >> 23) - 127 - offset
    scale = _powers(np.clip(exponent + 127, 0, 254).astype(np.uint8))
    return _narrow(x.astype(_F32) / spread(scale, (1, 32)), element), scale, 1


def _compressed_nvfp4(x: NDArray) -> Found:
    kind = x.dtype.type
    with np.errstate(over="ignore"):
        # A number divided by a tensor is its reciprocal times the number in PyTorch.
        encode = kind(1) / np.maximum(np.abs(x).max(), _finfo(x.dtype).smallest_normal) * kind(448 * 6)
    encode = _F32(encode) if np.isfinite(_F32(encode)) else _F32(1)
    scale = encode * (_amax(x, (1, 16)) / kind(6)).astype(_F32)
    scale = np.minimum(scale, _F32(448)).astype(_E4M3)
    scale = np.where(scale.astype(_F32) == 0, _E4M3(0.125), scale)
    q = x.astype(_F32) / spread(scale.astype(_F32) / encode, (1, 16))
    return _narrow(q, _E2M1), scale, _F32(1) / encode


# ---- TransformerEngine: recipe_common.cuh, quantize_mxfp8.cuh, core_nvfp4.cuh, reference_nvfp4.py ----


def _te_float8(x: NDArray, block: tuple[int, ...], element: Any, powers: bool) -> Found:
    amax = _amax(x, block).astype(_F32)
    with np.errstate(all="ignore"):
        factor = np.minimum(_F32(_LIMIT[element]) / amax, _TOP)
    if powers:
        factor = (factor.view(np.uint32) & 0xFF800000).view(_F32)
    factor = np.where(amax == 0, _F32(1), factor)
    return _narrow(x.astype(_F32) * spread(factor, block), element), _F32(1) / factor, 1


def _te_mxfp8(x: NDArray, element: Any) -> Found:
    codes = _next_power(_amax(x, (1, 32)).astype(_F32) * (_F32(1) / _F32(_LIMIT[element])))
    factor = _powers((254 - codes).astype(np.uint8))
    return _narrow(x.astype(_F32) * spread(factor, (1, 32)), element), _powers(codes), 1


def _te_nvfp4(x: NDArray, block: tuple[int, ...]) -> Found:
    top = np.abs(x).max().astype(_F32)
    with np.errstate(all="ignore"):
        encode = np.minimum(_F32(448 * 6) / top, _TOP) if top else _F32(1)
        decode = _F32(1) / encode
        multiplier = encode * (_F32(1) / _F32(6))
        scale = np.minimum(_amax(x, block).astype(_F32) * multiplier, _F32(448)).astype(_E4M3)
        factor = np.minimum(_F32(1) / (scale.astype(_F32) * decode), _TOP)
    return _narrow(x.astype(_F32) * spread(factor, block), _E2M1), scale, decode


# ---- ModelOpt: qtensor/nvfp4_tensor.py, qtensor/fp8_tensor.py ----


def _modelopt_nvfp4(x: NDArray, cuda: bool = False) -> Found:
    g = _over(np.abs(x).max().astype(_F32), 6 * 448, cuda)
    scale = _amax(x, (1, 16)).astype(_F32) / (_F32(6) * g)
    scale = np.where(scale == 0, _F32(1), scale)
    scale = np.clip(scale, _F32(2**-9), _F32(448)).astype(_E4M3)
    return _narrow(x.astype(_F32) / spread(scale.astype(_F32) * g, (1, 16)), _E2M1), scale, g


def _modelopt_fp8(x: NDArray, cuda: bool = False) -> Found:
    scale = _over(_amax(x, x.shape), 448, cuda)
    return _narrow((x / spread(scale, x.shape)).astype(_F32), _E4M3), scale.astype(_F32), 1


# ---- vLLM: fp8/common.cu, per_token_group_quant.cu, the reference in test_nvfp4_quant.py ----


def _vllm_fp8(x: NDArray, block: tuple[int, ...], kind: str) -> Found:
    amax = _amax(x, block).astype(_F32)
    if kind == "group":
        scale = np.maximum(amax, _F32(1e-10)) / _F32(448)
    else:
        scale = amax / _F32(448)
    if kind == "tensor":
        return _narrow(x.astype(_F32) * spread(_F32(1) / scale, block), _E4M3), scale, 1
    if kind == "token":
        scale = np.maximum(scale, _F32(1) / _F32(448 * 512))
    return _narrow(x.astype(_F32) / spread(scale, block), _E4M3), scale, 1


def _vllm_nvfp4(x: NDArray) -> Found:
    encode = _F32(1) / np.abs(x).max().astype(_F32) * _F32(448 * 6)
    scale = encode * (_amax(x, (1, 16)).astype(_F32) * _F32(1 / 6))
    scale = np.minimum(scale, _F32(448)).astype(_E4M3)
    both = scale.astype(_F32) * (_F32(1) / encode)
    with np.errstate(divide="ignore"):
        factor = np.where(both == 0, _F32(0), _F32(1) / both)
    return _narrow(x.astype(_F32) * spread(factor, (1, 16)), _E2M1), scale, _F32(1) / encode


# ---- FlashInfer: DISABLE_FP4_QUANT_FAST_MATH in quantization_utils.cuh ----


def _flashinfer_nvfp4(x: NDArray) -> Found:
    with np.errstate(all="ignore"):
        encode = _F32(1) / np.abs(x).max().astype(_F32) * _F32(448 * 6)
        amax = _amax(x, (1, 16)).astype(_F32)
        scale = np.where(amax != 0, amax * (encode * (_F32(1) / _F32(6))), _F32(0))
        scale = np.minimum(scale, _F32(448)).astype(_E4M3)
        factor = np.minimum(_F32(1) / (scale.astype(_F32) * (_F32(1) / encode)), _TOP)
    factor = np.where(amax != 0, factor, _F32(0))
    return _narrow(x.astype(_F32) * spread(factor, (1, 16)), _E2M1), scale, _F32(1) / encode


# ---- microxcaling: mx/cpp/quantize.cuh, shared_exp.cuh ----


def _microxcaling(element: Any, rounding: str) -> Callable[[NDArray], Found]:
    info, largest = _finfo(element), _LIMIT[element]

    def found(x: NDArray) -> Found:
        exponent = (_amax(x, (1, 32)).astype(_F32).view(np.int32) >> 23) - int(np.log2(largest))
        scale = _powers(np.clip(exponent, 0, 254).astype(np.uint8))
        y = x.astype(_F32) / spread(scale, (1, 32))
        if rounding == "even":
            return _narrow(y, element), scale, 1
        magnitude = np.abs(y.astype(np.float64))
        lowest = np.log2(float(info.smallest_normal))
        unit = 2.0 ** (np.maximum(np.frexp(magnitude)[1] - 1.0, lowest) - info.nmant)
        codes = np.minimum(np.floor(magnitude / unit + 0.5) * unit, largest)
        return np.copysign(codes, y).astype(element), scale, 1

    return found
