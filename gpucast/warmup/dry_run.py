# SPDX-License-Identifier: Apache-2.0
"""Public calls that run nothing: their kernels are noted.

Within `dry_run` the calls of a thread go the way of every call on a device, down to the driver. Its place is taken by
a `Recorder`, which compiles, loads and launches nothing. It needs CuPy, but neither a GPU nor memory: the arrays are
places without contents. Their class is none of CuPy's own, so that no plan of such a call is kept for a real one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from gpucast import kernel as kernels
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES
from gpucast.kernel.kernel import Kernel

#: The first address, and what all are multiples of, as CUDA's are.
_FIRST, _ALIGNED = 1 << 40, 256
_Recorder = TypeVar("_Recorder", bound="Recorder")


@contextlib.contextmanager
def dry_run(kind: type[_Recorder]) -> Iterator[_Recorder]:
    """Within, the calls of this thread are noted by a new recorder of this kind, on arrays that it makes.

    DeviceUnavailable without CuPy.
    """
    recorder = kind()
    with kernels.driver.dry_run(recorder):
        yield recorder


class _PackedPlace(PackedArray):
    """A PackedArray without contents."""

    __slots__ = ()


@lru_cache(maxsize=1)
def _array_class() -> Any:
    try:
        import cupy
    except ImportError:
        raise DeviceUnavailable(
            "warmup: CuPy is not installed; run pip install 'gpucast[cuda13]', or 'gpucast[cuda12]'"
        ) from None

    class Place(cupy.ndarray):  # type: ignore[misc]
        """An array of CuPy without contents."""

    return Place


class Recorder:
    """A `gpucast.kernel.driver.Driver` of one device that does nothing."""

    def __init__(self) -> None:
        #: Every kernel that was asked for, once, in order.
        self.kernels: dict[Kernel, None] = {}
        self.argument_bytes = ARGUMENT_BYTES
        self._calls: set[Hashable] = set()
        self._array, self._next = _array_class(), _FIRST

    def array(self, shape: tuple[int, ...], kind: Any, packed: bool = False) -> Any:
        """An array without contents, of any dtype; a PackedArray with `packed`."""
        kind = dtype(kind)
        if not packed:
            return self.empty(shape, kind.numpy)
        return _PackedPlace(self.empty((kind.nbytes(math.prod(shape)),), np.dtype(np.uint8)), kind, shape)

    def is_new(self, call: Hashable) -> bool:
        """Whether a call has not been made before: a second one would ask for the same kernels."""
        count = len(self._calls)
        self._calls.add(call)
        return len(self._calls) > count

    @contextlib.contextmanager
    def long_lists(self) -> Iterator[None]:
        """Within, lists of arrays have the kernels of lists that are too long for few arguments."""
        before, self.argument_bytes = self.argument_bytes, (self.argument_bytes[-1],) * 2
        try:
            yield
        finally:
            self.argument_bytes = before

    # ---- the driver ----

    def unavailable(self) -> tuple[str, str] | None:
        return None

    def count(self) -> int:
        return 1

    def current(self) -> int:
        return 0

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stream(self) -> int:
        return 0

    def capturing(self) -> bool:
        return False

    def resident(self, kernel: Kernel) -> int:
        # As an H200 with four for each multiprocessor.
        return 528

    def load(self, kernel: Kernel) -> Any:
        self.kernels[kernel] = None
        return lambda blocks, arguments: None

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
        import cupy

        nbytes = max(1, math.prod(shape)) * dtype.itemsize
        memory = cupy.cuda.UnownedMemory(self._next, nbytes, self, 0)
        self._next += -(-nbytes // _ALIGNED) * _ALIGNED
        return self._array(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)

    def allocate(self, nbytes: int) -> Any:
        return self.empty((nbytes,), np.dtype(np.uint8)).data

    def empty_all(self, shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any]) -> list[Any]:
        return [self.empty(shape, dtype) for shape in shapes]

    def to_host(self, x: Any) -> np.ndarray[Any, Any]:
        return np.zeros(x.shape, x.dtype)

    def to_device(self, x: Any) -> Any:
        return self.empty(x.shape, x.dtype)

    def using(self, stream: int, device: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def follow(self, stream: int, device: int) -> None:
        """There is no work to wait for."""

    def synchronize(self) -> None:
        """There is no work to wait for."""

    def device_of(self, address: int) -> int:
        return 0
