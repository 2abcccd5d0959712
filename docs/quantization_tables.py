# SPDX-License-Identifier: Apache-2.0
"""Tables of the formats of `gpucast.quantize`, which docs/pages.py writes into the pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import quantization_error
from tables import markdown

import gpucast
from bench.host import quantize as host_quantize
from bench.peers import recipes
from gpucast.quantization import FORMATS, RECIPES, Format


def formats() -> str:
    """A row for every format; those that differ in their blocks alone share one."""
    rows: dict[tuple[str, ...], list[Format]] = {}
    for format in FORMATS.values():
        scale = f"{format.scale} and one FLOAT" if format.global_scale else format.scale.name
        zero = "yes" if format.zero_points else ""
        rows.setdefault((format.element.name, scale, format.rule, zero), []).append(format)
    lines = []
    for columns, found in rows.items():
        names = "<br>".join(f"`{format}`" for format in found)
        bits = "<br>".join(f"{format.bits:.4g}" for format in found)
        lines.append([names, *columns, bits])
    return markdown(["Names", "Element", "Scale", "Rule", "Zero points", "Bits per number"], lines)


def errors() -> str:
    """The committed figures: a row for every format."""
    found = json.loads(quantization_error.RESULT.read_text(encoding="utf-8"))
    lines = [
        [f"`{name}`", f"{row['bits']:.4g}", *(f"{row['sqnr'][kind]:.1f}" for kind in quantization_error.DATA)]
        for name, row in found["formats"].items()
    ]
    return markdown(["Format", "Bits", *quantization_error.DATA], lines)


def host_speed() -> str:
    """The committed figures of the host."""
    return host_quantize.table(host_quantize.newest())


#: The recipes and formats of a matrix.
_FAMILIES = {
    "nvfp4": (
        "te-nvfp4",
        "torchao-nvfp4",
        "torchao-nvfp4-cuda",
        "modelopt-nvfp4",
        "compressed-tensors-nvfp4",
        "vllm-nvfp4",
        "nvfp4",
    ),
    "float8-block": (
        "deepgemm",
        "deepgemm-cuda",
        "tilekernels",
        "vllm-fp8-group",
        "te-float8-block",
        "deepgemm-ue8m0",
        "float8e4m3fn_1x128",
    ),
    "float8-tensor": (
        "te-float8-current",
        "torchao-float8-tensor",
        "torchao-float8-training-tensor",
        "compressed-tensors-fp8",
        "modelopt-fp8",
        "vllm-fp8-tensor",
        "float8e4m3fn_tensor",
    ),
    "mxfp8": (
        "te-mxfp8",
        "torchao-mxfp8-floor",
        "torchao-mxfp8-even",
        "torchao-mxfp8-rceil",
        "compressed-tensors-mxfp8",
        "mxfp8e4m3_up",
    ),
}


def recipe_matrix(family: str) -> str:
    """The share of codes that differ between any two recipes of a family."""
    names = _FAMILIES[family]
    x = gpucast.cast(np.random.default_rng(0).standard_normal((512, 2048)).astype(np.float32), "BFLOAT16")
    codes = {name: recipes.ours(name, x)[0].view(np.uint8) for name in names}
    lines = [[f"`{one}`", *(_share(codes[one], codes[other]) for other in names)] for one in names]
    return markdown(["", *(f"`{name}`" for name in names)], lines)


def _share(codes: Any, others: Any) -> str:
    differ = int(np.count_nonzero(codes != others))
    return f"{100 * differ / codes.size:.2g} %" if differ else "0"


def recipe_counts() -> str:
    """A row for every recipe, with the committed counts."""
    found = json.loads(recipes.RESULT.read_text(encoding="utf-8"))
    lines = []
    for recipe in RECIPES.values():
        row = found[recipe.name]
        by = row.get("package") or row["model"]
        compared = f"{by['elements']:,}"
        differ = f"{by['codes']}, {by['scales']}"
        lines.append([
            f"`{recipe.name}`", f"{recipe.library} {recipe.version}", recipe.held, compared, differ, _nonfinite(by),
            row["date"],
        ])  # fmt: skip
    header = ["Recipe", "Library", "Held against", "Codes", "Codes, scales that differ", "NaN, infinity", "Date"]
    return markdown(header, lines)


def _nonfinite(row: dict[str, Any]) -> str:
    if "nonfinite" not in row:
        return "not run"
    texts = [f"{what}: {text}" for what, text in row["nonfinite"].items() if text]
    return "; ".join(texts) or "the same"


TABLES: dict[str, Callable[..., str]] = {
    "formats": formats,
    "recipes": recipe_counts,
    "recipe_matrix": recipe_matrix,
    "quantization_errors": errors,
    "quantization_host_speed": host_speed,
}
