# SPDX-License-Identifier: Apache-2.0
"""One cast tried for `gpucast info`: compiled anew, and where there is a GPU, launched and compared with the reference.

Nothing is raised: what goes wrong is a `Problem`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from gpucast import gpu
from gpucast.codegen.cast import kernel_source
from gpucast.compile import nvidia as driver
from gpucast.compile import nvrtc_search
from gpucast.compile.cache import Cache
from gpucast.compile.cubin import Compiler
from gpucast.core.dtypes import dtype
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import resolve

#: It rounds, saturates and has NaN, and compiles in less than a tenth of a second.
_RULE = resolve(dtype("FLOAT"), dtype("FLOAT8E4M3FN"))
PAIR = f"{_RULE.src.name} to {_RULE.dst.name}"


class Problem(NamedTuple):
    """Why something fails (one clause), and what mends it; "" where the clause says that, too."""

    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Compilation:
    """What came of compiling the kernel. What is not known is None or empty."""

    #: Of NVRTC, such as (12, 9), its file, and the compute capabilities that gpucast compiles for with it.
    version: tuple[int, int] | None = None
    path: str | None = None
    architectures: tuple[int, ...] = ()
    #: What the kernel was compiled for.
    compiled: tuple[str, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True)
class Comparison:
    """What came of launching the kernel on some devices, which are indices."""

    devices: tuple[int, ...]
    #: Elements cast on each of them, and of all of them those that differ from the reference.
    elements: int
    wrong: int
    problem: Problem | None = None


def compilation(capabilities: Iterable[tuple[int, int]]) -> Compilation:
    """Compile for devices of these compute capabilities; without any, for the oldest architecture that is served."""
    known = Compilation()
    try:
        found = nvrtc_search.find()
        # Nothing of the user's cache: what an earlier compiler left there says nothing about this one.
        compiler = Compiler(found, Cache(os.devnull, 0))
        path = found.path if found.loaded is None else found.loaded.path
        known = Compilation(compiler.version, path, compiler.served)
        compiled = tuple(dict.fromkeys(map(compiler.architecture, capabilities))) or (f"sm_{compiler.served[0]}",)
        source = kernel_source(_RULE)
        for arch in compiled:
            compiler.compile(source.text, source.name, arch)
    except DeviceUnavailable as error:
        problem = Problem(_line(error))
    except Exception as error:
        problem = broken(error, driver.cuda_version() if known.version is None else known.version)
    else:
        return Compilation(known.version, known.path, known.architectures, compiled)
    return Compilation(known.version, known.path, known.architectures, (), problem)


def comparison(devices: Sequence[int]) -> Comparison:
    """Cast on each of these devices, as `gpucast.cast` does it, and compare with the reference."""
    # Slow to import, and of use only where casts can run on a GPU.
    from gpucast.parity.compare import codes_of

    codes = codes_of(_RULE, seed=0, share=1, random=256)
    tried = [_compared(index, codes) for index in devices]
    problems = [problem for _, problem in tried if problem is not None]
    return Comparison(tuple(devices), codes.size, sum(wrong for wrong, _ in tried), problems[0] if problems else None)


def _compared(index: int, codes: npt.NDArray[Any]) -> tuple[int, Problem | None]:
    """How many results of a device differ, and what is wrong with it."""
    from gpucast.parity.backends import GpuBackend
    from gpucast.parity.cases import Case
    from gpucast.parity.compare import compare

    case = Case(_RULE)
    try:
        with gpu.driver.driver().on(index):
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
    """An installed package fails in a way that nobody foresaw; `cuda` is the version that its next copy is for."""
    extra = driver.extra(cuda)
    return Problem(_line(error), f"run: pip install --upgrade --force-reinstall 'gpucast[{extra}]'")


def _line(error: Exception) -> str:
    """An error as a clause of one line."""
    text = " ".join(str(error).removeprefix("compile: ").split())
    return text if isinstance(error, DeviceUnavailable) else f"{type(error).__name__}: {text}"
