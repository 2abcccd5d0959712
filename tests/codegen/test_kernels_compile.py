# SPDX-License-Identifier: Apache-2.0
"""Every kernel compiles for every architecture: no warning, and no local memory. No GPU is needed.

In CI: a seeded tenth of all but the default for sm_90, and for each other architecture, and the second NVRTC, a pair of
each source: which, differs from one to the other.
Under --exhaustive: everything. The pairs for sm_90 (default rule, contiguous) are compiled in `test_static`, which
looks at their machine code too.
"""

from __future__ import annotations

import functools
import random
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
