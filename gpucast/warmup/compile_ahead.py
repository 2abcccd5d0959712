# SPDX-License-Identifier: Apache-2.0
"""Compile kernels ahead of time, into the cache. Needs no GPU when the architecture is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucast import gpu
from gpucast.casting.fused_options import fused_rule
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.fused_ops import Scaling
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import ATTRIBUTES, CastRule, Options, has_stochastic
from gpucast.gpu import devices
from gpucast.kernel.fused_kernel import FusedOps, cast_kernel
from gpucast.kernel.kernel import Kernel

if TYPE_CHECKING:
    from concurrent.futures import Executor

_CALLER = "warmup"
#: NVRTC hardly lets more threads than these work at a time in one process.
_THREADS = 4
#: The fields of a request that are not True or False.
_NO_FLAGS = ("pairs", "quantize", "hadamard", "attributes")
#: The usual types of weights, activations and gradients.
_USUAL = tuple(map(dtype, ("FLOAT", "FLOAT16", "BFLOAT16")))


class CompileTask(NamedTuple):
    """A kernel to compile, and its architecture."""

    kernel: Kernel
    arch: str


@dataclass(frozen=True)
class WarmupRequest:
    """The arguments of `warmup`, except the architectures."""

    pairs: Iterable[tuple[Any, Any]] | None = None
    scale: bool = False
    amax: bool = False
    transposed: bool = False
    fused: bool = False
    many: bool = False
    mixed: bool = False
    grouped: bool = False
    row_scaled: bool = False
    quantize: str | Iterable[Any] = ()
    hadamard: int | Iterable[int] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


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
    grouped: bool = False,
    row_scaled: bool = False,
    quantize: str | Iterable[Any] = (),
    hadamard: int | Iterable[int] = (),
    load: bool = False,
    **attributes: Any,
) -> int:
    """Compile the kernels of casts ahead of time, so that none of them waits for the compiler later.

    Parameters
    ----------
    pairs
        (source, destination) types, as for `gpucast.dtype`. None: all pairs of numeric types, or none with
    arch
        One or several of "sm_90", "sm_100a", ... None: those of this machine's GPUs.
    scale, amax
        True: only casts with these keywords.
    transposed
        Also plain casts of transposed arrays, such as ``x.T`` into an array in C order.
    fused
        Also casts with a scale, with `amax`, with both, and with random rounding if the destination has it.
    many
        Also `gpucast.cast_many` of trees of one type. With `scale` or `fused`, also with a scale, as the loss scales of
        `gpucast.mixed` use it.
    mixed
        Loss scales with losses and gradients of FLOAT, FLOAT16 or BFLOAT16 that are unscaled to FLOAT, in trees of one
        type, and `select_tree`.
    grouped
        Also `gpucast.cast_grouped` of the pairs that it takes, and `gpucast.quantize_grouped` of the formats.
    row_scaled
        Also formats with a global scale for each row.
    quantize
        One or several formats of `gpucast.quantize`: FLOAT, FLOAT16 and BFLOAT16 along the last axis, plain, transposed
        or both, and back.
    hadamard
        One or several lengths of transforms, alone and before `quantize`, and back.
    load
        Also load the kernels on every GPU of this machine, so that a CUDA graph can capture their first calls.
    attributes
        Saturate, round_mode, opset, rounding and overflow, as for `gpucast.cast`. Seeds need no kernel of their own.

    Returns
    -------
    The number of kernels. Kernels in the cache take no time.

    Raises
    ------
    The errors of `gpucast.cast` and `gpucast.quantize` for types, formats and attributes. DeviceUnavailable
    without NVRTC, or without a GPU if `arch` is None. ValueError for an architecture that this NVRTC does not know, or
    for `arch` with `load`. TypeError for a flag that is neither True nor False, for something that is not a pair, and
    for an unknown attribute.
    """
    from concurrent.futures import ThreadPoolExecutor

    _check_flag("load", load)
    if load:
        if arch is not None:
            raise ValueError(f"{_CALLER}: load=True is for the GPUs of this machine; expected no arch, got {arch!r}")
        devices.require(_CALLER)
    request = WarmupRequest(
        pairs, scale, amax, transposed, fused, many, mixed, grouped, row_scaled, quantize, hadamard, attributes
    )
    work = tasks(request, arch)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as executor:
        compile_all(executor, work)
    if load:
        gpu.driver.load_everywhere(dict.fromkeys(task.kernel for task in work))
    return len(work)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{_CALLER}: {name}={value!r} must be True or False")


def every_pair() -> Iterator[tuple[DType, DType]]:
    """All pairs of types that have kernels."""
    numeric = [kind for kind in DTYPES if kind.family != "string"]
    return ((src, dst) for src in numeric for dst in numeric)


def tasks(request: WarmupRequest, arch: str | Sequence[str] | None) -> list[CompileTask]:
    """Every kernel that a request covers, for every architecture, without duplicates. Errors as for `warmup`."""
    kernels = dict.fromkeys(_kernels(request))
    architectures = _architectures(arch)
    return [CompileTask(kernel, name) for kernel in kernels for name in architectures]


def _kernels(request: WarmupRequest) -> Iterator[Kernel]:
    flags = {name: value for name, value in vars(request).items() if name not in _NO_FLAGS}
    for name, value in flags.items():
        _check_flag(name, value)
    attributes = request.attributes
    unknown = [name for name in attributes if name not in ATTRIBUTES]
    if unknown:
        raise TypeError(
            f"{_CALLER}: {unknown[0]}= is not known here; expected one of {', '.join((*flags, 'load', *ATTRIBUTES))}"
        )
    formats, lengths, pairs = _listed(request.quantize), _listed(request.hadamard), request.pairs
    if pairs is None:
        pairs = () if formats or lengths or request.mixed else every_pair()
    for pair in pairs:
        yield from _of_pair(pair, request)
    if request.row_scaled and not formats:
        raise ValueError(f"{_CALLER}: row_scaled=True is for formats such as nvfp4; quantize= names none")
    if formats or lengths:
        from gpucast.warmup import kinds

        grouped, row_scaled, rounding = request.grouped, request.row_scaled, attributes.get("rounding")
        yield from kinds.of_formats(formats, lengths, _USUAL, rounding, grouped, row_scaled, _CALLER)
    if request.mixed:
        from gpucast.warmup import kinds

        yield from kinds.of_mixed(_USUAL)


def _of_pair(pair: Any, request: WarmupRequest) -> Iterator[Kernel]:
    """The kernels of the casts of one pair."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"{_CALLER}: pairs has {pair!r}; expected (source, destination), such as ('FLOAT', 'BFLOAT16')")
    src, dst = (dtype(name, caller=f"{_CALLER}: ") for name in pair)
    if request.grouped:
        from gpucast.warmup import kinds

        yield from kinds.of_grouped_cast(src, dst, Options(caller=_CALLER, **request.attributes))
    # (with a scale, with amax, with stochastic rounding)
    asked = {(request.scale, request.amax, False)}
    if request.fused:
        asked |= {(True, False, False), (False, True, False), (True, True, False)}
        asked |= {(False, False, True)} if has_stochastic(dst) and src.family != "string" else set()
    for scaled, amax, random in sorted(asked):
        given = {**request.attributes, **({"rounding": STOCHASTIC} if random else {})}
        rule = fused_rule(src, dst, Options(caller=_CALLER, **given), scaled=scaled)
        for unpacked in (False, True) if rule.src.packed else (False,):
            yield from _of_cast(rule, unpacked, scaled, amax, request)


def _of_cast(rule: CastRule, unpacked: bool, scaled: bool, amax: bool, request: WarmupRequest) -> Iterator[Kernel]:
    """The kernels of one cast with the requested operations, in all shapes."""
    if "string" in (rule.src.family, rule.dst.family):
        raise ValueError(f"{_CALLER}: {rule.src.name} to {rule.dst.name} has no kernel; STRING is cast on the host")
    scalings: tuple[Scaling, ...] = ("narrow", "wide") if scaled else ("none",)
    for scaling in scalings:
        ops = FusedOps(scaling, amax)
        yield cast_kernel(rule, "contiguous", unpacked, ops)
        yield cast_kernel(rule, "strided", unpacked, ops)
        if request.transposed and not ops.fuses(rule):
            # Packed arrays cannot be transposed.
            if not (rule.dst.packed or (rule.src.packed and not unpacked)):
                yield cast_kernel(rule, "transposed", unpacked)
        if request.many and not amax:
            from gpucast.warmup import kinds

            yield from kinds.of_many(rule, unpacked, ops)


def _listed(one_or_several: Any) -> list[Any]:
    return [one_or_several] if isinstance(one_or_several, (str, int)) else list(one_or_several)


def _architectures(arch: str | Sequence[str] | None) -> list[str]:
    from gpucast.kernel import compiler, nvidia

    if arch is None:
        machine = nvidia.find()
        if machine is None or not machine.capabilities:
            reason = "there is no NVIDIA driver" if machine is None else machine.problem
            raise DeviceUnavailable(f"{_CALLER}: no architecture is given, and {reason}; name one, such as 'sm_90'")
        return list(dict.fromkeys(map(compiler.architecture, machine.capabilities)))
    names = [arch] if isinstance(arch, str) else arch
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{_CALLER}: arch={arch!r} must be a text such as 'sm_90', or a list of such")
    return [compiler.compiler().parse(name) for name in names]


def compile_all(
    executor: Executor, work: Sequence[CompileTask], advance: Callable[[int], object] = lambda done: None
) -> str:
    """Compile `work`; returns why a kernel could not be written to the cache on disk, or ""."""
    problem = ""
    try:
        for one in executor.map(_compile, work, chunksize=4):
            problem = one or problem
            advance(1)
    except BaseException:
        executor.shutdown(cancel_futures=True)
        raise
    return problem


def _compile(task: CompileTask) -> str:
    from gpucast.kernel import compiler

    compiler.compile(task.kernel.text, task.kernel.name, task.arch)
    return compiler.compiler().cache.problem
