# SPDX-License-Identifier: Apache-2.0
"""The estimate from machine code: what is counted of a call, the model, and the command.

In CI every sixth pair is looked at for sm_90; under --exhaustive all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.report.heatmap import heatmap
from bench.static import check as static
from bench.static import estimate as model
from bench.static.calls import COLUMNS, ELEMENTS, ROWS, Call, Family, Pass, cast_family, families, recorded
from bench.static.estimate import GPUS, Estimate, alone, loads, resident_blocks, work
from bench.static.kernels import Measured, codes, measured
from bench.static.sass import Instruction
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.parity.cases import NUMERIC

PAIRS = [(src.name, dst.name) for src in NUMERIC for dst in NUMERIC]


def test_no_pair_fills_a_unit(exhaustive: bool) -> None:
    """Warnings and local memory are looked at too, so `test_kernels_compile` leaves these kernels to this test."""
    chosen = PAIRS if exhaustive else PAIRS[::6]
    found = list(static.estimated([cast_family(*pair) for pair in chosen], "sm_90"))
    for (src, dst), one in zip(chosen, found, strict=True):
        ((kernel,), bound) = [timed.of for timed in one.passes], one.main.bound
        assert (one.call.name, kernel.log, kernel.facts.local, kernel.exact) == (f"{src} to {dst}", "", 0, True)
        assert not kernel.repeated, "the instructions of a loop would not all be counted"
        assert bound in ("memory", "waiting") and one.share > LEAST, one.call.name


#: The share that every cast of contiguous arrays reaches at least, by the estimate.
LEAST = 0.65


# ---- what is counted ----


def of(name: str) -> Call:
    return recorded(next(one for one in families() if one.name == name))


@pytest.mark.parametrize(
    ("name", "read", "written", "needed", "launches"),
    [
        ("FLOAT to FLOAT8E4M3FN", 4, 1, 5, 1),
        # What strides skip travels, too.
        ("FLOAT to FLOAT16, every second element", 8, 2, 6, 1),
        ("INT4 to FLOAT16", 0.5, 2, 2.5, 1),
        ("FLOAT to BFLOAT16, 64 arrays", 4, 2, 6, 1),
        ("mxfp8e4m3, both ways of BFLOAT16", 2, 2 + 2 / 32, 4 + 2 / 32, 1),
        # x twice, once for the global scale.
        ("nvfp4 of BFLOAT16", 4, 0.5 + 1 / 16, 2.5 + 1 / 16, 2),
        ("nvfp4 back to BFLOAT16", 0.5 + 1 / 16, 2, 2.5 + 1 / 16, 1),
    ],
)
def test_bytes_and_launches_of_a_call(name: str, read: float, written: float, needed: float, launches: int) -> None:
    call = of(name)
    # Statistics, offsets and single numbers are few.
    assert [one / ELEMENTS for one in (call.read, call.written, call.needed)] == pytest.approx(
        [read, written, needed], rel=1e-3
    )
    assert len(call.passes) == launches


def test_bytes_of_a_thread() -> None:
    # Two tiles of 16 elements.
    (one,) = of("mxfp8e4m3 of BFLOAT16").passes
    assert (one.load, one.store, one.beside) == (64, 32, 1)
    assert one.threads * 32 == ROWS * COLUMNS
    (one,) = of("FLOAT to FLOAT16, every second element").passes
    assert (one.load, one.store) == (32, 16)
    # Of a search for the largest magnitude a thread has a run, and writes a number.
    first, second = of("nvfp4 of BFLOAT16").passes
    assert first.load == 2 * ELEMENTS / first.threads > 500 > first.store
    assert (second.load, second.store) == (64, 16)


# ---- the model ----

_TEXT = """
extern "C" __global__ void __launch_bounds__(128) {name}(const uint4* src, unsigned bit, uint4* dst, long long n) {{
    const unsigned i = blockIdx.x * 128 + threadIdx.x;
    {body}
}}
"""
COPY = "dst[i] = src[i];"
TWO = "const uint4 a = src[2 * i], b = src[2 * i + 1]; dst[2 * i] = a; dst[2 * i + 1] = b;"
LOOP = "for (long long j = 0; j < n; ++j) dst[j * 4096 + i] = src[j * 4096 + i];"
SPILL = """uint4 v = src[i]; unsigned a[64]; for (int j = 0; j < 64; ++j) a[j] = v.x ^ j;
    a[v.y & 63] = v.z; v.w = a[v.z & 63]; dst[i] = v;"""
BARRIERS = "__shared__ uint4 s[128]; s[threadIdx.x] = src[i]; __syncthreads(); dst[i] = s[threadIdx.x ^ 1];"


@functools.cache
def made(body: str, load: float = 16, store: float = 16) -> Measured:
    """The facts of a made-up kernel that moves so many bytes in a thread, for sm_90."""
    sound = cast_kernel(resolve(dtype("FLOAT"), dtype("INT32")))
    kernel = dataclasses.replace(sound, parts=(), dtypes=(), line=_TEXT.format(name=sound.name, body=body))
    blocks = 1 << 17
    read, written = (round(each * blocks * kernel.threads) for each in (load, store))
    one = Pass(kernel, blocks, read, written, load, store, 0, 0, 0, False)
    return measured(one, "sm_90", codes([kernel], "sm_90")[kernel])


def estimated(*passes: Measured, needed: int | None = None) -> Estimate:
    moved = passes[0].of.read + passes[0].of.written
    return model.estimate(
        Call("", tuple(one.of for one in passes), moved if needed is None else needed, ELEMENTS), passes
    )


def with_path(path: list[str], one: Measured) -> Measured:
    """The pass with more instructions."""
    return dataclasses.replace(one, path=(*one.path, *(Instruction("", opcode, ("R1", "R2")) for opcode in path)))


def test_a_copy_of_32_bytes_in_flight_a_thread_is_at_its_speed() -> None:
    twice = made(TWO, 32, 32)
    found = estimated(twice)
    assert (found.share, found.main.bound, found.main.threads) == (pytest.approx(1, abs=0.02), "memory", 2048)
    assert found.main.in_flight == 2048 * 32
    # Of 16 bytes in flight the speed is less than of what CUB asks, but more than in proportion.
    found = estimated(made(COPY))
    assert found.main.in_flight == 32 << 10 < GPUS[90].in_flight
    assert 2 / 3 < found.share < 0.85 and found.main.bound == "waiting"


def test_strides_further_launches_and_spills_count() -> None:
    whole = made(TWO, 32, 32)
    skipping = dataclasses.replace(whole, of=dataclasses.replace(whole.of, read=2 * whole.of.read))
    needed = whole.of.read + whole.of.written
    assert estimated(skipping, needed=needed).share == pytest.approx(2 / 3, rel=0.02)
    once, twice = estimated(whole), estimated(whole, whole)
    seconds = needed / 4.2e12
    assert twice.share == pytest.approx(seconds / (2 * seconds / once.share + model.FURTHER_LAUNCH))
    assert made(SPILL).facts.local > 0 == whole.facts.local


def test_a_second_read_from_the_cache_is_quicker() -> None:
    call = of("nvfp4 of BFLOAT16")
    first, second = call.passes
    assert (first.again, second.again) == (0, 2 * ELEMENTS) and second.reverse
    whole = made(TWO, 32, 32)

    def again(nbytes: int, reverse: bool) -> float:
        return estimated(
            dataclasses.replace(whole, of=dataclasses.replace(whole.of, again=nbytes, reverse=reverse))
        ).share

    half, large = GPUS[90].l2 // 2, 2 * GPUS[90].l2
    assert again(0, False) == again(large, False) < again(half, False) == again(half, True) < again(large, True)


def test_barriers_make_a_block_wait_as_one() -> None:
    free, held = made(COPY), made(BARRIERS)
    assert (free.barriers, held.barriers) == (0, 1)
    assert held.facts.shared == 2048
    assert estimated(held).share < estimated(free).share


def test_a_loop_counts_in_all_its_turns() -> None:
    once, often = made(LOOP), made(LOOP, 16 * 64, 16 * 64)
    # The compiler unrolls it.
    assert once.turns == 1 < often.turns == 16 * 64 // sum(nbytes_of(often.path))
    assert often.instructions == len(often.path) + (often.turns - 1) * len(often.repeated)
    assert sum(nbytes_of(often.executed)) == 16 * 64


@pytest.mark.parametrize(("opcode", "unit", "lanes"), [("IADD3", "alu", 64), ("F2F", "xu", 16), ("FFMA", "fma", 128)])
def test_the_busiest_unit_limits(opcode: str, unit: str, lanes: int) -> None:
    one = with_path([opcode] * 2000, made(COPY))
    assert work(one.path)[unit] >= 2000
    found = estimated(one)
    seconds = 2000 / (lanes * model.ATTAINABLE * 132 * 1.83e9)
    bound = 16 * 2 / 4.2e12 / seconds
    # No quicker than the unit, and near it: the warps of an SM hide what each waits for.
    assert 0.8 * bound < found.share <= 1.01 * bound
    assert found.main.bound in (unit, "issue")


def test_rounds_of_loads() -> None:
    chain = made("unsigned a = ((const unsigned*)src)[i]; ((unsigned*)dst)[i] = ((const unsigned*)src)[a];", 8, 4)
    assert nbytes_of(chain.path) == [4, 4]
    assert nbytes_of(made(TWO, 32, 32).path) == [32]
    assert estimated(chain).main.in_flight == 2048 * 4


def nbytes_of(path: Iterable[Instruction]) -> list[int]:
    return [one.nbytes for one in loads(path)]


def test_a_round_that_was_asked_for_before_passes_meanwhile() -> None:
    def path(between: int) -> list[Instruction]:
        def load(register: str) -> Instruction:
            return Instruction("", "LDG.E.128", (register, "[R2.64]"))

        work = [Instruction("", "IADD3", ("R20", "R21", "R22"))] * between
        return [load("R4"), *work, Instruction("", "IADD3", ("R20", "R4", "R5"))]

    assert loads(path(model.AHEAD - 2)) == [model.Round(16, False)]
    assert loads(path(model.AHEAD)) == [model.Round(16, True)]
    made_of = made(COPY)
    soon, late = (dataclasses.replace(made_of, path=tuple(path(n) * 4)) for n in (model.AHEAD - 2, model.AHEAD))
    assert estimated(late).share > estimated(soon).share


def test_copies_to_shared_memory_are_waited_for_where_the_code_says_so() -> None:
    def path(between: int) -> list[Instruction]:
        copy = Instruction("", "LDGSTS.E.BYPASS.128", ("[R4]", "desc[UR14][R2.64]"))
        # What has the addresses of a copy waits for nothing.
        work = [Instruction("", "IADD3", ("R4", "R4", "R2"))] * between
        return [copy, copy, *work, Instruction("", "DEPBAR.LE", ("SB0", "0x0"))]

    assert loads(path(model.AHEAD - 2)) == [model.Round(32, False)]
    assert loads(path(model.AHEAD)) == [model.Round(32, True)]
    # Of the last ones nobody waits for here; the next turn of a loop does.
    assert loads([*path(model.AHEAD), *path(0)[:1]]) == [model.Round(32, True), model.Round(16, False)]


def test_a_load_of_32_bytes_brings_two_halves() -> None:
    # As sm_100 has it; the registers of the halves lie apart.
    halves = [
        Instruction("", "LDG.E.ENL2.256", (high, low, "desc[UR4][R2.64]"))
        for high, low in (("R16", "R12"), ("R24", "R20"), ("R32", "R28"))
    ]
    for first_used in ("R15", "R19"):
        assert loads([*halves, Instruction("", "IADD3", ("R40", first_used, "R41"))]) == [model.Round(96)]
    # What is none of the eight is not waited for.
    assert loads([halves[0], Instruction("", "IADD3", ("R40", "R20", "R41")), halves[1]]) == [model.Round(64)]


def test_of_blocks_that_stay_only_their_loop_is_repeated() -> None:
    (family,) = (one for one in families() if "groups" in one.name)
    call = recorded(family)
    (one,) = call.passes
    code = codes([one.kernel], "sm_90")[one.kernel]
    held = model.on_gpu(one, code.facts, "sm_90")
    found = measured(held, "sm_90", code)
    # As many as a GPU holds at a time; without its limit there were one for each tile.
    assert held.blocks == GPUS[90].sms * resident_blocks(found) < one.blocks / 20
    # The groups are found once, with three barriers, and then each thread takes tiles of 16 elements, two in a turn.
    assert one.kernel.stays_from == 0 and found.barriers == 3
    assert found.turns == round(held.load / 64) > 10
    assert not any(instruction.base == "BAR" for instruction in found.repeated)
    assert len(found.repeated) < 400 < len(found.path)


def test_a_warp_alone_waits_for_its_own_results() -> None:
    def path(*lines: str) -> list[Instruction]:
        parts = (line.split(" ", 1) for line in lines)
        return [Instruction("", opcode, tuple(operands.split(", "))) for opcode, operands in parts]

    apart, chained = path("IADD3 R1, R2, R3", "IADD3 R4, R5, R6"), path("IADD3 R1, R2, R3", "IADD3 R4, R1, R6")
    assert (alone(apart), alone(chained)) == (2, 1 + 4)
    assert alone(path("LDS.64 R4, [R0]", "IADD3 R1, R5, R6")) == 1 + 29
    assert alone(path("ISETP.GT.AND P0, PT, R1, R2, PT", "SEL R3, R4, R5, P0")) == 1 + 4


@pytest.mark.parametrize(
    ("registers", "shared", "blocks"),
    [(32, 0, 16), (33, 0, 12), (64, 0, 8), (255, 0, 2), (32, 100 << 10, 2)],
)
def test_how_many_blocks_fit(registers: int, shared: int, blocks: int) -> None:
    facts = dataclasses.replace(made(COPY).facts, registers=registers, shared=shared)
    assert resident_blocks(dataclasses.replace(made(COPY), facts=facts)) == blocks


def test_a_queue_without_waiting_is_as_quick_as_its_server() -> None:
    assert model._rate(0, 2.0, 8) == pytest.approx(0.5)
    assert model._rate(6.0, 2.0, 1) == pytest.approx(1 / 8)
    assert 3 / 8 < model._rate(6.0, 2.0, 4) < 4 / 8


# ---- the command ----


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "static.json"
    pairs = ["--src", "FLOAT", "--dst", "FLOAT", "FLOAT16"]
    code = main(["--static", *pairs, "--arch", "9.0", "--sass", "--gate", "0", "--json", str(file)])
    printed = capsys.readouterr().out
    rows = json.loads(file.read_text())["static"]["architectures"]["sm_90"]
    assert code == 0
    assert [row["call"] for row in rows] == ["FLOAT to FLOAT", "FLOAT to FLOAT16"]
    assert [(row["read"], row["written"], row["launches"]) for row in rows] == [(4, 4, 1), (4, 2, 1)]
    for row in rows:
        assert f"| {row['call']} | {row['registers']} | - | 2048 | 128 of 48 KiB |" in printed
    assert "sm_90, H200" in printed and "nothing runs on a GPU" in printed and printed.count("STG.E.128") >= 1


def test_the_gate_is_part_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = static.gate.Gated("k", "sm_90", 0, 8, 32, "")
    monkeypatch.setattr(static, "all_kernels", lambda sample: [sample])
    monkeypatch.setattr(static.gate, "gate", lambda kernels, arch, jobs: [wrong] if kernels == [7] else [])
    options = ["--static", "--only", "^DOUBLE to FLOAT$", "--arch", "sm_90"]
    assert main([*options, "--gate", "7"]) == 1
    assert "sm_90 k: 8 bytes of local memory" in capsys.readouterr().out
    assert main([*options, "--gate", "8"]) == 0


def test_every_family_is_a_call_of_its_own() -> None:
    found = list(families())
    names = [one.name for one in found]
    assert len(set(names)) == len(names) > 40
    assert all(isinstance(one, Family) and recorded(one).passes for one in found)


# ---- the picture ----


@pytest.mark.parametrize(("good", "bluer"), [("low", "FLOAT to INT8"), ("high", "INT8 to FLOAT")])
def test_good_is_blue_and_bad_is_orange(good: Any, bluer: str) -> None:
    values = {("FLOAT", "INT8"): 0.5, ("INT8", "FLOAT"): 1.5}
    text = heatmap(values, "T", [], low=0, middle=1, high=2, good=good)
    for pair, colour in re.findall(r"<title>(.*?)</title>\n<rect .*? fill=\"(#\w+)\"", text):
        red, _, blue = bytes.fromhex(colour[1:])
        assert (blue > red) == (pair == bluer), pair
