# SPDX-License-Identifier: Apache-2.0
"""Random words for the host path: Philox4x32-10 (see `gpucast.core.random`) over whole arrays of counters.

NumPy's own Philox is another member of the family, with words of 64 bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.random import Random

Array = npt.NDArray[Any]

_LOW = 2**32 - 1
_FACTORS = 0xD2511F53, 0xCD9E8D57
_MULTIPLIERS = np.array(_FACTORS, np.uint64)[:, np.newaxis]


#: Blocks up to which Python's integers are the quicker arithmetic.
FEW = 512


class Words:
    """Makes the words of up to `most` elements at a time, in memory of its own."""

    def __init__(self, random: Random, most: int) -> None:
        self._random = random
        blocks = most // 4 + 2
        self._few = blocks <= FEW
        if not self._few:
            self._words = np.empty((blocks, 4), np.uint32)
            self._scratch = np.empty((6, blocks), np.uint64)
            self._count = np.arange(blocks, dtype=np.uint64)

    def __call__(self, start: int, n: int) -> Array:
        """The uint32 words of the elements from `start` on; they stand until the next call."""
        first, skip = divmod(self._random.offset + start, 4)
        blocks = (skip + n + 3) // 4
        if self._few:
            return few_words(first, blocks, self._random.seed)[skip : skip + n]
        a, b, c, d, *_ = self._scratch[:, :blocks]
        np.add(self._count[:blocks], np.uint64(first), out=b)
        np.bitwise_and(b, _LOW, out=a)
        np.right_shift(b, 32, out=b)
        c[...] = d[...] = 0
        words = self._words[:blocks]
        for i, word in enumerate(philox(self._scratch[:, :blocks], self._random.seed)):
            words[:, i] = word
        return words.reshape(-1)[skip : skip + n]


def few_words(first: int, blocks: int, key: int) -> Array:
    """The words of the blocks from `first` on, which is below 2^63.

    Each of a counter's four words is one integer of Python's for all blocks, 64 bits to a block, so that products have
    room: the hundred calls of NumPy that `philox` takes cost more than all their work on few blocks.
    """
    ones, count, low = _lanes(blocks)
    first_words = first * ones + count
    a, b, c, d = first_words & low, first_words >> 32 & low, 0, 0
    for one, other in _keys_of_lanes(key, blocks):
        p, q = a * _FACTORS[0], c * _FACTORS[1]
        a, b, c, d = (q >> 32 & low) ^ b ^ one, q & low, (p >> 32 & low) ^ d ^ other, p & low
    words = np.empty((blocks, 2), np.dtype("<u8"))
    for i, pair in enumerate((a | b << 32, c | d << 32)):
        words[:, i] = np.frombuffer(pair.to_bytes(8 * blocks, "little"), words.dtype)
    return words.view(np.dtype("<u4")).reshape(-1).astype(np.uint32, copy=False)


@lru_cache
def _lanes(blocks: int) -> tuple[int, int, int]:
    """In every 64 bits: 1, the number of the block, 2^32 - 1."""
    ones = sum(1 << 64 * i for i in range(blocks))
    return ones, sum(i << 64 * i for i in range(blocks)), ones * _LOW


@lru_cache(maxsize=16)
def _keys_of_lanes(key: int, blocks: int) -> tuple[tuple[int, int], ...]:
    ones, _, _ = _lanes(blocks)
    return tuple((one * ones, other * ones) for one, other in _keys_of_rounds(key))


def philox(space: Array, key: int) -> tuple[Array, ...]:
    """The four words of each counter; they lie in `space`, uint64 of shape (6, counters), whose first four rows are the
    counters' words, the lowest first. What else was there is lost."""
    # Two words at a time: calls of NumPy are what few counters cost.
    factors, others, products = space[0:4:2], space[1:4:2], space[4:6]
    exchanged = products[::-1]
    half, mask = np.uint64(32), np.uint64(_LOW)
    for keys in _keys(key):
        # The products' lower halves are words of the next round as they are, the upper ones after exchange and mixing.
        np.multiply(factors, _MULTIPLIERS, out=products)
        np.bitwise_xor(others, keys, out=others)
        np.right_shift(exchanged, half, out=factors)
        np.bitwise_xor(factors, others, out=factors)
        np.bitwise_and(exchanged, mask, out=others)
    return tuple(space[:4])


@lru_cache
def _keys(key: int) -> Array:
    """Of each round, in columns."""
    return np.array(_keys_of_rounds(key), np.uint64)[:, :, np.newaxis]


def _keys_of_rounds(key: int) -> list[tuple[int, int]]:
    low, high = key & _LOW, key >> 32
    return [((low + i * 0x9E3779B9) & _LOW, (high + i * 0xBB67AE85) & _LOW) for i in range(10)]
