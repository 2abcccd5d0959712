# SPDX-License-Identifier: Apache-2.0
"""Run by tests in processes of their own: arrays of a list are reshaped while it is cast, by a signal's handler and by
another thread, and casts are interrupted; then all results are looked at.

``interrupted_lists.py COUNT [MODULE]`` goes on until COUNT of these came in the midst of a cast: when its first result
was begun and its last one was not. MODULE: a file in the place of the extension module.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

import numpy as np

#: What no result is, and the shape that arrays get meanwhile.
UNTOUCHED, OTHER = 255, (2,) * 16
#: Eight elements of a result.
ONES = np.uint64(0x0101010101010101)
#: Seconds of a cast.
LASTS = 0.1


class Interrupted(Exception):
    pass


def main(count: int) -> None:
    import gpucast

    small = np.ones(1 << 16, np.float32)
    big = np.ones((1 << 10, 1 << 11), np.float32).T
    # In the order of the casts below, which is not that of the source.
    room = [np.empty(big.shape, np.uint8)]
    gpucast.cast_many([big], "UINT8", out=room)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        gpucast.cast_many([big], "UINT8", out=room)
        taken.append(time.perf_counter() - start)
    # Long enough for the main thread to look for signals, which it does by time. One may be slow by chance.
    arrays = [big] * (1 + int(LASTS / min(taken))) + [small]
    outs = [np.empty(x.shape, np.uint8) for x in arrays]
    new: list[np.ndarray] = []
    found = dict.fromkeys(("reshaped by a handler", "reshaped by a thread", "interrupted"), 0)
    is_asked, is_over = threading.Event(), False
    rng = np.random.default_rng(1)

    def is_in_the_midst() -> bool:
        return bool(outs[0][0, 0] != UNTOUCHED and outs[-1].reshape(-1)[-1] == UNTOUCHED)

    def reshape(who: str) -> None:
        found[who] += is_in_the_midst()
        small.shape = OTHER

    def interrupt(*_: object) -> None:
        found["interrupted"] += is_in_the_midst()
        raise Interrupted

    def reshape_when_asked() -> None:
        while is_asked.wait() and not is_over:
            is_asked.clear()
            end = time.perf_counter() + 1
            while not is_in_the_midst() and time.perf_counter() < end:
                time.sleep(0.0005)
            reshape("reshaped by a thread")

    thread = threading.Thread(target=reshape_when_asked)
    thread.start()
    gpucast.cast_many(arrays, "UINT8", out=outs)
    turn = 0
    while (done := sum(found.values())) < count:
        turn += 1
        small.shape = (1 << 16,)
        for out in outs:
            out.reshape(-1, copy=False)[[0, -1]] = UNTOUCHED
        who = ("a thread", "a thread", "a handler", "an interrupt")[turn % 4]
        handler = interrupt if who == "an interrupt" else lambda *_: reshape("reshaped by a handler")
        signal.signal(signal.SIGALRM, handler)
        is_interrupted = False
        try:
            if who == "a thread":
                is_asked.set()
            else:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.002, 0.03))
            gpucast.cast_many(arrays, "UINT8", out=outs)
        except Interrupted:
            is_interrupted = True
        except ValueError as error:
            # Reshaped before the list was read.
            assert "out has shape" in str(error), error
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            while is_asked.is_set() and who == "a thread":
                time.sleep(0.001)
        # New results have the shape that was read, and are whole.
        for x, out in zip(arrays, outs, strict=True):
            is_whole = (out.reshape(-1).view(np.uint64) == ONES).all()
            assert is_whole or is_interrupted, (who, turn, x.shape)
        if turn % 50 == 0:
            new = gpucast.cast_many(arrays[-2:], "UINT8")
            assert all((y == 1).all() for y in new)
        if sum(found.values()) == done and turn > 20 + 20 * count:
            raise SystemExit(f"too few came in the midst of a cast: {found} in {turn} casts")
    is_over = True
    is_asked.set()
    thread.join()
    assert all(found.values()), found
    print(f"{sum(found.values())} in {turn} casts: {found}")


if __name__ == "__main__":
    if sys.argv[2:]:
        import built_module

        built_module.load(sys.argv[2])
    main(int(sys.argv[1]))
