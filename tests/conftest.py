# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel import compiler

# JAX would take three quarters of a GPU's memory in each of several test processes.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# A shell has what it starts in the background ignore Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    # The host build needs a system with Unix's libraries and locks; elsewhere each process builds its own.
    with contextlib.suppress(ImportError):
        import built_kernels

        built_kernels.install(clean=not hasattr(config, "workerinput"))

    # A process takes a copy of NVRTC that is loaded already, and tests and CuPy load older ones: all get one choice.
    with contextlib.suppress(DeviceUnavailable):
        compiler.compiler()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run the long sweeps in full instead of a seeded sample")


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--exhaustive"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The client of a Dask cluster of two worker processes on this machine; killed workers are started again."""
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    import dask

    with (
        # Workers share what they import, and leave nothing behind.
        dask.config.set(
            {
                "distributed.worker.multiprocessing-method": "forkserver",
                "temporary-directory": str(tmp_path_factory.mktemp("dask")),
            }
        ),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as processes,
        distributed.Client(processes, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def driver() -> Iterator[Any]:
    """A stand-in for CUDA's driver, in its place."""
    from host_driver import HostDriver, installed

    with installed(HostDriver()) as ours:
        yield ours


@pytest.fixture
def cuda() -> Iterator[Any]:
    """CUDA's functions replaced, under the real driver."""
    from fake_cuda import Cuda

    with Cuda().in_use() as fake:
        yield fake


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
