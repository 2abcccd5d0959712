# SPDX-License-Identifier: Apache-2.0
"""Prefetching: threads work on the next pieces while the previous ones are written."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Piece = TypeVar("Piece")
Made = TypeVar("Made")

#: Each thread holds pieces in memory; with more threads, disk and memory are the limit.
_MOST = 4


def threads(device: str | None) -> int:
    """How many threads cast: one per available processor, up to `_MOST`; one for a GPU."""
    if device is not None and device != "cpu":
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, _MOST)


class Prefetcher:
    """Up to `count` threads that work on pieces. A context manager; threads start when there is work."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def in_order(self, work: Callable[[Piece], Made], pieces: Iterator[Piece]) -> Generator[Made, None, None]:
        """``work(piece)`` for each piece, in order. The threads are at most `count` pieces ahead of the caller.

        Pieces are fetched, and errors raised, in the thread of the caller. After the iterator is closed no call runs.
        """
        first, second = next(pieces, None), next(pieces, None)
        if second is None:
            # A single piece is not worth a thread.
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
            # The caller closes its files next, so no call may still use them.
            wait([future for future in pending if not future.cancel()])


def _taken(pending: deque[Future[Made]]) -> Made:
    made = pending[0].result()
    # Removed only now: if Ctrl-C interrupts the wait, the call is still in the list of calls to wait for.
    pending.popleft()
    return made
