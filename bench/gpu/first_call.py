# SPDX-License-Identifier: Apache-2.0
"""The cost of a process's first call: with an empty kernel cache, and with a full one.

Each is measured in a process of its own; ``python -m bench.gpu.first_call`` prints its seconds as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench.cases.case import Case, Row
from bench.revision import ROOT
from bench.timing.machine import Machine
from bench.timing.times import Times

#: Two types that FLOAT is cast to, one after the other: the second finds the compiler loaded.
TYPES = ("FLOAT16", "FLOAT8E4M3FN")
_ELEMENTS = 1 << 10
_SECONDS = 60


class FirstCall(Case):
    """Its times are those of other processes, one for each row."""

    def measure(self, machine: Machine) -> list[Row]:
        with tempfile.TemporaryDirectory() as folder:
            caches = {"GPUCAST_CACHE_DIR": f"{folder}/gpucast", "CUPY_CACHE_DIR": f"{folder}/cupy"}
            # A container's image may have kernels there.
            caches["GPUCAST_CACHE_READ"] = ""
            return [
                Row(f"{what}, {cache} cache", 0, times=Times.of([seconds], 1))
                for cache in ("empty", "full")
                for what, seconds in in_a_process(caches).items()
            ]


def case() -> Case:
    return FirstCall("first call", "first call: a process, after its CUDA context is made", lambda machine: (0, {}))


def in_a_process(variables: dict[str, str]) -> dict[str, float]:
    """The seconds of each call of a new process. RuntimeError with the last line that it says, where it fails."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **variables, "PYTHONPATH": paths}
    command = [sys.executable, "-m", "bench.gpu.first_call"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1][:200])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def timed(calls: dict[str, Callable[[], Any]], wait: Callable[[], object]) -> dict[str, float]:
    """Seconds of each call, one after the other."""
    seconds = {}
    for name, call in calls.items():
        begin = time.perf_counter()
        call()
        wait()
        seconds[name] = time.perf_counter() - begin
    return seconds


def main() -> int:
    import cupy
    import numpy as np

    import gpucast

    # The context is created before the measurement, because every program on the GPU needs one.
    x = cupy.asarray(np.zeros(_ELEMENTS, np.float32))
    wait = cupy.cuda.Device().synchronize
    wait()
    first, second = TYPES
    calls: dict[str, Callable[[], Any]] = {
        f"gpucast, FLOAT to {first}": lambda: gpucast.cast(x, first),
        f"gpucast, then to {second}": lambda: gpucast.cast(x, second),
        f"gpucast, to {first} again": lambda: gpucast.cast(x, first),
        "CuPy astype": lambda: x.astype("float16"),
    }
    print(json.dumps(timed(calls, wait)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
