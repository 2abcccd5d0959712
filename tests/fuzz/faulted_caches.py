# SPDX-License-Identifier: Apache-2.0
"""The caches of kernels and of the host's library with a fault, or a signal, at each call of the system: a program of
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

import numpy as np

import gpucast
from fuzz import forks, native_cache
from fuzz.shim import Shim, numbers
from gpucast import reference
from gpucast.compile.cache import Cache
from gpucast.native.cast import NativeCast
from gpucast.native.library import NativeLibrary

_KEY, _VALUE = "k" * 64, bytes(range(256)) * 40
_X = np.linspace(-3, 3, 4096, dtype=np.float32)
_HALVES = reference.cast(_X, "FLOAT16").tobytes()


def _kept(folder: str) -> str:
    """Put a value in a cache, and get it with another one."""
    Cache(folder).put(_KEY, _VALUE)
    other = Cache(folder)
    other.usage()
    return "" if other.get(_KEY) in (None, _VALUE) else "another value"


def _loaded(folder: str) -> str:
    """Look for the host's library in its cache, and cast, with it and without."""
    library, out = NativeLibrary(native_cache.UNIT, Cache(folder), worth=1 << 62).library(_X.nbytes), _X.astype("f2")
    if library is not None:
        out[:] = 0
        NativeCast(library, native_cache.RULE)(_X.view(np.uint32), out.view(np.uint16))
    return "" if {out.tobytes(), gpucast.cast(_X, "FLOAT16").tobytes()} == {_HALVES} else "wrong bits"


_WORK: dict[str, Callable[[str], str]] = {"kept": _kept, "loaded": _loaded}


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
        if what == "loaded":
            native_cache.fill(Cache(full))
        shim.arm()
        assert work(full if what == "loaded" else f"{full}.first") == ""
        names = shim.disarm()
        chosen = numbers(names, how)
        chosen = sorted(random.Random(f"{what} {how}").sample(chosen, max(1, round(share * len(chosen)))))
        for at in chosen:
            folder = full if what == "loaded" else f"{full}.{at}"
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
