# SPDX-License-Identifier: Apache-2.0
"""Long casts by several threads: the same bits, in every layout and from several threads at once; after a fork, where
the process ends, where the number of threads is given, and where inexact results trap."""

from __future__ import annotations

import os
import platform
import signal
import sys

import pytest

from gpucast.core.extension import MODULE
from processor_modes import KNOWN
from test_fallback import run

pytestmark = pytest.mark.skipif(MODULE is None, reason="the extension module could not be built here")

PRELUDE = """
import os, sys, threading, time, warnings
import numpy as np
import gpucast
def count(): return len(os.listdir("/proc/self/task"))
rng = np.random.default_rng(1)
x = rng.standard_normal(4_500_003).astype(np.float32)
x[::1000] = np.nan
x[7::999] = 1e9
def pieces(x, to, **keywords):
    "The same by casts that are too short to be cut."
    return np.concatenate([gpucast.cast(part, to, **keywords) for part in np.array_split(x, 150)])
def same(a, b): return a.dtype == b.dtype and a.tobytes() == b.tobytes()
def helpers(): return [int(task) for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]
def helpers_leave_a_core():
    "Whether each may run on all cores but one: the caller's when it woke them, which may have moved since."
    cores, others = os.sched_getaffinity(0), [os.sched_getaffinity(helper) for helper in helpers()]
    return len(cores) < 2 or all(other < cores and len(other) == len(cores) - 1 for other in others)
"""
CASTS = """
assert count() == 1
assert same(gpucast.cast(x[:20_000], "FLOAT16"), x[:20_000].astype(np.float16)) and count() == 1
for to in ("FLOAT16", "FLOAT8E4M3FN", "INT8", "DOUBLE", "BOOL"):
    assert same(gpucast.cast(x, to), pieces(x, to)), to
assert count() == 4 and helpers_leave_a_core()
# A caller that may run on one core only has helpers on all others. Helpers learn it when they are woken.
def pinned(threads, cores):
    # One of theirs.
    own = {min(os.sched_getaffinity(threads[0]))}
    os.sched_setaffinity(0, own)
    for _ in range(1000):
        time.sleep(0.001)
        gpucast.cast(x, "FLOAT16")
        others = [os.sched_getaffinity(thread) for thread in threads]
        if len(cores) < 2 or all(other == cores - own for other in others): return is_done.append(True)
is_done = []
thread = threading.Thread(target=pinned, args=(helpers(), os.sched_getaffinity(0)))
thread.start()
thread.join()
assert is_done
# Threads that watch for the next one help with shorter ones.
wanted = pieces(x[:300_003], "BFLOAT16")
for _ in range(100): assert same(gpucast.cast(x[:300_003], "BFLOAT16"), wanted)
short = gpucast.cast(x, "FLOAT8E4M3FN")
assert same(gpucast.cast(short, "FLOAT"), pieces(short, "FLOAT"))
keywords = {"rounding": "stochastic", "seed": 3}
parts = [gpucast.cast(x[i : i + 1_000_000], "BFLOAT16", offset=i, **keywords) for i in range(0, x.size, 1_000_000)]
assert same(gpucast.cast(x, "BFLOAT16", **keywords), np.concatenate(parts))
# The largest magnitude is in one part, NaN in another.
for at, value in ((3, 2e9), (x.size - 1, -3e9), (2_500_000, np.inf)):
    finite, amax, flag = np.nan_to_num(x), np.zeros((), np.float32), np.ones((), bool)
    finite[at] = value
    scaled = gpucast.cast(finite, "FLOAT8E5M2", scale=0.5, amax=amax)
    assert same(scaled, pieces(finite, "FLOAT8E5M2", scale=0.5)) and amax == abs(value), amax
    gpucast.cast_many([finite], "FLOAT16", finite=flag)
    assert flag == np.isfinite(value)
# Every cut: of rows, of columns, and of the only loop.
whole = x[:4_410_000]
for shape in ((2100, 2100), (4, 1_102_500), (1_102_500, 4), (10, 441, 1000)):
    square = whole.reshape(shape)
    transposed = gpucast.cast(square.T, "FLOAT16", out=np.empty(square.T.shape, np.float16))
    assert same(transposed, np.ascontiguousarray(square.astype(np.float16).T)), shape
    assert same(gpucast.cast(square[..., ::-1], "DOUBLE"), square[..., ::-1].astype(np.float64)), shape
# Few long steps, and loops of few steps.
for shape in ((101, 201, 201), (3, 1201, 1201), (2, 2_100_000, 1), (2, 2, 2, 2, 2, 130_003)):
    block = np.resize(x, shape)
    for view in (block[:-1, :-1, 1:], block.transpose(*range(1, block.ndim), 0), block[:, ::-1, ::2]):
        plain = np.ascontiguousarray(view)
        assert same(gpucast.cast(view, "FLOAT16"), plain.astype(np.float16)), shape
        assert same(gpucast.cast(view, "FLOAT16", out=np.empty(view.shape, "f2")), plain.astype(np.float16)), shape
# Steps that are too long for one part.
cube = x.view(np.int8)[: 3**15].reshape((3,) * 15)[tuple(slice(None, None, 1 - i % 2 * 2) for i in range(15))]
assert same(gpucast.cast(cube, "INT16"), cube.astype(np.int16, order="C"))
swapped = whole.astype(">f4")
assert same(gpucast.cast(swapped[::2], "FLOAT16"), whole[::2].astype(np.float16))
results = {}
def work(i): results[i] = [gpucast.cast(x, "FLOAT16") for _ in range(4)]
threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert all(same(y, pieces(x, "FLOAT16")) for i in range(3) for y in results[i])
assert count() == 4
print("done")
"""
FORK = """
wanted = pieces(x, "FLOAT16")
def check(): assert same(gpucast.cast(x, "FLOAT16"), wanted) and count() == 4 and helpers_leave_a_core()
def fork():
    # Python warns of threads that a fork leaves behind.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        child = os.fork()
    if child: return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        check()
        os._exit(0)
    finally:
        os._exit(1)
check()
assert fork() == 0 and fork() == 0
check()
# While another thread casts.
is_over = False
def busy():
    while not is_over: gpucast.cast(x, "FLOAT16")
thread = threading.Thread(target=busy)
thread.start()
warnings.filterwarnings("ignore", "This process .*is multi-threaded", DeprecationWarning)
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if same(gpucast.cast(x, "FLOAT16"), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
is_over = True
thread.join()
print("done")
"""
SIGNAL = """
import signal
# Long enough for many looks, which are 50 ms apart: casts with strides at random.
ones = np.broadcast_to(np.ones((1, 71, 71, 71)), (400, 71, 71, 71))[:, :70, :70, :70]
out, random = np.zeros(ones.shape, gpucast.dtype("FLOAT8E4M3FN").numpy), dict(rounding="stochastic", seed=1)
gpucast.cast(ones[:1], "FLOAT8E4M3FN", out=out[:1], scale=1.5, **random)
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    gpucast.cast(ones, "FLOAT8E4M3FN", out=out, scale=1.5, **random)
except KeyboardInterrupt:
    assert np.count_nonzero(out.view(np.uint8)) < out.size
    print("done")
"""
TRAPS = """
import ctypes
library, inexact = ctypes.CDLL("libm.so.6"), {"x86_64": 0x20, "aarch64": 0x10}[os.uname().machine]
tried = [(x[:n], to) for n in (200_001, x.size) for to in ("BFLOAT16", "FLOAT16", "INT8")] + [(x[::2], "FLOAT16")]
wanted = [gpucast.cast(part, to) for part, to in tried]
found = []
def work():
    library.feclearexcept(inexact)
    is_trapping = library.feenableexcept(inexact) >= 0
    for part, to in tried: found.append(gpucast.cast(part, to))
    library.fedisableexcept(inexact)
    return is_trapping
# Processors may lack traps: some of ARM's do.
assert work() or os.uname().machine == "aarch64"
assert all(same(a, b) for a, b in zip(found, wanted, strict=True))
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("code", [CASTS, FORK], ids=["casts", "fork"])
def test_four_threads(code: str) -> None:
    # Of which a quiet end is a part.
    assert run(PRELUDE + code, GPUCAST_HOST_THREADS="4", OMP_NUM_THREADS="1") == ["done"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="sets a timer")
def test_a_signal_waits_for_few_long_steps() -> None:
    assert run(PRELUDE + SIGNAL, GPUCAST_HOST_THREADS="1") == ["done"]


@pytest.mark.skipif(not KNOWN or platform.libc_ver()[0] != "glibc", reason="how to enable traps is not known")
def test_inexact_results_may_trap() -> None:
    assert run(PRELUDE + TRAPS, GPUCAST_HOST_THREADS="2") == ["done"]


def test_how_many() -> None:
    code = "from gpucast.core import extension; print(extension.status())"
    for asked, limit, wanted in (("3", "2", "3 threads"), ("", "1", "1 thread")):
        (line,) = run(code, GPUCAST_HOST_THREADS=asked, OMP_NUM_THREADS=limit)
        assert line.endswith(f", {wanted} for long casts"), line
    (line,) = run(code, GPUCAST_HOST_THREADS="", OMP_NUM_THREADS="")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert line.endswith(f", {min(cores or 1, 8)} thread{'s' if cores != 1 else ''} for long casts")
    for asked in ("2x", "0", "65", "4 "):
        (line,) = run(code, GPUCAST_HOST_THREADS=asked)
        wrong = f"GPUCAST_HOST_THREADS={asked} is not a number from 1 to 64"
        assert line == f"slow, by the reference: {wrong}; set GPUCAST_HOST_THREADS to one, or unset it"
