# SPDX-License-Identifier: Apache-2.0
"""Other users of the machine, who own files and exchange them while ours are read."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest

#: Another user, for whom root can leave files.
STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@contextlib.contextmanager
def exchanging(*steps: Callable[[], object]) -> Iterator[None]:
    """Does the steps over and over in a thread until the block ends."""
    done, begun = threading.Event(), threading.Event()

    def work() -> None:
        while not done.is_set():
            for step in steps:
                step()
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        begun.wait()
        yield
    finally:
        done.set()
        thread.join()
