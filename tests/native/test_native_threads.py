# SPDX-License-Identifier: Apache-2.0
"""Large arrays are split among threads, and nothing depends on it."""

from __future__ import annotations

import os
import threading

import pytest

from gpucast.native import library as host_native
from gpucast.native import threads


@pytest.mark.parametrize("size", [1, 4096, 4097, 20_000, 1_000_003])
@pytest.mark.parametrize("most", [1, 2, 3, 7])
@pytest.mark.parametrize("can_start", [True, False])
def test_every_element_is_worked_on_once(
    size: int, most: int, can_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "most", lambda: most)
    monkeypatch.setattr(threads, "PART", 1 << 14)
    if not can_start:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[tuple[int, int]] = []
    threads.split(lambda start, stop: done.append((start, stop)), size, 8 * size)
    done.sort()
    assert done[0][0] == 0
    assert done[-1][1] == size
    assert [stop for _, stop in done[:-1]] == [start for start, _ in done[1:]]
    assert 1 <= len(done) <= max(1, min(most, 8 * size // threads.PART))
    assert all(start % 4096 == 0 for start, _ in done)


@pytest.mark.parametrize("at", [0, 4096, 8192])
def test_an_error_of_any_part_is_told_when_all_have_ended(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another thread was not: the cast was said to be done."""
    monkeypatch.setattr(threads, "most", lambda: 3)
    monkeypatch.setattr(threads, "PART", 1 << 14)
    go_on = threading.Event()

    def work(start: int, stop: int) -> None:
        if start == at:
            go_on.set()
            raise MemoryError("no room")
        go_on.wait()

    before = threading.active_count()
    with pytest.raises(MemoryError, match="no room"):
        threads.split(work, 3 * 4096, 8 * 3 * 4096)
    assert threading.active_count() == before


def test_little_work_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "most", lambda: 8)
    seen: list[str] = []
    threads.split(lambda start, stop: seen.append(threading.current_thread().name), 1000, 2 * threads.PART - 1)
    assert seen == [threading.current_thread().name]


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    most = threads.most.__wrapped__
    monkeypatch.delenv("GPUCAST_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert most() == 3
    monkeypatch.setenv("GPUCAST_THREADS", "12")
    assert most() == 12
    for wrong in ("0", "-1", "two", "1.5", "²"):
        monkeypatch.setenv("GPUCAST_THREADS", wrong)
        with pytest.raises(ValueError, match="is not a number of threads; expected one such as 4"):
            most()


def test_a_wrong_number_of_threads_switches_the_library_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCAST_NATIVE", "1")
    monkeypatch.setenv("GPUCAST_THREADS", "many")
    monkeypatch.setattr(threads, "most", threads.most.__wrapped__)
    assert host_native.status() == (
        "NumPy alone: GPUCAST_THREADS='many' is not a number of threads; expected one such as 4"
    )
    assert host_native._cache.__wrapped__() is None
