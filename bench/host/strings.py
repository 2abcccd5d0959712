# SPDX-License-Identifier: Apache-2.0
"""Speed of text to numbers and back on the host, beside NumPy's ``astype``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.timing.times import quickest
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.host import text as host_text

ROUNDS = 5
#: Type -> kind of data: numbers as weights have them.
SOURCES = ("FLOAT", "DOUBLE", "BFLOAT16", "FLOAT16", "INT64", "INT8", "BOOL")
PARSED = (
    ("FLOAT", "FLOAT"),
    ("DOUBLE", "DOUBLE"),
    ("FLOAT", "FLOAT16"),
    ("FLOAT", "BFLOAT16"),
    ("INT64", "INT64"),
    ("BOOL", "BOOL"),
)


def rows(elements: int) -> list[tuple[str, float]]:
    """(what, elements per second) of arrays of `elements`; the quickest of interleaved rounds."""
    string = dtype("STRING")
    data = {name: _data(name, elements) for name in SOURCES}
    texts = {name: host_text.format(x, resolve(dtype(name), string)) for name, x in data.items()}
    jobs: dict[str, tuple[Any, Any, Any]] = {}
    for name, x in data.items():
        jobs[f"format {name}"] = (host_text.format, x, resolve(dtype(name), string))
    for name, to in PARSED:
        what = f"parse {to}" if name == to else f"parse {to} from texts of {name}"
        jobs[what] = (host_text.parse, texts[name], resolve(string, dtype(to)))
    for kind, x in (("str", texts["FLOAT"].astype("U")), ("bytes", texts["FLOAT"].astype("S"))):
        jobs[f"parse FLOAT from {kind} array"] = (host_text.parse, x, resolve(string, dtype("FLOAT")))

    sides: dict[str, Callable[[], object]] = {what: partial(do, x, rule) for what, (do, x, rule) in jobs.items()}
    # As text of a fixed width, and back, of NumPy's.
    sides["astype, format FLOAT"] = partial(data["FLOAT"].astype, "U")
    sides["astype, parse FLOAT"] = partial(texts["FLOAT"].astype, np.float32)
    return [(name, elements / seconds) for name, seconds in quickest(sides, ROUNDS).items()]


def _data(name: str, elements: int) -> npt.NDArray[Any]:
    row = dtype(name)
    x = np.random.default_rng(28).standard_normal(elements)
    if row.family == "bool":
        return np.asarray(x > 0)
    return (x * min(float(row.max) / 8, 1e12) if row.family == "int" else x).astype(row.numpy)
