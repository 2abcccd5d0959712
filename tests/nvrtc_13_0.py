# SPDX-License-Identifier: Apache-2.0
"""The NVRTC wheel 13.0.88, which has no RPATH, in a folder of its own. It stays there from one run to the next."""

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
from pathlib import Path

import pytest

VERSION = "13.0.88"
#: Ignored by git.
_BUILD = Path(__file__).parents[1] / "build"


@functools.cache
def packages() -> Path:
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
                command = [
                    sys.executable,
                    "-m",
                    "pip",
                    "--quiet",
                    "--disable-pip-version-check",
                    "install",
                    "--no-deps",
                ]
                wanted = ["--target", f"{unfinished}/packages", f"nvidia-cuda-nvrtc=={VERSION}"]
                run = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
                if run.returncode:
                    pytest.fail(f"these tests need nvidia-cuda-nvrtc=={VERSION}, which pip cannot get: {run.stderr}")
                os.rename(f"{unfinished}/packages", folder)
    return folder


def library() -> Path:
    return packages() / "nvidia/cu13/lib/libnvrtc.so.13"


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
