# SPDX-License-Identifier: Apache-2.0
"""Draws docs/static/architecture.svg: the folders of the package by layer, and the path of one cast through them.

``python docs/architecture.py`` writes it anew. The layers are those that tests/test_imports.py enforces.
"""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "static" / "architecture.svg"
#: What each folder is for, in few words.
WORK = {
    "core": "dtypes, rules, options,\ntext, errors",
    "reference": "the exact, slow\nmeaning",
    "arrays": "PackedArray, operands,\nadapters",
    "kernel": "kernels as values,\ntheir text, NVRTC,\nthe driver, streams",
    "host": "the extension module,\nand its build",
    "casting": "cast, cast_many,\nplans, reports",
    "files": "safetensors, npz,\nnpy, ONNX",
    "quantization": "blocks and\nscales",
    "mixed": "loss scales,\npolicies, layers",
    "libraries": "PyTorch, JAX,\nDLPack, Dask",
    "onnx": "models, onnxruntime,\nMDF",
    "user_kernels": "ufunc, device functions,\nNumba, Triton",
    "parity": "kernels against\nthe reference",
    "convert": "whole models,\nconverted",
    "warmup": "kernels ahead\nof time",
    "cli": "the gpucast\ncommand",
}
#: How the cast of an array on a device goes.
PATH = (("casting", "kernel"),)
_INK, _FILL, _MARK = "#30363d", "#f6f8fa", "#0969da"


def layers() -> tuple[list[list[str]], list[list[str]]]:
    """The folders of the caster and of its extensions, row by row, from the one that imports nothing of ours on."""
    tree = ast.parse((ROOT / "tests" / "test_imports.py").read_text(encoding="utf-8"))
    found = {
        node.targets[0].id: [list(row) for row in ast.literal_eval(node.value)]
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("CASTER", "EXTENSIONS")
    }
    return found["CASTER"], found["EXTENSIONS"]


def draw(path: Path = PICTURE) -> None:
    with mpl.rc_context({"svg.hashsalt": "gpucast", "svg.fonttype": "none", "font.family": "sans-serif"}):
        _draw(*layers(), path)


def _draw(caster: list[list[str]], extensions: list[list[str]], path: Path) -> None:
    rows = [*caster, *extensions]
    figure, axes = plt.subplots(figsize=(9, 7.8))
    middle: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        for place, name in enumerate(row):
            x, y = 2.25 * (place - (len(row) - 1) / 2), float(level)
            middle[name] = x, y
            on_path = any(name in step for step in PATH)
            axes.text(
                x, y, f"{name}\n{WORK[name]}", ha="center", va="center", fontsize=8.5, color=_INK,
                bbox={"boxstyle": "round,pad=0.45", "fc": _FILL, "ec": _MARK if on_path else _INK,
                      "lw": 2 if on_path else 0.8},
            )  # fmt: skip
    for one, other in PATH:
        (x, y), (to_x, to_y) = middle[one], middle[other]
        axes.annotate(
            "", (to_x, to_y + 0.4), (x, y - 0.4), zorder=0,
            arrowprops={"arrowstyle": "-|>", "color": _MARK, "lw": 1.6, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
    border = len(caster) - 0.5
    axes.axhline(border, color=_INK, lw=0.8, ls=(0, (4, 4)))
    for side, words in ((0.12, "extensions"), (-0.24, "the caster")):
        axes.text(-4.5, border + side, words, fontsize=8.5, color=_INK, style="italic")
    axes.set_xlim(-4.6, 4.6)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.axis("off")
    axes.set_title("Each folder imports from the rows below it alone. Blue: the path of a cast on a device", fontsize=9)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    draw()
