# SPDX-License-Identifier: Apache-2.0
"""Run by tests/host/test_changed_arrays.py in a process of its own: the extension module with AddressSanitizer and UBSan.

``sanitized_module.py MODULE TIMES``: lists are cast while a signal's handler and another thread reshape their arrays.
"""

from __future__ import annotations

import ctypes
import importlib.util
import signal
import sys
import threading
from typing import Any

MODULE, TIMES = sys.argv[1], int(sys.argv[2])
spec: Any = importlib.util.spec_from_file_location("gpucast._host", MODULE)
sys.modules["gpucast._host"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

import numpy as np  # noqa: E402

import gpucast  # noqa: E402
from gpucast.casting import host_lists  # noqa: E402

SHAPES = ((1 << 12,), (2,) * 12, (16, 256), (1, 4096), (64, 8, 8))
REACHED = 1 << 14


def main() -> None:
    rng = np.random.default_rng(3)
    first = rng.standard_normal((700, 600)).astype(np.float32)
    # Item 0 has strides, so that it is no short work; the others may change their shapes.
    whole = [first.T, *(rng.standard_normal(1 << 12).astype(np.float32) for _ in range(4))]
    own = [x.copy() for x in whole[1:]]
    wanted = [gpucast.reference.cast(x, "FLOAT16").tobytes() for x in whole]
    hits = interrupts = 0

    def reshape(*_: object) -> None:
        nonlocal interrupts
        interrupts += 1
        for x in own:
            x.shape = SHAPES[int(rng.integers(len(SHAPES)))]

    is_over = False

    def others() -> None:
        while not is_over:
            for x in own:
                x.shape = SHAPES[(x.ndim + 1) % len(SHAPES)]

    signal.signal(signal.SIGALRM, reshape)
    thread = threading.Thread(target=others)
    thread.start()
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-3)
    while interrupts < TIMES:
        # NumPy asks for shapes where results are made: the interrupts hit the module, or the checked path, which raises.
        outs = [np.empty(first.T.shape, np.float16), *(np.empty(1 << 12, np.float16) for _ in own)]
        for x in own:
            x.shape = (1 << 12,)
        for given in (None, outs):
            try:
                found = host_lists.run([first.T, *own], given, gpucast.dtype("FLOAT16"), OPTIONS, None)
            except ValueError:
                continue
            if found is not None:
                hits += 1
                assert [np.ascontiguousarray(y).tobytes() for y in found] == wanted
    signal.setitimer(signal.ITIMER_REAL, 0)
    is_over = True
    thread.join()
    assert hits > TIMES // 8, (hits, interrupts)
    print(f"{interrupts} interrupts, {hits} lists clean")


def overrun() -> None:
    """A destination that is too short by one element: what a run must not pass over in silence."""
    x, memory = np.ones(100, np.float32), (ctypes.c_char * 199)()
    work = gpucast.host.loops.plain(gpucast.core.rule.resolve(gpucast.dtype("FLOAT"), gpucast.dtype("FLOAT16")))
    out = np.ndarray((100,), np.float16, buffer=np.empty(200, np.uint8))
    out.resize(99, refcheck=False) if False else None
    module.cast(work, x, 0, out, 0, 100)
    del memory


if __name__ == "__main__":
    x = np.ones(8, np.float32)
    gpucast.cast_many([x, x.reshape(2, 4)], "FLOAT16")
    from gpucast.core.rule import Options

    OPTIONS = Options(caller="cast_many")
    main()
