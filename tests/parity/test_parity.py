# SPDX-License-Identifier: Apache-2.0
"""The parity harness: it finds planted faults, says where they are, and tries what it says that it tries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from codes import every_code
from gpucast.core.rule import Options
from gpucast.kernel.cast_kernel import PARTS
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import parts_text
from gpucast.parity import backends, compare, host_build, sweep
from gpucast.parity.backends import CastCodes, NDArray
from gpucast.parity.cases import NUMERIC, Case, all_cases, all_pairs, cases, shuffled, stochastic_cases

ROWS = {row.name: row for row in NUMERIC}


def case(src: str, dst: str, number: int = 0) -> Case:
    return cases(ROWS[src], ROWS[dst])[number]


class Faulty:
    """The host path with one bit flipped where a source code of one pair comes up."""

    name, device, batch = "faulty", "a test", 3

    def __init__(self, pair: tuple[str, str], bits: int) -> None:
        self.pair, self.bits = pair, bits
        self.prepared: list[Case] = []

    def prepare(self, chosen: Sequence[Case], optimize: bool) -> CastCodes:
        self.prepared += chosen
        cast = backends.HostBackend().prepare(chosen, optimize)

        def faulty(case: Case, codes: NDArray) -> NDArray:
            result = cast(case, codes)
            if (case.rule.src.name, case.rule.dst.name) == self.pair:
                result = result ^ (codes == self.bits).astype(result.dtype)
            return result

        return faulty


def run(backend: backends.CastBackend, chosen: Sequence[Case], threads: int = 2, seconds: float | None = None) -> list:
    return compare.run(backend, chosen, seed=1, share=0.0, random=100, threads=threads, seconds=seconds)


# ---- what is tried ----


def test_the_sample_is_seeded_and_spread_over_the_pairs() -> None:
    everything = all_cases(all_pairs())
    order = shuffled(everything, 7)
    assert order == shuffled(everything, 7) != shuffled(everything, 8)
    assert len(set(order)) == len(order) == len(everything) and set(order) == set(everything)
    pairs = len(all_pairs())
    assert len({(one.rule.src, one.rule.dst) for one in order[:pairs]}) == pairs
    # Not the default attributes first.
    assert any(one.attributes for one in order[:pairs]) and not all(one.attributes for one in order[pairs:])


def test_attributes_of_a_case_ask_for_its_rule() -> None:
    from gpucast.core.rule import resolve

    for one in all_cases(all_pairs()):
        attributes = dict(one.attributes)
        random = attributes.pop("seed", None), attributes.pop("offset", None)
        assert resolve(one.rule.src, one.rule.dst, Options(**attributes)) == one.rule
        assert random == ((None, None) if one.random is None else one.random)
        assert (one.random is not None) == (one.rule.rounding == "stochastic")
    assert all_cases([(ROWS["FLOAT"], ROWS["INT8"])], defaults_only=True) == [case("FLOAT", "INT8")]
    assert str(case("FLOAT", "INT8", 3)) == "FLOAT to INT8 (rounding='nearest_even', overflow='saturate')"


# ---- what is found ----


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("src", "bits"), [("FLOAT8E5M2", 0x3F), ("UINT2", 3), ("FLOAT", 0x3F800000)])
def test_one_flipped_bit_is_found(src: str, bits: int, threads: int) -> None:
    chosen = all_cases((ROWS[name], dst) for name in ("INT4", src) for dst in NUMERIC[:8])
    outcomes = run(Faulty((src, "INT8"), bits), chosen, threads)
    assert [outcome.case for outcome in outcomes] == chosen
    for outcome in outcomes:
        assert (outcome.wrong > 0) == ((outcome.case.rule.src.name, outcome.case.rule.dst.name) == (src, "INT8"))
        if outcome.first is not None:
            codes = compare.codes_of(outcome.case.rule, seed=1, share=0.0, random=100)
            assert outcome.wrong == np.count_nonzero(codes == bits)
            assert outcome.elements == codes.size
            assert outcome.first.index == np.flatnonzero(codes == bits)[0]
            assert outcome.first.bits == bits
            assert outcome.first.got == outcome.first.wanted ^ 1


def test_what_a_mismatch_says() -> None:
    first = compare.Mismatch(case("FLOAT", "FLOAT8E4M3FN", 1), 17, 0x3FC00000, 0x3C, 0x3D)
    assert str(first) == (
        "FLOAT to FLOAT8E4M3FN (saturate=False): index 17, input 0x3fc00000 (1.5): wanted 0x3c (1.5), got 0x3d (1.625)"
    )
    assert compare.describe(ROWS["INT4"], 0xF) == "0xf (-1)"
    assert compare.describe(ROWS["FLOAT6E2M3"], 0x20) == "0x20 (-0.0)"
    assert compare.describe(ROWS["INT2"], 0x83) == "0x83 (no code of INT2)"


# ---- backends ----


@pytest.mark.parametrize(
    ("text", "other", "pair"),
    [
        # The generic rule, of which a table is made; a shortcut; the layout.
        ("(rest | (kept & 1))", "(rest | 1)", ("INT8", "FLOAT8E4M3FN")),
        ("u32(127 + shift) << 23", "u32(128 + shift) << 23", ("DOUBLE", "FLOAT8E4M3FNUZ")),
        ("min_u16x2(rest, repeated<16>(1))", "min_u16x2(rest, repeated<16>(0))", ("FLOAT", "FLOAT8E4M3FNUZ")),
        ("out.word[i] = in.word[i]", "out.word[i] = in.word[0]", ("INT8", "INT8")),
    ],
)
def test_a_fault_in_the_kernels_text_is_found(
    text: str, other: str, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = parts_text(PARTS)
    assert text in kernels
    monkeypatch.setattr(host_build, "parts_text", lambda parts: kernels.replace(text, other))
    (outcome,) = run(backends.KernelsBackend(), [case(*pair)])
    assert outcome.first is not None
    assert outcome.first.wanted != outcome.first.got


def test_the_gpu_backend_goes_the_whole_device_path() -> None:
    """On real CuPy arrays over host memory, and the host build of the kernels."""
    host_driver = pytest.importorskip("host_driver", reason="needs CuPy; the other backends are tried without it")

    driver = host_driver.HostDriver()
    chosen = [one for src in ("INT4", "FLOAT8E5M2", "FLOAT") for dst in ("FLOAT6E2M3", "BOOL", "FLOAT8E4M3FNUZ")
              for one in cases(ROWS[src], ROWS[dst])]  # fmt: skip
    driver.prepare(cast_kernel(one.rule) for one in chosen)
    chosen += [stochastic_cases(ROWS["FLOAT"], ROWS[dst])[0] for dst in ("FLOAT6E2M3", "FLOAT8E4M3FNUZ")]
    with host_driver.installed(driver):
        gpu = backends.backend(None)
        assert gpu.name == "gpu" and gpu.device
        outcomes = run(gpu, chosen, threads=1)
    assert [outcome.first for outcome in outcomes] == [None] * len(chosen)
    assert len(driver.launched) == len(chosen)


# ---- threads and time ----


def test_an_error_in_a_thread_ends_the_run() -> None:
    class Broken(Faulty):
        def prepare(self, chosen: Sequence[Case], optimize: bool) -> CastCodes:
            if case("INT4", "INT8") in chosen:
                raise RuntimeError("no such kernel")
            return super().prepare(chosen, optimize)

    backend = Broken(("", ""), 0)
    chosen = all_cases((src, dst) for src in (ROWS["INT4"], ROWS["BOOL"], ROWS["INT8"]) for dst in NUMERIC)
    with pytest.raises(RuntimeError, match="no such kernel"):
        run(backend, chosen)
    assert len(backend.prepared) < len(chosen) / 2


def test_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three take three seconds each: the second one fits whole, of the third only two cases."""
    now = [100.0]
    monkeypatch.setattr(compare.time, "monotonic", lambda: now[0])

    class Slow(Faulty):
        def prepare(self, chosen: Sequence[Case], optimize: bool) -> CastCodes:
            now[0] += len(chosen)
            return super().prepare(chosen, optimize)

    chosen = all_cases([(ROWS["INT4"], dst) for dst in NUMERIC])
    assert len(run(Slow(("", ""), 0), chosen, threads=1, seconds=8.5)) == 8
    assert len(run(Slow(("", ""), 0), chosen, threads=1, seconds=6.5)) == 6
    assert len(run(Slow(("", ""), 0), chosen, threads=1)) == len(chosen)


# ---- all codes ----


@pytest.mark.parametrize(
    ("src", "made", "applies", "others"),
    [(src, sweep.intervals, sweep.piecewise_constant, (src, "INT8", "DOUBLE"))
     for src in ("BFLOAT16", "UINT16", "FLOAT8E5M2FNUZ", "INT4")]
    + [(src, sweep.stairs, sweep.has_stairs, ("FLOAT",)) for src in ("FLOAT16", "INT16")],
)  # fmt: skip
def test_intervals_and_stairs_say_what_the_reference_says(src: str, made: Any, applies: Any, others: Any) -> None:
    codes = every_code(ROWS[src])
    found = [one for one in all_cases((ROWS[src], dst) for dst in NUMERIC) if applies(one.rule)]
    for one in found:
        steps, wanted = made(one.rule), compare.wanted_codes(one.rule, codes)
        half, odd = codes.size // 2, codes.size // 2 - 3
        for first, count in ((0, codes.size), (half, half), (3, odd)):
            assert np.array_equal(steps(first, count), wanted[first : first + count]), one
    assert len(found) > 10 and not any(applies(case(src, dst).rule) for dst in others)


@pytest.mark.parametrize("dst", ["FLOAT8E4M3FN", "FLOAT4E2M1", "INT8", "DOUBLE"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sweep_finds_one_flipped_bit(dst: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_CHUNK", 1000)
    done: list[int] = []
    outcome = sweep.sweep(Faulty(("FLOAT16", dst), 0xC123), case("FLOAT16", dst), threads=threads, advance=done.append)
    assert (outcome.elements, outcome.wrong, sum(done)) == (1 << 16, 1, 1 << 16)
    assert outcome.first is not None
    assert (outcome.first.index, outcome.first.bits) == (0xC123, 0xC123)
    assert outcome.first.got == outcome.first.wanted ^ 1
