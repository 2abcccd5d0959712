# SPDX-License-Identifier: Apache-2.0
"""Every kernel compiles for every architecture: no warning, no local memory, and quickly. No GPU is needed.

In CI: every rule for sm_90, every pair for sm_80 and sm_100a, a seeded tenth of everything else that a cast can launch,
a twenty-fifth where another compilation is nearly the same (see `share`).
Under --exhaustive: everything. The pairs for sm_90 (default rule, contiguous) are compiled in `test_static`, which
looks at their machine code too.
"""

from __future__ import annotations

import functools
import random
import statistics
import sys
import time
from collections.abc import Iterable

import pytest

from bench import cubin
from gpucast.cache import Cache
from gpucast.compiler import Compiler
from gpucast.dtypes import DType
from gpucast.nvrtc_search import Found
from gpucast.rules_of_pair import NUMERIC, rules
from gpucast.source import KernelSource, join, kernel_source, prelude
from nvrtc_wheels import INSTALLED, load

#: What `Compiler.architecture` gives for the devices that casts are made for, and the plain forms of the variants.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_100a", "sm_120", "sm_120a")
EVERY_RULE, EVERY_PAIR = ("sm_90",), ("sm_80", "sm_100a")
SHARE, SMALL_SHARE = 10, 25
#: Kernels of one program: they share the time that the prelude takes.
BATCH = 16


def options(major: int) -> tuple[str, ...]:
    return Compiler(Found(None, load(major)), Cache("", limit=0)).options


@functools.cache
def variants(src: DType, dst: DType) -> tuple[KernelSource, ...]:
    """Every kernel of a pair; that of a plain cast of contiguous arrays is the first."""
    return tuple(
        kernel_source(rule, shape, unpacked=unpacked)
        for unpacked in ((False, True) if src.packed else (False,))
        for shape in ("contiguous", "strided")
        for rule in rules(src, dst)
    )


def share(major: int, arch: str) -> int:
    """One in how many kernels is compiled in CI, of those that are chosen by lot.

    The text asks nothing of a variant, so sm_100a stands for sm_100; and the second NVRTC, another front end for the
    same text, is for newer devices.
    """
    plain = f"{arch}a" in ARCHITECTURES
    return SMALL_SHARE if plain or (major != INSTALLED[0] and arch in ("sm_75", "sm_86", "sm_89")) else SHARE


def chosen(major: int, arch: str, src: DType, exhaustive: bool) -> list[KernelSource]:
    every = [source for dst in NUMERIC for source in variants(src, dst)]
    first = major == INSTALLED[0]
    kept, lots = [], []
    for source in every:
        one_of_the_rules = source.shape == "contiguous" and not source.unpacked
        one_of_the_pairs = source is variants(src, source.rule.dst)[0]
        if first and arch in EVERY_RULE and one_of_the_pairs:
            continue
        if (
            exhaustive
            or (first and arch in EVERY_RULE and one_of_the_rules)
            or (first and arch in EVERY_PAIR and one_of_the_pairs)
        ):
            kept.append(source)
        elif one_of_the_pairs or (first and arch in EVERY_RULE):
            lots.append(source)
    # Of each source one at least, so that no case of the test below is empty.
    draw = random.Random(f"{major} {arch} {src.name}")
    return kept + draw.sample(lots, -(-len(lots) // share(major, arch)))


def compiled(major: int, sources: Iterable[KernelSource], arch: str) -> dict[str, cubin.Kernel]:
    """The static facts of kernels that were compiled in one program."""
    sources = list(sources)
    rows = dict(row for source in sources for row in source.rows)
    text = join(prelude(), rows, [source.kernel for source in sources])
    result = load(major).compile(text, "batch", arch, options(major))
    assert result.log == "", result.log
    facts = cubin.kernels(result.code)
    assert sorted(facts) == sorted(source.name for source in sources)
    return facts


@pytest.mark.parametrize("major", INSTALLED)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_every_kernel(major: int, arch: str, src: DType, exhaustive: bool) -> None:
    sources = chosen(major, arch, src, exhaustive)
    assert sources
    for at in range(0, len(sources), BATCH):
        for name, fact in compiled(major, sources[at : at + BATCH], arch).items():
            assert fact.local == 0, f"{name} for {arch} uses {fact.local} bytes of local memory per thread"
            assert fact.registers <= 255


def test_the_choice_covers_what_it_says() -> None:
    """In CI too, each rule is compiled once, each pair for three architectures, and each architecture with NVRTC's."""
    major = INSTALLED[0]
    counts = {arch: sum(len(chosen(major, arch, src, False)) for src in NUMERIC) for arch in ARCHITECTURES}
    of_rules = sum(len(rules(src, dst)) for src in NUMERIC for dst in NUMERIC)
    every = sum(len(variants(src, dst)) for src in NUMERIC for dst in NUMERIC)
    elsewhere = len(NUMERIC) ** 2
    assert of_rules < counts["sm_90"] + elsewhere < of_rules + (every - of_rules) / SHARE * 1.5
    for arch in EVERY_PAIR:
        assert counts[arch] == len(NUMERIC) ** 2
    for arch in set(ARCHITECTURES) - {*EVERY_RULE, *EVERY_PAIR}:
        mean = len(NUMERIC) ** 2 / share(major, arch)
        assert mean / 2 < counts[arch] < mean * 2
    assert sum(len(chosen(major, "sm_90", src, True)) for src in NUMERIC) + elsewhere == every


@pytest.mark.parametrize("major", INSTALLED)
def test_a_pair_takes_at_most_five_times_an_empty_kernel(major: int) -> None:
    """Processor time, taken in turns. The empty kernel is compiled as anyone would, without options."""
    draw = random.Random(7)
    pairs = [(src, dst) for src in NUMERIC for dst in NUMERIC]
    times: dict[str, list[float]] = {"empty": [], "pair": []}
    for src, dst in draw.sample(pairs, 20):
        source = variants(src, dst)[0]
        work = {
            "empty": ('extern "C" __global__ void k() {}', "k", ()),
            "pair": (source.text, source.name, options(major)),
        }
        for kind, (text, name, chosen_options) in work.items():
            start = time.thread_time()
            load(major).compile(text, name, "sm_90", chosen_options)
            times[kind].append(time.thread_time() - start)
    empty, pair = (statistics.median(times[kind]) for kind in ("empty", "pair"))
    print(f"NVRTC {major}: empty {empty * 1e3:.0f} ms, pair {pair * 1e3:.0f} ms", file=sys.stderr)
    assert pair <= 5 * empty
