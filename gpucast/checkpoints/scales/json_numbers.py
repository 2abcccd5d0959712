# SPDX-License-Identifier: Apache-2.0
"""JSON documents whose numbers are written as they were read: 1e400 is no infinity, and 0.10 keeps its digits."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any


class Number(float):
    """A number with a fraction or an exponent, and its text."""

    text: str

    def __new__(cls, text: str) -> Number:
        made = super().__new__(cls, text)
        made.text = text
        return made


def dumps(document: Any) -> str:
    """The text of a document, indented by 2, with the texts of its `Number`."""
    mark, texts = secrets.token_hex(16), list[str]()

    def marked(value: Any) -> Any:
        if isinstance(value, Number):
            texts.append(value.text)
            return f"{mark}{len(texts) - 1}"
        if isinstance(value, dict):
            return {key: marked(one) for key, one in value.items()}
        return [marked(one) for one in value] if isinstance(value, list) else value

    text = json.dumps(marked(document), indent=2)
    return re.sub(rf'"{mark}(\d+)"', lambda found: texts[int(found[1])], text)
