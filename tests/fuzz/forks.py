# SPDX-License-Identifier: Apache-2.0
"""Work in a forked process, which may be ended by a signal."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def forked(work: Callable[[], str]) -> tuple[str, int]:
    """What the work says, or the traceback of its error, "" where it was ended first; and the fork's exit code."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            said = work()
        except BaseException:
            said = traceback.format_exc()
        with open(writer, "w", encoding="utf-8") as file:
            file.write(said)
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        said = file.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
