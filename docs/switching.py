# SPDX-License-Identifier: Apache-2.0
"""Write docs/switching.md: lines of other libraries beside ours, with what each gives.

``python docs/switching.py`` writes the page, and needs torch, onnx and onnxruntime. ``--check`` fails where the page
says something else than what comes out now; versions and the lines marked with a dagger may differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from sidebyside import lines, switches
from sidebyside.classify import VARIES
from sidebyside.page import MEASURED, Page, write_or_check
from sidebyside.systems import OnnxRuntime

import gpucast

PAGE = Path(__file__).with_suffix(".md")

INTRO = f"""\
# What changes when you switch

Replace `x.astype(to)` or `t.to(to)` by `gpucast.cast(x, to)`. It returns a new array of the same library, on the same
device and in the same memory order. With `copy=False` it returns x itself if nothing changes. Types below one byte are
a `PackedArray`, except on the host.

Each example has two or three lines. The first uses the other library. The second makes the same cast with gpucast.
The third makes gpucast give the other library's result. The comments are real results: `python docs/switching.py`
runs every line and writes this page. Only CuPy's lines were not run. A NaN is followed by its code.{VARIES} marks
results that ONNX leaves undefined or that depend on the processor; they were measured on x86-64.
[Conformance](conformance.md) counts every difference from ml_dtypes and onnxruntime, over all pairs of types.
"""

SYSTEMS = ("numpy", "cupy", "torch", "onnxruntime")


def sections(systems: Iterable[str]) -> Iterator[str]:
    for name in systems:
        yield {"numpy": numpy_section, "cupy": cupy_section, "torch": torch_section, "onnxruntime": ort_section}[name]()


def version(system: str) -> str:
    """The packages that a section was measured with."""
    if system == "torch":
        import torch

        return f"PyTorch {torch.__version__.partition('+')[0]}, CPU"
    if system == "onnxruntime":
        return OnnxRuntime().version
    return f"ml_dtypes {ml_dtypes.__version__}, NumPy {np.__version__}"


_NAMES: dict[str, Any] = {"np": np, "ml_dtypes": ml_dtypes, "gpucast": gpucast}


def numpy_section() -> str:
    return lines.section("NumPy and ml_dtypes", [f"{MEASURED}{version('numpy')}."], switches.NUMPY, _NAMES)


def cupy_section() -> str:
    text = [
        "**Documented, not run**: CuPy casts only on GPUs. Its results come from its documentation and source",
        "(CuPy 14). gpucast's results were computed on the host, where the bits are the same. Pass a CuPy array as",
        "`x`. The cast runs on CuPy's current stream.",
    ]
    return lines.section("CuPy", text, switches.CUPY, _NAMES)


def torch_section() -> str:
    import torch

    text = [f"{MEASURED}{version('torch')}.", "", "A tensor gives a tensor. The gradient is cast back, as in torch."]
    return lines.section("PyTorch", text, switches.TORCH, _NAMES | {"torch": torch})


def ort_section() -> str:
    text = [
        f"{MEASURED}{version('onnxruntime')}.",
        "",
        '`Cast(x, to="INT4")` stands for a model of that one node, run by onnxruntime.',
    ]
    names = _NAMES | {"Cast": lines.onnx_node(OnnxRuntime().run)}
    return lines.section("onnxruntime", text, switches.ONNXRUNTIME, names)


def main(arguments: list[str] | None = None) -> int:
    return write_or_check(Page(PAGE, INTRO, SYSTEMS, sections), arguments)


if __name__ == "__main__":
    sys.exit(main())
