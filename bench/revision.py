# SPDX-License-Identifier: Apache-2.0
"""Identifies the code that is measured."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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


def code_digest(root: Path = ROOT) -> str:
    """Eight hexadecimal digits over all files that a cast uses: only results of the same code are continued."""
    hashed = hashlib.sha256()
    for folder in ("gpucast", "kernels"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".cuh", ".cu", ".c", ".h", ".hpp"):
                hashed.update(f"{path.relative_to(root).as_posix()}\0".encode())
                hashed.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return hashed.hexdigest()[:8]
