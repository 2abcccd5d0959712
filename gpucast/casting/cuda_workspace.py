# SPDX-License-Identifier: Apache-2.0
"""The memory of a call other than its results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpucast.casting import cuda
from gpucast.core.dtypes import DType
from gpucast.kernel import driver


class Workspace:
    """The memory of a call on a device apart from its results, by name. A result keeps its workspace, so a call that
    writes it again allocates nothing and can be captured in a CUDA graph.
    """

    def __init__(self, caller: str, device: int) -> None:
        self._caller, self._device = caller, device
        self._arrays: dict[tuple[str, tuple[int, ...], DType], Any] = {}

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
        return self._arrays.items()

    def kept(self, key: Any) -> Any:
        """The array of a key of `items`; None where there is none."""
        return self._arrays.get(key)

    def check_capture(self) -> None:
        """RuntimeError while a CUDA graph is captured."""
        with driver.driver().on(self._device):
            capturing = driver.driver().capturing()
        if capturing:
            raise RuntimeError(
                f"{self._caller}: a CUDA graph is being captured, and memory cannot be allocated then; pass out=, and "
                "make the same call with it once before the capture"
            )
