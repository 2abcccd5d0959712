# SPDX-License-Identifier: Apache-2.0
"""Walks host arrays chunk by chunk, so that each chunk stays in the cache while it is worked on.

Callers get flat, contiguous, aligned chunks in native byte order, whatever the strides and byte orders of the arrays.
The extra memory is one or two chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

NDArray = npt.NDArray[Any]

#: Elements of a chunk: few enough that a few scratch arrays of 4 or 8 bytes per element fit the second-level cache, so
#: many that the cost of a NumPy call does not matter. A multiple of 8, so that packed chunks are whole bytes.
CHUNK = 1 << 16


def spans(size: int, chunk: int = CHUNK) -> Iterator[slice]:
    """The slices that cut `size` flat elements into chunks."""
    for start in range(0, size, chunk):
        yield slice(start, min(start + chunk, size))


def elements(x: NDArray, chunk: int = CHUNK) -> Iterator[NDArray]:
    """The elements of one array in memory order. A chunk is valid only until the next one is requested."""
    flags: Any = ["external_loop", "buffered", "zerosize_ok"]
    with np.nditer(x, flags=flags, order="K", buffersize=chunk) as chunks:
        for part in chunks:
            chunk_of: Any = part
            if chunk_of.size:
                yield chunk_of
