# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from delayed_driver import DelayedDriver
from delayed_streams import TORCH
from gpucast import PackedArray
from gpucast.arrays import packed
from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.arrays.packed import LibraryPackedArray
from gpucast.casting import engines, list_plans
from gpucast.core.dtypes import dtype
from host_driver import installed


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayedDriver]:
    with installed(DelayedDriver()) as driver:
        # CuPy's own kernels and copies, which need CUDA.
        def later(function: Callable[..., Any], nbytes: Callable[..., int]) -> Callable[..., Any]:
            def run(codes: Any, *arguments: Any) -> Any:
                if isinstance(codes, np.ndarray):
                    return function(codes, *arguments)
                y = driver.empty((nbytes(codes, *arguments),), np.dtype(np.uint8))
                address, size, to = codes.data.ptr, codes.nbytes, y.data.ptr

                def work() -> None:
                    found = function(np.frombuffer(ctypes.string_at(address, size), np.uint8), *arguments)
                    ctypes.memmove(to, np.ascontiguousarray(found).ctypes.data, found.nbytes)

                driver.give(work)
                return y

            return run

        monkeypatch.setattr(packed, "pack_codes", later(pack_codes, lambda codes, bits: -(-codes.size * bits // 8)))
        monkeypatch.setattr(packed, "unpack_codes", later(unpack_codes, lambda codes, bits, size: size))
        monkeypatch.setattr(packed, "to_numpy", lambda x: x if isinstance(x, np.ndarray) else driver.to_host(x))
        yield driver


@pytest.fixture
def with_torch(late: DelayedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is taken for one on device 0."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from gpucast.libraries.torch import library, tensors

    monkeypatch.setattr(tensors, "device_of", lambda x, caller: 0)
    monkeypatch.setattr(tensors, "stream", lambda device: TORCH)
    # The extension module sees that they are on the host.
    monkeypatch.setattr(library, "MODULE", None)
    monkeypatch.delitem(list_plans.HOST_KINDS, torch.Tensor, raising=False)
    new, from_array = tensors.new, tensors.from_array

    def kept(*arguments: Any, caller: str = "cast") -> Any:
        y = new(*arguments, caller=caller)
        late.kept.append(y.untyped_storage())
        return y

    def there(x: Any) -> Any:
        if isinstance(x, PackedArray) and not isinstance(x.data, np.ndarray):
            y = from_array(PackedArray(on_host(x.data), x.dtype, x.shape))
            return LibraryPackedArray(x.data, x.dtype, x.shape, "torch") if isinstance(y, PackedArray) else y
        return from_array(x if isinstance(x, (PackedArray, np.ndarray)) else on_host(x))

    def on_host(x: Any) -> np.ndarray:
        # By DLPack it would be on the device.
        return engines.HOST.view(x.data.ptr, x.shape, None, dtype(x.dtype), x)

    monkeypatch.setattr(tensors, "new", kept)
    monkeypatch.setattr(tensors, "from_array", there)
