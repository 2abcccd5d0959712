# SPDX-License-Identifier: Apache-2.0
"""Casts arrays of text to numbers and back, quickly, with the results that `gpucast.core.strings` defines.

The extension module reads and writes (``kernels/host/text.hpp``). Text to floats goes through float64, but without
double rounding: for shorter destinations the double is rounded to odd. What the module cannot tell, such as a number
next to the midpoint of two others, and what is no number, goes to the reference, element by element. Without the
module all does.

Everything works on chunks, so that the extra memory is bounded.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.array import Array
from gpucast.arrays.chunks import spans
from gpucast.core import arithmetic, dtypes, strings
from gpucast.core.dtypes import DType
from gpucast.core.extension import MODULE, say_slow
from gpucast.core.rule import CastRule
from gpucast.host.numbers import into
from gpucast.reference.exact_cast import from_strings

NDArray = npt.NDArray[Any]

#: `Reading` of ``kernels/host/text.hpp``.
_NEAREST_DOUBLES, _ODD_DOUBLES, _INTEGERS, _BOOLS = range(4)


def apply(source: Array, rule: CastRule, target: Array | None = None) -> Array:
    """Cast text, or to text, into `target`, which is returned, or into a new array."""
    # All of it before the target is touched: a text that is no number leaves that as it was.
    texts = source.array.get() if source.packed else source.data
    convert = parse if rule.src.family == "string" else format
    result = Array.of(convert(texts, rule), rule.dst)
    if target is None:
        return result
    target.data[...] = result.data
    return target


@arithmetic.exact()
def parse(x: NDArray, rule: CastRule) -> NDArray:
    """Text (object, str, bytes or StringDType, any shape) to a new array of ``rule.dst``, of x's shape, in C order.

    Raises what `strings` raises for the first element, row-major, that the destination cannot take.
    """
    flat = x.reshape(-1)
    result = np.empty(flat.size, rule.dst.numpy)
    for part in spans(flat.size):
        _read(flat[part], part.start, rule, result[part])
    return result.reshape(x.shape)


@arithmetic.exact()
def format(x: NDArray, rule: CastRule) -> NDArray:
    """Numbers of any type (or text) to a new object array of str, of x's shape, in C order."""
    src = rule.src
    if src.family == "string":
        return parse(x, rule)
    flat = x.reshape(-1)
    result = np.empty(flat.size, dtype=object)
    for part in spans(flat.size):
        chunk = flat[part].astype(src.numpy, copy=False)
        if src.bits <= 8 or (src.bits <= 16 and flat.size >= _TABLE_SIZE):
            result[part] = _table(src)[chunk.view(src.code_numpy) & src.code_numpy.type(src.code_mask)]
        else:
            _write(chunk, src, result[part])
    return result.reshape(x.shape)


# ---- text -> number ----


def _read(chunk: NDArray, first: int, rule: CastRule, out: NDArray) -> None:
    """Cast texts into a flat array; errors count elements from `first`."""
    dst = rule.dst
    by_reference = dst.family == "string" or (rule.rounds_by_rule and dst.numpy == np.float64)
    if MODULE is None:
        say_slow()
    if by_reference or MODULE is None or not strings.has_characters(chunk):
        out[...] = from_strings(chunk, rule, first)
        return
    texts = np.ascontiguousarray(chunk, object)
    numbers, reading, least, most = out, _BOOLS, 0, 0
    if dst.family == "int":
        numbers, reading = np.empty(texts.size, np.int64 if dst.signed else np.uint64), _INTEGERS
        least, most = int(dst.min), int(dst.max)
    elif dst.family != "bool":
        numbers = np.empty(texts.size, np.float64)
        reading = _NEAREST_DOUBLES if dst.numpy == np.float64 else _ODD_DOUBLES
    exact = _read_most(texts, first, rule, reading, numbers, least, most)
    if dst.family == "int":
        codes = numbers.astype(dst.code_numpy) & dst.code_numpy.type(dst.code_mask)
        out[...] = codes.view(dst.numpy)
    elif dst.numpy == np.float64:
        out[...] = np.clip(numbers, dst.min, dst.max) if rule.overflow == "saturate" else numbers
    elif dst.family != "bool":
        into(numbers, dataclasses.replace(rule, src=dtypes.dtype("DOUBLE")), out)
    for index, value in exact.items():
        out[index] = value


def _read_most(
    texts: NDArray, first: int, rule: CastRule, reading: int, numbers: NDArray, least: int, most: int
) -> dict[int, Any]:
    """Read the numbers of texts; returns the results for those that only exact arithmetic can tell, by their places."""
    exact: dict[int, Any] = {}
    at = 0
    while (at := MODULE.read_texts(reading, texts, at, numbers, least, most)) < texts.size:
        exact[at] = from_strings(texts[at : at + 1], rule, first + at)[0]
        numbers[at] = 0
        at += 1
    return exact


# ---- number -> text ----

# Making a table of all 65,536 texts takes milliseconds, which does not pay off for fewer elements.
_TABLE_SIZE = 4096


@cache
@arithmetic.exact()
def _table(src: DType) -> NDArray:
    """The texts of all codes of a type of 16 bits or fewer."""
    codes = range(1 << src.bits)
    result = np.empty(len(codes), dtype=object)
    if src.bits <= 8:
        result[:] = [strings.format(src.value(code), src) for code in codes]
    else:
        _write(np.array(codes, src.code_numpy).view(src.numpy), src, result)
    return result


def _write(chunk: NDArray, src: DType, out: NDArray) -> None:
    """Write numbers of more than 8 bits into a flat array of objects."""
    if src.family == "int":
        values = chunk.astype(np.int64 if src.signed else np.uint64)
    else:
        values = chunk.astype(strings.shortest_in(src).numpy, copy=False)
    if MODULE is None:
        say_slow()
        out[:] = [strings.format(value, src) for value in values.tolist()]
    else:
        MODULE.write_texts(np.ascontiguousarray(values), out)
