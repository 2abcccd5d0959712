# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the CUDA driver that executes the PTX of kernels, as NVRTC makes it for an architecture."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
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

    def load(self, source: Any) -> Any:
        def run(src: int, dst: int, n: int, more: Any) -> None:
            first = [struct.pack("<Q", src), bytes(4), struct.pack("<Q", dst), struct.pack("<q", n)]
            self._run(source, first + ([] if more is None else [more.to_bytes()]), source.blocks(n, dst))

        return run

    def load_many(self, source: Any) -> Any:
        return lambda blocks, table: self._run(source, [table.tobytes()], blocks)

    def _run(self, source: Any, arguments: Sequence[bytes], blocks: int) -> None:
        key = source.text, self.ptx_arch
        if self.change is not None or key not in _READ:
            text = certificate.ptx(source, self.ptx_arch)
            kernel = read(text if self.change is None else self.change(source.name, text))
            if self.change is None:
                _READ[key] = kernel
        else:
            kernel = _READ[key]
        self.launched.append((source.name, self.streams[0]))
        Block(kernel, source.threads, arguments, list(ARRAYS)).run(blocks)
