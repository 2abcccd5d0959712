# SPDX-License-Identifier: Apache-2.0
"""Forks of a process whose threads cast: a program of its own.

Reads {"forks"} (JSON) from stdin; writes how many casts the threads made, and which children did not end well.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings
from typing import Any

from fuzz import many_casts
from gpucast.casting import plans

#: Seconds after which a child that hangs is ended by the system.
_HANGS = 120


def main(forks: int) -> dict[str, Any]:
    calls, done, made = many_casts.known(120), threading.Event(), [0] * 4

    def work(number: int) -> None:
        while not done.is_set():
            for call in calls[number::4]:
                made[number] += 1
                if not call.is_right():
                    problems.append(f"thread {number}: wrong bits")

    problems: list[str] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(forks):
        # Every plan is made anew, here and in the children.
        plans.forget()
        child = os.fork()
        if child == 0:
            signal.alarm(_HANGS)
            os._exit(0 if all(call.is_right() for call in calls[number % 7 :: 7]) else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            problems.append(f"fork {number}: ended with {status}")
    done.set()
    for thread in threads:
        thread.join()
    return {"casts": sum(made), "problems": problems}


if __name__ == "__main__":
    # Newer Pythons warn of forks beside threads, which is what is tried.
    warnings.filterwarnings("ignore", "This process", DeprecationWarning)
    json.dump(main(**json.load(sys.stdin)), sys.stdout)
