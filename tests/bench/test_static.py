# SPDX-License-Identifier: Apache-2.0
"""The static check: no pair fills a unit of the machine, layouts reach their goals, and one that does not is told.

In CI: every second pair for sm_90, and a seeded sample of the pairs for sm_80 and sm_100a and of the other rules. Under
--exhaustive: all of these.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.report.heatmap import heatmap
from bench.static import budget as static_budget
from bench.static import check as static
from bench.static import layouts as static_layouts
from bench.static.budget import KNOWN, of_casts, problems
from bench.static.kernels import BATCH, Cast, StaticKernel, compiled, facts, measure
from bench.static.model import ATTAINABLE, LATENCY, TURNOVER, estimate, loaded, resident_threads
from bench.static.sass import Instruction
from gpucast import dtype
from gpucast.casting.fused_options import fused_rule
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.kernel import compiler
from gpucast.kernel.fused_kernel import FusedOps, fused_kernel
from gpucast.parity.cases import NUMERIC, rules

DEFAULTS = [resolve(src, dst) for src in NUMERIC for dst in NUMERIC]


def rule(src: str, dst: str, **attributes: object) -> CastRule:
    return resolve(dtype(src), dtype(dst), Options(**attributes))


def verdict(kernels: list[StaticKernel], known: dict[tuple[str, str, str], str] = KNOWN) -> list[str]:
    return static_budget.verdict(of_casts(kernels), known)


def of(sources: list[Cast], arch: str = "sm_90") -> list[StaticKernel]:
    return [facts(source, arch, code) for source, code in zip(sources, compiled(sources, arch), strict=True)]


def test_no_pair_fills_a_unit(exhaustive: bool) -> None:
    """Warnings and local memory are looked at too, so `test_kernels_compile` leaves these kernels to this test."""
    chosen = DEFAULTS if exhaustive else DEFAULTS[::6]
    kernels = measure(chosen, "sm_90")
    assert [(kernel.rule, kernel.log, kernel.local) for kernel in kernels] == [(one, "", 0) for one in chosen]
    assert verdict(kernels) == []


@pytest.mark.parametrize("capability", [one for one in static.CAPABILITIES if one != (9, 0)])
def test_every_pair_is_well_formed_elsewhere(capability: tuple[int, int], exhaustive: bool) -> None:
    arch = compiler.architecture(capability)
    chosen = DEFAULTS if exhaustive else random.Random(arch).sample(DEFAULTS, BATCH)
    assert verdict(measure(chosen, arch)) == []


def test_every_rule_has_wide_accesses_and_no_spills(exhaustive: bool) -> None:
    others = [one for src in NUMERIC for dst in NUMERIC for one in rules(src, dst)[1:]]
    chosen = others if exhaustive else random.Random(9).sample(others, BATCH)
    assert verdict(measure(chosen, "sm_90")) == []


def test_casts_of_many_arrays_reach_their_goal(exhaustive: bool) -> None:
    chosen = DEFAULTS if exhaustive else random.Random(90).sample(DEFAULTS, BATCH)
    assert verdict(measure(chosen, "sm_90", "many")) == []


#: Instructions per element of fused casts as they were when the kernels were written, and few more.
FUSED = (
    ("FLOAT", "FLOAT8E4M3FN", "narrow", "amax", 25),
    ("BFLOAT16", "FLOAT8E4M3FN", "narrow", "amax", 27),
    ("FLOAT", "BFLOAT16", "narrow", "amax", 34),
    ("FLOAT", "FLOAT", "narrow", "finite", 14),
    ("FLOAT", "BFLOAT16", "none", "random", 34),
    ("FLOAT", "FLOAT8E4M3FN", "none", "random", 38),
    ("FLOAT", "FLOAT8E4M3FN", "narrow", "amax random", 66),
)


def test_fused_casts_keep_their_instructions() -> None:
    sources = []
    for src, dst, scaling, flags, _ in FUSED:
        rounding = STOCHASTIC if "random" in flags else None
        one = fused_rule(dtype(src), dtype(dst), Options(rounding=rounding), scaled=scaling != "none")
        sources.append(Cast(fused_kernel(one, FusedOps(scaling, "amax" in flags, "finite" in flags)), one))
    for kernel, (*_, most) in zip(of(sources), FUSED, strict=True):
        assert (kernel.log, kernel.local, kernel.loop) == ("", 0, False)
        assert min(kernel.loads) == 16
        assert kernel.per_element <= most, kernel.source.kernel.name


def test_layouts_reach_their_goals() -> None:
    found = static_layouts.measure("sm_90")
    assert static_budget.verdict(found) == []
    assert all(one.name in one.line() for one in found)
    # Misses that are not known are told, and known ones that are none.
    one = found[0]
    slow = dataclasses.replace(one, kernel=dataclasses.replace(one.kernel, path=9 * one.kernel.path))
    (line,) = static_budget.verdict([slow])
    assert line.endswith(" % of a copy; the goal is 80 %")
    assert static_budget.verdict([slow], {one.key: "because"}) == []
    known = f"{one}: keeps what is checked; take it out of the known misses"
    assert static_budget.verdict([one], {one.key: "because"}) == [known]


# ---- what is checked ----

#: The way of a tile of four float32 elements; `{}` is what is done to them.
_TEXT = """
extern "C" __global__ void __launch_bounds__(256) {name}(const uint4* src, unsigned bit, uint4* dst, long long n) {{
    const unsigned i = blockIdx.x * 256 + threadIdx.x;
    {body}
}}
"""
COPY = "dst[i] = src[i];"
NARROW = "for (int j = 0; j < 4; ++j) ((unsigned*)dst)[4 * i + j] = 1 + ((const volatile unsigned*)src)[4 * i + j];"
HALF = "((uint2*)dst)[i] = make_uint2(src[i].x ^ src[i].y, src[i].z ^ src[i].w);"
LOOP = 'uint4 v = src[i]; _Pragma("unroll 1") for (long long j = 0; j < n; ++j) v.x += v.x / v.y; dst[i] = v;'
SPILL = """uint4 v = src[i]; unsigned a[64]; for (int j = 0; j < 64; ++j) a[j] = v.x ^ j;
    a[v.y & 63] = v.z; v.w = a[v.z & 63]; dst[i] = v;"""
BUSY = "uint4 v = src[i];" + "v.x = v.x / v.y + 1; v.y = v.y / v.z + 1; v.z = v.z / v.w + 1;" * 9 + "dst[i] = v;"


@functools.cache
def made(body: str, one: CastRule | None = None) -> StaticKernel:
    """The facts of a made-up kernel that takes itself for that of FLOAT to INT32, for sm_90."""
    source = Cast.of(one or rule("FLOAT", "INT32"))
    text = _TEXT.format(name=source.kernel.name, body=body)
    kernel = dataclasses.replace(source.kernel, parts=(), dtypes=(), line=text, elements=4)
    return of([source._replace(kernel=kernel)])[0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (NARROW, ["loads of 4 bytes at a time, not of 16", "stores of 4 bytes at a time, not of 16"]),
        (HALF, ["stores of 8 bytes where the elements of a thread have 16"]),
        (LOOP, ["has a loop"]),
        (SPILL, ["bytes of local memory"]),
        (BUSY, ["full at the speed of a copy, over 0.75"]),
    ],
    ids=["narrow", "half", "loop", "spill", "busy"],
)
def test_a_bad_kernel_is_told(body: str, said: list[str]) -> None:
    kernel = made(body)
    found = problems(kernel)
    if body is SPILL:
        # What spills may also be too long.
        found = found[:1]
    assert len(found) == len(said)
    for problem, words in zip(found, said, strict=True):
        assert words in problem
    failures = verdict([kernel])
    assert failures and all(line.startswith("sm_90 contiguous FLOAT to INT32: ") for line in failures)


def test_known_misses() -> None:
    good, bad = made(COPY), made(BUSY)
    known = {("sm_90", "contiguous", "FLOAT to INT32"): "a reason"}
    assert verdict([bad], known) == []
    assert verdict([good], known) == [
        "sm_90 contiguous FLOAT to INT32: keeps what is checked; take it out of the known misses"
    ]
    assert len(verdict([bad], {("sm_80", "contiguous", "FLOAT to INT32"): "a reason"})) == 1
    pairs = {f"{src} to {dst}" for src in NUMERIC for dst in NUMERIC}
    assert all(arch.startswith("sm_") and pair in pairs and reason for (arch, _, pair), reason in KNOWN.items())


# ---- the estimate ----


def with_path(*opcodes: str) -> StaticKernel:
    path = tuple(Instruction("", opcode, ()) for opcode in opcodes)
    return dataclasses.replace(made(COPY), path=path, instructions=len(path))


@pytest.mark.parametrize(
    ("opcode", "unit", "lanes"),
    [
        ("F2I.TRUNC.NTZ", "xu", 16),
        ("LOP3.LUT", "alu", 64),
        ("IMAD.WIDE.U32", "imad", 64),
        ("FADD", "issue", 128),
        ("LDS.U8", "lsu", 32),
        ("DADD", "fp64", 64),
    ],
)
def test_the_slowest_unit_decides(opcode: str, unit: str, lanes: int) -> None:
    """1000 instructions of a kind for four elements of 8 bytes moved, on an H200."""
    found = estimate(with_path(*[opcode] * 1000))
    seconds = 1000 / (lanes * 132 * 1.83e9)
    memory = 4 * 8 / 4.2e12
    assert found.use[found.busiest] == pytest.approx(seconds / memory)
    # One block of 128 threads is begun per clock.
    assert found.use["blocks"] == pytest.approx(1 / 128 / 1.83e9 / memory)
    assert found.share == pytest.approx(ATTAINABLE * memory / seconds)
    assert found.bound == found.busiest == unit or (unit, found.bound) == ("issue", "fma")
    assert str(found) == f"limited by {found.bound} at {100 * found.share:.0f} % of a copy"


def test_what_memory_decides_reaches_its_speed() -> None:
    found = estimate(made(COPY))
    assert (found.share, found.bound, found.threads) == (1.0, "memory", 2048)


def test_too_few_bytes_in_flight_limit_a_kernel() -> None:
    """Two loads of four bytes, of which the second waits for the first: 4 bytes at a time of each of 1024 threads."""
    body = "unsigned a = ((const unsigned*)src)[i]; ((unsigned*)dst)[i] = ((const unsigned*)src)[a];"
    kernel = dataclasses.replace(made(body), registers=64)
    assert loaded(kernel.path) == (8, 2)
    source = kernel.source._replace(kernel=dataclasses.replace(kernel.source.kernel, threads=256, elements=2))
    found = estimate(dataclasses.replace(kernel, source=source))
    assert found.threads == 1024 and found.in_flight == 4096
    assert found.needed == pytest.approx(4.2e12 * 700e-9 / 132 * 0.5)
    # Between two blocks nothing is under way.
    part = 2 * LATENCY / (2 * LATENCY + TURNOVER)
    assert (found.bound, found.share) == ("latency", pytest.approx(part * found.in_flight / found.needed))


@pytest.mark.parametrize(
    ("registers", "shared", "threads"),
    [(32, 0, 2048), (33, 0, 1536), (64, 0, 1024), (255, 0, 256), (32, 100 << 10, 512)],
)
def test_how_many_threads_fit(registers: int, shared: int, threads: int) -> None:
    kernel = made(COPY)
    source = kernel.source._replace(kernel=dataclasses.replace(kernel.source.kernel, threads=256))
    kernel = dataclasses.replace(kernel, source=source, registers=registers, shared=shared)
    assert resident_threads(kernel) == threads


# ---- the command ----


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ["--src", "FLOAT", "--dst", "FLOAT", "FLOAT16"]
    file, pictures = tmp_path / "static.json", tmp_path / "pictures"
    options = ["--arch", "9.0", "--sass", "--json", str(file), "--pictures", str(pictures)]
    code = main(["--static", *pairs, *options])
    printed = capsys.readouterr().out
    figures = json.loads(file.read_text())["static"]
    kernels = figures["architectures"]["sm_90"]
    assert code == bool(figures["failures"])
    assert [(kernel["src"], kernel["dst"]) for kernel in kernels] == [("FLOAT", "FLOAT"), ("FLOAT", "FLOAT16")]
    for kernel in kernels:
        assert kernel["per_element"] == round(kernel["instructions"] / kernel["elements"], 3)
        assert f"sm_90 contiguous FLOAT to {kernel['dst']} " in printed and "blocks 0." in printed
        assert kernel["estimate"]["share"] == 1
    assert printed.count("STG.E.128") >= 1 and "H200: 2 kernels reach 4.2 TB/s" in printed
    picture = (pictures / "static-sm_90.svg").read_text()
    assert "the busiest unit at the speed of a copy, sm_90" in picture and "no GPU was used" in picture


# ---- the picture ----


@pytest.mark.parametrize(("good", "bluer"), [("low", "FLOAT to INT8"), ("high", "INT8 to FLOAT")])
def test_good_is_blue_and_bad_is_orange(good: Any, bluer: str) -> None:
    values = {("FLOAT", "INT8"): 0.5, ("INT8", "FLOAT"): 1.5}
    text = heatmap(values, "T", [], low=0, middle=1, high=2, good=good)
    for pair, colour in re.findall(r"<title>(.*?)</title>\n<rect .*? fill=\"(#\w+)\"", text):
        red, _, blue = bytes.fromhex(colour[1:])
        assert (blue > red) == (pair == bluer), pair
