# SPDX-License-Identifier: Apache-2.0
"""The exact meaning of every cast, computed slowly: the specification of record.

It works on values, not on bits, and shares only the dtype table with the host path and the kernels, so that agreement
is evidence. `gpucast.reference.exact_cast` explains how it works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.reference import exact_cast as exact_cast
    from gpucast.reference import rounding as rounding
    from gpucast.reference.exact_cast import cast
else:
    # Imported at its first use, which is rare.
    _submodule = packages.submodules(__name__, "exact_cast", "rounding")

    def __getattr__(name: str) -> Any:
        """Import a submodule, or the cast, when it is first named."""
        if name != "cast":
            return _submodule(name)
        globals()[name] = found = _submodule("exact_cast").cast
        packages.publish(globals())
        return found


__all__ = ["cast"]
