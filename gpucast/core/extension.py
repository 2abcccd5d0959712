# SPDX-License-Identifier: Apache-2.0
"""The extension module `gpucast._host`, and why it is missing where it is.

Environment: ``GPUCAST_HOST_LEVEL`` chooses a lower level of the processor than the best one ("x86-64-v2", ...);
``GPUCAST_HOST_THREADS`` says how many threads share a long cast, instead of one for each core up to 8;
``GPUCAST_NO_HOST=1`` leaves the module out, when it is built and when it is used.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import ModuleType
from typing import Any

from gpucast.core.errors import SlowHostWarning

#: `interface` of ``kernels/host/module.cpp``.
_INTERFACE = 11
_THREADS = "GPUCAST_HOST_THREADS"
#: What the build writes where it cannot build the module. A text: `pathlib` would take longer to import than the rest.
MISSING = os.path.join(os.path.dirname(os.path.dirname(__file__)), "_host_missing.txt")


def _load() -> tuple[ModuleType | None, str]:
    """The module, or why there is none."""
    if os.environ.get("GPUCAST_NO_HOST") == "1":
        return None, "GPUCAST_NO_HOST=1"
    try:
        from gpucast import _host
    except ImportError as error:
        try:
            with open(MISSING, encoding="utf-8") as file:
                return None, file.read().strip()
        except OSError:
            return None, str(error)
    if getattr(_host, "INTERFACE", 0) != _INTERFACE:
        return None, "it was built from other sources than these"
    return _host, ""


#: None where it is missing.
MODULE: Any
MODULE, WHY_NOT = _load()
_is_said = False


def status() -> str:
    """Which loops cast arrays of the host, in a line for `gpucast info`."""
    if MODULE is not None:
        threads = f"{MODULE.THREADS} thread{'s' if MODULE.THREADS > 1 else ''} for long casts"
        return f"compiled for {MODULE.LEVEL} (built: {', '.join(MODULE.LEVELS)}), {threads}"
    return f"slow, by the reference: {_reason()}"


def say_slow(reason: str = "") -> None:
    """Warn, once in a process, that the reference does the work. `reason`: where the module is there, but cannot."""
    global _is_said  # noqa: PLW0603 (once in a process)
    if not _is_said:
        _is_said = True
        slow = f"gpucast: casts on the host are slow, by the reference: {reason or _reason()}"
        warnings.warn(slow, SlowHostWarning, stacklevel=2)


def _reason() -> str:
    """The reason why the module is missing, and the remedy."""
    if WHY_NOT == "GPUCAST_NO_HOST=1":
        return "GPUCAST_NO_HOST=1 is set; unset it"
    if WHY_NOT.startswith(_THREADS):
        # To build the module again would not help.
        return f"{WHY_NOT}; set {_THREADS} to one, or unset it"
    return (
        f"the extension module is missing ({WHY_NOT}); with a C++ compiler, run: {sys.executable} -m gpucast.host.build"
    )
