# SPDX-License-Identifier: Apache-2.0
"""Casts beside other work of the interpreter: arrays that are reshaped meanwhile, threads that end, forks, the lock,
and dtypes that pickle made. Each in a process of its own, because what is wrong there ends the process."""

from __future__ import annotations

import pickle
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import gpucast
from endings import HANGS
from gpucast.casting import plans
from gpucast.core.extension import MODULE
from test_fallback import run

pytestmark = [
    pytest.mark.skipif(MODULE is None, reason="the extension module could not be built here"),
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="sets a timer, and forks"),
]

PRELUDE = """
import os, signal, sys, threading, time, warnings
import numpy as np
import gpucast
"""
#: The thread is deep in its stack, which the system takes when the thread ends; the process lives on for a while.
EXIT = """
threading.stack_size(64 << 20)
x = np.ones((1 << 11) * (1 << 14), np.float32).reshape(1 << 11, 1 << 14)
out = np.empty(x.shape[::-1], np.uint8)
gpucast.cast(x[:100], "UINT8")
def deep(n):
    if n: list(map(deep, [n - 1]))
    while True: gpucast.cast(x.T[::2], "UINT8", out=out[::2])
class Last:
    def __del__(self, now=time.perf_counter):
        end = now() + 0.15
        while now() < end: pass
sys.modules["last"] = Last()
threading.Thread(target=deep, args=(40,), daemon=True).start()
time.sleep(0.1)
"""
FORK = """
warnings.filterwarnings("ignore", "This process .*is multi-threaded", DeprecationWarning)
x = np.ones((1 << 12, 1 << 14), np.float32)
out = np.zeros(x.shape[::-1], np.float16)
gpucast.cast(x[:300], "FLOAT16")
def waited():
    "Whether a fork in a cast waited for its end: the child has the memory of that moment."
    out[[0, -1]] = 0
    thread = threading.Thread(target=lambda: gpucast.cast(x.T, "FLOAT16", out=out))
    thread.start()
    while not out[0, 0]: time.sleep(0.0001)
    child = os.fork()
    if not child: os._exit(2 + bool(out[-1, -1]))
    said = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    thread.join()
    assert said in (2, 3) and (out == 1).all()
    return said == 3
# On a busy machine this thread may sleep for as long as a cast takes.
assert not all(waited() for _ in range(20)), "forks waited for the whole cast"
print("done")
"""
#: The cast's thread cannot have the lock before its last element is written: who asked for it would wait for ever.
LOCK_OF_A_THREAD = """
import faulthandler
x, out = np.ones((1 << 13, 1 << 14), np.float32).T, np.zeros((1 << 14, 1 << 13), np.uint8)
thread = threading.Thread(target=lambda: gpucast.cast(x, "UINT8", out=out))
thread.start()
while not out[0, 0]: time.sleep(0.0001)
faulthandler.dump_traceback_later(HANGS, exit=True)
sys.setswitchinterval(HANGS * 2)
while not out[-1, -1]: pass
thread.join()
print("done")
"""
#: A look for signals runs the handler of one that came.
LOCK_OF_THE_MAIN_THREAD = """
x, out = np.ones((1 << 13, 1 << 14), np.float32).T, np.zeros((1 << 14, 1 << 13), np.uint8)
looks = 0
def look(*_):
    global looks
    looks += bool(out[0, 0] and not out[-1, -1])
signal.signal(signal.SIGALRM, look)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
start = time.monotonic()
gpucast.cast(x, "UINT8", out=out)
took = time.monotonic() - start
signal.setitimer(signal.ITIMER_REAL, 0)
# However slow the machine is: one in 50 milliseconds at the most, not one for each part.
assert looks <= 1 + took / 0.05, (looks, took)
print("done")
"""
STACK = """
threading.stack_size(1 << 16)
x = np.ones((400, 500))
def work():
    gpucast.cast(x[:, ::2], "BFLOAT16", scale=0.3, seed=3, rounding="stochastic")
    gpucast.cast(x.T, "FLOAT8E4M3FN", scale=0.3, amax=np.zeros((), "f4"))
    print("done")
work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_lists_that_are_reshaped_and_interrupted(exhaustive: bool) -> None:
    script, count = Path(__file__).parents[1] / "interrupted_lists.py", 1000 if exhaustive else 40
    code = f"import sys, runpy; sys.argv[1:] = ['{count}']; runpy.run_path({str(script)!r}, run_name='__main__')"
    (said,) = run(code, GPUCAST_HOST_THREADS="1")
    assert int(said.split()[0]) >= count


def test_daemon_threads_in_a_cast_at_exit() -> None:
    for _ in range(5):
        assert run(PRELUDE + EXIT, GPUCAST_HOST_THREADS="4") == [""]


def test_a_fork_waits_for_a_part_of_a_cast_only() -> None:
    assert run(PRELUDE + FORK, GPUCAST_HOST_THREADS="4") == ["done"]


@pytest.mark.parametrize("code", [LOCK_OF_A_THREAD, LOCK_OF_THE_MAIN_THREAD], ids=["a thread", "the main thread"])
def test_a_cast_does_not_ask_for_the_lock_in_between(code: str) -> None:
    assert run(f"{PRELUDE}HANGS = {HANGS}\n{code}", GPUCAST_HOST_THREADS="1") == ["done"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other least stacks")
def test_a_small_stack() -> None:
    assert run(PRELUDE + STACK) == ["done", "done"]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float8_e4m3fn", "longlong"])
def test_arrays_that_pickle_made_share_plans(kind: str) -> None:
    x = np.ones(3, gpucast.dtype(kind).numpy if kind != "longlong" else np.longlong)
    # A table that is half full is begun anew.
    plans.forget()
    gpucast.cast(x, "FLOAT16")
    before = plans.count()
    for _ in range(20):
        copied = pickle.loads(pickle.dumps(x))
        assert plans.hit(copied, "FLOAT16", {}) is not None
        gpucast.cast(x, pickle.loads(pickle.dumps(np.dtype(np.float64))))
        gpucast.cast(x.astype(x.dtype.newbyteorder()), "FLOAT16")
    assert plans.count() <= before + 1
