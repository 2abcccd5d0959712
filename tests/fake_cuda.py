# SPDX-License-Identifier: Apache-2.0
"""CUDA's functions under the real `CupyDriver`, replaced by some that write down what they are called with."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench import idle_cuda

#: CUDA_ERROR_INVALID_CONTEXT, of a thread that has used no device yet.
_NO_CONTEXT = 201


@dataclass(frozen=True)
class Launch:
    """What CUDA was given, with the arguments read as late as CUDA may read them."""

    blocks: int
    threads: int
    stream: int
    src: int
    src_bit: int
    dst: int
    n: int


class Cuda:
    """CUDA's functions, as far as casts call them, and what they were called with."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.launches: list[Launch] = []
        self.bound: Counter[int] = Counter()
        self.capture = False
        self.device = 0
        self.before_reading: Callable[[], object] = lambda: None
        #: What a launch and an allocation end in: a CUresult, and an exception.
        self.error = 0
        self.full: MemoryError | None = None
        self._streams = threading.local()

    def use_stream(self, handle: int) -> None:
        self._streams.handle = handle

    def stream(self, device: int = -1) -> SimpleNamespace:
        return SimpleNamespace(ptr=getattr(self._streams, "handle", 0))

    def current(self) -> int:
        return self.device

    def set_device(self, device: int) -> None:
        self.bound[threading.get_ident()] += 1

    def capturing(self, stream: int) -> bool:
        self.calls.append("streamIsCapturing")
        return self.capture

    def allocate(self, nbytes: int) -> Any:
        self.calls.append("alloc")
        if self.full is not None:
            raise self.full
        return idle_cuda.array((nbytes,), np.uint8, self.device).data

    def launch(self, function: int, blocks: int, threads: int, stream: int, address: int) -> int:
        self.calls.append("launchKernel")
        if threading.get_ident() not in self.bound:
            return _NO_CONTEXT
        self.before_reading()
        if self.error:
            return self.error
        pointers = (ctypes.c_void_p * 4).from_address(address)
        kinds = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64)
        arguments = (kind.from_address(place or 0).value for kind, place in zip(kinds, pointers, strict=True))
        self.launches.append(Launch(blocks, threads, stream, *arguments))
        return 0

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Cuda]:
        with idle_cuda.idle(self.launch, self.current, self.stream, self.capturing, self.set_device, self.allocate):
            yield self


def arrays(n: int = 100) -> tuple[Any, Any]:
    return idle_cuda.array((n,), np.float32), idle_cuda.array((n,), np.float16)
