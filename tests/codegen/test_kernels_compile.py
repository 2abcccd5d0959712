# SPDX-License-Identifier: Apache-2.0
"""Every kernel compiles for every architecture: no warning, no local memory, and quickly. No GPU is needed.

In CI: a seeded tenth of all but the default for sm_90, and for each other architecture, and the second NVRTC, a pair of
each source: which, differs from one to the other.
Under --exhaustive: everything. The pairs for sm_90 (default rule, contiguous) are compiled in `test_static`, which
looks at their machine code too.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Iterable

import pytest

from bench import cubin
from gpucast.codegen.cast import KernelSource, join, kernel_source, prelude
from gpucast.compile.cache import Cache
from gpucast.compile.cubin import Compiler
from gpucast.compile.nvrtc_search import NvrtcCopy
from gpucast.core.dtypes import DType
from gpucast.parity.cases import NUMERIC, rules
from nvrtc_wheels import INSTALLED, load

#: What `Compiler.architecture` gives for the devices that casts are made for, and the plain forms of the variants.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_100a", "sm_120", "sm_120a")
#: Kernels of one program: they share the time that the prelude takes.
BATCH = 16


def options(major: int) -> tuple[str, ...]:
    return Compiler(NvrtcCopy(None, load(major)), Cache("", limit=0)).options


@functools.cache
def variants(src: DType, dst: DType) -> tuple[KernelSource, ...]:
    """Every kernel of a pair; that of a plain cast of contiguous arrays is the first."""
    return tuple(
        kernel_source(rule, shape, unpacked=unpacked)
        for unpacked in ((False, True) if src.packed else (False,))
        for shape in ("contiguous", "strided")
        for rule in rules(src, dst)
    )


def chosen(major: int, arch: str, src: DType, exhaustive: bool) -> list[KernelSource]:
    """The kernels that are compiled; of each source one at least, so that no case of the test below is empty."""
    draw = random.Random(f"{major} {arch} {src.name}")
    every = [source for dst in NUMERIC for source in variants(src, dst)]
    plain = [variants(src, dst)[0] for dst in NUMERIC]
    if major == INSTALLED[0] and arch == "sm_90":
        # `test_static` compiles the plain ones.
        others = [source for source in every if source not in plain]
        return others if exhaustive else draw.sample(others, -(-len(others) // 10))
    return every if exhaustive else draw.sample(plain, 1)


def compiled(major: int, sources: Iterable[KernelSource], arch: str) -> dict[str, cubin.CubinKernel]:
    """The static facts of kernels that were compiled in one program."""
    sources = list(sources)
    structs = dict(row for source in sources for row in source.structs)
    text = join(prelude(), structs, [source.kernel for source in sources])
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
    major, pairs = INSTALLED[0], len(NUMERIC) ** 2
    every = sum(len(variants(src, dst)) for src in NUMERIC for dst in NUMERIC) - pairs
    assert every / 10 <= sum(len(chosen(major, "sm_90", src, False)) for src in NUMERIC) < every / 9
    assert sum(len(chosen(major, "sm_90", src, True)) for src in NUMERIC) == every
    seen = set()
    for arch in set(ARCHITECTURES) - {"sm_90"}:
        here = [source for src in NUMERIC for source in chosen(major, arch, src, False)]
        assert {source.rule.src for source in here} == set(NUMERIC)
        seen |= {source.rule.dst for source in here}
        assert sum(len(chosen(major, arch, src, True)) for src in NUMERIC) == every + pairs
    assert seen == set(NUMERIC)


@pytest.mark.parametrize("major", INSTALLED)
def test_a_pair_takes_at_most_five_times_an_empty_kernel(major: int) -> None:
    """Processor time, the least of each of some rounds: as many as it takes on a busy machine, six at most. The empty
    kernel is compiled as anyone would, without options."""
    draw = random.Random(7)
    pairs = [variants(src, dst)[0] for src, dst in draw.sample([*itertools.product(NUMERIC, repeat=2)], 20)]
    compiler, chosen_options = load(major), options(major)

    def taken(text: str, name: str, options: tuple[str, ...] = ()) -> float:
        start = time.thread_time()
        compiler.compile(text, name, "sm_90", options)
        return time.thread_time() - start

    of_empty, of_pairs, empty, pair = [math.inf] * len(pairs), [math.inf] * len(pairs), 0.0, 0.0
    for _ in range(6):
        for i, source in enumerate(pairs):
            of_empty[i] = min(of_empty[i], taken('extern "C" __global__ void k() {}', "k"))
            of_pairs[i] = min(of_pairs[i], taken(source.text, source.name, chosen_options))
        empty, pair = statistics.median(of_empty), statistics.median(of_pairs)
        print(f"NVRTC {major}: empty {empty * 1e3:.0f} ms, pair {pair * 1e3:.0f} ms", file=sys.stderr)
        if pair <= 5 * empty:
            return
    raise AssertionError(f"a pair takes {pair / empty:.1f} times an empty kernel")
