# SPDX-License-Identifier: Apache-2.0
"""The memory of a call other than its results."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpucast.casting import cuda
from gpucast.core.dtypes import DType
from gpucast.kernel import ON_NEW_DRIVER, driver
from gpucast.kernel.recording import THREAD

#: Bytes of a cell: of a sector of its own, so that no other memory is in the way of its atomic operations.
_CELL = 32
#: The cells of calls whose memory is not kept, by device, stream and thread: work of one stream never overlaps, and
#: CUDA's stream of each thread has one number in all of them. CuPy's pool of memory has the same rule.
_CELLS: dict[tuple[int, int, int], Any] = {}
ON_NEW_DRIVER.append(_CELLS.clear)
#: FLOATs that calls were given as numbers, which no call writes, by the same and their values; and the most of them.
_NUMBERS: dict[tuple[int, int, int, float], Any] = {}
_MOST_NUMBERS = 256
ON_NEW_DRIVER.append(_NUMBERS.clear)


class Workspace:
    """The memory of a call on a device apart from its results, by name. A result keeps its workspace (`kept`), so a
    call that writes it again allocates nothing and can be captured in a CUDA graph.
    """

    def __init__(self, caller: str, device: int, *, kept: bool = False) -> None:
        self._caller, self._device, self._kept = caller, device, kept
        self._arrays: dict[tuple[str, tuple[int, ...], DType], Any] = {}
        self._cell: Any = None

    def array(self, name: str, shape: tuple[int, ...], kind: DType) -> Any:
        """An array on the device, whichever is current. RuntimeError if it would have to be allocated in a capture."""
        key = (name, shape, kind)
        if key not in self._arrays:
            self.check_capture()
            with driver.driver().on(self._device):
                self._arrays[key] = cuda.new(shape, kind)
        return self._arrays[key]

    def items(self) -> Iterable[tuple[Any, Any]]:
        """The arrays that there are, by a key of each."""
        return [*self._arrays.items(), *([] if self._cell is None else [(_CELL, self._cell)])]

    def kept(self, key: Any) -> Any:
        """The array of a key of `items`; None where there is none."""
        return self._cell if key is _CELL else self._arrays.get(key)

    def cell(self) -> Any:
        """Some bytes for kernels that find zeros there and leave zeros. RuntimeError as for `array`."""
        if self._cell is None:
            with driver.driver().on(self._device):
                key = self._place()
                # What is recorded has no memory.
                own = self._kept or driver.is_dry_run()
                self._cell = None if own else _CELLS.get(key)
                if self._cell is None:
                    self.check_capture()
                    self._cell = driver.driver().to_device(np.zeros(_CELL, np.uint8))
                    if not own:
                        _CELLS[key] = self._cell
                recording = THREAD.recording
                if recording is not None and not self._kept:
                    recording.cells.append(self._cell)
        return self._cell

    def number(self, value: float) -> Any:
        """An array of one FLOAT on the device for the current stream, which stays. RuntimeError as for `array`."""
        with driver.driver().on(self._device):
            key = (*self._place(), value)
            found = None if driver.is_dry_run() else _NUMBERS.get(key)
            if found is None:
                self.check_capture()
                codes = np.array([value], np.float32).view(np.uint8)
                found = driver.driver().to_device(codes).view(np.float32).reshape(())
                if not driver.is_dry_run():
                    if len(_NUMBERS) >= _MOST_NUMBERS:
                        _NUMBERS.clear()
                    _NUMBERS[key] = found
        if THREAD.recording is not None:
            THREAD.recording.numbers.append((found, value))
        return found

    def _place(self) -> tuple[int, int, int]:
        """The device, which is the current one, its stream and this thread."""
        return self._device, driver.driver().stream(), threading.get_ident()

    def check_capture(self) -> None:
        """RuntimeError while a CUDA graph is captured."""
        with driver.driver().on(self._device):
            capturing = driver.driver().capturing()
        if capturing:
            raise RuntimeError(
                f"{self._caller}: a CUDA graph is being captured, and memory cannot be allocated then; pass out=, and "
                "make the same call with it once before the capture"
            )
