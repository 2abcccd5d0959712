# SPDX-License-Identifier: Apache-2.0
"""The list of all kernels: those that `gpucast.warmup` compiles for some request."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator
from functools import lru_cache

from gpucast.core.rounding import STOCHASTIC
from gpucast.kernel import compiler, nvrtc, nvrtc_search
from gpucast.kernel.kernel import Kernel
from gpucast.kernel.nvrtc import Compiled, Nvrtc
from gpucast.quantization import formats
from gpucast.quantization.formats import FORMATS, LENGTHS, SOURCES
from gpucast.quantization.recipes import RECIPES
from gpucast.warmup import kinds
from gpucast.warmup.compile_ahead import WarmupRequest, every_pair, tasks

#: The rules that a name of a format may end in.
_RULES = ("full_range", "no_clipping", "up", "even", "4over6")


def all_kernels(sample: int = 1, only: str = "") -> list[Kernel]:
    """Every kernel, by name; some kernels of different texts share a name. `sample`: one in so many, the same ones in
    every run; `only`: a pattern of names."""
    found = dict.fromkeys(kernel for kernel in _every_kernel() if chosen(kernel.name, sample, only))
    return sorted(found, key=lambda kernel: (kernel.name, kernel.line))


def chosen(name: str, sample: int, only: str) -> bool:
    """Whether a kernel belongs to the sample and matches the pattern."""
    if only and not re.search(only, name):
        return False
    return sample == 1 or int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % sample == 0


def _every_kernel() -> Iterator[Kernel]:
    casts = WarmupRequest(every_pair(), fused=True, many=True, mixed=True, grouped=True, transposed=True)
    yield from (task.kernel for task in tasks(casts, "sm_90"))
    flags = itertools.product((None, STOCHASTIC), ((), LENGTHS), (False, True), (False, True))
    for (rounding, lengths, grouped, row_scaled), name in itertools.product(flags, _formats()):
        for src in SOURCES:
            # Some formats and types do not take all of these.
            with contextlib.suppress(TypeError, ValueError):
                yield from kinds.of_formats([name], lengths, [src], rounding, grouped, row_scaled, "bench")


def _formats() -> Iterator[str]:
    """The names of all formats: rows of the table, with other rules where they go together, and recipes."""
    yield from FORMATS
    for name in FORMATS:
        for rule in _RULES:
            with contextlib.suppress(ValueError):
                yield formats.find(f"{name}_{rule}", "bench").name
    yield from RECIPES


def uncached(text: str, name: str, arch: str) -> Compiled:
    """Code for an architecture, not by way of the cache: all kernels together would push out what is used."""
    return _nvrtc().compile(text, name, arch, compiler.compiler().options)


@lru_cache(maxsize=1)
def _nvrtc() -> Nvrtc:
    found = nvrtc_search.find()
    return found.loaded or nvrtc.load(str(found.path))
