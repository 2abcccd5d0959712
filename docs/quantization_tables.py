# SPDX-License-Identifier: Apache-2.0
"""Tables of the formats of `gpucast.quantize`, for the directive ``generated``."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import ModuleType

from tables import markdown

from bench.host import quantize as host_quantize
from bench.peers import loaders
from bench.peers import quantization as quantization_peers
from bench.peers.quantization_error import RESULT, table
from gpucast.quantization import FORMATS, Format


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
    """The committed figures."""
    return table(json.loads(RESULT.read_text(encoding="utf-8")))


def measured_with(bench: ModuleType) -> str:
    """The committed figures of a benchmark of other tools, and their versions."""
    figures = json.loads(bench.RESULT.read_text(encoding="utf-8"))
    tools = ", ".join(f"{tool} {version}" for tool, version in figures["tools"].items())
    return f"{bench.table(figures)}\n\nMeasured with {tools}."


def host_speed() -> str:
    """The committed figures of the host."""
    return host_quantize.table(host_quantize.newest())


TABLES: dict[str, Callable[..., str]] = {
    "formats": formats,
    "quantization_errors": errors,
    "loaders": partial(measured_with, loaders),
    "quantization_peers": partial(measured_with, quantization_peers),
    "quantization_host_speed": host_speed,
}
