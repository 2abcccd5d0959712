# SPDX-License-Identifier: Apache-2.0
"""Disassembles a cubin with NVIDIA's nvdisasm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

from gpucast.kernel.nvrtc_builtins import package_folders

_NAME = "nvdisasm.exe" if sys.platform == "win32" else "nvdisasm"
#: Where the wheel nvidia-cuda-nvdisasm installs it, relative to the folder of Python packages.
_WHEEL = "nvidia/cu13/bin"
#: What to print, as nvdisasm calls it.
LISTING, GRAPH = "--print-code", "--output-control-flow-graph-with-basic-blocks"


class DisassemblerMissing(ValueError):
    """nvdisasm was not found. The message says how to get it."""


def find() -> str:
    """The path of nvdisasm: from the wheel, PATH or a CUDA toolkit."""
    for folder in package_folders():
        path = os.path.join(folder, _WHEEL, _NAME)
        if os.path.isfile(path):
            return path
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [os.environ.get("PATH", ""), *(os.path.join(root, "bin") for root in roots if root)]
    found = shutil.which(_NAME, path=os.pathsep.join(folders))
    if found is None:
        raise DisassemblerMissing("nvdisasm, for machine code, is missing; run: pip install nvidia-cuda-nvdisasm")
    return found


def disassemble(cubin: bytes, form: str = LISTING) -> bytes:
    """The machine code of every kernel in a cubin, as text: a `LISTING`, or a `GRAPH` of basic blocks."""
    program = find()
    with tempfile.TemporaryDirectory(prefix="gpucast-") as folder:
        path = os.path.join(folder, "kernel.cubin")
        with open(path, "wb") as file:
            file.write(cubin)
        result = subprocess.run([program, form, path], capture_output=True, check=False)
    if result.returncode:
        message = result.stderr.decode(errors="replace").strip()
        remedy = "a newer one may: pip install -U nvidia-cuda-nvdisasm"
        raise ValueError(f"{program} cannot read this cubin: {message}; {remedy}")
    return result.stdout
