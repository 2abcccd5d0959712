# SPDX-License-Identifier: Apache-2.0
"""The error of quantizing random numbers: ``python -m bench.peers.quantization formats`` or ``... tools``.

formats
    The signal-to-noise ratio of every format of `gpucast.quantize`, 10 log10(sum x^2 / sum (x - y)^2) in dB, for FLOAT
    matrices whose rows are quantized along the last axis (formats "..._axis": a scale per column). The figures are
    written to bench/results/quantization-error.json; docs/pictures.py draws them.
tools
    The inverse of that ratio, in per mille, beside that of other tools, each of which finds its own scales.
    llm-compressor computes with compressed-tensors, by the smallest and largest numbers. It runs where torch,
    compressed-tensors, torchao and onnxruntime are installed. The figures are written to
    bench/results/quantization-peers.json, which docs/quantization.md shows.

The numbers do not depend on the machine.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gpucast
from bench.report import markdown
from bench.revision import FOLDER
from gpucast.quantization import FORMATS, Format

#: The figures of the tools, and of our formats.
RESULT, FORMATS_RESULT = FOLDER / "quantization-peers.json", FOLDER / "quantization-error.json"
Array = npt.NDArray[Any]
SHAPE, SEED = (512, 2048), 2026
#: All with mean 0; the width has no influence. Student's t with 3 degrees of freedom has outliers like activations.
DATA: dict[str, Callable[[np.random.Generator], Array]] = {
    "uniform": lambda rng: rng.uniform(-1, 1, SHAPE),
    "normal": lambda rng: rng.standard_normal(SHAPE),
    "Laplace": lambda rng: rng.laplace(size=SHAPE),
    "Student t3": lambda rng: rng.standard_t(3, SHAPE),
}
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
    parser.add_argument("what", choices=("formats", "tools"))
    parser.add_argument("--out", type=Path, metavar="FILE", help="the figures (default: in bench/results)")
    given = parser.parse_args(arguments)
    if given.what == "formats":
        figures, path, text = measured_formats(), FORMATS_RESULT, formats_table
    else:
        figures, path, text = measured_tools(), RESULT, table
    (given.out or path).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(text(figures))
    return 0


def _numbers() -> dict[str, Array]:
    return {kind: draw(np.random.default_rng(SEED)).astype(np.float32) for kind, draw in DATA.items()}


def noise(x: Array, y: Array) -> float:
    """Noise to signal: the squared error over the square of the numbers."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(np.sum((x - y) ** 2) / np.sum(x * x))


def measured_formats(formats: dict[str, Format] = FORMATS) -> dict[str, Any]:
    """The figures as they are stored: for every format its bits per number and the ratio by kind of data, in dB."""
    numbers = _numbers()
    rows = {
        name: {
            "bits": format.bits,
            "sqnr": {
                kind: round(-10 * math.log10(noise(x, gpucast.quantize(x, format).dequantize())), 2)
                for kind, x in numbers.items()
            },
        }
        for name, format in formats.items()
    }
    return {"gpucast": gpucast.__version__, "shape": SHAPE, "seed": SEED, "formats": rows}


def formats_table(figures: dict[str, Any]) -> str:
    """Markdown: a row for every format."""
    rows = ((f"`{name}`", f"{row['bits']:.4g}", row["sqnr"], "{:.1f}") for name, row in figures["formats"].items())
    return _table("Format", "Bits", rows)


def measured_tools() -> dict[str, Any]:
    """A row for each way to quantize: what, by whom, and the error by kind of data, in the order of `OURS`."""
    numbers = _numbers()
    rows = [
        {
            "what": what,
            "by": by,
            "error": {kind: float(f"{1000 * noise(x, restore(x)):.4g}") for kind, x in numbers.items()},
        }
        for what, by, restore in [*ours(), *compressed_tensors(), *torchao(), *onnxruntime()]
    ]
    rows.sort(key=lambda row: list(OURS).index(str(row["what"])))
    return {"tools": {tool: importlib.metadata.version(tool) for tool in TOOLS}, "seed": SEED, "rows": rows}


def table(figures: dict[str, Any]) -> str:
    """Markdown: a row for every way to quantize."""
    return _table("What", "By", ((row["what"], row["by"], row["error"], "{:.3g}") for row in figures["rows"]))


def _table(what: str, by: str, rows: Iterable[tuple[str, str, dict[str, float], str]]) -> str:
    cells = ([one, other, *(form.format(numbers[kind]) for kind in DATA)] for one, other, numbers, form in rows)
    return markdown.table([what, by, *DATA], cells)


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
