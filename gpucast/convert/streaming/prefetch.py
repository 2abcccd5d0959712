# SPDX-License-Identifier: Apache-2.0
"""Prefetching: threads of the host, or a device, work on the next pieces while the previous ones are written."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import TypeVar

from gpucast.casting import engines
from gpucast.casting.engine import Engine
from gpucast.kernel import devices

Piece = TypeVar("Piece")
Made = TypeVar("Made")

#: Each thread holds pieces in memory; with more threads, disk and memory are the limit.
_MOST = 4


class Prefetcher:
    """The engine that a `device` keyword names, and the threads that give it work: one per available processor, up to
    `_MOST`; one for a GPU. A context manager. The device is looked at, and threads start, when there is work."""

    def __init__(self, device: str | None = None) -> None:
        self._place = devices.parse(device, "convert")

    @cached_property
    def engine(self) -> Engine:
        """DeviceUnavailable if there is none."""
        return engines.named(self._place, "convert")

    @cached_property
    def count(self) -> int:
        """The number of threads."""
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.engine.pick(min(available, _MOST), 1)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.count)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *error: object) -> None:
        if "_pool" in vars(self):
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
                if len(pending) > self.count:
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
