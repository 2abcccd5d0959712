# SPDX-License-Identifier: Apache-2.0
"""Every public call that runs on a device, executed from its PTX on arrays at aligned and odd addresses, against the
host's bits. The last test prints how much ran (``-s``)."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from bench.gpu import families
from bench.gpu.device_calls import FAMILIES, DeviceCall
from gpucast.quantization.cuda.hadamard_source import HadamardKind
from gpucast.quantization.cuda.source import Kind
from gpucast.warmup.dry_run import Recorder, dry_run
from host_driver import download, installed, upload
from ptx_driver import PtxDriver

ARCHS = ("sm_80", "sm_90", "sm_100a")
CALLS = [call for family in FAMILIES.values() for call in family()]
#: Calls that ran, with the elements that they launched for, by architecture.
RAN: Counter[str] = Counter()
ELEMENTS: Counter[str] = Counter()
LAUNCHED: dict[str, set[str]] = {arch: set() for arch in ARCHS}


def ways(number: int, call: DeviceCall, exhaustive: bool) -> Iterator[families.Way]:
    """The call with its arrays aligned and at each offset; of these one, for each call another, unless `exhaustive`."""
    offsets: list[dict[str | None, int]] = [{}, *({None: offset} for offset in families.OFFSETS)]
    for chosen in offsets if exhaustive else [offsets[1 + number % 4]]:
        yield families.Way(call, chosen)


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    for arch in ARCHS:
        print(f"{arch}: {RAN[arch]:,} calls, {ELEMENTS[arch]:,} elements, {len(LAUNCHED[arch])} kernels")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each call for one architecture, the next one for another; for all with --exhaustive."""
    if "number" in metafunc.fixturenames:
        every = bool(metafunc.config.getoption("--exhaustive"))
        chosen = [(i, arch) for i in range(len(CALLS)) for arch in (ARCHS if every else [ARCHS[i % len(ARCHS)]])]
        names = [f"{arch}, {CALLS[i].family}: {CALLS[i].name}" for i, arch in chosen]
        metafunc.parametrize(("number", "arch"), chosen, ids=names)


def test_from_the_ptx(number: int, arch: str, exhaustive: bool) -> None:
    chosen = list(ways(number, CALLS[number], exhaustive))

    def put(x: Any, offset: int) -> Any:
        return upload(x, offset=offset)

    with installed(PtxDriver(arch)) as driver:
        _, wrong = families.check(chosen, put, download, lambda name: None)
    RAN[arch] += len(chosen)
    ELEMENTS[arch] += driver.elements
    LAUNCHED[arch].update(name for name, _ in driver.launched)
    assert not wrong, "\n".join(wrong)
    assert driver.launched or CALLS[number].name == "report"


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

        def put(x: Any, offset: int) -> Any:
            return recorder.array((x.nbytes + offset,), "UINT8")[offset:].view(x.dtype).reshape(x.shape)

        for call in CALLS:
            # What they return is nothing.
            with contextlib.suppress(AssertionError):
                call.run(families.Placed(put))
    return frozenset(kernel.name for kernel in recorder.kernels)
