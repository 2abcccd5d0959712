# SPDX-License-Identifier: Apache-2.0
"""Modules that are imported when they are first used, beside forks."""

from __future__ import annotations

import os
import threading
import time

import pytest

from gpucast.core import packages


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forks_wait_for_imports() -> None:
    begun, done = threading.Event(), []

    def imports() -> None:
        with packages.importing():
            begun.set()
            # A fork that does not wait comes in here.
            time.sleep(0.3)
            done.append("imported")

    thread = threading.Thread(target=imports)
    with packages.importing():  # One's own does not count.
        thread.start()
        begun.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if done and list(packages._threads) == [threading.get_ident()] else 1)
        assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert not packages._threads
