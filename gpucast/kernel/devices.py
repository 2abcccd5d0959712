# SPDX-License-Identifier: Apache-2.0
"""Which device a call means, and whether casts can run there.

The driver is imported when a device is asked for (see `gpucast.kernel`), so that ``import gpucast`` stays quick.
Nothing falls back to the host silently: what cannot run ends in `DeviceUnavailable`.
"""

from __future__ import annotations

import re
from typing import Any

from gpucast import kernel
from gpucast.core.errors import DeviceUnavailable


def unavailable() -> tuple[str, str] | None:
    """The reason why no cast can run on a GPU here (one clause) and the remedy, or None."""
    return kernel.driver.unavailable()


def parse(device: Any, caller: str) -> str | None:
    """A `device` keyword, checked: None, "cpu", "cuda" or "cuda:N", or an object with such a type and an index."""
    if device is None:
        return None
    text = device
    if isinstance(getattr(device, "type", None), str):
        # Such as torch.device("cuda", 1). There is one host, whatever its index.
        index = getattr(device, "index", None)
        text = device.type if index is None or device.type == "cpu" else f"{device.type}:{index}"
    if isinstance(text, str) and re.fullmatch(r"cpu|cuda(:[0-9]+)?", text):
        return text
    error = ValueError if isinstance(device, str) else TypeError
    raise error(f"{caller}: device={device!r} is not a device; expected None, 'cpu', 'cuda' or 'cuda:N'")


def name(number: int | None) -> str:
    """The name of the device with that index, or of the host (None), in messages."""
    return "the host" if number is None else f"cuda:{number}"


def place(number: int | None) -> str:
    """The `device` keyword for the device with that index, or for the host (None)."""
    return "cpu" if number is None else f"cuda:{number}"


def require(caller: str) -> None:
    """DeviceUnavailable, with the reason and the remedy, unless casts can run on a GPU here."""
    kernel.driver.usable(caller)


def index(device: str, caller: str) -> int:
    """The index of the device that "cuda" (the current one) or "cuda:N" names."""
    require(caller)
    number = device.partition(":")[2]
    if not number:
        return kernel.driver.driver().current()
    count = kernel.driver.driver().count()
    if int(number) >= count:
        last = f"cuda:{count - 1}"
        raise DeviceUnavailable(f"{caller}: device={device!r} does not exist; expected 'cuda' or 'cuda:0' to '{last}'")
    return int(number)
