# SPDX-License-Identifier: Apache-2.0
"""Threads and forks that use the same caches, and Ctrl-C in large casts: right bits, and nothing works on or hangs."""

from __future__ import annotations

import random
import threading

from fuzz import many_casts, programs
from gpucast.casting import plans


def test_threads_on_the_same_caches(exhaustive: bool) -> None:
    calls, rounds = many_casts.known(2000 if exhaustive else 200), 20 if exhaustive else 2
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = random.Random(number)
        for _ in range(rounds):
            order = mine.sample(range(len(calls)), len(calls))
            wrong.extend(at for at in order if not calls[at].is_right())
            plans.forget()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    programs.noted("threads", calls=8 * rounds * len(calls))
    assert wrong == []


def test_forks_while_threads_cast(exhaustive: bool) -> None:
    result = programs.run("forked_casts", {"forks": 400 if exhaustive else 20})
    programs.noted("forks", casts=result["casts"])
    assert result["problems"] == []
    assert result["casts"] > 100


def test_casts_interrupted_at_random_times(exhaustive: bool) -> None:
    given = {"seed": 1, "runs": 1000 if exhaustive else 60, "elements": 1 << 27 if exhaustive else 1 << 23}
    # Memory that is given back is overwritten: who goes on reading it finds other numbers.
    result = programs.run("interrupted_casts", given, MALLOC_PERTURB_="165")
    programs.noted("interrupts", runs=given["runs"], interrupted=result["interrupted"])
    print(f"the longest time after a signal: {result['longest']:.3f} s")
    assert result["problems"] == []
    assert result["interrupted"] > given["runs"] // 4
