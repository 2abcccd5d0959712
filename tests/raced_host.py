# SPDX-License-Identifier: Apache-2.0
"""Run by test_host_sanitized.py in a process of its own: the extension module, built with ThreadSanitizer.

``raced_host.py MODULE`` casts from several threads at once, long casts with helpers among them, and prints "clean".
With "race" two threads write one array.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np

_THREADS, _ROUNDS = 4, 4


def _together(work: Callable[[], object]) -> None:
    """Run the same in several threads; raises what one of them raised."""
    errors: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def casts() -> None:
    import gpucast

    x = np.random.default_rng(1).standard_normal(1_500_003).astype(np.float32)
    wanted = {to: gpucast.cast(x, to).tobytes() for to in ("FLOAT16", "FLOAT8E4M3FN", "INT8")}

    def work() -> None:
        for _ in range(_ROUNDS):
            for to, bits in wanted.items():
                assert gpucast.cast(x, to).tobytes() == bits, to
            amax, finite = np.zeros((), np.float32), np.ones((), bool)
            gpucast.cast(x, "FLOAT16", scale=0.5, amax=amax)
            assert amax == np.abs(x).max()
            gpucast.cast_many([x[:300_000], x[:200_001]], "BFLOAT16", finite=finite)
            assert finite
            gpucast.cast(x[:100_000].reshape(100, 1000).T, "FLOAT16")
            gpucast.cast(x, "BFLOAT16", rounding="stochastic", seed=3)
            gpucast.cast(x[:70_000], "STRING")

    _together(work)


def race() -> None:
    import gpucast

    x, out = np.ones(1_000_000, np.float32), np.empty(1_000_000, np.float16)
    _together(lambda: [gpucast.cast(x, "FLOAT16", out=out) for _ in range(20)])


if __name__ == "__main__":
    import built_module

    built_module.load(sys.argv[1])
    {"casts": casts, "race": race}[(*sys.argv[2:], "casts")[0]]()
    print("clean")
