# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the CUDA driver that executes the PTX of kernels, as NVRTC makes it for an architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from host_driver import ARRAYS, HostDriver
from tests.proof import certificate
from tests.proof.ptx import Kernel, read
from tests.proof.simt import Block

#: Kernels by their text and architecture: to read one takes longer than to run it.
_READ: dict[tuple[str, str], Kernel] = {}


class PtxDriver(HostDriver):
    """Launches run the PTX, on the memory of this process.

    `change` plants a fault: it takes the name and the PTX of each kernel, and returns what is executed.
    """

    def __init__(self, arch: str, change: Callable[[str, str], str] | None = None) -> None:
        super().__init__(1, int(arch.strip("sm_a")))
        self.ptx_arch, self.change = arch, change

    def load(self, kernel: Any) -> Any:
        return lambda blocks, arguments: self._run(kernel, bytes(arguments), blocks)

    def _run(self, of: Any, arguments: bytes, blocks: int) -> None:
        key = of.text, self.ptx_arch
        if self.change is not None or key not in _READ:
            text = certificate.ptx(of, self.ptx_arch)
            kernel = read(text if self.change is None else self.change(of.name, text))
            if self.change is None:
                _READ[key] = kernel
        else:
            kernel = _READ[key]
        self.launched.append((of.name, self.streams[0]))
        parts = [arguments[place.offset : place.end] for place in of.arguments.places]
        Block(kernel, of.threads, parts, list(ARRAYS)).run(blocks)
