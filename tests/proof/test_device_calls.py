# SPDX-License-Identifier: Apache-2.0
"""Every public call that runs on a device, executed from its PTX on arrays at aligned and odd addresses, against the
host's bits. The last test prints how much ran (``-s``)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from bench.gpu import families
from bench.gpu.device_calls import FAMILIES, DeviceCall
from gpucast.codegen.spec import KernelSpec
from gpucast.gpu import driver as launch
from gpucast.quantization.gpu.hadamard_source import HadamardKind
from gpucast.quantization.gpu.source import Kind
from gpucast.warmup import kinds as _every_spec  # noqa: F401 (it imports all modules that define specs)
from host_driver import Quiet, download, installed, upload
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


def test_the_calls_launch_every_kind_of_kernel() -> None:
    with installed(Quiet()):
        for call in CALLS:
            # What they return is nothing.
            with contextlib.suppress(AssertionError):
                call.run(families.Placed(lambda x, offset: upload(x, offset=offset)))
        specs = [spec for spec, _ in [*launch._kernels, *launch._many]]
    assert {type(spec) for spec in specs} == set(KernelSpec.__subclasses__())
    kinds = {(type(spec).__name__, spec.kind) for spec in specs if hasattr(spec, "kind")}
    wanted = {("QuantizeSpec", kind) for kind in get_args(Kind)} | {
        ("HadamardSpec", kind) for kind in get_args(HadamardKind)
    }
    assert kinds == wanted
    assert any(getattr(spec, "ops", None) is not None for spec in specs)
