# SPDX-License-Identifier: Apache-2.0
"""The list of all kernels: those that `gpucast.warmup` compiles for some request."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial

from gpucast.cli.arguments import at_least_one
from gpucast.core.rounding import STOCHASTIC
from gpucast.kernel import compiler, nvrtc, nvrtc_search
from gpucast.kernel.kernel import Kernel, Part
from gpucast.kernel.nvrtc import Compiled, Nvrtc
from gpucast.quantization import formats
from gpucast.quantization.formats import FORMATS, LENGTHS, SOURCES
from gpucast.quantization.recipes import RECIPES, find, takes
from gpucast.warmup import calls
from gpucast.warmup.compile_ahead import recorded
from gpucast.warmup.dry_run import Recorder, dry_run
from gpucast.warmup.request import WarmupRequest

#: What all kernels are compiled for.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100a")
#: The rules that a name of a format may end in.
_RULES = ("full_range", "no_clipping", "up", "even", "4over6")


def all_kernels(sample: int = 1, only: str = "", shard: int = 0) -> list[Kernel]:
    """Every kernel, by name; some kernels of different texts share a name. `sample`: one in so many, the same ones in
    every run; `shard`: which; `only`: a pattern of names."""
    return [kernel for kernel in _listed() if chosen(kernel.name, sample, only, shard)]


@lru_cache(maxsize=1)
def _listed() -> list[Kernel]:
    return sorted(dict.fromkeys(_every_kernel()), key=lambda kernel: (kernel.name, kernel.line))


def chosen(name: str, sample: int, only: str, shard: int = 0) -> bool:
    """Whether a kernel belongs to the sample and matches the pattern."""
    if only and not re.search(only, name):
        return False
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % sample == shard


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of commands that look at these kernels: `arch`, `sample`, `shard`, `only` and `jobs`."""
    parser.add_argument("--arch", nargs="+", metavar="ARCH", default=list(ARCHITECTURES), help="default: %(default)s")
    parser.add_argument(
        "--sample", type=at_least_one, default=1, metavar="N", help="one kernel in N, the same in every run"
    )
    parser.add_argument("--shard", type=int, default=0, metavar="I", help="0 to N - 1: which one of --sample")
    parser.add_argument("--only", default="", metavar="PATTERN", help="kernels whose names match, such as hadamard")
    parser.add_argument("--jobs", type=at_least_one, default=os.cpu_count() or 1, metavar="N", help="processes")


def _every_kernel() -> Iterator[Kernel]:
    yield from recorded(
        WarmupRequest(calls.every_pair(), fused=True, many=True, mixed=True, grouped=True, transposed=True)
    )
    with dry_run(Recorder) as recorder:
        for name, src, keywords in itertools.product(_formats(), SOURCES, ({}, {"rounding": STOCHASTIC, "seed": 0})):
            format = find(name, "bench")
            every = [calls.quantized, calls.grouped, calls.row_scaled]
            every += [partial(calls.transformed, length=length) for length in LENGTHS]
            for call in every if takes(name, format, src) else ():
                # Some formats do not take all of these.
                with contextlib.suppress(TypeError, ValueError):
                    call(recorder, name, format, src, keywords)
        for src, length in itertools.product(SOURCES, LENGTHS):
            calls.transforms(recorder, src, length)
    yield from recorder.kernels


def _formats() -> Iterator[str]:
    """The names of all formats: rows of the table, with other rules where they go together, and recipes."""
    yield from FORMATS
    for name in FORMATS:
        for rule in _RULES:
            with contextlib.suppress(ValueError):
                yield formats.find(f"{name}_{rule}", "bench").name
    yield from RECIPES


def programs(kernels: Iterable[Kernel], most: int) -> Iterator[list[Kernel]]:
    """Kernels that can be one program: with the same parts, none of a name twice, and no more than `most`."""
    alike: dict[tuple[tuple[Part, ...], int], list[Kernel]] = {}
    seen: Counter[str] = Counter()
    for kernel in kernels:
        seen[kernel.name] += 1
        alike.setdefault((kernel.parts, seen[kernel.name]), []).append(kernel)
    for each in alike.values():
        rest = iter(each)
        while some := list(itertools.islice(rest, most)):
            yield some


def uncached(text: str, name: str, arch: str) -> Compiled:
    """Code for an architecture, not by way of the cache: all kernels together would push out what is used."""
    return _nvrtc().compile(text, name, arch, compiler.compiler().options)


@lru_cache(maxsize=1)
def _nvrtc() -> Nvrtc:
    found = nvrtc_search.find()
    return found.loaded or nvrtc.load(str(found.path))
