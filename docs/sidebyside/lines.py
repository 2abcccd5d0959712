# SPDX-License-Identifier: Apache-2.0
"""One line of another library beside ours, run: what `docs/switching.py` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpucast
from gpucast.arrays.packed import PackedArray, device_index
from sidebyside.classify import VARIES, codes_of
from sidebyside.systems import Array, cast_model


@dataclass(frozen=True)
class Line:
    """A difference: the input, a line there, what the same cast is here, and the line that gives the other result."""

    title: str
    text: str
    setup: str
    there: str
    here: str
    #: The line to write here for the result from there; "" where there is none.
    instead: str = ""
    #: What the other library documents; None where its line is run.
    documented: str | None = None
    #: The other result is undefined, or depends on the processor.
    varies: bool = False


def rendered(line: Line, names: dict[str, Any]) -> str:
    """The difference as a section with a block of code; ValueError where `instead` does not give what it should."""
    names = dict(names)
    exec(line.setup, names)
    there = None if line.documented is not None else _outcome(line.there, names)
    here = _outcome(line.here, names)
    rows = [(line.there, (line.documented or _show(there)) + (VARIES if line.varies else "")), (line.here, _show(here))]
    if line.instead:
        same = _outcome(line.instead, names)
        if _show(same) != line.documented if there is None else not _equal(same, there):
            raise ValueError(f"{line.title}: {line.instead} gives {_show(same)}; {line.there} gives {rows[0][1]}")
        rows.append((line.instead, _show(same)))
    code = "\n".join([line.setup, *(f"{code}  # {result}" for code, result in rows)])
    return f"### {line.title}\n\n{line.text}\n\n```python\n{code}\n```\n"


def _outcome(code: str, names: dict[str, Any]) -> Any:
    """What an expression gives: an array, or the name of the error."""
    try:
        return _array(eval(code, names))
    except Exception as error:  # Each library has kinds of its own.
        return f"{type(error).__name__}: refused"


def _array(x: Any) -> Array:
    """A result of any of the libraries as a NumPy array of its type."""
    if hasattr(x, "detach"):
        from gpucast.interop import torch

        return _array(torch.take(x.detach(), "switching"))
    if isinstance(x, PackedArray):
        return x.get()
    if device_index(x) is not None:
        raise TypeError("a result on a device")
    return np.asarray(x)


def _show(x: Any) -> str:
    if isinstance(x, str):
        return x
    flat = x.reshape(-1)
    if x.dtype.kind in "OUT":
        return ", ".join(map(repr, flat.tolist()))
    row = gpucast.dtype(x.dtype)
    texts = gpucast.cast(flat, "STRING").tolist()
    shown = [
        f"NaN {int(code):#x}" if text == "NaN" else text
        for text, code in zip(texts, codes_of(flat, row).tolist(), strict=True)
    ]
    return ", ".join(shown)


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, str) or isinstance(y, str):
        return bool(np.all(x == y))
    row = gpucast.dtype(x.dtype)
    if row is not gpucast.dtype(y.dtype):
        return False
    if row.family == "string":
        return bool(x.tolist() == y.tolist())
    return np.array_equal(codes_of(x, row), codes_of(y, row))


def onnx_node(run: Callable[[Any, dict[str, Array]], Array]) -> Callable[..., Array]:
    """``Cast(x, to="INT4", saturate=0)``: a model of one node, run."""

    def cast_node(x: Array, to: str, **attributes: Any) -> Array:
        src, dst = gpucast.dtype(x.dtype), gpucast.dtype(to)
        return run(cast_model(src, dst, 25, 13, **attributes), {"x": x})

    return cast_node


def section(title: str, text: Sequence[str], lines: Sequence[Line], names: dict[str, Any]) -> str:
    return "\n".join([f"## {title}", "", *text, "", *(rendered(line, names) for line in lines)])
