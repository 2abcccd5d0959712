# SPDX-License-Identifier: Apache-2.0
"""Reports as one HTML page that needs no network: a template with JSON in it, and a script that draws it."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from gpucast.core.errors import printable
from gpucast.core.version import __version__

#: Tensors that a page shows at most: browsers cannot cope with the hundred thousand of a large model.
MOST = 2000


def made() -> dict[str, str]:
    """The version and the time, for a report."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"gpucast": __version__, "created": now.isoformat(timespec="seconds")}


def page(title: str, sections: str, data: Mapping[str, Any]) -> str:
    """The page that a script of this folder, `sections`, draws of `data`."""
    template = _text("page.html").replace("{{title}}", title).replace("{{sections}}", _text(sections))
    script = template.rpartition("<script>")[2].partition("</script>")[0]
    # Nothing is loaded, and no other script runs, whatever the names in a file may say.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # No text in the data ends the element that it is in.
    text = json.dumps(_visible(data), separators=(",", ":")).replace("<", "\\u003c")
    return template.replace("{{hash of the script}}", f"sha256-{digest}").replace("{{data}}", text)


def style() -> str:
    """The style sheet of the page, for others that are to look like it."""
    return _text("page.html").partition("<style>")[2].partition("</style>")[0]


def _text(name: str) -> str:
    return resources.files("gpucast.convert.reporting").joinpath(name).read_text("utf-8")


def _visible(value: Any) -> Any:
    """The text with escapes for characters that hide or reorder their neighbours, and for invalid ones."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: _visible(held) for key, held in value.items()}
    return [_visible(held) for held in value] if isinstance(value, (list, tuple)) else value
