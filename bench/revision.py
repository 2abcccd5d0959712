# SPDX-License-Identifier: Apache-2.0
"""Says what is measured, and where: the code, the processor, the versions."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from pathlib import Path

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
#: Where results are kept.
FOLDER = ROOT / "bench" / "results"
#: Names the commit where git cannot: in a copy of the files without their history.
VARIABLE = "GPUCAST_COMMIT"


def commit() -> str:
    """The commit, with a + when the checkout has changes; "" outside a checkout."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return result.stdout.strip()


def code_digest() -> str:
    """Eight hexadecimal digits over all files that a cast uses: only results of the same code are continued."""
    hashed = hashlib.sha256()
    for folder in ("gpucast", "kernels"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cuh", ".cu", ".c", ".h", ".hpp", ".cpp"):
                hashed.update(f"{path.relative_to(ROOT).as_posix()}\0".encode())
                hashed.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return hashed.hexdigest()[:8]


def machine() -> dict[str, str]:
    """What every file of results names."""
    return {
        "processor": processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
    }


def processor() -> str:
    """The model of the host's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
