# SPDX-License-Identifier: Apache-2.0
"""Limits on the cost of a file, each with its reason, and the reading of JSON within them.

A small file can claim much: a text of 3 bytes becomes an object of 64, a compressed byte a thousand. What is over a
limit is refused before it is read. With all of them the list of a file's tensors costs at most about 1.5 GB, however it
is written; tensors are read piece by piece, but those in Fortran order. ONNX files are in memory as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

#: Bytes of the header of a .safetensors file: the limit of the safetensors package. Other lists of tensors (the index
#: of a checkpoint, the types in an .npz) describe no more than such a header.
HEADER = 100_000_000
#: Bytes of a config.json: the largest known ones, which name every layer, have less than a tenth.
CONFIG = 10_000_000
#: Bytes of the header of an .npy file, which is parsed as a Python literal: NumPy's own limit.
NPY_HEADER = 10_000
#: Values and containers in one JSON document: 300,000 tensors, or about 0.5 GB as Python objects.
VALUES = 1 << 22
#: Levels of a JSON document that is written again: the deepest known ones have less than ten.
NESTED = 100
#: Bytes of a tensor's name: with ".npy" it has to fit into the 16 bits that a ZIP archive has for its length.
NAME = 65_535 - len(".npy")
#: Characters of an unknown type in errors and reports.
KIND = 100
#: Lengths in a shape: what NumPy takes.
NDIM = 64
#: Elements of a tensor: no file holds as many. Where a length is 0, the product of the others: NumPy makes an array
#: only if its bytes, were there any, can be counted in 63 bits, and an element has at most 16.
ELEMENTS, BESIDE_ZERO = 1 << 63, 1 << 59
#: Decimal digits of an offset or length in an ONNX model: more are beyond 64 bits, and long numbers take long.
DIGITS = 19
#: Bytes of an ONNX file, which protocol buffers hold in memory: their own limit.
PROTOBUF = 1 << 31
#: How many times more a compressed byte of an .npz can hold (the limit of deflate), and how many times a tensor in
#: Fortran order, that is read as a whole, may have; below so many bytes it may have any.
DEFLATED, FORTRAN, SMALL_FORTRAN = 1032, 64, 1 << 28

#: What each value, pair and container has one of, but the first in its container.
_MARKS = b",:[{"
_PIECE = 1 << 20


class OverLimit(ValueError):
    """A document holds more than `VALUES`, or is nested too deep."""


def parsed_json(
    text: str | bytes,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
    number: Callable[[str], Any] | None = None,
) -> Any:
    """The value of a JSON text from a file. `pairs` makes the objects, `number` the numbers with a fraction or an
    exponent.

    ValueError for text that is not JSON or not UTF-8; `OverLimit` for too many values, and for such as are nested too
    deep for Python's stack.
    """
    # Text that is shorter cannot have more.
    if len(text) > VALUES and _marks(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text) > VALUES:
        raise OverLimit(f"holds more than {VALUES} values")
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(decoded, object_pairs_hook=pairs, parse_float=number)
    except RecursionError:
        raise OverLimit("is nested too deep") from None


def check_nesting(document: Any) -> None:
    """`OverLimit` for a document of more than `NESTED` levels."""
    level, depth = [document], 0
    while level:
        if depth == NESTED:
            raise OverLimit(f"is nested deeper than {NESTED} levels")
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [value for values in inner for value in values if isinstance(value, (dict, list))]
        depth += 1


def _marks(text: bytes) -> int:
    """How many of `_MARKS` are outside of texts, if those inside could make too many."""
    if (most := sum(text.count(mark) for mark in _MARKS)) <= VALUES:
        return most
    bare = np.frombuffer(text.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    marks, is_inside = 0, False
    for start in range(0, bare.size, _PIECE):
        codes = bare[start : start + _PIECE]
        inside = np.logical_xor.accumulate(codes == ord('"')) ^ is_inside
        marks += int(np.count_nonzero(np.isin(codes, list(_MARKS)) & ~inside))
        is_inside = bool(inside[-1])
    return marks
