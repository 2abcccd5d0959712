# SPDX-License-Identifier: Apache-2.0
"""Random words for the host path: Philox4x32-10 (see `gpucast.core.random`) over whole arrays of counters.

NumPy's own Philox is a different generator of the family, with 64-bit words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.random import Random

Array = npt.NDArray[Any]
#: Two key words for each of the ten rounds.
Keys = tuple[tuple[int, int], ...]

_LOW = 2**32 - 1

#: The number of blocks up to which Python's integers are quicker than NumPy.
FEW = 512


class Words:
    """Computes the words of up to `most` elements at a time, in memory of its own."""

    def __init__(self, random: Random, most: int) -> None:
        self._random = random
        blocks = most // 4 + 2
        self._few = blocks <= FEW
        if not self._few:
            self._words = np.empty((blocks, 4), np.uint32)
            self._count = np.arange(blocks, dtype=np.uint64)

    def __call__(self, start: int, n: int) -> Array:
        """The uint32 words of `n` elements from `start` on; they are valid until the next call."""
        first, skip = divmod(self._random.offset + start, 4)
        blocks = (skip + n + 3) // 4
        if self._few:
            return few_words(first, blocks, self._random.seed)[skip : skip + n]
        number = self._count[:blocks] + np.uint64(first)
        words = self._words[:blocks]
        for i, word in enumerate(philox((number & _LOW, number >> 32, 0, 0), _keys(self._random.seed), _LOW)):
            words[:, i] = word
        return words.reshape(-1)[skip : skip + n]


def few_words(first: int, blocks: int, key: int) -> Array:
    """The words of the blocks from `first` on, which is below 2^63.

    Each of a counter's four words is a single Python integer for all blocks, with 64 bits per block so that products do
    not overflow. For few blocks this is quicker than a hundred NumPy calls.
    """
    ones, count, low = _lanes(blocks)
    number = first * ones + count
    a, b, c, d = philox((number & low, number >> 32 & low, 0, 0), _keys_of_lanes(key, blocks), low)
    words = np.empty((blocks, 2), np.dtype("<u8"))
    for i, pair in enumerate((a | b << 32, c | d << 32)):
        words[:, i] = np.frombuffer(pair.to_bytes(8 * blocks, "little"), words.dtype)
    return words.view(np.dtype("<u4")).reshape(-1).astype(np.uint32, copy=False)


@lru_cache
def _lanes(blocks: int) -> tuple[int, int, int]:
    """Integers that hold in every 64 bits: 1; the number of the block; 2^32 - 1."""
    ones = sum(1 << 64 * i for i in range(blocks))
    return ones, sum(i << 64 * i for i in range(blocks)), ones * _LOW


@lru_cache(maxsize=16)
def _keys_of_lanes(key: int, blocks: int) -> Keys:
    ones, _, _ = _lanes(blocks)
    return tuple((one * ones, other * ones) for one, other in _keys(key))


@lru_cache
def _keys(key: int) -> Keys:
    """The two key words of each round."""
    low, high = key & _LOW, key >> 32
    return tuple(((low + i * 0x9E3779B9) & _LOW, (high + i * 0xBB67AE85) & _LOW) for i in range(10))


def philox(counter: tuple[Any, Any, Any, Any], keys: Keys, low: int) -> tuple[Any, Any, Any, Any]:
    """The four words of each counter, from its four words, the lowest first.

    A word is an array of uint64, which is overwritten, or an integer with 64 bits per counter. `low` and `keys` have
    the same form; `low` has the lower 32 bits of each counter set.
    """
    a, b, c, d = counter
    for one, other in keys:
        # In place, which saves allocating arrays. The shift also brings in bits of neighbouring counters, which the
        # mask removes.
        a *= 0xD2511F53
        c *= 0xCD9E8D57
        b ^= one
        b ^= c >> 32
        b &= low
        d ^= other
        d ^= a >> 32
        d &= low
        a, b, c, d = b, c, d, a
    return a, b & low, c, d & low
