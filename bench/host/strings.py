# SPDX-License-Identifier: Apache-2.0
"""Speed of text to numbers and back on the host, with base dependencies and with the extra `fast`, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.timing.times import quickest
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.host import text_on_host

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
    """(what, elements per second) of arrays of `elements`; the fastest of interleaved rounds."""
    string = dtype("STRING")
    data = {name: _data(name, elements) for name in SOURCES}
    texts = {name: text_on_host.format(x, resolve(dtype(name), string)) for name, x in data.items()}
    jobs: dict[str, tuple[Any, Any, Any]] = {}
    for name, x in data.items():
        jobs[f"format {name}"] = (text_on_host.format, x, resolve(dtype(name), string))
    for name, to in PARSED:
        what = f"parse {to}" if name == to else f"parse {to} from texts of {name}"
        jobs[what] = (text_on_host.parse, texts[name], resolve(string, dtype(to)))
    for kind, x in (("str", texts["FLOAT"].astype("U")), ("bytes", texts["FLOAT"].astype("S"))):
        jobs[f"parse FLOAT from {kind} array"] = (text_on_host.parse, x, resolve(string, dtype("FLOAT")))

    found = text_on_host.fast_library
    sides: dict[str, Callable[[], object]] = {}
    for what, job in jobs.items():
        sides[f"{what}, base"] = lambda job=job: _with(lambda: None, *job)  # type: ignore[misc]
        if found() is not None:
            sides[f"{what}, fast"] = lambda job=job: _with(found, *job)  # type: ignore[misc]
    try:
        best = quickest(sides, ROUNDS)
    finally:
        text_on_host.fast_library = found
    return [(name, elements / seconds) for name, seconds in best.items()]


def _with(finder: Any, convert: Callable[..., object], x: Any, rule: CastRule) -> None:
    """Convert with the library that a function finds."""
    text_on_host.fast_library = finder
    convert(x, rule)


def _data(name: str, elements: int) -> npt.NDArray[Any]:
    row = dtype(name)
    x = np.random.default_rng(28).standard_normal(elements)
    if row.family == "bool":
        return np.asarray(x > 0)
    return (x * min(float(row.max) / 8, 1e12) if row.family == "int" else x).astype(row.numpy)
