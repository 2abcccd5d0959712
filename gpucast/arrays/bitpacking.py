# SPDX-License-Identifier: Apache-2.0
"""Packs codes of 2, 4 and 6 bits into bytes, and unpacks them, in the layout of `gpucast.arrays.packed`; and a few
facts of plain arrays. The same lines serve NumPy and CuPy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

#: Groups of codes that NumPy packs at a time.
_GROUPS = 1 << 14


def namespace(array: Any) -> Any:
    """The module of an array, numpy or cupy; None for any other object."""
    if isinstance(array, np.ndarray):
        return np
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else None


def to_numpy(array: Any) -> Any:
    """An array of NumPy as it is, or one of CuPy on the host."""
    return array if isinstance(array, np.ndarray) else array.get()


def address_of(data: Any) -> int:
    """The address of the first element of an array of NumPy or CuPy."""
    return int(data.ctypes.data if isinstance(data, np.ndarray) else data.data.ptr)


def is_writable(data: Any) -> bool:
    """Whether an array of NumPy or CuPy, whose arrays always are, can be written."""
    return bool(getattr(data.flags, "writeable", True))


def codes_of(x: Any, code: np.dtype[Any]) -> Any:
    """The elements of an array as their codes, of the unsigned type `code`, over the same memory and in its byte order.

    A plain ``x.view(code)`` would read the bytes of an array of the other byte order as other numbers.
    """
    return x.view(code if x.dtype.isnative else code.newbyteorder())


def group_of(bits: int) -> tuple[int, int]:
    """The smallest whole group of codes: its number of codes and its number of bytes."""
    step = math.gcd(bits, 8)
    return 8 // step, bits // step


def pack_codes(codes: Any, bits: int) -> Any:
    """Pack a flat uint8 array of codes (upper bits are ignored) into a new flat uint8 array."""
    xp = namespace(codes)
    count, width = group_of(bits)
    packed = xp.empty(-(-codes.size // count) * width, dtype=xp.uint8)
    for some in _pieces(xp, codes.size, count):
        packed[some.start // count * width : -(-some.stop // count) * width] = _packed(xp, codes[some], bits)
    return packed[: -(-codes.size * bits // 8)]


def _packed(xp: Any, codes: Any, bits: int) -> Any:
    """Whole groups: the codes, and zeros."""
    count, width = group_of(bits)
    groups = -(-codes.size // count)
    padded = xp.empty(groups * count, dtype=xp.uint8)
    padded[codes.size :] = 0
    xp.bitwise_and(codes, xp.uint8((1 << bits) - 1), out=padded[: codes.size])
    # A group is a word, in which neighbours move together: two codes, two pairs.
    words = padded.view(f"<u{count}")
    moved = xp.empty_like(words)
    for slot, field in _stages(count, bits):
        xp.right_shift(words, slot - field, out=moved)
        if width > 1:
            kept = _mask(count, 2 * slot, field)
            words &= kept
            moved &= kept << field
        words |= moved
    # What stands above the bytes of a group is dropped.
    return words.astype(xp.uint8) if width == 1 else _columns(xp, padded.reshape(groups, count), width)


def unpack_codes(data: Any, bits: int, size: int) -> Any:
    """The first `size` codes of a packed flat uint8 array that has so many, as a new flat uint8 array. Pad bits are
    ignored."""
    xp = namespace(data)
    count, width = group_of(bits)
    codes = xp.empty(size, dtype=xp.uint8)
    for some in _pieces(xp, size, count):
        groups = data[some.start // count * width : -(-some.stop // count) * width]
        codes[some] = _unpacked(xp, groups, bits)[: some.stop - some.start]
    return codes


def _unpacked(xp: Any, data: Any, bits: int) -> Any:
    """The codes of groups; the last group may be cut short."""
    count, width = group_of(bits)
    if width == 1:
        words = data.astype(f"<u{count}")
    else:
        groups = -(-data.size // width)
        padded = xp.zeros(groups * width, dtype=xp.uint8)
        padded[: data.size] = data
        words = _columns(xp, padded.reshape(groups, width), count).view(f"<u{count}")
    moved = xp.empty_like(words)
    for slot, field in reversed(_stages(count, bits)):
        xp.left_shift(words, slot - field, out=moved)
        kept = _mask(count, 2 * slot, field)
        words &= kept
        moved &= kept << slot
        words |= moved
    return words.view(xp.uint8)


def _pieces(xp: Any, size: int, count: int) -> Iterator[slice]:
    """Codes that are packed at a time: of NumPy so many that all stays in the cache."""
    step = _GROUPS * count if xp is np else max(1, size)
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def _columns(xp: Any, rows: Any, count: int) -> Any:
    """As many columns of a matrix, zeros where it has no more, flat. NumPy copies long columns in less time than short
    rows."""
    found = xp.zeros((rows.shape[0], count), dtype=xp.uint8)
    for column in range(min(count, rows.shape[1])):
        found[:, column] = rows[:, column]
    return found.reshape(-1)


def _stages(count: int, bits: int) -> list[tuple[int, int]]:
    """The steps that pack a group in a word: at each, the distance of two neighbours, and the bits that each has."""
    return [(8 << i, bits << i) for i in range(count.bit_length() - 1)]


def _mask(count: int, slot: int, field: int) -> int:
    """The lowest bits of every slot of a word."""
    return int(sum(((1 << field) - 1) << at for at in range(0, 8 * count, slot)))
