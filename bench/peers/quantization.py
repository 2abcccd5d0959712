# SPDX-License-Identifier: Apache-2.0
"""The squared error of `gpucast.quantize` beside that of other tools: ``python -m bench.peers.quantization``.

The mean squared error over the mean square of FLOAT matrices of random numbers (as in `quantization_error`), of which
each tool finds its own scales, in per mille. llm-compressor computes with compressed-tensors, by the smallest and
largest numbers. It runs where torch, compressed-tensors, torchao and onnxruntime are installed; the numbers do not
depend on the machine. They are written to bench/results/quantization-peers.json, which docs/quantization.md shows.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from bench.peers.quantization_error import DATA, SEED, Array
from bench.revision import ROOT

RESULT = ROOT / "bench" / "results" / "quantization-peers.json"
TOOLS = ("torch", "compressed-tensors", "torchao", "onnxruntime")
#: By what is quantized: the formats of gpucast.
OURS: dict[str, tuple[str, ...]] = {
    "MXFP8 (E4M3)": ("mxfp8e4m3", "mxfp8e4m3_even", "mxfp8e4m3_up"),
    "MXFP4": ("mxfp4", "mxfp4_even", "mxfp4_up"),
    "NVFP4": ("nvfp4",),
    "FLOAT8E4M3FN by rows": ("float8e4m3fn_axis",),
    "INT8 by rows": ("int8_axis", "int8_axis_full_range", "int8_axis_no_clipping"),
    "INT4 by 32": ("int4_32", "int4_32_full_range", "int4_32_no_clipping"),
    "INT4 by 128": ("int4_128", "int4_128_full_range", "int4_128_no_clipping"),
    "UINT4 by 32": ("uint4_zp_32",),
    "INT2 by 32": ("int2_32", "int2_32_full_range", "int2_32_no_clipping"),
}
Restore = Callable[[Array], Array]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.quantization", description=__doc__)
    parser.add_argument("--out", default=str(RESULT), metavar="FILE", help="the figures (default: %(default)s)")
    found = measured([*ours(), *compressed_tensors(), *torchao(), *onnxruntime()])
    figures = {"tools": {tool: importlib.metadata.version(tool) for tool in TOOLS}, "seed": SEED, "rows": found}
    Path(parser.parse_args(arguments).out).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(figures))
    return 0


def measured(ways: list[tuple[str, str, Restore]]) -> list[dict[str, Any]]:
    """A row for each way to quantize: what, by whom, and the error by kind of data, in the order of `OURS`."""
    numbers = {kind: draw(np.random.default_rng(SEED)).astype(np.float32) for kind, draw in DATA.items()}
    rows = [
        {"what": what, "by": by, "error": {kind: float(f"{error(x, restore(x)):.4g}") for kind, x in numbers.items()}}
        for what, by, restore in ways
    ]
    return sorted(rows, key=lambda row: list(OURS).index(row["what"]))


def error(x: Array, y: Array) -> float:
    """Noise to signal, in per mille."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(1000 * np.sum((x - y) ** 2) / np.sum(x * x))


def table(figures: dict[str, Any]) -> str:
    """Markdown: a row for every way to quantize."""
    lines = [f"| What | By | {' | '.join(DATA)} |", "| --- | --- |" + " ---: |" * len(DATA)]
    for row in figures["rows"]:
        numbers = " | ".join(f"{row['error'][kind]:.3g}" for kind in DATA)
        lines.append(f"| {row['what']} | {row['by']} | {numbers} |")
    return "\n".join(lines)


def ours() -> Iterator[tuple[str, str, Restore]]:
    for what, names in OURS.items():
        for name in names:
            yield what, f"`{name}`", functools.partial(_of_gpucast, name)


def _of_gpucast(name: str, x: Array) -> Array:
    found: Array = gpucast.quantize(x, name, axis=0 if "axis" in name else -1).dequantize()
    return found


def compressed_tensors() -> Iterator[tuple[str, str, Restore]]:
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    def restored(args: Any, x: Array) -> Array:
        given = torch.from_numpy(x)
        groups = given.unflatten(-1, (-1, args.group_size or x.shape[-1]))
        low, high = groups.amin(-1), groups.amax(-1)
        one = generate_gparam(low.min(), high.max()) if args.strategy == "tensor_group" else None
        scale, zero = calculate_qparams(low, high, args, global_scale=one)
        found: Array = fake_quantize(given, scale, zero, args, global_scale=one).numpy()
        return found

    mx = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
    nv = {"type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn}
    for what, options in {
        "MXFP8 (E4M3)": {"num_bits": 8} | mx,
        "MXFP4": {"num_bits": 4} | mx,
        "NVFP4": {"num_bits": 4} | nv,
        "FLOAT8E4M3FN by rows": {"num_bits": 8, "type": "float", "strategy": "channel"},
        "INT8 by rows": {"num_bits": 8, "strategy": "channel"},
        "INT4 by 32": {"num_bits": 4, "strategy": "group", "group_size": 32},
        "INT4 by 128": {"num_bits": 4, "strategy": "group", "group_size": 128},
        "UINT4 by 32": {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
        "INT2 by 32": {"num_bits": 2, "strategy": "group", "group_size": 32},
    }.items():
        yield what, "llm-compressor", functools.partial(restored, QuantizationArgs(**options))


def torchao() -> Iterator[tuple[str, str, Restore]]:
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor, ScaleCalculationMode
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.quantization.quant_primitives import (
        MappingType,
        choose_qparams_affine,
        dequantize_affine,
        quantize_affine,
    )

    def mx(element: Any, mode: Any, x: Array) -> Array:
        found: Array = MXTensor.to_mx(torch.from_numpy(x), element, scaling_mode=mode).dequantize(torch.float32).numpy()
        return found

    def nvfp4(x: Array) -> Array:
        given = torch.from_numpy(x)
        one = NVFP4Tensor.to_nvfp4(given, per_tensor_scale=per_tensor_amax_to_scale(given.abs().max()))
        found: Array = one.dequantize(torch.float32).numpy()
        return found

    def integers(length: int, bits: int, mapping: Any, x: Array) -> Array:
        given, block, ends = torch.from_numpy(x), (1, length or x.shape[1]), (-(1 << bits - 1), (1 << bits - 1) - 1)
        scale, zero = choose_qparams_affine(given, mapping, block, torch.int8, *ends)
        codes = quantize_affine(given, block, scale, zero, torch.int8, *ends)
        found: Array = dequantize_affine(codes, block, scale, zero, torch.int8, *ends).numpy()
        return found

    elements = {"MXFP8 (E4M3)": torch.float8_e4m3fn, "MXFP4": torch.float4_e2m1fn_x2}
    for what, element in elements.items():
        for mode in (ScaleCalculationMode.FLOOR, ScaleCalculationMode.EVEN, ScaleCalculationMode.RCEIL):
            yield what, f"torchao {mode.name}", functools.partial(mx, element, mode)
    yield "NVFP4", "torchao", nvfp4
    for what, length, bits in (
        ("INT8 by rows", 0, 8),
        ("INT4 by 32", 32, 4),
        ("INT4 by 128", 128, 4),
        ("INT2 by 32", 32, 2),
    ):
        for mapping in (MappingType.SYMMETRIC, MappingType.SYMMETRIC_NO_CLIPPING_ERR):
            yield what, f"torchao {mapping.name}", functools.partial(integers, length, bits, mapping)


def onnxruntime() -> Iterator[tuple[str, str, Restore]]:
    from onnxruntime.capi import _pybind_state as state

    def restored(length: int, symmetric: bool, x: Array) -> Array:
        rows, columns = x.shape
        groups = columns // length
        codes = np.zeros((rows, groups, length // 2), np.uint8)
        scales, zero = np.zeros(rows * groups, np.float32), np.zeros((rows, -(-groups // 2)), np.uint8)
        state.quantize_matmul_4bits(codes, np.ascontiguousarray(x.T), scales, zero, length, rows, columns, symmetric)
        both = np.stack([codes & 15, codes >> 4], -1).reshape(rows, groups, length).astype(np.int32)
        points = np.stack([zero & 15, zero >> 4], -1).reshape(rows, -1, 1)[:, :groups].astype(np.int32)
        found: Array = (both - (8 if symmetric else points)) * scales.reshape(rows, groups, 1)
        return found.reshape(x.shape)

    by = "onnxruntime MatMulNBits"
    yield "INT4 by 32", by, functools.partial(restored, 32, True)
    yield "INT4 by 128", by, functools.partial(restored, 128, True)
    yield "UINT4 by 32", by, functools.partial(restored, 32, False)


if __name__ == "__main__":
    raise SystemExit(main())
