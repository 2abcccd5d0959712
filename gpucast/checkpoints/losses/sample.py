# SPDX-License-Identifier: Apache-2.0
"""Which elements the errors and histograms of a report are computed from.

Counts of losses are exact. Errors take a hundred times the time of a cast, so of large tensors they are those of a
sample: runs of elements spread over the tensor, the same ones however it is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

#: Tensors up to this many elements are examined as a whole.
EXACT = 1 << 16
#: The elements of a run, and of how many elements each run is a sample.
_RUN, _OF = 1 << 10, 1 << 17
#: Pieces with scales are read back as a whole: one of so many, which is sampled as many times as densely.
_PIECES, _PIECE = 4, 1 << 20
#: A multiplier that spreads the runs over all columns (of the golden ratio).
_SPREAD = 2654435761


def runs(total: int, start: int, size: int, share: int = 1) -> Iterator[slice]:
    """The elements to examine of `size` elements from index `start` on, of `total` in the tensor: slices from `start`.

    `share`: how many times as many as usual.
    """
    if total <= EXACT:
        yield slice(0, size)
        return
    step = _OF // share
    for index in range(start // step, -(-(start + size) // step)):
        # Groups of 4 begin on a byte, whatever the type.
        first = index * step + index * _SPREAD % (step - _RUN) // 4 * 4
        begin, end = max(first, start), min(first + _RUN, start + size, total)
        if begin < end:
            yield slice(begin - start, end - start)


def runs_of_piece(total: int, start: int, size: int) -> list[slice]:
    """As `runs`, for a piece that is read back as a whole if any of it is examined."""
    if total > EXACT and start // _PIECE % _PIECES:
        return []
    return list(runs(total, start, size, _PIECES))
