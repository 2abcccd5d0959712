# SPDX-License-Identifier: Apache-2.0
"""Names, numbers and sizes as HTML for the report page, safely escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from gpucast.core.errors import printable


def breakable(name: str) -> str:
    """A name that browsers may break after a separator."""
    breakable_text = re.sub(r"([._/-])(?=[^._/-])", r"\1<wbr>", escape(name))
    return f"<bdi>{breakable_text}</bdi>"


def small(html: str) -> str:
    return f"<small>{html}</small>" if html else ""


def shape(lengths: Iterable[int]) -> str:
    return " × ".join(f"{length:,}" for length in lengths) or "scalar"


def share(part: int, whole: int) -> str:
    """A percentage, which is shown as 0 or 100 only if it is exactly that."""
    if not whole:
        return "0\u00a0%"
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return "&lt;\u00a00.01\u00a0%"
    if 99.99 < percent < 100:
        return "&gt;\u00a099.99\u00a0%"
    return f"{percent:.3g}\u00a0%"


def size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.3g}\u00a0{unit}" if unit != "B" else f"{number:,}\u00a0B"
        number /= 1000
    return f"{number:,.3g}\u00a0TB"


def plural(number: int, what: str) -> str:
    return what if number == 1 else f"{what}s"


def count(number: int, what: str) -> str:
    return f"{number:,} {plural(number, what)}"


def text(value: Any) -> str:
    return escape(visible(value))


def visible(value: Any) -> str:
    """Text with escapes for characters that HTML forbids, and for those that hide or reorder their neighbours."""
    return printable(str(value))
