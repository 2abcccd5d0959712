# SPDX-License-Identifier: Apache-2.0
"""The extension module under AddressSanitizer and UndefinedBehaviorSanitizer, and under ThreadSanitizer, as
``host.build --sanitize`` makes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import built_kernels
import sanitizer
from gpucast.core.extension import MODULE
from gpucast.host import build
from sanitized_host import SOURCES
from sanitizer import check, check_found, run

pytestmark = pytest.mark.skipif(MODULE is None, reason="the extension module could not be built here")

#: Units of the module that the usual run builds: of all it would take a minute.
SOME = {
    *(f"cast_{src}" for src in SOURCES),
    *("stochastic_FLOAT", "stochastic_DOUBLE", "cast_FLOAT_by_keywords", "cast_DOUBLE_by_keywords", "fused", "copies"),
    # What `sanitized_plans` quantizes.
    *("cast_BFLOAT16", "cast_FLOAT4E2M1", "cast_FLOAT8E8M0", "quantization_FLOAT", "quantization_BFLOAT16"),
}


def built(folder: Path, sanitizers: str, some: bool) -> Path:
    """The module of a build with these sanitizers, whose objects are kept for the next run."""
    target = folder / "_host.abi3.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCAST_BUILD_DIR", str(built_kernels.FOLDER))
        patch.setattr(build, "_TARGET", target)
        patch.setattr(build, "MISSING", folder / "missing.txt")
        patch.delenv("GPUCAST_NO_HOST", raising=False)
        if some:
            every = list(build.units())
            patch.setattr(build, "units", lambda: [unit for unit in every if unit.name in SOME])
        assert build.main(["--sanitize", sanitizers]) == 0
    return target


@pytest.fixture(scope="module")
def module(exhaustive: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sanitizer.library()
    return built(tmp_path_factory.mktemp("sanitized"), "address,undefined", not exhaustive)


@pytest.fixture(scope="module")
def raced_module(exhaustive: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not exhaustive:
        pytest.skip(
            "builds the module once more: --exhaustive; tests/fuzz/test_threads.py compares the bits of threads"
        )
    sanitizer.thread_library()
    return built(tmp_path_factory.mktemp("raced"), "thread", some=True)


def test_casts_in_every_form(module: Path) -> None:
    check(run("sanitized_host.py", str(module)), "clean")


def test_plans_of_quantization(module: Path) -> None:
    check(run("sanitized_plans.py", str(module)), "clean")


def test_an_access_outside_is_caught(module: Path) -> None:
    check_found(run("sanitized_host.py", str(module), "overrun"), "heap-buffer-overflow")


def test_lists_that_are_reshaped_and_interrupted(module: Path, exhaustive: bool) -> None:
    check(run("interrupted_lists.py", "1000" if exhaustive else "24", str(module)), "casts: ")


def run_raced(module: Path, what: str) -> subprocess.CompletedProcess[str]:
    """Run threads with four helpers, and with ThreadSanitizer's library."""
    options = {"TSAN_OPTIONS": "halt_on_error=1:exitcode=99", "GPUCAST_HOST_THREADS": "4"}
    return run("sanitized_host.py", str(module), what, watched_by=sanitizer.thread_library(), **options)


def test_threads_do_not_race(raced_module: Path) -> None:
    check(run_raced(raced_module, "threads"), "clean")


def test_a_race_is_caught(raced_module: Path) -> None:
    check_found(run_raced(raced_module, "race"), "data race")
