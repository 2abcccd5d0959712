# SPDX-License-Identifier: Apache-2.0
"""Casts on the host: by the extension module `gpucast._host`, or slowly by the reference where that is missing. The
module for text is imported at the first text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.host import text as text
else:
    __getattr__ = packages.submodules(__name__, "text")
