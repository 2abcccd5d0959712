# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion as one HTML page that needs no network: a template, and its data as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

from gpucast.checkpoints.losses import loss_limit
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.errors import printable

#: Tensors that a page shows at most: browsers cannot cope with the hundred thousand of a large model.
_MOST = 2000


def page(report: Mapping[str, Any]) -> str:
    """The page for the result of `gpucast.checkpoints.reporting.outcome_json.report`."""
    shown = {key: report[key][:_MOST] for key in ("tensors", "left_alone")}
    data = {
        "report": _visible({**report, **shown}),
        "limits": {row.name: _limits(row) for row in DTYPES},
        "loss": loss_limit.LIMIT,
        "types": list(dict.fromkeys(tensor["to"] for tensor in report["tensors"])),
        "kept_bytes": sum(tensor["bytes"] for tensor in report["left_alone"]),
        **{key: len(report[key]) for key in shown},
    }
    template = _template()
    script = template.rpartition("<script>")[2].partition("</script>")[0]
    # Nothing is loaded, and no other script runs, whatever the names in a file may say.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # No text in the data ends the element that it is in.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return template.replace("{{hash of the script}}", f"sha256-{digest}").replace("{{data}}", text)


def style() -> str:
    """The style sheet of the page, for others that are to look like it."""
    return _template().partition("<style>")[2].partition("</style>")[0]


def _template() -> str:
    return resources.files("gpucast.checkpoints.reporting").joinpath("page.html").read_text("utf-8")


def _visible(value: Any) -> Any:
    """The same with escapes for characters that hide or reorder their neighbours, or are no text."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: _visible(held) for key, held in value.items()}
    return [_visible(held) for held in value] if isinstance(value, (list, tuple)) else value


def _limits(row: DType) -> list[int]:
    """The exponents of the smallest and largest magnitude of a floating type; empty for other types."""
    if not row.is_float or row.family == "string":
        return []
    smallest = min(row.value(code) for code in (1, 0) if row.value(code) > 0)
    return [math.frexp(float(smallest))[1] - 1, math.frexp(float(row.max))[1]]
