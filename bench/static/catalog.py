# SPDX-License-Identifier: Apache-2.0
"""The list of all kernels: those that `gpucast.warmup` compiles for some request."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from gpucast.codegen.spec import KernelSpec
from gpucast.core import formats
from gpucast.core.formats import FORMATS, LENGTHS
from gpucast.quantization.recipes import RECIPES
from gpucast.warmup.compile_ahead import WarmupRequest, every_pair, tasks

#: The rules that a name of a format may end in.
_RULES = ("full_range", "no_clipping", "up", "even", "4over6")


class Named(NamedTuple):
    """A kernel and its name. A few kernels of several families share a name."""

    name: str
    spec: KernelSpec[Any]


def all_kernels(sample: int = 1, only: str = "") -> list[Named]:
    """Every kernel, by name. `sample`: one in so many, the same ones in every run; `only`: a pattern of names."""
    specs = dict.fromkeys(spec for request in _requests() for spec in _of(request))
    named = (Named(spec.source().name, spec) for spec in specs)
    return sorted((one for one in named if chosen(one.name, sample, only)), key=lambda one: one.name)


def chosen(name: str, sample: int, only: str) -> bool:
    """Whether a kernel belongs to the sample and matches the pattern."""
    if only and not re.search(only, name):
        return False
    return sample == 1 or int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % sample == 0


def _requests() -> Iterator[WarmupRequest]:
    yield WarmupRequest(every_pair(), fused=True, many=True, mixed=True, grouped=True, transposed=True)
    for name, rounding in itertools.product(_formats(), ({}, {"rounding": "stochastic"})):
        alone = WarmupRequest(quantize=name, attributes=rounding)
        yield alone
        yield replace(alone, hadamard=LENGTHS)
        yield replace(alone, grouped=True)
        yield replace(alone, row_scaled=True)


def _formats() -> Iterator[str]:
    """The names of all formats: rows of the table, with other rules where they go together, and recipes."""
    yield from FORMATS
    for name in FORMATS:
        for rule in _RULES:
            with contextlib.suppress(ValueError):
                yield formats.find(f"{name}_{rule}", "bench").name
    yield from RECIPES


def _of(request: WarmupRequest) -> list[KernelSpec[Any]]:
    """Nothing where a format does not take what is requested."""
    try:
        return [task.spec for task in tasks(request, "sm_90")]
    except (TypeError, ValueError):
        if not request.quantize:
            raise
        return []
