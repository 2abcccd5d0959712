# SPDX-License-Identifier: Apache-2.0
"""The cache of kernels with a fault, or a signal, at each call of the system: a program of
its own, with the shim preloaded.

Reads cases (JSON) from stdin, each {"what", "how", "share"}; writes for each the runs and what went wrong. A cache that
fails is as good as none: a right value, or nothing; never an error, and the next one finds or makes a right one.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import forks
from fuzz.shim import Shim, numbers
from gpucast.compile.cache import Cache

_KEY, _VALUE = "k" * 64, bytes(range(256)) * 40


def _kept(folder: str) -> str:
    """Put a value in a cache, and get it with another one."""
    Cache(folder).put(_KEY, _VALUE)
    other = Cache(folder)
    other.usage()
    return "" if other.get(_KEY) in (None, _VALUE) else "another value"


_WORK: dict[str, Callable[[str], str]] = {"kept": _kept}


def run(work: Callable[[str], str], folder: str, shim: Shim, how: str, at: int) -> str:
    """The work in a fork; what is wrong with it."""

    def faulted() -> str:
        shim.arm(how, at, at)
        try:
            return work(folder)
        finally:
            shim.disarm()

    said, status = forks.forked(faulted)
    return said if how != "SIGKILL" or status == 0 else "" if status == -9 else f"ended with {status}"


def case(what: str, how: str, share: float, shim: Shim) -> dict[str, Any]:
    work, problems = _WORK[what], []
    with tempfile.TemporaryDirectory() as scratch:
        full = str(Path(scratch).resolve() / "full")
        shim.arm()
        assert work(f"{full}.first") == ""
        names = shim.disarm()
        chosen = numbers(names, how)
        chosen = sorted(random.Random(f"{what} {how}").sample(chosen, max(1, round(share * len(chosen)))))
        for at in chosen:
            folder = f"{full}.{at}"
            found = run(work, folder, shim, how, at) or work(folder)
            if not found and what == "kept" and Cache(folder).get(_KEY) != _VALUE:
                found = "was not kept in the next run"
            if found:
                problems.append(f"{what}: {how} at call {at} ({names[at]}): {found}")
    return {"calls": len(names), "runs": len(chosen), "problems": problems}


if __name__ == "__main__":
    # What is started from here has no part in it.
    os.environ.pop("LD_PRELOAD")
    json.dump([case(**told, shim=Shim()) for told in json.load(sys.stdin)], sys.stdout)
