# SPDX-License-Identifier: Apache-2.0
"""CuPy in docs/libraries.md: its lines are tried on CuPy arrays over host memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest
from cupy._core import _kernel, core

import gpucast
from host_driver import elements, upload

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "libraries.md").read_text(encoding="utf-8")
VIEWS = re.findall(r"^\| `(.+)` \| (\(.*\)) \|$", PAGE, re.MULTILINE)
INSTEAD = re.findall(r"^\| `(.+)` \| `(.+)` \|$", PAGE, re.MULTILINE)
X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
#: What NumPy gives for the lines that allocate, or compute.
WANTED = {
    "xp.ascontiguousarray(y.T)": lambda y: y.T,
    'y.astype("float32")': lambda y: y.astype(np.float32),
    "y + y": lambda y: y + y,
    "xp.maximum(y, 0)": lambda y: np.maximum(y, y.dtype.type(0)),
    "-y": lambda y: -y,
}
#: The ufuncs that the refused lines launch; CuPy copies an array to another type by one, too.
UFUNCS = {
    'y.astype("float32")': core.elementwise_copy,
    "y + y": cupy.add,
    "xp.maximum(y, 0)": cupy.maximum,
    "-y": cupy.negative,
}


def kernel(ufunc: Any, y: Any) -> str:
    """The text that CuPy compiles for a ufunc of arrays like `y`."""
    operation = ufunc._ops.guess_routine(ufunc.name, {}, [y] * ufunc.nin, None, None).routine
    # Arrays of one dimension, and an indexer.
    kinds = [2 if one.name == "_ind" else 1 for one in ufunc._params]
    described = tuple(_kernel._ArgInfo(kind, cupy.ndarray, y.dtype, 1, True, True) for kind in kinds)
    text: str = _kernel._get_elementwise_kernel_code(
        described, _kernel._TypeMap(()), ufunc._params, operation, ufunc.name, ufunc._preamble
    )
    return text


def test_the_page_has_lines() -> None:
    assert len(VIEWS) == 11 and len(INSTEAD) == 7


@pytest.mark.parametrize(("line", "shape"), VIEWS)
def test_views(line: str, shape: str, driver: Any) -> None:
    y = gpucast.cast(upload(X), "FLOAT8E4M3FN")
    view = eval(line, {"y": y, "xp": cupy})
    wanted = eval(line, {"y": elements(y), "xp": np})
    assert str(view.shape) == shape and view.dtype == wanted.dtype
    assert view.data.mem.ptr == y.data.mem.ptr
    assert elements(view).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("refused", "line"), INSTEAD)
def test_what_to_write_instead(refused: str, line: str, driver: Any) -> None:
    y = gpucast.cast(upload(X), "FLOAT8E4M3FN")
    with pytest.raises(ValueError, match="Unsupported dtype float8_e4m3fn"):
        # CuPy asks for the device before it writes a kernel; without a GPU it comes no further.
        kernel(UFUNCS[refused], y) if refused in UFUNCS else eval(refused, {"y": y, "xp": cupy})
    if refused in UFUNCS:
        assert "__global__ void" in kernel(UFUNCS[refused], gpucast.cast(y, "BFLOAT16"))
    found = elements(eval(line, {"y": y, "gpucast": gpucast}))
    if refused in WANTED:
        assert found.tobytes() == np.ascontiguousarray(WANTED[refused](elements(y))).tobytes()
    else:
        assert found.dtype == y.dtype and found.size == (3 if "3" in refused else 12)
