# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for what a run will write: told before any work is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from gpucast.checkpoints.planning.plan import FilePlan
from gpucast.files import FileError


def check_space(target: str, files: Sequence[FilePlan], path: str) -> None:
    """FileError where the file system of the resolved `target` has less room than `files` will take; `path` is what it
    names. Text counts as nothing."""
    needed = sum(_size(file) for file in files)
    free = shutil.disk_usage(os.path.dirname(target)).free
    if free < needed:
        raise FileError(
            f"{path}: needs {needed:,} bytes, and {free:,} are free there; make room or choose another place"
        )


def _size(file: FilePlan) -> int:
    """The bytes of a written file, without its header."""
    if file.tensors is None:
        return file.bytes_in
    return sum(tensor.bytes_out or 0 for tensor in file.tensors)
