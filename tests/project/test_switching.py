# SPDX-License-Identifier: Apache-2.0
"""docs/switching.md: every line of another library and of ours gives what its comment says."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from gpucast.arrays.packed import PackedArray

PAGE = Path(__file__).resolve().parents[2] / "docs" / "switching.md"
VARIES = " †"
EXAMPLE = re.compile(
    r"^## (?P<section>[^\n]*)$|^### (?P<title>[^\n]*)$|^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
#: What a section needs beyond NumPy.
NEEDS = {"PyTorch": ("torch",), "onnxruntime": ("onnx", "onnxruntime")}


def examples() -> Iterator[Any]:
    section = title = ""
    for match in EXAMPLE.finditer(PAGE.read_text(encoding="utf-8")):
        section, title = match["section"] or section, match["title"] or title
        if match["code"]:
            marks = [pytest.mark.peers] if section == "PyTorch" else []
            yield pytest.param(section, match["code"].splitlines(), id=f"{section}: {title}", marks=marks)


def node(x: Any, to: str, **attributes: Any) -> Any:
    """What onnxruntime makes of a model of one Cast."""
    import onnxruntime

    from cast_conformance.adapters import onnxruntime as adapter
    from cast_conformance.arrays import array_of, codes_of, onnx_model

    row = gpucast.dtype(x.dtype)
    if "STRING" in (row.name, to):
        model = onnx_model(row.name, to, 25, 13).SerializeToString()
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    mode = "onnx-overflowing" if attributes else "onnx"
    return array_of(adapter.cast(codes_of(x, row.name), row.name, to, mode), to)


def outcome(code: str, names: dict[str, Any]) -> str:
    """What a line gives, as the page writes it."""
    try:
        x = eval(code, names)
    except Exception as error:  # Each library has kinds of its own.
        return f"{type(error).__name__}: refused"
    if hasattr(x, "detach"):
        x = importlib.import_module("gpucast.libraries.torch").take(x.detach(), "switching")
    flat = np.asarray(x.get() if isinstance(x, PackedArray) else x).reshape(-1)
    if flat.dtype.kind in "OUT":
        return ", ".join(map(repr, flat.tolist()))
    row = gpucast.dtype(flat.dtype)
    codes = (flat.view(row.code_numpy) & row.code_numpy.type(row.code_mask)).tolist()
    texts = gpucast.cast(flat, "STRING").tolist()
    return ", ".join(f"NaN {code:#x}" if word == "NaN" else word for word, code in zip(texts, codes, strict=True))


def test_the_page_has_its_examples() -> None:
    sections = [one.values[0] for one in examples()]
    assert {section: sections.count(section) for section in sections} == {
        "NumPy and ml_dtypes": 9, "CuPy": 5, "PyTorch": 9, "onnxruntime": 9,
    }  # fmt: skip


@pytest.mark.parametrize(("section", "lines"), [*examples()])
def test_an_example_gives_what_it_says(section: str, lines: list[str]) -> None:
    names: dict[str, Any] = {"np": np, "ml_dtypes": ml_dtypes, "gpucast": gpucast, "Cast": node}
    for name in NEEDS.get(section, ()):
        names[name] = pytest.importorskip(name)
    measured = re.search(rf"^## {section}\n\nMeasured with \S+ ([\d.]+)", PAGE.read_text("utf-8"), re.MULTILINE)
    installed = names.get("torch", names.get("onnxruntime", ml_dtypes)).__version__.partition("+")[0]
    same = measured is not None and measured[1] == installed
    setup, *rest = lines
    exec(setup, names)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in rest:
            code, says = line.split("  # ")
            ours = code.startswith("gpucast.")
            # Another version may differ; what varies may do so anywhere.
            if ours or (same and not says.endswith(VARIES)):
                assert outcome(code, names) == says, line
    if len(rest) == 3 and not lines[1].endswith("refused"):
        there, _, instead = (line.split("  # ")[1] for line in rest)
        assert instead == there, "the third line gives the first one's result"
    if measured is not None and not same:
        pytest.skip(f"the other library's lines are of {measured[1]}, installed is {installed}; ours were compared")
