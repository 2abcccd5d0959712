# SPDX-License-Identifier: Apache-2.0
"""Compile kernels ahead of time, into the cache. Needs no GPU when the architecture is named."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucast.dtypes import DTYPES, DType, dtype
from gpucast.errors import DeviceUnavailable
from gpucast.fused_cast import fused_rule
from gpucast.fused_source import Options, Scaling
from gpucast.rule import Rule

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from gpucast.source import Shape

#: NVRTC lets no more threads than these work at a time, nearly; processes share nothing.
_THREADS = 4


class Task(NamedTuple):
    """A kernel to compile, and for what."""

    rule: Rule
    shape: Shape
    unpacked: bool
    arch: str
    #: What is done beside the cast.
    asked: Options


def warmup(
    pairs: Iterable[tuple[Any, Any]] | None = None,
    arch: str | Sequence[str] | None = None,
    *,
    scale: bool = False,
    amax: bool = False,
    **attributes: Any,
) -> int:
    """Compile the kernels of casts ahead of time, so that none of them waits for the compiler later.

    `pairs`: (source, destination) types as `gpucast.dtype` takes them; None means all 625 pairs of numeric types.
    `arch`: one or several of "sm_90", "sm_100a", ...; None means those of this machine's GPUs.
    `scale`, `amax`: True means casts with these keywords, and no others; `scale` numbers and arrays of any kind.
    `attributes`: saturate, round_mode, opset, rounding and overflow, as `gpucast.cast` takes them. Seeds need no kernel
    of their own.

    Returns the number of kernels; those that the cache holds already take no time.
    Raises what `gpucast.cast` raises for types and attributes, DeviceUnavailable without NVRTC, or without a GPU where
    `arch` is None, ValueError for an architecture that this NVRTC does not know, and TypeError for a `scale` or `amax`
    that is neither True nor False.
    """
    from concurrent.futures import ThreadPoolExecutor

    work = tasks(every_pair() if pairs is None else pairs, arch, scale=scale, amax=amax, **attributes)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as executor:
        compile_all(executor, work)
    return len(work)


def every_pair() -> Iterator[tuple[DType, DType]]:
    """All pairs of types that have kernels."""
    numeric = [row for row in DTYPES if row.family != "string"]
    return ((src, dst) for src in numeric for dst in numeric)


def tasks(
    pairs: Iterable[tuple[Any, Any]],
    arch: str | Sequence[str] | None,
    who: str = "warmup",
    *,
    scale: bool = False,
    amax: bool = False,
    **attributes: Any,
) -> list[Task]:
    """Every kernel that a cast of these pairs can launch, for every architecture, each once."""
    for name, value in (("scale", scale), ("amax", amax)):
        if not isinstance(value, bool):
            raise TypeError(f"{who}: {name}={value!r} must be True or False: whether the casts have this keyword")
    scalings: tuple[Scaling, ...] = ("narrow", "wide") if scale else ("none",)
    architectures = _architectures(arch, who)
    found: dict[Task, None] = {}
    for src, dst in pairs:
        rows = (dtype(name, who=f"{who}: ") for name in (src, dst))
        rule = fused_rule(*rows, scaled=scale, who=who, **attributes)
        if "string" in (rule.src.family, rule.dst.family):
            raise ValueError(f"{who}: {rule.src.name} to {rule.dst.name} has no kernel; STRING is cast on the host")
        for unpacked in (False, True) if rule.src.packed else (False,):
            shapes: tuple[Shape, ...] = ("contiguous", "strided")
            for shape, scaling, name in itertools.product(shapes, scalings, architectures):
                found[Task(rule, shape, unpacked, name, Options(scaling, amax))] = None
    return list(found)


def _architectures(arch: str | Sequence[str] | None, who: str) -> list[str]:
    from gpucast import compiler, driver

    if arch is None:
        machine = driver.find()
        if machine is None or not machine.capabilities:
            reason = "there is no NVIDIA driver" if machine is None else machine.problem
            raise DeviceUnavailable(f"{who}: no architecture is given, and {reason}; name one, such as 'sm_90'")
        return list(dict.fromkeys(map(compiler.architecture, machine.capabilities)))
    return [compiler.compiler().parse(name) for name in ([arch] if isinstance(arch, str) else arch)]


def compile_all(executor: Executor, work: Sequence[Task], advance: Callable[[int], object] = lambda done: None) -> str:
    """Compile `work`; why the cache on disk did not take a kernel, or ""."""
    problem = ""
    try:
        for one in executor.map(_compile, work, chunksize=4):
            problem = one or problem
            advance(1)
    except BaseException:
        executor.shutdown(cancel_futures=True)
        raise
    return problem


def _compile(task: Task) -> str:
    from gpucast import compiler

    source = task.asked(task.rule, task.shape, unpacked=task.unpacked)
    compiler.compile(source.text, source.name, task.arch)
    return compiler.compiler().cache.problem
