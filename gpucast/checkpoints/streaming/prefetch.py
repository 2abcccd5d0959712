# SPDX-License-Identifier: Apache-2.0
"""Work on the next pieces while the last ones are written."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Piece = TypeVar("Piece")
Made = TypeVar("Made")

#: Each thread holds pieces in memory, and with more of them the disk and the memory take the time.
_MOST = 4


def threads(device: str | None) -> int:
    """How many threads cast: one for each processor that we may use; one alone feeds a GPU."""
    if device is not None and device != "cpu":
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, _MOST)


class Prefetcher:
    """Threads that work on pieces, `count` at a time. A context manager; threads begin when there is work for them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def in_order(self, work: Callable[[Piece], Made], pieces: Iterator[Piece]) -> Generator[Made, None, None]:
        """``work(piece)`` of each, in their order; the calls go on in the threads, so many ahead at most.

        Pieces are fetched, and errors raised, in the thread of the caller. Close the iterator: then no call goes on.
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
                    yield _taken(pending)
                pending.append(self._pool.submit(work, piece))
            while pending:
                yield _taken(pending)
        finally:
            # No thread works on with files that are closed next.
            wait([future for future in pending if not future.cancel()])


def _taken(pending: deque[Future[Made]]) -> Made:
    made = pending[0].result()
    # Not before: while we wait for it, Ctrl-C may come.
    pending.popleft()
    return made
