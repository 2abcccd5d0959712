# SPDX-License-Identifier: Apache-2.0
"""Compile kernels ahead of time, into the cache. Needs no GPU when the architecture is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucast import kernel as kernels
from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel import devices
from gpucast.kernel.kernel import Kernel

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from gpucast.warmup.request import WarmupRequest

_CALLER = "warmup"
#: NVRTC hardly lets more threads than these work at a time in one process.
_THREADS = 4


class CompileTask(NamedTuple):
    """A kernel to compile, and its architecture."""

    kernel: Kernel
    arch: str


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

    The calls are made for arrays without contents, and compile what they ask for. This needs CuPy, but no GPU.

    Parameters
    ----------
    pairs
        (source, destination) types, as for `gpucast.dtype`. None: all pairs of numeric types, or none with `quantize`
        or `mixed`.
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
        type, `select_tree`, and delayed scales to FLOAT8E4M3FN.
    grouped
        Also `gpucast.cast_grouped` of the pairs that it takes, and `gpucast.quantize_grouped` of the formats.
    row_scaled
        Also formats with a global scale for each row.
    quantize
        One or several formats of `gpucast.quantize`: FLOAT, FLOAT16 and BFLOAT16 along the last axis, plain, transposed
        or both, with scales in every order, and back.
    hadamard
        One or several lengths of transforms, alone and before `quantize`, and back.
    load
        Also load the kernels on every GPU of this machine, so that a CUDA graph can capture their first calls.
    attributes
        Keywords: saturate, round_mode, opset, rounding and overflow, as for `gpucast.cast`. Seeds need no kernel of
        their own.

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

    from gpucast.warmup.request import WarmupRequest, check_flag

    check_flag("load", load)
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
        kernels.driver.load_everywhere(dict.fromkeys(task.kernel for task in work))
    return len(work)


def tasks(request: WarmupRequest, arch: str | Sequence[str] | None) -> list[CompileTask]:
    """Every kernel that a request covers, for every architecture, without duplicates. Errors as for `warmup`."""
    kernels, architectures = recorded(request), _architectures(arch)
    return [CompileTask(kernel, name) for kernel in kernels for name in architectures]


def recorded(request: WarmupRequest) -> Iterable[Kernel]:
    """The kernels that the calls of a request ask for, in order. Errors as for `warmup`."""
    from gpucast.warmup import calls
    from gpucast.warmup.dry_run import Recorder, dry_run

    request.check()
    with dry_run(Recorder) as recorder:
        try:
            calls.make(request, recorder)
        except (TypeError, ValueError) as error:
            # Of the call that is recorded.
            text = str(error).partition(": ")[2]
            raise type(error)(f"{_CALLER}: {text}") from None
    return recorder.kernels


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
