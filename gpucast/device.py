# SPDX-License-Identifier: Apache-2.0
"""The seam to the GPU: where device casts begin, and why they cannot run when they cannot.

This version casts on the host only. Every call that would need the GPU ends here in `DeviceUnavailable`;
nothing falls back to the host silently.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn


class DeviceUnavailable(RuntimeError):
    """A cast was asked for on a GPU that cannot do it here. The message says why and what to do."""


def unavailable_reason() -> str | None:
    """Why no cast can run on a GPU here, in one clause; None when it can."""
    return "this version of gpucast has no CUDA kernels yet, it casts on the host"


def remedy() -> str:
    """What mends `unavailable_reason`."""
    return "cast on the host: gpucast.cast(x.get(), ...) for a CuPy array, device='cpu' or None for a NumPy array"


def parse(device: Any, who: str) -> str | None:
    """Check a `device` keyword: None, "cpu", "cuda" or "cuda:N"."""
    if device is None or (isinstance(device, str) and re.fullmatch(r"cpu|cuda(:[0-9]+)?", device)):
        return device
    error = ValueError if isinstance(device, str) else TypeError
    raise error(f"{who}: device={device!r} is not a device; expected None, 'cpu', 'cuda' or 'cuda:N'")


def refuse(who: str) -> NoReturn:
    raise DeviceUnavailable(f"{who}: no cast on a GPU: {unavailable_reason()}; {remedy()}")


def cast(x: Any, rule: Any, device: str | None, out: Any, who: str) -> Any:
    """Cast to or on a GPU: `x` or `out` is a CuPy array or a PackedArray over one, or `device` names a GPU."""
    refuse(who)


def empty(shape: tuple[int, ...], row: Any, device: str | None) -> Any:
    """An array on a GPU, for `gpucast.empty`."""
    refuse("empty")
