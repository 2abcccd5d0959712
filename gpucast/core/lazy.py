# SPDX-License-Identifier: Apache-2.0
"""Packages whose modules are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def submodules(package: str, *names: str) -> Callable[[str], ModuleType]:
    """The ``__getattr__`` of a package (PEP 562) that imports those of its modules when they are first named."""

    def import_it(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return import_it
