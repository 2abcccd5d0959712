# SPDX-License-Identifier: Apache-2.0
"""Every public call that runs on a device, by every implementation: the reference, the host's module, the kernels as
host code with arrays at aligned and odd addresses, from their PTX, and on a GPU. All have the bits of the host.

With ``-s`` the tests of PTX print how much ran.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import gpucast
from bench.gpu import families
from bench.gpu.device_calls import FAMILIES
from bench.gpu.places import DeviceCall
from gpucast.core.extension import MODULE
from gpucast.quantization.cuda.hadamard_source import HadamardKind
from gpucast.quantization.cuda.source import Kind
from gpucast.warmup.dry_run import Recorder, dry_run
from host_driver import HostDriver, Quiet, download, installed, upload
from ptx_driver import PtxDriver

PROJECT = Path(__file__).parents[2]
PROBLEM = gpucast.kernel.devices.unavailable()
ARCHS = ("sm_80", "sm_90", "sm_100a")
CALLS = [call for family in FAMILIES.values() for call in family()]
#: Calls that ran, with the elements that they launched for, by architecture.
RAN: Counter[str] = Counter()
ELEMENTS: Counter[str] = Counter()
LAUNCHED: dict[str, set[str]] = {arch: set() for arch in ARCHS}


def run(*command: str, **variables: str) -> str:
    """What a command of Python prints, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path]), **variables}
    result = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, cwd=PROJECT
    )
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    return result.stdout


def put(x: Any, offset: int) -> Any:
    return upload(x, offset=offset)


# ---- on the host ----


def on_the_host() -> list[str]:
    """Digests of what the calls give there."""
    every = (families.results_of(call.run(families.Placed()), download) for call in CALLS)
    return [hashlib.sha256(repr(results).encode()).hexdigest() for results in every]


@pytest.mark.skipif(MODULE is None, reason="the module could not be built here: all tests run the reference")
def test_by_the_reference() -> None:
    """Without the module, which is chosen when gpucast is imported."""
    code = "from parity import test_device_calls as calls; print(calls.json.dumps(calls.on_the_host()))"
    wanted, found = on_the_host(), json.loads(run("-W", "ignore", "-c", code, GPUCAST_NO_HOST="1"))
    assert not [call for call, one, other in zip(CALLS, wanted, found, strict=True) if one != other]


# ---- the kernels as host code, which counts what a GPU would stop at ----

#: Families whose kernels have instructions of this architecture; others are those of 90.
OF_100 = ("hadamard", "4over6")


def ways(call: DeviceCall, exhaustive: bool) -> Iterator[families.Way]:
    """The call with all arrays aligned, with all at an odd address, and with each alone at one: codes of one byte may
    begin anywhere, FLOATs at each fourth byte. Unless `exhaustive` each alone at one of both, by turns, and into given
    arrays alone."""
    alone = 0
    for way in families.ways(call, families.OFFSETS if exhaustive else (1, 4)):
        is_alone = not exhaustive and any(way.offsets)
        alone += is_alone
        if not is_alone or alone % 4 in (1, 0):
            yield dataclasses.replace(way, once=is_alone)


@pytest.mark.parametrize("family", FAMILIES)
def test_on_the_host_build(family: str, exhaustive: bool) -> None:
    chosen = [way for call in FAMILIES[family]() for way in ways(call, exhaustive)]
    arch = 100 if family in OF_100 else 90
    quiet, driver = Quiet(arch), HostDriver(arch=arch)
    with installed(quiet):
        # What the calls return is nothing: only their kernels are wanted, which are built together.
        for way in chosen:
            with contextlib.suppress(AssertionError):
                way.call.run(families.Placed(put, way.offsets, once=way.once))
    driver.prepare(quiet.kernels)
    with installed(driver):
        odd, wrong = families.check(chosen, put, download, lambda name: None)
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:20])
    assert odd > len(chosen) // 2 and driver.launched


# ---- from the PTX ----


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    for arch in ARCHS:
        print(f"{arch}: {RAN[arch]:,} calls, {ELEMENTS[arch]:,} elements, {len(LAUNCHED[arch])} kernels")


#: The calls that say the shape of their arrays, which have several tiles and take seconds.
LONG = [i for i, call in enumerate(CALLS) if re.search(r"\((\d+, )+\d+\)$", call.name)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each call for one architecture, the next for another, a quarter of the long ones; for all with --exhaustive."""
    if "number" in metafunc.fixturenames:
        every = bool(metafunc.config.getoption("--exhaustive"))
        some = range(len(CALLS)) if every else sorted({*range(len(CALLS))} - {*LONG} | {*LONG[::4]})
        chosen = [(i, arch) for i in some for arch in (ARCHS if every else [ARCHS[i % len(ARCHS)]])]
        names = [f"{arch}, {CALLS[i].family}: {CALLS[i].name}" for i, arch in chosen]
        metafunc.parametrize(("number", "arch"), chosen, ids=names)


def test_from_the_ptx(number: int, arch: str, exhaustive: bool) -> None:
    # The call with its arrays aligned and at each offset; unless `exhaustive` one of these, for each call another, and
    # into given arrays alone.
    offsets: list[dict[str | None, int]] = [{}, *({None: offset} for offset in families.OFFSETS)]
    some = offsets if exhaustive else [offsets[1 + number % 4]]
    chosen = [families.Way(CALLS[number], one, once=not exhaustive) for one in some]
    with installed(PtxDriver(arch)) as driver:
        _, wrong = families.check(chosen, put, download, lambda name: None)
    RAN[arch] += len(chosen)
    ELEMENTS[arch] += driver.elements
    LAUNCHED[arch].update(name for name, _ in driver.launched)
    assert not wrong, "\n".join(wrong)
    assert driver.launched or CALLS[number].name == "report"


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.skipif(
    PROBLEM is not None, reason=f"test_on_the_host_build and test_from_the_ptx run them here: {PROBLEM}"
)
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu(family: str) -> None:
    """In a process of its own, because an error of the device stays with the process."""
    assert "; 0 wrong" in run("-m", "bench.gpu.families", family)


# ---- every kind of kernel is among them ----

#: Patterns of the names of kernels, one for each kind that a device runs. A format with a global scale says so, too.
KINDS = (
    r"^gpucast_float32_to_float16$", r"_strided$", r"_transposed$", r"_scaled", r"_amax", r"_finite", r"^gpucast_many_",
    r"^gpucast_select_", r"^gpucast_adjust_loss_scale$", r"^gpucast_delayed_scaling$", r"^gpucast_ufunc_",
    r"^gpucast_quantize_groups_", r"^gpucast_cast_groups_", r"_tiles\d", r"_same_\w+_swapped_", r"_128x4$",
    *(rf"^gpucast_quantize_.*{'_global' * kind.startswith('global')}_{kind}(_|$)" for kind in get_args(Kind)),
    *(rf"^gpucast_hadamard_.*_{kind}_" for kind in get_args(HadamardKind)),
)  # fmt: skip


@pytest.mark.parametrize("pattern", KINDS)
def test_the_calls_launch_every_kind_of_kernel(pattern: str, launched: frozenset[str]) -> None:
    assert any(re.search(pattern, name) for name in launched), pattern


@pytest.fixture(scope="module")
def launched() -> frozenset[str]:
    """The names of the kernels of all calls, which are not executed."""
    with dry_run(Recorder) as recorder:

        def place(x: Any, offset: int) -> Any:
            return recorder.array((x.nbytes + offset,), "UINT8")[offset:].view(x.dtype).reshape(x.shape)

        for call in CALLS:
            # What they return is nothing.
            with contextlib.suppress(AssertionError):
                call.run(families.Placed(place))
    return frozenset(kernel.name for kernel in recorder.kernels)
