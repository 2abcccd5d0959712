# SPDX-License-Identifier: Apache-2.0
"""The sum of the squares of many arrays on the host: the order of its additions, which every device keeps.

The order depends on the arrays' lengths alone. Every array, in the order of its memory, is cut into tiles of `TILE`
elements: 4 rows of 2,048. Thread t of 256 adds the squares of elements 8 t to 8 t + 7 of the first row, then of the
second, and so on. Then the sums t, t + 32, ... t + 224 are added in pairs (the first and the second, the third and the
fourth, and so on, until one is left), and the 32 sums that remain likewise. The sums of the tiles of all arrays come
one after the other: thread t adds every 256th of them from t on, and the 256 sums are added as before. All of this is
DOUBLE, in which squares of FLOATs and of narrower numbers are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.operand import Operand, operand
from gpucast.arrays.packed import as_array
from gpucast.casting.cast import cast
from gpucast.casting.creation import empty_like

TILE = 8192
_THREADS, _ELEMENTS = 256, 8
#: Tiles that the host reads at a time: 8 MiB as DOUBLE.
_CHUNK = 128

Doubles = npt.NDArray[np.float64]


def in_one_piece(leaves: Iterable[Any], caller: str) -> list[Operand]:
    """The arrays; of those whose memory has more than their elements copies in C order."""
    return [_in_one_piece(operand(as_array(leaf, caller))) for leaf in leaves]


def _in_one_piece(source: Operand) -> Operand:
    if source.contiguous or source.array.flags.f_contiguous:
        return source
    copy = empty_like(source.array)
    return operand(cast(source.array, source.dtype, out=copy), source.dtype)


def sum_of_squares(sources: Iterable[Operand]) -> np.float64:
    sums = np.concatenate([np.zeros(0), *map(_sums_of_tiles, _chunks(sources))])
    every = np.zeros(max(1, -(-sums.size // _THREADS)) * _THREADS)
    every[: sums.size] = sums
    found: np.float64 = _in_pairs(np.add.accumulate(every.reshape(-1, _THREADS))[-1:])[0]
    return found


def _chunks(sources: Iterable[Operand]) -> Iterator[Doubles]:
    """The numbers of all arrays as whole tiles, the last one of each filled up with zeros, some tiles at a time."""
    chunk, used = np.zeros((_CHUNK, TILE)), 0
    for source in sources:
        array = source.array.get() if source.packed else source.array
        numbers = array.reshape(-1, order="C" if source.contiguous else "F")
        for begin in range(0, numbers.size, TILE):
            piece = numbers[begin : begin + TILE]
            chunk[used, : piece.size], chunk[used, piece.size :] = piece, 0
            used += 1
            if used == _CHUNK:
                yield chunk
                used = 0
    yield chunk[:used]


def _sums_of_tiles(tiles: Doubles) -> Doubles:
    squares = np.square(tiles).reshape(-1, TILE // (_THREADS * _ELEMENTS), _THREADS, _ELEMENTS)
    sums = np.zeros((len(squares), _THREADS))
    for row in range(squares.shape[1]):
        for i in range(_ELEMENTS):
            sums += squares[:, row, :, i]
    return _in_pairs(sums)


def _in_pairs(sums: Doubles) -> Doubles:
    """The sums of 256 numbers each."""
    parts = sums.reshape(-1, _THREADS // 32, 32)
    while parts.shape[1] > 1:
        parts = parts[:, ::2] + parts[:, 1::2]
    parts = parts[:, 0]
    while parts.shape[1] > 1:
        parts = parts[:, ::2] + parts[:, 1::2]
    return parts[:, 0]
