# SPDX-License-Identifier: Apache-2.0
"""Work on the next pieces while the last ones are written."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")
Made = TypeVar("Made")

#: More threads than this gain nothing: then reading and writing, which one thread does, take the time.
_MOST = 4


def threads(device: str | None) -> int:
    """How many threads cast: one for each processor that we may use; one alone feeds a GPU."""
    if device is not None and device != "cpu":
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, _MOST)


class Ahead:
    """Threads that work on pieces, `count` at a time. A context manager; threads begin when there is work for them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def in_order(self, work: Callable[[Piece], Made], pieces: Iterator[Piece]) -> Iterator[Made]:
        """``work(piece)`` of each, in their order; the calls go on in the threads, so many ahead at most.

        Pieces are fetched, and errors raised, in the thread of the caller.
        """
        first, second = next(pieces, None), next(pieces, None)
        if second is None:
            # Not worth a thread.
            if first is not None:
                yield work(first)
            return
        assert first is not None
        pending: deque[Future[Made]] = deque()
        try:
            pending.extend((self._pool.submit(work, first), self._pool.submit(work, second)))
            del first, second
            for piece in pieces:
                if len(pending) > self._count:
                    yield pending.popleft().result()
                pending.append(self._pool.submit(work, piece))
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
