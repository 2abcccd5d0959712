# SPDX-License-Identifier: Apache-2.0
"""How the benchmark measures: times, buffers, checks, cases; on a fake GPU with a clock that is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench.cases import buffers, check
from bench.cases.buffers import CACHES, LAYOUTS, MOST_SETS, Sets, make_sets, source_codes
from bench.cases.case import Row, failures
from bench.cases.contenders import SAME_RATIO, Ours, OursAllocating, same_ratio
from bench.cases.pairs import PairCase
from bench.timing.times import LEAST, Times, Work, measure, quickest, verdict
from fake_machine import FakeMachine, FakeRival, TimedDriver, built_driver
from gpucast.core.dtypes import DType, dtype
from host_driver import installed

FLOAT, HALF, INT8, INT4, BYTE = (dtype(name) for name in ("FLOAT", "FLOAT16", "INT8", "INT4", "UINT8"))
PAIRS = [(FLOAT, HALF), (INT4, HALF), (FLOAT, INT4), (INT8, BYTE)]


@pytest.fixture(scope="module")
def built() -> TimedDriver:
    return built_driver(PAIRS)


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def driver(built: TimedDriver, machine: FakeMachine) -> Iterator[TimedDriver]:
    built.machine = machine
    built.sources.clear()
    with installed(built):
        yield built


def times(median: float, p5: float, p95: float, samples: int = 100, calls: int = 1) -> Times:
    return Times(median, p5, p95, samples, calls)


# ---- times ----


@pytest.mark.parametrize(
    ("ours", "theirs", "claim"),
    [
        (times(1.0, 0.9, 1.1), times(2.0, 1.2, 2.2), "faster"),
        (times(1.0, 0.9, 1.2), times(2.0, 1.2, 2.2), "same"),
        (times(2.0, 1.9, 2.1), times(1.0, 0.9, 1.8), "slower"),
        (times(2.0, 1.7, 2.1), times(1.0, 0.9, 1.8), "same"),
    ],
)
def test_no_claim_where_intervals_overlap(ours: Times, theirs: Times, claim: str) -> None:
    assert verdict(ours, theirs) == claim


def test_works_take_turns_in_batches_that_rotate(machine: FakeMachine) -> None:
    assert Times.of([2.0 * number for number in range(101)], calls=2) == times(50.0, 5.0, 95.0, 101, 2)
    calls: list[tuple[str, int]] = []

    def spending(name: str, seconds: float) -> Work:
        def run(i: int) -> None:
            calls.append((name, i))
            machine.spend(seconds, launches=0)

        return Work(run, 3)

    works = {"A": spending("A", 1e-5), "B": spending("B", 2e-3), "C": spending("C", 2e-3)}
    found = measure(machine, list(works.values()), samples=30)
    assert [one.median for one in found] == pytest.approx([1e-5, 2e-3, 2e-3])
    assert [(one.calls, one.samples) for one in found] == [(100, 30), (1, 30), (1, 30)], "a millisecond"
    assert "".join(name for name, _ in itertools.groupby(name for name, _ in calls)).endswith("ABCBCACAB" * 9)
    for name in works:
        sets = [i for other, i in calls if other == name]
        assert sets == [number % 3 for number in range(len(sets))], "every call takes the next set"
    assert {one.samples for one in measure(machine, [works["B"], works["C"]], limit=0.1)} <= {49, 50}
    assert measure(machine, [works["B"]], limit=0.01)[0].samples == LEAST


def test_work_on_another_stream_is_timed_by_the_host(machine: FakeMachine) -> None:
    waited: list[Any] = []

    def wait(result: Any) -> None:
        machine.time += 4e-3
        waited.append(result)

    ours = Work(lambda i: machine.spend(2e-3, launches=0), 3)
    found = measure(machine, [ours, Work(lambda i: i, 2, wait)], samples=20)
    # Nothing passes but in the wait, and its batches must not count for ours.
    assert found[1].median * found[1].calls == pytest.approx(4e-3)
    assert found[0].median == pytest.approx(2e-3) and found[0].p95 == pytest.approx(2e-3)
    assert set(waited) <= {0, 1}


def test_the_quickest_round_counts_on_the_host() -> None:
    passed, spent = [0.0], {"a": itertools.cycle([3.0, 1.0, 2.0]), "b": itertools.repeat(4.0)}

    def call(name: str) -> None:
        passed[0] += next(spent[name])

    sides = {name: lambda name=name: call(name) for name in spent}
    assert quickest(sides, 9, clock=lambda: passed[0]) == {"a": 1.0, "b": 4.0}
    assert quickest(sides, 2, calls=3, clock=lambda: passed[0]) == {"a": 2.0, "b": 4.0}
    assert quickest(sides, 1, turns=3, rest=1e-9, clock=lambda: passed[0]) == {"a": 1.0, "b": 4.0}


# ---- buffers ----


def footprint(sets: Sets) -> int:
    return sum(side.nbytes for side in (*sets.sources, *sets.outs))


def test_sets_are_distinct_and_too_many_for_the_cache(machine: FakeMachine) -> None:
    sets = make_sets(machine, FLOAT, HALF, 1 << 10)
    ranges = sorted((side.data.ptr, side.data.ptr + side.nbytes) for side in (*sets.sources, *sets.outs))
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert sets.moved == 6144 and footprint(sets) >= CACHES * machine.cache_bytes
    assert len(sets.sources) == -(-4 * machine.cache_bytes // 6144)
    small = make_sets(machine, FLOAT, HALF, 1)
    assert len(small.sources) == MOST_SETS and footprint(small) < CACHES * machine.cache_bytes
    assert len(make_sets(machine, FLOAT, HALF, 1 << 18).sources) == 2


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
def test_every_layout_is_cast_as_the_check_expects(
    layout: buffers.Layout, src: DType, dst: DType, machine: FakeMachine, driver: TimedDriver, monkeypatch: Any
) -> None:
    # Less than a source holds, so that it is repeated.
    monkeypatch.setattr(buffers, "BLOCK", 1 << 10)
    source_codes.cache_clear()
    n = 1 << 15
    if not layout.applies(src, n):
        assert src.packed and layout.kind != "flat"
        return
    sets = make_sets(machine, src, dst, n, layout)
    source_codes.cache_clear()
    for row, shift, sides in ((src, layout.src_shift, sets.sources), (dst, layout.dst_shift, sets.outs)):
        assert {side.data.ptr % 256 for side in sides} == {shift * row.code_numpy.itemsize}
    ours = Ours(machine)
    found = check.check_windows(ours, sets, ours.prepare(sets)(0), True)
    assert (found.checked, found.wrong) == (3 * check.WINDOW, 0)


# ---- checks ----


def test_mismatches_are_counted_and_named(machine: FakeMachine) -> None:
    rival, sets = FakeRival(machine, "rival", 1e9, wrong=17), check.hard_sets(machine, INT8, BYTE)
    found = check.check_windows(rival, sets, rival.prepare(sets)(0), False)
    assert found.wrong == 17 and "gives" in found.first and "the reference" in found.first


def test_any_nan_will_do_for_rivals() -> None:
    codes = np.array([0x7E00, 0x7E01, 0xFE00, 0x3C00], np.uint16)
    wanted = np.array([0x7E00, 0x7E00, 0x7E00, 0x3C00], np.uint16)
    assert check.compare(codes, codes, wanted, HALF, HALF, True).wrong == 2
    assert check.compare(codes, codes, wanted, HALF, HALF, False).wrong == 0
    wanted[0] = 0x7C00
    assert check.compare(codes, codes, wanted, HALF, HALF, False).wrong == 1


# ---- a case ----


def measured(machine: FakeMachine, *rivals: Any, pair: Any = (FLOAT, HALF), n: int = 1 << 12) -> dict[str, Row]:
    case = PairCase("stage", pair, n, samples=20, limit=0.01)
    everyone = [Ours(machine), OursAllocating(machine), *rivals]
    return {row.name: row for row in case.case(everyone, lambda moved: machine.copy).measure(machine)}


def test_what_breaks_is_told_and_the_others_go_on(machine: FakeMachine, driver: TimedDriver) -> None:
    broken, well = FakeRival(machine, "broken", 1e9, broken=True), FakeRival(machine, "well", 1e9)
    rows = measured(machine, broken, well, pair=(INT8, BYTE))
    assert rows["broken"].problem == "NotImplementedError: no kernel for it" and rows["broken"].times is None
    assert rows["well"].times is not None and rows["gpucast"].times is not None and machine.released == 1
    assert SAME_RATIO not in rows
    # Rivals may be wrong, we may not.
    assert failures([Row("rival", wrong=1, first="it gives 1")]) == ""
    assert failures([Row("gpucast", wrong=1, first="it gives 1")]) == "gpucast: it gives 1"


def test_copies_move_as_many_bytes_as_casts_and_rotate_as_they_do(machine: FakeMachine) -> None:
    sets = make_sets(machine, FLOAT, HALF, 1 << 10)
    machine.copies.clear()
    run = same_ratio(machine, sets)
    for i in range(len(sets.sources)):
        run(i)
    assert {(name, nbytes) for name, _, _, nbytes in machine.copies} == {("4:2", 2048)}
    assert len({src for _, src, _, _ in machine.copies}) == len({dst for _, _, dst, _ in machine.copies}) == 11
