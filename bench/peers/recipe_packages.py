# SPDX-License-Identifier: Apache-2.0
"""The libraries of `gpucast.quantization.RECIPES` themselves, on the CPU, with the results of `recipe_models`.

torchao and compressed-tensors are installed packages. The references of DeepGEMM, TileKernels, TransformerEngine,
ModelOpt and FlashInfer are single files of PyTorch, those of microxcaling C++: the variable GPUCAST_PEER_SOURCES names
a folder with checkouts of these names. What their files import without needing it here is replaced by empty modules.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bench.host.casts import tensor
from bench.peers.outcomes import compiled
from bench.peers.recipe_models import Found, NDArray
from bench.revision import ROOT

Reference = Callable[[NDArray], Found]


def available() -> Iterator[tuple[str, Reference]]:
    """What can run here, by recipe."""
    if importlib.util.find_spec("torch") is None:
        return
    if importlib.util.find_spec("torchao") is not None:
        yield from _torchao()
    if importlib.util.find_spec("compressed_tensors") is not None:
        yield from _compressed_tensors()
    if importlib.util.find_spec("comfy_kitchen") is not None:
        yield from _comfy_kitchen()
    folder = Path(os.environ.get("GPUCAST_PEER_SOURCES", "nowhere"))
    for name, found in _CHECKOUTS.items():
        if (folder / name).is_dir():
            yield from found(folder / name)


def _tensor(x: NDArray) -> Any:
    """A copy: some libraries write to what they are given."""
    return tensor(x.copy())


def _array(tensor: Any) -> NDArray:
    """Any tensor as the NumPy array of the numbers that it stands for."""
    import torch

    numpy: NDArray = tensor.detach().to(torch.float32).numpy()
    return numpy


def _halves(packed: Any) -> NDArray:
    """Two FLOAT4E2M1 codes of each byte, the low ones first."""
    import torch

    codes = packed.view(torch.uint8).numpy()
    both = np.stack([codes & 15, codes >> 4], -1).reshape(codes.shape[0], -1)
    return both.view(ml_dtypes.float4_e2m1fn)


# ---- installed packages ----


def _torchao() -> Iterator[tuple[str, Reference]]:
    import torch
    from torchao.float8 import float8_utils
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_training_tensor import hp_tensor_and_scale_to_float8

    def training(x: NDArray, granularity: Any, axis: int | None) -> Found:
        kind = torch.float8_e4m3fn
        scale = float8_utils.tensor_to_scale(_tensor(x), kind, scaling_granularity=granularity, axiswise_dim=axis)
        found = hp_tensor_and_scale_to_float8(_tensor(x), scale, kind)
        return _array(found._data), _array(1.0 / found._scale), 1

    adapter = _adapter("torchao")
    # 0.18 has no reciprocal of 2^-127, and RCEIL by a logarithm in FLOAT.
    is_newer = hasattr(adapter.mx_tensor, "_f32_to_e8m0_rceil")
    for name, reference in _references(adapter, "torchao"):
        if "mxfp" not in name or ("0.18" in name) != is_newer:
            yield name, reference
    yield "torchao-float8-training-row", lambda x: training(x, ScalingGranularity.AXISWISE, -1)
    yield "torchao-float8-training-tensor", lambda x: training(x, ScalingGranularity.TENSORWISE, None)


def _compressed_tensors() -> Iterator[tuple[str, Reference]]:
    adapter = _adapter("compressed_tensors")
    yield from _references(adapter, "compressed-tensors")
    for other in adapter.OTHERS:
        yield other, lambda x, other=other: adapter.quantize_tensor(_tensor(x), other)  # type: ignore[misc]


def _comfy_kitchen() -> Iterator[tuple[str, Reference]]:
    import torch
    from comfy_kitchen.backends import eager
    from comfy_kitchen.float_utils import from_blocked

    def float8(x: NDArray, kind: torch.dtype) -> Found:
        # As its layouts find it (tensor/fp8.py, tensor/nvfp4.py).
        given = _tensor(x)
        scale = (torch.amax(given.abs()) / torch.finfo(kind).max).float()
        return _array(eager.quantization.quantize_per_tensor_fp8(given, scale, kind)), _array(scale), 1

    def nvfp4(x: NDArray) -> Found:
        given = _tensor(x)
        one = (torch.amax(given.abs()) / (448.0 * 6.0)).float()
        codes, scales = eager.quantization.quantize_nvfp4(given, one, hi_first=False)
        scales = from_blocked(scales, num_rows=x.shape[0], num_cols=x.shape[1] // 16)
        return _halves(codes), _array(scales), one.item()

    yield "comfy-kitchen-fp8", lambda x: float8(x, torch.float8_e4m3fn)
    yield "comfy-kitchen-fp8-e5m2", lambda x: float8(x, torch.float8_e5m2)
    yield "comfy-kitchen-nvfp4", nvfp4


#: Recipes that the conformance suite knows by the names of formats with the same bits.
_FORMATS = {
    "torchao-mxfp8-floor": "mxfp8e4m3",
    "torchao-mxfp8-even": "mxfp8e4m3_even",
    "torchao-mxfp4-floor": "mxfp4",
    "torchao-mxfp4-even": "mxfp4_even",
    "compressed-tensors-mxfp4": "mxfp4_even",
}


def _adapter(name: str) -> Any:
    """The module with which the conformance suite runs a library. Loaded as a file: its folder is not on the path."""
    return _module(ROOT / f"tests/conformance/cast_conformance/adapters/{name}.py", f"adapter_{name}")


def _references(adapter: Any, library: str) -> Iterator[tuple[str, Reference]]:
    """What an adapter quantizes by a library's recipes."""
    for recipe in (*adapter.BLOCKS, *_FORMATS):
        if recipe.startswith(library):
            name = _FORMATS.get(recipe, recipe)
            yield recipe, lambda x, name=name: adapter.quantize_tensor(_tensor(x), name)  # type: ignore[misc]


# ---- files of checkouts ----


def _module(path: Path, name: str, **others: Any) -> Any:
    """The module of a file. `others`: names of modules that it imports, with what it takes from them."""
    parts = {".".join(dotted.split("__")[: i + 1]) for dotted in others for i in range(len(dotted.split("__")))}
    made = {full: types.ModuleType(full) for full in parts}
    for dotted, content in others.items():
        vars(made[dotted.replace("__", ".")]).update(content)
    for full, module in made.items():
        module.__path__ = []
        if "." in full:
            setattr(made[full.rpartition(".")[0]], full.rpartition(".")[2], module)
    before = {full: sys.modules.get(full) for full in made}
    sys.modules.update(made)
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    finally:
        for full, old in before.items():
            sys.modules.pop(full) if old is None else sys.modules.update({full: old})
    return module


def _deepgemm(folder: Path) -> Iterator[tuple[str, Reference]]:
    math = _module(folder / "deep_gemm/utils/math.py", "deepgemm_math")

    def found(function: str, powers: bool) -> Reference:
        return lambda x: (*map(_array, getattr(math, function)(_tensor(x), powers)), 1)  # type: ignore[return-value]

    yield "deepgemm", found("per_token_cast_to_fp8", False)
    yield "deepgemm-128x128", found("per_block_cast_to_fp8", False)
    yield "deepgemm-ue8m0", found("per_token_cast_to_fp8", True)
    yield "deepgemm-ue8m0-128x128", found("per_block_cast_to_fp8", True)


def _tilekernels(folder: Path) -> Iterator[tuple[str, Reference]]:
    cast = _module(
        folder / "tile_kernels/torch/cast.py",
        "tilekernels_cast",
        tile_kernels__utils={"align": lambda x, y: -(-x // y) * y, "ceil_div": lambda x, y: -(-x // y)},
        tile_kernels__quant__common={"unpack_from_e2m1fn_x2": None},
        tile_kernels__quant__types={"QuantTensor": tuple},
    )

    def found(block: tuple[int, int]) -> Reference:
        return lambda x: (*map(_array, cast.cast(_tensor(_not_half(x)), "e4m3", block)), 1)  # type: ignore[return-value]

    yield "tilekernels", found((1, 128))
    yield "tilekernels-128x128", found((128, 128))


def _not_half(x: NDArray) -> NDArray:
    """The reference refuses FLOAT16, which FLOAT holds."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _transformer_engine(folder: Path) -> Iterator[tuple[str, Reference]]:
    import torch

    references = folder / "tests/pytorch/references"
    scales = _module(references / "quantize_scale_calc.py", "te_scales")
    blocks = _module(
        references / "blockwise_quantizer_reference.py",
        "te_blocks",
        references__quantize_scale_calc={"scale_from_amax_tensor": scales.scale_from_amax_tensor},
    ).BlockwiseQuantizerReference()
    files = folder / "transformer_engine/pytorch/custom_recipes"
    gemm = types.SimpleNamespace(MMParams=object, GEMMType=types.SimpleNamespace(FPROP=0))
    utils = _module(files / "reference_utils.py", "te_reference_utils")
    nvfp4 = _module(
        files / "reference_nvfp4.py",
        "te_nvfp4",
        transformer_engine__pytorch__custom_recipes={"gemm": gemm, "reference_utils": utils},
        transformer_engine__pytorch__quantized_tensor={"QuantizedTensorStorage": object, "Quantizer": object},
    ).NVFP4QuantizerRef

    def current(x: NDArray, kind: Any) -> Found:
        given = _tensor(x)
        amax = given.float().abs().max().view(1)
        scale, inverse, _ = scales.scale_from_amax_tensor(given.dtype, amax, kind, eps=0.0, pow_2_scales=False)
        return _array((given.float() * scale).to(kind)), _array(inverse).reshape(()), 1

    def block(x: NDArray, shape: tuple[int, int]) -> Found:
        result = blocks.quantize(
            _tensor(x), torch.float8_e4m3fn, pow_2_scales=True, quant_tile_shape=shape, munge_scale_shapes=False
        )
        return _array(result.data), _array(result.scale), 1

    def four(x: NDArray, side: int) -> Found:
        given = _tensor(x)
        top = given.abs().max().to(torch.float32).view(1)
        codes, scale = nvfp4._quantize_blockwise_reference(given, top, 16, side, pow_2_scales=False, eps=0.0)
        encode = torch.clamp(torch.div(2688.0, top), max=torch.finfo(torch.float32).max) if top else torch.ones(1)
        return _halves(codes), _array(scale)[::side], (1 / encode).item()

    yield "te-float8-current", lambda x: current(x, torch.float8_e4m3fn)
    yield "te-float8-current-e5m2", lambda x: current(x, torch.float8_e5m2)
    yield "te-float8-block", lambda x: block(x, (1, 128))
    yield "te-float8-block-128x128", lambda x: block(x, (128, 128))
    yield "te-nvfp4", lambda x: four(x, 1)
    yield "te-nvfp4-16x16", lambda x: four(x, 16)


def _modelopt(folder: Path) -> Iterator[tuple[str, Reference]]:
    def largest(x: Any, block_sizes: dict[int, int]) -> Any:
        return x.abs().unflatten(-1, (-1, block_sizes[-1])).amax(-1)

    def whole(x: Any, axis: Any = None) -> Any:
        return x.abs().max()

    modelopt: dict[str, Any] = {
        "m__backends__utils": {"fp4_compatible": lambda: False},
        "m__qtensor__base_qtensor": {"BaseQuantizedTensor": _Quantized},
        "m__utils": {
            "convert_quantization_axis_to_reduce_axis": lambda x, axis: None,
            "reduce_amax": whole,
            "reduce_block_amax": largest,
            "reduce_block_padding": lambda x, block_sizes: x,
        },
        "m__utils__numeric_utils": {"E2M1_MAX": 6.0, "E4M3_MAX": 448.0, "fp8_max_for_normalization": None},
    }
    files = folder / "modelopt/torch/quantization/qtensor"
    four = _module(files / "nvfp4_tensor.py", "m.qtensor.nvfp4_tensor", **modelopt).NVFP4QTensor
    eight = _module(files / "fp8_tensor.py", "m.qtensor.fp8_tensor", **modelopt).FP8QTensor

    def nvfp4(x: NDArray) -> Found:
        found, scale, g = four.quantize(_tensor(x), 16)
        return _halves(found.data), _array(scale), g.item()

    def fp8(x: NDArray) -> Found:
        found, scale = eight.quantize(_tensor(x))
        return _array(found.data), _array(scale), 1

    yield "modelopt-nvfp4", nvfp4
    yield "modelopt-fp8", fp8


def _flashinfer(folder: Path) -> Iterator[tuple[str, Reference]]:
    names = ("NVFP44Over6Config", "NVFP44Over6ErrMode", "nvfp4_e4m3_max")
    reference = _module(
        folder / "tests" / "test_helpers" / "utils_fp4.py",
        "flashinfer_fp4",
        flashinfer__utils={},
        flashinfer__quantization__nvfp4_quantization_utils=dict.fromkeys(names, object),
    )

    def nvfp4(x: NDArray) -> Found:
        given = _tensor(x)
        u = (448 * 6) / given.float().abs().nan_to_num().max()
        codes, scale = reference.ref_fp4_quant(given, u, 16)
        return _array(codes), _array(scale), (1 / u).item()

    yield "flashinfer-nvfp4", nvfp4


def _microxcaling(folder: Path) -> Iterator[tuple[str, Reference]]:
    """The functions that its kernels consist of, compiled for the host."""
    headers = ("cuda.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_runtime.h", "cooperative_groups.h", "curand_kernel.h")
    with tempfile.TemporaryDirectory() as made:
        for name in headers:
            Path(made, name).touch()
        run = compiled(_SHIM, made, folder / "mx/cpp").run

    def found(x: NDArray, bits: tuple[int, int, float], rounding: int) -> Found:
        values = np.ascontiguousarray(x, np.float32)
        codes, scales = np.empty_like(values), np.empty((x.shape[0], x.shape[1] // 32), np.float32)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (values, codes, scales))
        run(*pointers, ctypes.c_long(scales.size), *bits[:2], ctypes.c_float(bits[2]), rounding)
        return codes, scales, 1

    formats = {
        "8": (4, 5, 448.0), "8-e5m2": (5, 4, 57344.0), "6-e2m3": (2, 5, 7.5), "6-e3m2": (3, 4, 28.0), "4": (2, 3, 6.0),
    }  # fmt: skip
    for name, bits in formats.items():
        yield f"microxcaling-mxfp{name}", partial(found, bits=bits, rounding=0)
        yield f"microxcaling-mxfp{name}-round-even", partial(found, bits=bits, rounding=2)


#: `quantize_mx_elem`, before it multiplies by the scale, in blocks of 32. What else its headers name is never called.
_SHIM = """
#include <cmath>
#include <cstdlib>
#include <vector>
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
typedef int cudaError_t;
const char *cudaGetErrorString(int);
enum { cudaSuccess };
namespace at {
struct BFloat16 { operator float() const; };
struct Half { operator float() const; };
}
namespace torch { struct Tensor { int dim() const; std::vector<long> sizes() const; }; }
#include "quantize.cuh"
#include "shared_exp.cuh"
extern "C" void run(const float *x, float *codes, float *scales, long blocks, int ebits, int mbits, float largest,
                    int rounding) {
    for (long i = 0; i < blocks; i++) {
        float top = 0;
        for (int k = 0; k < 32; k++) {
            float one = fabsf(x[32 * i + k]);
            top = one > top || std::isnan(one) ? one : top;
        }
        scales[i] = mx_get_shared_scale(get_biased_exponent(top), 8, largest);
        for (int k = 32 * i; k < 32 * i + 32; k++)
            codes[k] = quantize_elemwise(x[k] / scales[i], mbits, ebits, largest, (RoundingMode)rounding, true, true);
    }
}
"""


class _Quantized:
    """What ModelOpt's classes inherit from."""

    def __init__(self, shape: Any, dtype: Any, data: Any) -> None:
        self.data = data


_CHECKOUTS: dict[str, Callable[[Path], Iterator[tuple[str, Reference]]]] = {
    "DeepGEMM": _deepgemm,
    "TileKernels": _tilekernels,
    "TransformerEngine": _transformer_engine,
    "ModelOpt": _modelopt,
    "FlashInfer": _flashinfer,
    "microxcaling": _microxcaling,
}
