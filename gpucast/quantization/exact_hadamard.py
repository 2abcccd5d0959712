# SPDX-License-Identifier: Apache-2.0
"""The specification of record of `gpucast.hadamard`: literal, and in FLOAT arithmetic in a fixed order.

1.  *Runs.* Along the axis x is cut into runs of n = 16, 32, 64 or 128 numbers, without a rest. Numbers become FLOAT;
    only DOUBLE is rounded (nearest, ties to even; too large ones become infinite).
2.  *Signs.* Number i of a run is multiplied by sign i, which is +1 or -1 and the same for all runs. A seed gives the
    signs of 128 numbers, of which shorter runs have the first n: sign i is -1 where bit i % 32 of word i // 32 is set
    in the block of Philox4x32-10 that has the seed as its key and the counter (0, 0, 1, 0). Random rounding counts
    with (low, high, 0, 0): its words are others, also with the same seed.
3.  *Sums.* For h = 1, 2, 4, ..., n / 2: of numbers i and i + h, where i & h is 0, the new ones are a + b and a - b.
    Each sum is rounded to FLOAT (nearest, ties to even, with subnormals), and nothing is fused.
4.  *Factor.* Each number is multiplied by 1 / sqrt(n), rounded to FLOAT. For 16 and 64 it is 1 / 4 and 1 / 8, so the
    product is exact where it is not subnormal.
5.  *NaN and infinity.* As IEEE 754 has them: sums beyond FLOAT's range are infinite, infinity less infinity is NaN.
    Every NaN of the result is the positive one, 0x7fc00000. So a NaN or an infinity in x, or sums that overflow
    (magnitudes above 2^128 / n can), leave no finite number in their run, or few.

The inverse has no step 2, and multiplies by the signs after step 4. The matrix is its own inverse, so it gives x back
but for rounding. The result is FLOAT; to another type it is cast once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import reference
from gpucast.core.arithmetic import exact
from gpucast.quantization.formats import LENGTHS, Hadamard

NDArray = npt.NDArray[Any]


@exact()
def transform(x: NDArray, hadamard: Hadamard, *, axis: int = -1, inverse: bool = False) -> NDArray:
    """The FLOAT array of the transformed numbers of a NumPy array."""
    n = hadamard.length
    value = np.moveaxis(reference.cast(x, "FLOAT"), axis, -1)
    runs = value.reshape(-1, n).copy()
    signs = np.array([-1 if hadamard.negative >> i & 1 else 1 for i in range(n)], np.float32)
    if not inverse:
        runs *= signs
    with np.errstate(all="ignore"):
        for h in (1 << i for i in range(n.bit_length() - 1)):
            pairs = runs.reshape(-1, n // (2 * h), 2, h)
            a, b = pairs[:, :, 0], pairs[:, :, 1]
            runs = np.stack([a + b, a - b], axis=2).reshape(-1, n)
        runs = runs * np.float32(hadamard.factor)
    if inverse:
        runs *= signs
    runs[np.isnan(runs)] = np.float32(np.nan)
    return np.ascontiguousarray(np.moveaxis(runs.reshape(value.shape), -1, axis))


def negative_signs(seed: int) -> int:
    """The `Hadamard.negative` of a seed, for the longest runs."""
    counter = [np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.ones(1, np.uint64), np.zeros(1, np.uint64)]
    words = reference.exact_cast.philox(tuple(counter), (seed & 2**32 - 1, seed >> 32))
    assert 32 * len(words) == LENGTHS[-1]
    return sum(int(word[0]) << 32 * i for i, word in enumerate(words))
