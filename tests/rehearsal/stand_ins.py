# SPDX-License-Identifier: Apache-2.0
"""What a rehearsal of bench/gpu.sh (see bench/rehearse.py) has in place of a GPU, installed in each of its processes.

Our own parts are the real ones, on kernels built for the host (tests/host_driver.py, tests/fake_machine.py), with few
types and small arrays. Whatever needs CUDA besides (CuPy's casts, PyTorch, inductor) is a rival that prints and works,
raises, dies, or stalls; so does compute-sanitizer, the script beside this file.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api.driver import get_build_version

import host_driver
from bench import gpu, gpu_cases, gpu_many, gpu_plan, gpu_plots, gpu_quantize, gpu_rivals, gpu_tables
from fake_machine import FakeMachine, FakeRival, TimedDriver
from gpucast.benchmark import buffers, ceilings, check, contenders, latency, pairs, quick, timing
from gpucast.benchmark import gpu as device
from gpucast.compile import nvidia as driver
from gpucast.core.dtypes import dtype
from gpucast.gpu import driver as launch
from gpucast.parity import cases as rules_of_pair
from gpucast.parity import picture, plan, report

#: Set to "well" the rivals and the sanitizer do their work; else some stall and some die.
RIVALS = "REHEARSAL_RIVALS"
FLOAT, HALF, INT4 = TYPES = tuple(dtype(name) for name in ("FLOAT", "FLOAT16", "INT4"))
COMMON = ((FLOAT, HALF), (INT4, HALF))
#: The case of each part in which a rival dies or stalls.
DIES_IN, STALLS_IN = "FLOAT to FLOAT8E4M3FN", "FLOAT to float8e4m3fn_1x128"
#: What the run of the parts adds to their commands: sizes for which the parts have options.
OPTIONS = {
    "layouts": ("--launches", "200"),
    "sweeps": ("--source", "FLOAT16"),
    "quick": ("--elements", "4096"),
}


def install() -> None:
    machine = FakeMachine(clock=time.monotonic)
    # The oldest driver for this CuPy: NVRTC is then of the same CUDA.
    cuda = (get_build_version() // 1000, 0)
    found = driver.DriverInfo(cuda, (f"cuda:0 {machine.device} (sm_90)",), capabilities=((9, 0),))
    _replace(driver, find=lambda: found, cuda_version=lambda: cuda)
    launch.use(TimedDriver(machine))
    for module in (device, gpu, gpu_cases):
        _replace(module, GpuMachine=lambda: machine)
    _replace(cupy, asarray=_asarray, zeros=_zeros)
    _replace(cupy.cuda, Device=_Device)
    _shrink()
    _replace(contenders, contenders=_plain)
    _replace(gpu_rivals, all_contenders=_all)
    _replace(gpu_many, Rival=_copies, Loop=_raises, Apex=_dies)
    _replace(gpu_quantize, CompiledQuantize=_stalls, TorchAo=_copies, TransformerEngineQuantize=_raises)
    if "bench.gpu_run" in sys.orig_argv:
        _shorten_parts()


def _replace(module: Any, **values: Any) -> None:
    """Other values for names of a module; AttributeError for one that it does not have, which nobody would read."""
    for name, value in values.items():
        getattr(module, name)
        setattr(module, name, value)


def _shrink() -> None:
    """Few types, small arrays, short batches."""
    for module in (rules_of_pair, plan, picture, report, buffers, gpu_plan, gpu_plots):
        _replace(module, NUMERIC=TYPES)
    for module in (pairs, gpu_plan, gpu_tables):
        _replace(module, COMMON=COMMON)
    _replace(quick, PAIRS=COMMON, measure_latency=_latency)
    _replace(
        gpu_plan,
        LARGE=1 << 12, HUGE=1 << 13, LAYOUT_SIZE=1 << 11,
        SIZES=(1, 1 << 10), ODD=((1 << 12) - 1,), GRAPH_SIZES=(1 << 10,), SHARED=(1 << 17,), COMPILED=(1 << 10,),
    )  # fmt: skip
    _replace(gpu_plots, _PANELS=tuple((str(src), str(dst)) for src, dst in COMMON))
    _replace(gpu, CEILING_SIZES=(1 << 12, 1 << 16, 1 << 20), CALLS=((FLOAT, HALF, 1),), measure_latency=_latency)
    _replace(timing, BATCH=1e-6, _WARM_UPS=2)
    _replace(check, _SHARE=2**-10)
    _replace(ceilings, CLOCK_WARM_UP=1e-3)
    _replace(buffers, BLOCK=1 << 14)
    _replace(gpu_many, _SAMPLES=5, _CALLS=2, measure_case=functools.partial(gpu_many.measure_case, layers=2, width=16))
    _replace(
        gpu_quantize,
        _SAMPLES=2,
        measure_case=functools.partial(gpu_quantize.measure_case, rows=128, columns=256),
        CASES=tuple(
            case
            for case in gpu_quantize.CASES
            if case.src == "FLOAT" and case.format in ("float8e4m3fn_1x128", "mxfp4")
        ),
    )


def _latency(machine: Any, works: Any, loops: int = 3, calls: int = 10) -> Any:
    return latency.measure_latency(machine, works, loops=3, calls=10)


def _shorten_parts() -> None:
    """Of the process that runs the parts: fewer processes, less time to compile, and options for small sizes."""
    from bench import gpu_parts

    gpu_parts.COMPILE.update(first=20, second=16)
    parts = tuple(
        replace(part, steps=functools.partial(_steps, part.steps, OPTIONS.get(part.name, ())))
        for part in gpu_parts.PARTS
    )
    _replace(gpu_parts, _TEST_PROCESSES=2, _START=3, _REPORTS=5, _SANITIZER_START=3, PARTS=parts)


def _steps(steps: Callable[..., list[Any]], options: Sequence[str], place: Any, seconds: float) -> list[Any]:
    return [replace(step, command=[*step.command, *options]) for step in steps(place, seconds)]


# ---- CuPy, as far as bench.gpu_first_call calls it; all else of it ends in its own error: there is no device ----


class _Array(cupy.ndarray):
    def astype(self, kind: Any) -> Any:
        return _asarray(host_driver.download(self).astype(kind))


class _Device:
    def synchronize(self) -> None:
        pass


def _asarray(x: np.ndarray[Any, Any]) -> Any:
    there = host_driver.upload(np.asarray(x))
    return _Array(there.shape, there.dtype, there.data)


def _zeros(shape: Any, kind: Any) -> Any:
    return _asarray(np.zeros(shape, kind))


# ---- rivals ----


def _plain(machine: FakeMachine) -> list[Any]:
    ours = [contenders.Ours(machine), contenders.Ours(machine, allocates=True)]
    return [*ours, Rival(machine, "CuPy copyto", 0.3e9), Rival(machine, "torch .to", 0.9e9, broken=True)]


def _all(machine: FakeMachine) -> list[Any]:
    compiled = Stalls(machine, "torch.compile", 0.8e9)
    compiled.heavy = True
    return [*_plain(machine), Rival(machine, "torch copy_", 1.2e9, wrong=2), compiled]


class Rival(FakeRival):
    """Says what it does; for `many` and `quantize` too, where it takes a while and casts nothing."""

    def has(self, case: Any) -> bool:
        return True

    def prepare(self, sets: Any) -> Any:
        print(f"{self.name}: {sets.src} to {sets.dst}, {sets.n} elements", flush=True)
        return super().prepare(sets)

    def prepare_many(self, case: Any, *_: Any) -> Callable[[], object]:
        print(f"{self.name}: {case}", flush=True)
        if self.broken:
            raise NotImplementedError("no such case")
        return lambda: self.machine.spend(1e-3)

    prepare_quantize = prepare_many


class Dies(Rival):
    def prepare_many(self, case: Any, *more: Any) -> Callable[[], object]:
        if str(case) == DIES_IN and os.environ.get(RIVALS) != "well":
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().prepare_many(case, *more)


class Stalls(Rival):
    def prepare(self, sets: Any) -> Any:
        self._compile()
        return super().prepare(sets)

    def prepare_quantize(self, case: Any, data: Any) -> Callable[[], object]:
        if str(case) == STALLS_IN:
            self._compile()
        return super().prepare_many(case)

    def _compile(self) -> None:
        if os.environ.get(RIVALS) != "well":
            print(f"{self.name}: compiling", flush=True)
            time.sleep(3600)


def _copies(machine: FakeMachine) -> Rival:
    return Rival(machine, "copies", 1e9)


def _raises(machine: FakeMachine) -> Rival:
    return Rival(machine, "raises", 1e9, broken=True)


def _dies(machine: FakeMachine) -> Rival:
    return Dies(machine, "dies", 1e9)


def _stalls(machine: FakeMachine) -> Rival:
    return Stalls(machine, "stalls", 1e9)
