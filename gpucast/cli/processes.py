# SPDX-License-Identifier: Apache-2.0
"""Processes that compile kernels side by side."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def processes(jobs: int, prepare: Callable[..., Any] | None = None, *arguments: Any) -> ProcessPoolExecutor:
    """A pool of so many processes. Each first calls ``prepare(*arguments)``; Ctrl-C ends the work from this process."""
    # Forked children would inherit the state of libraries that are not safe to fork.
    return ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_prepare, initargs=(prepare, arguments)
    )


def _prepare(prepare: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if prepare is not None:
        prepare(*arguments)
