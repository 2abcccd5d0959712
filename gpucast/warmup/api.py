# SPDX-License-Identifier: Apache-2.0
"""Compile kernels ahead of time, into the cache. Needs no GPU when the architecture is named."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucast.casting.fused import fused_rule
from gpucast.codegen.fused import Options
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.fused_ops import Scaling
from gpucast.core.options import ATTRIBUTES
from gpucast.core.rule import STOCHASTIC, Rule, has_stochastic

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from gpucast.codegen.batch import ManySource
    from gpucast.codegen.cast import KernelSource, Shape

#: NVRTC lets no more threads than these work at a time, nearly; processes share nothing.
_THREADS = 4
#: Weights, activations and gradients come in these.
_USUAL = tuple(map(dtype, ("FLOAT", "FLOAT16", "BFLOAT16")))


class Task(NamedTuple):
    """A kernel to compile, and for what."""

    rule: Rule
    shape: Shape
    unpacked: bool
    arch: str
    #: What makes the source: of a cast, what is done beside.
    asked: Callable[..., KernelSource | ManySource]


def warmup(
    pairs: Iterable[tuple[Any, Any]] | None = None,
    arch: str | Sequence[str] | None = None,
    *,
    scale: bool = False,
    amax: bool = False,
    transposed: bool = False,
    fused: bool = False,
    many: bool = False,
    mixed: bool = False,
    quantize: str | Iterable[Any] = (),
    **attributes: Any,
) -> int:
    """Compile the kernels of casts ahead of time, so that none of them waits for the compiler later.

    `pairs`: (source, destination) types as `gpucast.dtype` takes them; None means all 625 pairs of numeric types, or
    none of them where `quantize` or `mixed` is asked for.
    `arch`: one or several of "sm_90", "sm_100a", ...; None means those of this machine's GPUs.
    `scale`, `amax`: True means casts with these keywords, and no others; `scale` numbers and arrays of any kind.
    `transposed`: also plain casts of transposed arrays, as ``x.T`` into an array in C order.
    `fused`: also casts with a scale, with `amax`, with both, and with random rounding where the destination has it.
    `many`: also `gpucast.cast_many` of trees whose arrays have one type, with a scale (and so for the gradients of
    `gpucast.mixed`'s loss scales) where casts with a scale are asked for.
    `mixed`: `gpucast.mixed`: loss scales, with losses and gradients of FLOAT, FLOAT16 or BFLOAT16 that are unscaled to
    FLOAT, in trees of one type, and `select_tree`.
    `quantize`: one or several formats as `gpucast.quantize` takes them: quantizing FLOAT, FLOAT16 and BFLOAT16 along
    the last axis, transposed or not or both, and dequantizing.
    `attributes`: saturate, round_mode, opset, rounding and overflow, as `gpucast.cast` takes them. Seeds need no kernel
    of their own.

    Returns the number of kernels; those that the cache holds already take no time.
    Raises what `gpucast.cast` and `gpucast.quantize` raise for types, formats and attributes, DeviceUnavailable without
    NVRTC, or without a GPU where `arch` is None, ValueError for an architecture that this NVRTC does not know, and
    TypeError for a flag that is neither True nor False, what is no pair, and an unknown attribute.
    """
    from concurrent.futures import ThreadPoolExecutor

    work = tasks(
        pairs,
        arch,
        scale=scale,
        amax=amax,
        transposed=transposed,
        fused=fused,
        many=many,
        mixed=mixed,
        quantize=quantize,
        **attributes,
    )
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as executor:
        compile_all(executor, work)
    return len(work)


def every_pair() -> Iterator[tuple[DType, DType]]:
    """All pairs of types that have kernels."""
    numeric = [row for row in DTYPES if row.family != "string"]
    return ((src, dst) for src in numeric for dst in numeric)


def tasks(
    pairs: Iterable[tuple[Any, Any]] | None,
    arch: str | Sequence[str] | None,
    who: str = "warmup",
    *,
    scale: bool = False,
    amax: bool = False,
    transposed: bool = False,
    fused: bool = False,
    many: bool = False,
    mixed: bool = False,
    quantize: str | Iterable[Any] = (),
    **attributes: Any,
) -> list[Task]:
    """Every kernel that what `warmup` names can launch, for every architecture, each once."""
    flags = {"scale": scale, "amax": amax, "transposed": transposed, "fused": fused, "many": many, "mixed": mixed}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{who}: {name}={value!r} must be True or False")
    unknown = [name for name in attributes if name not in ATTRIBUTES]
    if unknown:
        raise TypeError(f"{who}: {unknown[0]}= is not known here; expected one of {', '.join((*flags, *ATTRIBUTES))}")
    wanted = _formats(quantize)
    if pairs is None:
        pairs = () if wanted or mixed else every_pair()
    found: dict[tuple[Rule, Shape, bool, Callable[..., KernelSource | ManySource]], None] = {}
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"{who}: pairs has {pair!r}; expected (source, destination), such as ('FLOAT', 'BFLOAT16')")
        rows = tuple(dtype(name, who=f"{who}: ") for name in pair)
        # With a scale, with amax, at random.
        asked = {(scale, amax, False)}
        if fused:
            asked |= {(True, False, False), (False, True, False), (True, True, False)}
            asked |= {(False, False, True)} if has_stochastic(rows[1]) and rows[0].family != "string" else set()
        for scaled, largest, random in sorted(asked):
            given = attributes | ({"rounding": STOCHASTIC} if random else {})
            rule = fused_rule(*rows, scaled=scaled, who=who, **given)
            for unpacked in (False, True) if rule.src.packed else (False,):
                for shape, make in _of_cast(rule, scaled, largest, transposed, many):
                    if shape != "transposed" or not (rule.dst.packed or (rule.src.packed and not unpacked)):
                        found[rule, shape, unpacked, make] = None
    if wanted:
        from gpucast.core.formats import find
        from gpucast.warmup import kinds as warmup_kinds

        rounding = attributes.get("rounding")
        for format, src in itertools.product([find(name, who) for name in wanted], _USUAL):
            if rounding == STOCHASTIC:
                fused_rule(src, format.element, scaled=False, who=who, rounding=rounding)
            for rule, work in warmup_kinds.of_quantize(format, src, rounding):
                found[rule, "contiguous", False, work] = None
    if mixed:
        from gpucast.warmup import kinds as warmup_kinds

        for rule, make, shape in warmup_kinds.of_mixed(_USUAL):
            found[rule, shape, False, make] = None
    architectures = _architectures(arch, who)
    return [Task(rule, shape, unpacked, name, make) for rule, shape, unpacked, make in found for name in architectures]


def _of_cast(
    rule: Rule, scaled: bool, amax: bool, transposed: bool, many: bool
) -> Iterator[tuple[Shape, Callable[..., KernelSource | ManySource]]]:
    """The shapes of the kernels of one cast, and what makes them."""
    if "string" in (rule.src.family, rule.dst.family):
        raise ValueError(f"warmup: {rule.src.name} to {rule.dst.name} has no kernel; STRING is cast on the host")
    scalings: tuple[Scaling, ...] = ("narrow", "wide") if scaled else ("none",)
    for scaling in scalings:
        options = Options(scaling, amax)
        yield "contiguous", options
        yield "strided", options
        if transposed and not options.fuses(rule):
            yield "transposed", options
        if many and not amax:
            from gpucast.warmup import kinds as warmup_kinds

            for make, shape in warmup_kinds.of_many(rule, options):
                yield shape, make


def _formats(quantize: str | Iterable[Any]) -> list[Any]:
    return [quantize] if isinstance(quantize, str) else list(quantize)


def _architectures(arch: str | Sequence[str] | None, who: str) -> list[str]:
    from gpucast.compile import cubin as compiler
    from gpucast.compile import nvidia as driver

    if arch is None:
        machine = driver.find()
        if machine is None or not machine.capabilities:
            reason = "there is no NVIDIA driver" if machine is None else machine.problem
            raise DeviceUnavailable(f"{who}: no architecture is given, and {reason}; name one, such as 'sm_90'")
        return list(dict.fromkeys(map(compiler.architecture, machine.capabilities)))
    names = [arch] if isinstance(arch, str) else arch
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{who}: arch={arch!r} must be a text such as 'sm_90', or a list of such")
    return [compiler.compiler().parse(name) for name in names]


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
    from gpucast.compile import cubin as compiler

    source = task.asked(task.rule, task.shape, unpacked=task.unpacked)
    compiler.compile(source.text, source.name, task.arch)
    return compiler.compiler().cache.problem
