# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at random times of casts of large arrays: a program of its own.

Reads {"seed", "runs", "elements"} (JSON) from stdin; writes how many runs were interrupted, the longest time that one
went on after its signal, and what went wrong. After each run the result's memory gets a pattern, which nobody else may
change.
"""

from __future__ import annotations

import json
import math
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpucast

_PATTERN = 0x5A


def jobs(elements: int) -> list[tuple[Callable[[], Any], np.ndarray[Any, Any]]]:
    """Casts, and the memory that each writes."""
    x = np.ones(elements, np.float32)
    half, byte, double = np.empty(elements, np.float16), np.empty(elements, np.uint8), np.empty(elements, np.float64)
    floats8 = byte.view(gpucast.dtype("FLOAT8E4M3FN").numpy)
    amax = np.zeros((), np.float32)
    square = x[: int(elements**0.5) ** 2].reshape(int(elements**0.5), -1)
    into = np.empty(square.shape, np.int32)
    many = [x[i::7] for i in range(7)]
    outs = [half[i * (elements // 8) :][: one.size] for i, one in enumerate(many)]
    return [
        (lambda: gpucast.cast(x, "FLOAT16", out=half), half),
        (lambda: gpucast.cast(x, "DOUBLE", out=double), double),
        (lambda: gpucast.cast(square.T, "INT32", out=into), into),
        (lambda: gpucast.cast(x[::-1], "FLOAT16", out=half), half),
        (lambda: gpucast.cast(x, "FLOAT8E4M3FN", scale=0.3, amax=amax, out=floats8), byte),
        (lambda: gpucast.cast(x, "FLOAT16", rounding="stochastic", seed=1, out=half), half),
        (lambda: gpucast.cast_many(many[:1], "FLOAT16", out=outs[:1]), half),
        (lambda: gpucast.cast(x, "BFLOAT16"), byte),
        (lambda: gpucast.quantize(square, "mxfp8e4m3"), byte),
        (lambda: gpucast.cast_many([x, x], "FLOAT16"), byte),
    ]


def main(seed: int, runs: int, elements: int) -> dict[str, Any]:
    rng, every = random.Random(seed), jobs(elements)
    # The least times: what is measured while others use the machine has signals come after the casts.
    taken = [math.inf] * len(every)
    for number in 4 * [*range(len(every))]:
        begin = time.perf_counter()
        every[number][0]()
        taken[number] = min(taken[number], time.perf_counter() - begin)
    interrupted, longest, problems = 0, 0.0, list[str]()
    for run in range(runs):
        number = rng.randrange(len(every))
        work, written = every[number]
        delay = rng.uniform(1e-5, 1.2 * taken[number] + 1e-4)
        begin = time.perf_counter()
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
            taken[number] = min(taken[number], time.perf_counter() - begin)
        except KeyboardInterrupt:
            interrupted += 1
            longest = max(longest, time.perf_counter() - begin - delay)
        memory = written.reshape(-1).view(np.uint8)
        memory[:] = _PATTERN
        time.sleep(0.001)
        if not (memory == _PATTERN).all():
            problems.append(f"run {run}: job {number} was written after the call had left")
    return {"interrupted": interrupted, "longest": longest, "problems": problems}


if __name__ == "__main__":

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    given = json.load(sys.stdin)
    try:
        json.dump(main(**given), sys.stdout)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
