# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the CUDA driver that executes the PTX of kernels, as NVRTC makes it for an architecture."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpucast.kernel import compiler
from host_driver import ARRAYS, HostDriver
from tests.proof.ptx import read
from tests.proof.simt import Block

#: The kernels that were launched last, by text, architecture and threads: to read one takes longer than to run it.
_READ: dict[tuple[str, str, int], Block] = {}
#: How many: each takes megabytes.
_MOST = 64


class PtxDriver(HostDriver):
    """Launches run the PTX, on the memory of this process.

    `change` plants a fault: it takes the name and the PTX of each kernel, and returns what is executed.
    """

    def __init__(self, arch: str, change: Callable[[str, str], str] | None = None) -> None:
        super().__init__(1, int(arch.strip("sm_a")))
        self.ptx_arch, self.change = arch, change
        #: What kernels of one array were launched for, together.
        self.elements = 0

    def load(self, kernel: Any) -> Any:
        # Kernels of batches have no count of their own.
        at = kernel.arguments.offsets["n"] if kernel.arguments.name == "Array" else None

        def run(blocks: int, arguments: Any) -> None:
            data = bytes(arguments)
            self.elements += 0 if at is None else int.from_bytes(data[at : at + 8], "little", signed=True)
            parts = [data[place.offset : place.end] for place in kernel.arguments.places]
            self._run(kernel.text, kernel.name, kernel.threads, parts, blocks)

        return run

    def launch(self, text: str, name: str, threads: int, arguments: Sequence[Any], blocks: int) -> None:
        """Launch any kernel; arguments are addresses and numbers of NumPy."""
        given = [struct.pack("<Q", one) if isinstance(one, int) else np.asarray(one).tobytes() for one in arguments]
        self._run(text, name, threads, given, blocks)

    def _run(self, text: str, name: str, threads: int, arguments: Sequence[bytes], blocks: int) -> None:
        self.launched.append((name, self.streams[0]))
        self._block(text, name, threads).run(blocks, arguments, list(ARRAYS))

    def _block(self, text: str, name: str, threads: int) -> Block:
        key = text, self.ptx_arch, threads
        found = _READ.pop(key, None) if self.change is None else None
        if found is None:
            compiled = compiler.compile(text, name, self.ptx_arch.replace("sm_", "compute_"))
            ptx = compiled.code.rstrip(b"\0").decode()
            found = Block(read(ptx if self.change is None else self.change(name, ptx)), threads)
        if self.change is None:
            _READ[key] = found
            while len(_READ) > _MOST:
                del _READ[next(iter(_READ))]
        return found
