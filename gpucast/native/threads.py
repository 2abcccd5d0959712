# SPDX-License-Identifier: Apache-2.0
"""Splits casts of large arrays among threads: compiled code runs outside Python's lock.

Environment: ``GPUCAST_THREADS``, the most threads of a cast; without it as many as the cores that this process may use.
Results do not depend on it. Threads are made for each cast, so that a fork finds none: a cast that is split takes a
millisecond and more, a thread a twentieth of that.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

#: The least bytes, of sources and results together, of the part of a thread.
PART = 1 << 22
#: Elements of whose number parts are multiples: no two threads write the same cache line.
_STEP = 1 << 12


def split(work: Callable[[int, int], None], size: int, nbytes: int) -> None:
    """Call ``work(start, stop)`` for parts that make up `size` elements, which take `nbytes` bytes, and wait.

    An error of a part, whichever thread has it, is one of the whole.
    """
    parts = _parts(nbytes)
    if parts == 1:
        work(0, size)
        return
    step = -(-size // (parts * _STEP)) * _STEP
    _together(work, [*range(0, size, step), size])


def split_arrays(work: Callable[[int, int], None], nbytes: npt.NDArray[np.uint64]) -> None:
    """As `split`, of arrays that are cast one after the other and take so many bytes each."""
    parts = _parts(int(nbytes.sum()))
    if parts == 1:
        work(0, nbytes.size)
        return
    ends = nbytes.cumsum()
    bounds = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts) + 1
    _together(work, sorted({0, *map(int, bounds), nbytes.size}))


def least() -> int:
    """The least bytes of a cast that is split."""
    return 2 * PART if most() > 1 else 1 << 63


def are_small(nbytes: npt.NDArray[np.uint64]) -> bool:
    """Whether no array takes more than a part of all, so that `split_arrays` keeps all threads as busy as `split`."""
    return int(nbytes.max()) <= max(PART, int(nbytes.sum()) // most())


def _parts(nbytes: int) -> int:
    return max(1, min(most(), nbytes // PART))


def _together(work: Callable[[int, int], None], bounds: Sequence[int]) -> None:
    helpers, errors = list[threading.Thread](), list[BaseException]()

    def help_with(start: int, stop: int) -> None:
        try:
            work(start, stop)
        except BaseException as error:
            errors.append(error)

    try:
        for start, stop in itertools.pairwise(bounds[1:]):
            helper = threading.Thread(target=help_with, args=(start, stop), name="gpucast-cast")
            try:
                helper.start()
            except RuntimeError:
                # The system has no more threads.
                work(start, stop)
                continue
            helpers.append(helper)
        work(*bounds[:2])
    finally:
        # After an error too: nobody writes to the result any more.
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[0]


@lru_cache(maxsize=1)
def most() -> int:
    """The most threads of a cast. ValueError for a ``GPUCAST_THREADS`` that is no positive number."""
    chosen = os.environ.get("GPUCAST_THREADS")
    if chosen:
        if not (chosen.isascii() and chosen.isdigit() and int(chosen)):
            raise ValueError(f"GPUCAST_THREADS={chosen!r} is not a number of threads; expected one such as 4")
        return int(chosen)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
