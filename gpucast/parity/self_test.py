# SPDX-License-Identifier: Apache-2.0
"""The test cast of `gpucast info`: compiled anew and, if there is a GPU, launched and compared with the reference.

Nothing is raised: every failure becomes a `Problem`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from gpucast import kernel as kernels
from gpucast.core.dtypes import dtype
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import resolve
from gpucast.kernel import nvidia, nvrtc_search
from gpucast.kernel.cache import Cache
from gpucast.kernel.compiler import Compiler
from gpucast.kernel.fused_kernel import cast_kernel

#: This cast rounds, saturates and has NaN, and compiles in less than a tenth of a second.
_RULE = resolve(dtype("FLOAT"), dtype("FLOAT8E4M3FN"))
PAIR = f"{_RULE.src.name} to {_RULE.dst.name}"


class Problem(NamedTuple):
    """Why something fails (one clause), and the remedy; "" if the clause contains it."""

    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Compilation:
    """The result of compiling the kernel. Unknown fields are None or empty."""

    #: NVRTC's version, such as (12, 9), its path, and the compute capabilities that gpucast compiles for with it.
    version: tuple[int, int] | None = None
    path: str | None = None
    architectures: tuple[int, ...] = ()
    #: The architectures that the kernel was compiled for.
    compiled: tuple[str, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True)
class Comparison:
    """The result of launching the kernel on some devices (indices)."""

    devices: tuple[int, ...]
    #: Elements cast on each device, and elements of all devices that differ from the reference.
    elements: int
    wrong: int
    problem: Problem | None = None


def compilation(capabilities: Iterable[tuple[int, int]]) -> Compilation:
    """Compile for devices of these compute capabilities; if there are none, for the oldest supported architecture."""
    known = Compilation()
    try:
        found = nvrtc_search.find()
        # The user's cache is not used: a kernel of an earlier compiler in it would say nothing about this compiler.
        compiler = Compiler(found, Cache(os.devnull, 0))
        path = found.path if found.loaded is None else found.loaded.path
        known = Compilation(compiler.version, path, compiler.served)
        compiled = tuple(dict.fromkeys(map(compiler.architecture, capabilities))) or (f"sm_{compiler.served[0]}",)
        kernel = cast_kernel(_RULE)
        for arch in compiled:
            compiler.compile(kernel.text, kernel.name, arch)
    except DeviceUnavailable as error:
        problem = Problem(_line(error))
    except Exception as error:
        problem = broken(error, nvidia.cuda_version() if known.version is None else known.version)
    else:
        return Compilation(known.version, known.path, known.architectures, compiled)
    return Compilation(known.version, known.path, known.architectures, (), problem)


def comparison(devices: Sequence[int]) -> Comparison:
    """Cast on each of these devices as `gpucast.cast` does, and compare with the reference."""
    # Slow to import, and needed only if casts can run on a GPU.
    from gpucast.parity.compare import codes_of

    codes = codes_of(_RULE, seed=0, share=1, random=256)
    tried = [_compared(index, codes) for index in devices]
    problems = [problem for _, problem in tried if problem is not None]
    return Comparison(tuple(devices), codes.size, sum(wrong for wrong, _ in tried), problems[0] if problems else None)


def _compared(index: int, codes: npt.NDArray[Any]) -> tuple[int, Problem | None]:
    """How many results of a device differ from the reference, and the problem."""
    from gpucast.parity.backends import GpuBackend
    from gpucast.parity.cases import Case
    from gpucast.parity.compare import compare

    case = Case(_RULE)
    try:
        with kernels.driver.driver().on(index):
            outcome = compare(GpuBackend().prepare([case], False), case, codes)
    except DeviceUnavailable as error:
        return 0, Problem(_line(error))
    except Exception as error:
        return 0, Problem(f"a cast on cuda:{index} ended in {_line(error)}", "run nvidia-smi")
    if not outcome.wrong:
        return 0, None
    differ = f"{outcome.wrong:,} of {outcome.elements:,} elements differ from the reference"
    reason = f"casts on cuda:{index} give wrong results: {differ}; {outcome.first}"
    return outcome.wrong, Problem(reason, "run gpucast parity")


def broken(error: Exception, cuda: tuple[int, int] | None) -> Problem:
    """The problem if an installed package fails unexpectedly. The remedy reinstalls it for CUDA version `cuda`."""
    extra = nvidia.extra(cuda)
    return Problem(_line(error), f"run: pip install --upgrade --force-reinstall 'gpucast[{extra}]'")


def _line(error: Exception) -> str:
    """An error as a clause on one line."""
    text = " ".join(str(error).removeprefix("compile: ").split())
    return text if isinstance(error, DeviceUnavailable) else f"{type(error).__name__}: {text}"
