# SPDX-License-Identifier: Apache-2.0
"""NVRTC 13.0.88, whose wheel has no RPATH, and the library of its builtins: copies that find it, and that do not.

Every case is a process of its own: the loader forgets nothing that was loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = "13.0.88"
#: Ignored by git.
_BUILD = ROOT / "build"


@functools.cache
def wheel() -> Path:
    """The folder of Python packages that holds the wheel. The test fails where pip cannot get it."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        installed = importlib.metadata.distribution("nvidia-cuda-nvrtc")
        if installed.version == VERSION:
            return Path(str(installed.locate_file("")))
    folder = _BUILD / f"nvrtc-{VERSION}"
    _BUILD.mkdir(exist_ok=True)
    with open(_BUILD / f"nvrtc-{VERSION}.lock", "w") as lock:
        # Several processes of a test run want it at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=_BUILD) as unfinished:
                command = [sys.executable, *"-m pip --quiet --disable-pip-version-check install --no-deps".split()]
                wanted = ["--target", f"{unfinished}/packages", f"nvidia-cuda-nvrtc=={VERSION}"]
                run = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
                if run.returncode:
                    pytest.fail(f"these tests need nvidia-cuda-nvrtc=={VERSION}, which pip cannot get: {run.stderr}")
                os.rename(f"{unfinished}/packages", folder)
    return folder


def library() -> Path:
    return wheel() / "nvidia/cu13/lib/libnvrtc.so.13"


def builtins() -> Path:
    return library().with_name("libnvrtc-builtins.so.13.0")


def link(file: Path, there: Path) -> Path:
    """The same file in another folder, which is created. No symbolic link, which would lead to the files next to it,
    and no copy where the file system can do without: a library has a hundred megabytes."""
    there.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, there)
    except OSError:
        shutil.copy(file, there)
    return there


BUILTINS = "libnvrtc-builtins.so.13.0"
REMEDY = "run: pip install --force-reinstall 'nvidia-cuda-nvrtc==13.0.*'"
#: NVRTC 13 is to be taken whatever the driver of this machine runs.
ANY_DRIVER = "from gpucast.kernel import nvidia as driver; driver.cuda_version = lambda: None"

#: Compiles a cast with the copy of NVRTC that is found, without any wheel but those in the folder argv[1].
CAST = """
import ctypes, os, sys
import gpucast.kernel.compiler, gpucast.core.rule, gpucast.kernel.fused_kernel, importlib.metadata
from gpucast import DeviceUnavailable, dtype
from gpucast.kernel import nvrtc_search
sys.path[:] = [sys.argv[1]]
{driver}
{before}
found = nvrtc_search.find()
compiler = gpucast.kernel.compiler.compiler()
source = gpucast.kernel.fused_kernel.cast_kernel(gpucast.core.rule.resolve(dtype("FLOAT"), dtype("FLOAT8E4M3FN")))
errors = []
for compile in (lambda: compiler.compile(source.text, source.name, "sm_90"), lambda: compiler.architecture((10, 0))):
    try:
        result = compile()
    except DeviceUnavailable as error:
        errors.append(str(error))
print(found.path or found.loaded.path, *compiler.version)
print(errors[0] if errors else result)
assert errors in ([], errors[:1] * 2), errors
"""


def run(code: str, *arguments: object, **environment: str) -> list[str]:
    """The lines that a new Python prints. The variables that lead to copies of NVRTC are not set unless given."""
    env = {name: value for name, value in os.environ.items() if name not in ("CUDA_PATH", "CUDA_HOME", "LD_PRELOAD")}
    env |= {"LD_LIBRARY_PATH": "", "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def cast(folder: Path, packages: Path | str = "", before: str = "", **environment: str) -> list[str]:
    """The lines of `CAST`: the copy that is used, and the architecture of 10.0 or the error."""
    return run(
        CAST.format(driver=ANY_DRIVER, before=before), packages, GPUCAST_CACHE_DIR=str(folder / "cache"), **environment
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One that is removed at once: a copy of NVRTC has a hundred megabytes where it cannot be linked."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def copy(folder: Path, its_builtins: Path | None = None) -> Path:
    """NVRTC 13.0.88 in a folder, alone or with that as its builtins."""
    if its_builtins is not None:
        link(its_builtins, folder / BUILTINS)
    return link(library(), folder / "libnvrtc.so.13")


@pytest.mark.parametrize("where", ["wheel", "LD_LIBRARY_PATH", "loaded link"])
def test_it_compiles_wherever_it_is_found(where: str, folder: Path) -> None:
    packages: Path | str = ""
    lib, before = folder / "lib", ""
    if where == "wheel":
        packages = wheel()
        lib = packages / "nvidia/cu13/lib"
    else:
        copy(lib, builtins())
    if where == "LD_LIBRARY_PATH":
        # Not told to the loader, which reads it at the start and would find the builtins by itself.
        before = f"os.environ['LD_LIBRARY_PATH'] = {str(lib)!r}"
    elif where == "loaded link":
        (folder / "link").symlink_to(lib / "libnvrtc.so.13")
        before = f"ctypes.CDLL({str(folder / 'link')!r})"
    used, arch = cast(folder, packages, before)
    path, *version = used.split()
    assert os.path.realpath(path) == str(lib / "libnvrtc.so.13")
    assert version == ["13", "0"]
    assert arch == "sm_100a"


def test_no_builtins_and_then_some(folder: Path) -> None:
    path = copy(folder / "nvidia/cu13/lib")
    used, error = cast(folder, folder)
    assert used == f"{path} 13 0"
    assert error == (
        f"compile: NVRTC 13.0 ({path}) cannot use {BUILTINS}, without which it compiles nothing: it is not in "
        f"{path.parent}; {REMEDY}"
    )
    # The failure has not been taken for a no: once it is mended, sm_100a is accepted, with the same cache.
    link(builtins(), path.parent / BUILTINS)
    assert cast(folder, folder)[1] == "sm_100a"
