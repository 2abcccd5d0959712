# SPDX-License-Identifier: Apache-2.0
"""The cost of a process's first call: with an empty kernel cache, with a full one, and after everything is loaded.

Each state of the cache is measured in a process of its own; ``python -m bench.gpu.first_call`` prints its times as
JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.revision import ROOT

#: Two pairs that are cast one after the other: the second finds the compiler loaded.
PAIRS = (("FLOAT", "FLOAT16"), ("FLOAT", "FLOAT8E4M3FN"))
_ELEMENTS = 1 << 10
_SECONDS = 60


def measure(run: Callable[[dict[str, str]], dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Times with an empty and then with the full cache. `run` starts a process with an environment."""
    run = run or _process
    with tempfile.TemporaryDirectory() as folder:
        caches = {"GPUCAST_CACHE_DIR": str(Path(folder, "gpucast")), "CUPY_CACHE_DIR": str(Path(folder, "cupy"))}
        # A container's image may have kernels there.
        caches["GPUCAST_CACHE_READ"] = ""
        return [{"cache": cache, **run(caches)} for cache in ("empty", "full")]


def _process(variables: dict[str, str]) -> dict[str, Any]:
    paths = (str(ROOT), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "bench.gpu.first_call"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=_SECONDS
        )
    except subprocess.CalledProcessError as error:
        return {"problem": (error.stderr.strip() or str(error)).splitlines()[-1][:200]}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"problem": str(error)[:200]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def in_this_process(now: Callable[[], float], wait: Callable[[], object], make: Callable[[str], Any]) -> dict[str, Any]:
    """Seconds of the first, the second and a later cast. `make` gives a source array of a type on the device."""
    import gpucast

    sources = {src: make(src) for src, _ in PAIRS}
    wait()
    seconds = []
    for src, dst in (*PAIRS, PAIRS[0]):
        begin = now()
        gpucast.cast(sources[src], dst)
        wait()
        seconds.append(now() - begin)
    return dict(zip(("first", "second pair", "again"), seconds, strict=True))


def _cupy_first(now: Callable[[], float], wait: Callable[[], object], x: Any) -> float:
    begin = now()
    x.astype("float16")
    wait()
    return now() - begin


def main() -> int:
    import cupy
    import numpy as np

    import gpucast

    def make(src: str) -> Any:
        return cupy.zeros(_ELEMENTS, gpucast.dtype(src).numpy)

    def wait() -> None:
        cupy.cuda.Device().synchronize()

    # The context is created before the measurement, because every program on the GPU needs one.
    x = cupy.asarray(np.zeros(_ELEMENTS, np.float32))
    wait()
    found = in_this_process(time.perf_counter, wait, make)
    print(json.dumps({**found, "CuPy astype": _cupy_first(time.perf_counter, wait, x)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
