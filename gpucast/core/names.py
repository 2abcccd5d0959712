# SPDX-License-Identifier: Apache-2.0
"""What types are called beside their names in the table of types, as data, and which texts mean more than one type."""

from __future__ import annotations

import re

#: Short forms, taken in any case.
SHORT_FORMS = {
    "half": "FLOAT16",
    "fp16": "FLOAT16",
    "fp32": "FLOAT",
    "fp64": "DOUBLE",
    "short": "INT16",
    "str": "STRING",
}
#: Names that are taken with the library's prefix alone: without it they are NumPy's too, for other types.
WITH_PREFIX = {"torch.int": "INT32", "torch.long": "INT64"}

#: Texts that two worlds read differently, whatever the platform's NumPy knows of them: sizes in bytes to NumPy and in
#: bits to everybody else; text of so many characters to NumPy and unsigned integers to safetensors.
TWO_FACED = re.compile(r"[iu][1248]|f(2|4|8|16)|U[0-9]+")

_FAMILY = re.compile(r"(?:(?:fp|float)([468])_?)?(?:e([0-9])m([0-9]))?")


def family(name: str) -> dict[str, int] | None:
    """The bits that a text for several types gives: "fp8" {"bits": 8}, "e4m3" those of exponent and mantissa.

    None for a text that gives none.
    """
    found = _FAMILY.fullmatch(name.lower())
    if found is None:
        return None
    columns = ("bits", "exponent_bits", "mantissa_bits")
    given = {column: int(text) for column, text in zip(columns, found.groups(), strict=True) if text is not None}
    return given or None
