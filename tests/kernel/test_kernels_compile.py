# SPDX-License-Identifier: Apache-2.0
"""Every kernel compiles for every architecture: no warning, and no local memory. No GPU is needed.

In each run of the tests: a seeded share of all but the default for sm_90, and four pairs for each other architecture,
and for some of them with the second NVRTC: which, differs from one to the other. Under --exhaustive: everything.
`test_static` compiles the pairs for sm_90 (default rule, contiguous), and looks at their machine code too.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence

import pytest

from bench import cubin
from built_kernels import cubins
from fused_cases import SOURCES
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES, Kind, batch_kernel, sorted_kinds
from gpucast.kernel.fused_kernel import FusedOps, cast_kernel
from gpucast.kernel.kernel import Kernel, program
from gpucast.mixed.cuda.kernels import ADJUST, RESCALE, select_kernel
from gpucast.parity.cases import NUMERIC, rules
from gpucast.quantization.cuda.hadamard_source import hadamard_kernel
from gpucast.quantization.cuda.tile_source import tile_kernel
from gpucast.quantization.formats import FORMATS
from nvrtc_wheels import INSTALLED, load

#: What `Compiler.architecture` gives for the devices that casts are made for, and the plain forms of the variants.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_100a", "sm_120", "sm_120a")
#: Kernels of one program: they share the time that the prelude takes.
BATCH = 16


@functools.cache
def variants(src: DType, dst: DType) -> tuple[Kernel, ...]:
    """Every kernel of a pair; that of a plain cast of contiguous arrays is the first."""
    return tuple(
        cast_kernel(rule, shape, unpacked=unpacked)
        for unpacked in ((False, True) if src.packed else (False,))
        for shape in ("contiguous", "strided")
        for rule in rules(src, dst)
    )


def chosen(major: int, arch: str, exhaustive: bool) -> list[Kernel]:
    """The kernels that are compiled."""
    draw = random.Random(f"{major} {arch}")
    pairs = [(src, dst) for src in NUMERIC for dst in NUMERIC]
    every = [source for pair in pairs for source in variants(*pair)]
    if major == INSTALLED[0] and arch == "sm_90":
        # `test_static` compiles the plain ones.
        plain = {variants(*pair)[0] for pair in pairs}
        others = [source for source in every if source not in plain]
        return others if exhaustive else draw.sample(others, len(others) // 160)
    return every if exhaustive else [variants(*pair)[0] for pair in draw.sample(pairs, 4)]


def compiled(major: int, sources: Sequence[Kernel], arch: str) -> dict[str, cubin.CubinKernel]:
    """The static facts of kernels that were compiled in one program."""
    result = cubins(load(major)).compile(program(sources), "batch", arch)
    assert result.log == "", result.log
    facts = cubin.kernels(result.code)
    assert sorted(facts) == sorted(source.name for source in sources)
    return facts


def others() -> Iterator[Kernel]:
    """Kernels of fused casts, of many casts, of mixed precision, and of quantization where blocks stay."""
    yield from SOURCES[::9]
    for names, to, ops in (
        (("FLOAT8E4M3FN", "INT4", "FLOAT"), "FLOAT16", FusedOps()),
        (("FLOAT16", "BFLOAT16"), "FLOAT", FusedOps("narrow", finite=True)),
    ):
        scaled = ops.scaling != "none"
        kinds = [
            Kind(resolve(dtype(name), dtype(to), Options(scale=1.0 if scaled else None)), ops=ops) for name in names
        ]
        yield batch_kernel(sorted_kinds(kinds), ARGUMENT_BYTES[1]).kernel
    yield ADJUST
    yield RESCALE
    yield select_kernel(ARGUMENT_BYTES[0]).kernel
    format = FORMATS["nvfp4"]
    rule = CastRule(dtype("BFLOAT16"), format.element)
    yield hadamard_kernel(rule, "rows", 16, format)
    yield tile_kernel(rule, format, 16, "along", "down")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100a"])
def test_other_kernels(arch: str) -> None:
    for source in others():
        result = cubins(load(INSTALLED[0])).compile(source.text, source.name, arch)
        assert result.log == ""
        assert cubin.kernels(result.code)[source.name].local == 0


TRIED = [(arch, major) for number, major in enumerate(INSTALLED) for arch in ARCHITECTURES[number :: 1 + 2 * number]]


@pytest.mark.parametrize(("arch", "major"), TRIED)
def test_every_kernel(arch: str, major: int, exhaustive: bool) -> None:
    sources = chosen(major, arch, exhaustive)
    for at in range(0, len(sources), BATCH):
        for name, fact in compiled(major, sources[at : at + BATCH], arch).items():
            assert fact.local == 0, f"{name} for {arch} uses {fact.local} bytes of local memory per thread"
            assert fact.registers <= 255
