# SPDX-License-Identifier: Apache-2.0
"""How the benchmark measures: buffers, checks, ceilings, times; on a fake GPU with a clock that is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench.cases import buffers, check, contenders
from bench.cases.buffers import CONTIGUOUS, LAYOUTS, make_sets, moved_bytes, sets_of, source_codes
from bench.cases.contenders import Ours
from bench.cases.pairs import Measurement, Pairs
from bench.timing import ceilings, latency
from bench.timing import times as timing
from bench.timing.machine import MOST_SETS, HostMachine
from bench.timing.times import Times, Work, measure, verdict
from fake_machine import COPY_KERNEL, LAUNCH, MEMCPY, FakeMachine, FakeRival, TimedDriver, built_driver
from gpucast.core.dtypes import DType, dtype
from gpucast.parity.cases import NUMERIC
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


def times(median: float, p5: float, p95: float) -> Times:
    return Times(median, p5, p95, 100, 1)


# ---- times ----


@pytest.mark.parametrize(
    ("ours", "theirs", "claim"),
    [
        (times(1.0, 0.9, 1.1), times(2.0, 1.2, 2.2), "faster"),
        (times(1.0, 0.9, 1.3), times(2.0, 1.2, 2.2), "same"),
        (times(1.0, 0.9, 1.2), times(2.0, 1.2, 2.2), "same"),
        (times(2.0, 1.9, 2.1), times(1.0, 0.9, 1.8), "slower"),
        (times(2.0, 1.7, 2.1), times(1.0, 0.9, 1.8), "same"),
    ],
)
def test_no_claim_where_intervals_overlap(ours: Times, theirs: Times, claim: str) -> None:
    assert verdict(ours, theirs) == claim


def test_times_are_percentiles_of_one_call() -> None:
    found = Times.of([2.0 * number for number in range(101)], calls=2)
    assert (found.p5, found.median, found.p95, found.samples, found.calls) == (5.0, 50.0, 95.0, 101, 2)


def spending(machine: FakeMachine, name: str, seconds: float, calls: list[tuple[str, int]]) -> Work:
    def run(i: int) -> None:
        calls.append((name, i))
        machine.spend(seconds, launches=0)

    return Work(name, run, 3)


def test_batches_last_a_millisecond_and_rotate(machine: FakeMachine) -> None:
    calls: list[tuple[str, int]] = []
    quick, slow = spending(machine, "quick", 1e-5, calls), spending(machine, "slow", 2e-3, calls)
    found = measure(machine, [quick, slow], samples=50)
    assert found[0].median == pytest.approx(1e-5) and found[1].median == pytest.approx(2e-3)
    assert (found[0].calls, found[1].calls) == (100, 1)
    assert found[0].samples == found[1].samples == 50
    for name in ("quick", "slow"):
        of_name = [i for other, i in calls if other == name]
        assert of_name == [number % 3 for number in range(len(of_name))], "every call takes the next set"


def test_works_take_turns(machine: FakeMachine) -> None:
    calls: list[tuple[str, int]] = []
    works = [spending(machine, name, 2e-3, calls) for name in "ABC"]
    measure(machine, works, samples=30)
    order = "".join(name for name, _ in calls)[-90:]
    assert order == "ABCBCACAB" * 10


def test_slow_works_have_fewer_samples_spread_over_all_turns(machine: FakeMachine) -> None:
    calls: list[tuple[str, int]] = []
    quick, slow = spending(machine, "q", 1e-3, calls), spending(machine, "s", 9.9e-3, calls)
    found = measure(machine, [quick, slow], samples=100, limit=0.3)
    assert (found[0].samples, found[1].samples) == (100, 30)
    places = [number for number, (name, _) in enumerate(calls[-130:]) if name == "s"]
    assert len(places) == 30 and max(np.diff(places)) <= 6
    assert measure(machine, [slow], samples=100, limit=0.01)[0].samples == timing.LEAST


def test_work_on_another_stream_is_timed_by_the_host(machine: FakeMachine) -> None:
    waited: list[Any] = []

    def wait(result: Any) -> None:
        machine.time += 4e-3
        waited.append(result)

    calls: list[tuple[str, int]] = []
    own = Work("own", lambda i: i, 2, wait)
    found = measure(machine, [spending(machine, "ours", 2e-3, calls), own], samples=20)
    # Nothing passes but in the wait, and its batches must not count for ours.
    assert found[1].median * found[1].calls == pytest.approx(4e-3)
    assert found[0].median == pytest.approx(2e-3) and found[0].p95 == pytest.approx(2e-3)
    assert set(waited) <= {0, 1}


def test_latency_is_of_rows_of_calls(machine: FakeMachine) -> None:
    calls: list[tuple[str, int]] = []
    works = [spending(machine, "a", 3e-6, calls), spending(machine, "b", 7e-6, calls)]
    one, other = latency.measure_latency(machine, works, loops=5, calls=200)
    assert one.times.median == pytest.approx(3e-6) and other.times.median == pytest.approx(7e-6)
    assert one.p99 == pytest.approx(3e-6) and (one.times.samples, one.times.calls) == (5, 200)
    assert len(calls) == 2 * (20 + 5 * 200 + 200)


# ---- buffers ----


def test_bytes_are_those_of_the_elements() -> None:
    assert moved_bytes(FLOAT, HALF, 1000) == 6000
    assert moved_bytes(INT4, HALF, 1000) == 2500
    assert moved_bytes(dtype("INT2"), dtype("FLOAT6E2M3"), 8) == 8


def test_sets_are_distinct_and_too_many_for_the_cache(machine: FakeMachine) -> None:
    sets = make_sets(machine, FLOAT, HALF, 1 << 10)
    ranges = sorted((side.data.ptr, side.data.ptr + side.nbytes) for side in (*sets.sources, *sets.outs))
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert sets.footprint >= buffers.CACHES * machine.cache_bytes and sets.cold
    assert len(sets.sources) == -(-4 * machine.cache_bytes // 6144)
    small = make_sets(machine, FLOAT, HALF, 1)
    assert len(small.sources) == MOST_SETS and not small.cold
    large = make_sets(machine, FLOAT, HALF, 1 << 18)
    assert len(large.sources) == 2 and large.cold


def test_memory_limits_the_sets() -> None:
    machine = FakeMachine(free=1 << 20)
    each = 6 << 16
    assert len(make_sets(machine, FLOAT, HALF, 1 << 16).sources) == 1 == int(0.4 * (1 << 20) // each)
    with pytest.raises(buffers.TooLarge, match="bytes for each"):
        make_sets(machine, FLOAT, HALF, 1 << 18)


@pytest.mark.parametrize("row", NUMERIC, ids=str)
def test_sources_hold_real_data(row: DType) -> None:
    codes = source_codes(row)
    assert codes.size == buffers.BLOCK and codes.dtype == row.code_numpy and int(codes.max()) <= row.code_mask
    assert np.unique(codes[: 1 << 14]).size >= min(1 << row.bits, 2 if row.family == "bool" else 1000)


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
    assert sets.codes.size == 1 << 10
    source_codes.cache_clear()
    for row, shift, sides in ((src, layout.src_shift, sets.sources), (dst, layout.dst_shift, sets.outs)):
        assert {side.data.ptr % 256 for side in sides} == {shift * row.code_numpy.itemsize}
    found = check.check_windows(Ours(machine), sets)
    assert (found.checked, found.wrong) == (3 * check.WINDOW, 0)


def test_strided_and_transposed_views_are_those_of_numpy() -> None:
    flat = np.arange(1 << 10)
    transposed, strided = LAYOUTS["transposed"], LAYOUTS["strided"]
    assert np.array_equal(transposed.view(flat), flat.reshape(32, 32).T)
    for layout in (transposed, strided):
        n = flat.size // (2 if layout is strided else 1)
        assert layout.view(flat).shape == layout.shape(n)
        assert np.array_equal(flat[layout.places(np.arange(n), n)], layout.view(flat).reshape(-1))
    assert not transposed.applies(FLOAT, 1000) and not strided.applies(INT4, 1024)


# ---- checks ----


def test_all_codes_and_hard_values_are_checked(machine: FakeMachine, driver: TimedDriver) -> None:
    small = check.check_sample(machine, Ours(machine), INT4, HALF, True)
    assert small.wrong == 0 and small.checked >= 4099
    wide = check.check_sample(machine, Ours(machine), FLOAT, INT4, True)
    assert wide.wrong == 0 and wide.checked > 5000


def test_mismatches_are_counted_and_named(machine: FakeMachine) -> None:
    rival = FakeRival(machine, "rival", 1e9, wrong=17)
    found = check.check_sample(machine, rival, INT8, BYTE, False)
    assert found.wrong == 17 and "gives" in found.first and "the reference" in found.first


def test_windows_find_what_was_not_written(machine: FakeMachine) -> None:
    class Half(Ours):
        """Leaves the end of the destination as it is."""

        def prepare(self, sets: Any) -> Any:
            short = sets_of(machine, sets.src, sets.dst, sets.n - 5, CONTIGUOUS, sets.codes, 1)
            rival = FakeRival(machine, "", 1e9).prepare(short)

            def run(i: int) -> None:
                sets.machine.upload(sets.outs[0][: short.n], rival(0).view(np.uint8))

            return run

    sets = make_sets(machine, INT8, BYTE, 1 << 15)
    found = check.check_windows(Half(machine), sets)
    assert 1 <= found.wrong <= 5


def test_any_nan_will_do_for_rivals() -> None:
    codes = np.array([0x7E00, 0x7E01, 0xFE00, 0x3C00], np.uint16)
    wanted = np.array([0x7E00, 0x7E00, 0x7E00, 0x3C00], np.uint16)
    assert check.compare(codes, codes, wanted, HALF, HALF, True).wrong == 2
    assert check.compare(codes, codes, wanted, HALF, HALF, False).wrong == 0
    wanted[0] = 0x7C00
    assert check.compare(codes, codes, wanted, HALF, HALF, False).wrong == 1
    # Signaling ones too, of which NumPy warns.
    signaling, quiet = np.array([0x7F800001], np.uint32), np.array([0x7FC00000], np.uint32)
    assert check.compare(signaling, signaling, quiet, FLOAT, FLOAT, False).wrong == 0


# ---- ceilings ----


def test_the_clocks_are_warm_before_anything_is_measured(machine: FakeMachine) -> None:
    begin = machine.now()
    ceilings.warm_clocks(machine)
    moved = 2 * sum(copy[3] for copy in machine.copies)
    assert ceilings.CLOCK_WARM_UP <= moved / MEMCPY + len(machine.copies) * LAUNCH <= machine.now() - begin


def test_ceilings_count_reads_and_writes(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "CLOCK_WARM_UP", 0.0)
    found = ceilings.measure_ceilings(machine, [1 << 20], samples=20)
    assert {one.name for one in found} == {"memcpy", "copy kernel"}
    for one, speed in zip(found, (MEMCPY, COPY_KERNEL), strict=True):
        assert one.bytes == 1 << 20
        assert one.times.median == pytest.approx((1 << 20) / speed + LAUNCH)
    # Half of the bytes are read, and half are written, in arrays that are apart.
    machine.copies = machine.copies[2:]  # The first ones only show that they work.
    assert {nbytes for _, _, _, nbytes in machine.copies} == {1 << 19}
    assert all(abs(src - dst) >= nbytes for _, src, dst, nbytes in machine.copies)
    small = FakeMachine()
    ceilings.measure_ceilings(small, [1 << 12], samples=20)
    sets = {src for _, src, _, _ in small.copies[2:]}
    assert len(sets) == 4 * small.cache_bytes // (1 << 12), "copies rotate, too"


def test_a_copy_that_fails_is_left_out(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def broken(dst: Any, src: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(machine, "copy_kernels", lambda: {"copy kernel": broken})
    assert [one.name for one in ceilings.measure_ceilings(machine, [1 << 14], samples=20)] == ["memcpy"]
    assert "copy kernel is left out: RuntimeError: no compiler" in capsys.readouterr().err


def test_calls_of_those_that_work(machine: FakeMachine, capsys: Any) -> None:
    sets = make_sets(machine, INT8, BYTE, 1)
    broken, well = FakeRival(machine, "broken", 1e9, broken=True), FakeRival(machine, "well", 1e9)
    works = latency.works_of([broken, well, FakeRival(machine, "other", 1e9, lacks="INT8")], sets)
    assert [(work.name, work.sets) for work in works] == [("well", len(sets.sources))]
    assert "the calls of broken are left out: NotImplementedError" in capsys.readouterr().err


def test_the_nearest_ceiling_counts() -> None:
    found = [
        ceilings.Ceiling(name, size, times(size / speed, 0, 1))
        for name, size, speed in (("memcpy", 1 << 20, 1e9), ("kernel", 1 << 20, 2e9), ("memcpy", 1 << 30, 4e9))
    ]
    assert ceilings.nearest(found, 3e6) == pytest.approx(2e9)
    assert ceilings.nearest(found, 3e6, memcpy=True) == pytest.approx(1e9)
    assert ceilings.nearest(found, float(1 << 25)) == pytest.approx(4e9), "between two the larger counts"
    assert ceilings.nearest(found, 6e8) == pytest.approx(4e9)
    assert ceilings.nearest([], 1.0) == 0.0


def test_a_ceiling_that_does_not_fit_is_left_out() -> None:
    assert {one.bytes for one in ceilings.measure_ceilings(FakeMachine(1 << 20), [1 << 14, 1 << 24], samples=20)} == {
        1 << 14
    }


# ---- a pair ----


def test_a_pair_is_checked_and_timed_beside_its_rivals(machine: FakeMachine, driver: TimedDriver) -> None:
    rivals = [
        FakeRival(machine, "slow", 0.5e9),
        FakeRival(machine, "off", 2e9, wrong=3),
        FakeRival(machine, "none", 1, lacks="FLOAT"),
    ]
    pairs = Pairs(machine, [Ours(machine), Ours(machine, allocates=True), *rivals])
    rows = {row.contender: row for row in pairs.measure((FLOAT, HALF), 1 << 12, samples=20, limit=0.01)}
    assert list(rows) == ["gpucast", "gpucast allocating", "slow", "off"]
    ours = rows["gpucast"]
    assert ours.times is not None and ours.times.median == pytest.approx(4096 * 6 / 0.99e9 + LAUNCH)
    assert ours.bytes == 4096 * 6 and ours.wrong == 0 and ours.cold and ours.sets == 3
    assert len(set(driver.sources[-100:])) == 3, "each call has the next set"
    assert rows["off"].wrong == 3 and rows["off"].times is not None, "rivals that differ are timed, too"
    assert verdict(ours.times, rows["slow"].times) == "faster"  # type: ignore[arg-type]
    assert Measurement.from_json(ours.as_json()) == ours


def test_a_pair_is_checked_once(machine: FakeMachine, driver: TimedDriver) -> None:
    rival = FakeRival(machine, "rival", 1e9)
    pairs = Pairs(machine, [Ours(machine), rival])
    for n in (64, 128):
        pairs.measure((INT8, BYTE), n, samples=20, limit=0.001)
    assert rival.prepared == 3


def test_what_breaks_is_told_and_the_others_go_on(machine: FakeMachine, driver: TimedDriver) -> None:
    pairs = Pairs(
        machine, [Ours(machine), FakeRival(machine, "broken", 1e9, broken=True), FakeRival(machine, "well", 1e9)]
    )
    rows = {row.contender: row for row in pairs.measure((INT8, BYTE), 100, samples=20, limit=0.001)}
    assert rows["broken"].problem == "NotImplementedError: no kernel for it" and rows["broken"].times is None
    assert rows["well"].times is not None and rows["gpucast"].times is not None


def test_an_error_while_timing_is_told(machine: FakeMachine, driver: TimedDriver) -> None:
    class Exhausted(FakeRival):
        """Works once."""

        def prepare(self, sets: Any) -> Any:
            run, calls = super().prepare(sets), itertools.count()

            def once(i: int) -> Any:
                if next(calls):
                    raise RuntimeError("out of memory")
                return run(i)

            return once

    rows = Pairs(machine, [Ours(machine), Exhausted(machine, "exhausted", 1e9)]).measure((INT8, BYTE), 100)
    assert [row.problem for row in rows] == ["RuntimeError: out of memory"] * 2 and rows[0].checked


def test_what_is_too_large_is_told(machine: FakeMachine) -> None:
    machine.free = 1 << 12
    (row,) = Pairs(machine, [Ours(machine)]).measure((INT8, BYTE), 1 << 16)
    assert "bytes for each" in row.problem and machine.released == 1


def test_graphs_leave_out_what_a_call_costs(machine: FakeMachine, driver: TimedDriver) -> None:
    pairs = Pairs(machine, [Ours(machine), Ours(machine, allocates=True), FakeRival(machine, "rival", 1e9)])
    rows = pairs.measure((FLOAT, HALF), 1 << 10, via="graph", samples=20, limit=0.01)
    assert [row.contender for row in rows] == ["gpucast", "rival"]
    assert rows[0].times is not None and rows[0].times.median == pytest.approx(6144 / 0.99e9 + 1e-6, rel=1e-3)


# ---- who is there ----


def test_rivals_that_cannot_be_imported_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(machine: Any) -> Any:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(contenders, "TorchTo", missing)
    monkeypatch.setattr(contenders, "TorchCopy", missing)
    host = [one.name for one in contenders.contenders(HostMachine())]
    assert host == ["gpucast", "gpucast allocating", "NumPy astype", "NumPy copyto"]
    device = [one.name for one in contenders.contenders(FakeMachine())]
    assert device == ["gpucast", "gpucast allocating", "CuPy astype", "CuPy copyto"]


def test_cupy_has_its_own_types_only() -> None:
    astype = contenders.CupyAstype(FakeMachine())
    assert astype.supports(FLOAT, dtype("BFLOAT16")) and astype.supports(dtype("BOOL"), dtype("UINT64"))
    assert not astype.supports(FLOAT, dtype("FLOAT8E4M3FN")) and not astype.supports(INT4, FLOAT)
    assert sum(astype.supports(src, dst) for src in NUMERIC for dst in NUMERIC) == 13 * 13


def test_the_host_is_measured_for_real() -> None:
    machine = HostMachine(cache_bytes=1 << 16)
    with machine.current():
        pairs = Pairs(machine, [Ours(machine), contenders.NumpyAstype(machine), contenders.NumpyCopyto(machine)])
        rows = pairs.measure((FLOAT, HALF), 1 << 12, samples=20, limit=0.001)
        assert [row.wrong for row in rows] == [0, 0, 0] and all(row.speed > 0 for row in rows)
        assert not pairs.measure((INT4, HALF), 1 << 12)
        assert pairs.measure((FLOAT, HALF), 8, via="graph", samples=20, limit=0.001)[0].times is None
