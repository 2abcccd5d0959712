# SPDX-License-Identifier: Apache-2.0
"""Every public call that runs on a device, with its arrays at aligned and at odd addresses, against the host's bits: on
the host build of the kernels, which counts what a GPU would stop at, and on a GPU."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpucast
from bench.gpu import families
from bench.gpu.device_calls import FAMILIES
from host_driver import HostDriver, Quiet, download, installed, upload

PROJECT = Path(__file__).parents[2]
PROBLEM = gpucast.kernel.devices.unavailable()


@pytest.mark.parametrize("family", FAMILIES)
def test_on_the_host_build(family: str, exhaustive: bool) -> None:
    # Codes of one byte may begin anywhere, FLOATs at each fourth byte.
    offsets = families.OFFSETS if exhaustive else (1, 4)
    chosen = [way for call in FAMILIES[family]() for way in families.ways(call, offsets)]
    put = lambda x, offset: upload(x, offset=offset)  # noqa: E731
    quiet, driver = Quiet(), HostDriver()
    with installed(quiet):
        # What the calls return is nothing: only their kernels are wanted, which are built together.
        for way in chosen:
            with contextlib.suppress(AssertionError):
                way.call.run(families.Placed(put, way.offsets))
    driver.prepare(quiet.kernels)
    with installed(driver):
        odd, wrong = families.check(chosen, put, download, lambda name: None)
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:20])
    assert odd > len(chosen) // 2 and driver.launched


@pytest.mark.gpu
@pytest.mark.skipif(PROBLEM is not None, reason=f"siblings run without a GPU: {PROBLEM}")
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu(family: str) -> None:
    """In a process of its own, because an error of the device stays with the process."""
    command = [sys.executable, "-m", "bench.gpu.families", family]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert "; 0 wrong" in result.stdout
