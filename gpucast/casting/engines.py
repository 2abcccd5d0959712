# SPDX-License-Identifier: Apache-2.0
"""The engine of each place. Modules for devices are loaded at the first device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpucast import casting
from gpucast.arrays.packed import device_index
from gpucast.casting import host
from gpucast.casting.engine import Engine
from gpucast.kernel import devices

#: The engine of the host.
HOST = host.HOST


@lru_cache
def of(device: int | None) -> Engine:
    """The engine of a device, by its index, or of the host (None)."""
    return HOST if device is None else casting.cuda.CudaEngine(device)


def of_array(x: Any) -> Engine:
    """The engine of the place where a native array is."""
    return of(device_index(x))


def of_any(*arrays: Any) -> Engine:
    """The engine of the first native array that is on a device, or of the host."""
    return next((one for one in map(of_array, arrays) if one is not HOST), HOST)


def named(device: Any, caller: str, default: Engine = HOST) -> Engine:
    """The engine that a `device` keyword names; None: the default. DeviceUnavailable for a device that cannot be used,
    TypeError or ValueError for other keywords."""
    if device is None:
        return default
    place = devices.parse(device, caller)
    return HOST if place == "cpu" else of(devices.index(str(place), caller))


def to_host(x: Any) -> Any:
    """A native array in host memory: itself, or a copy."""
    return HOST.take(x)
