# SPDX-License-Identifier: Apache-2.0
"""What packages are made of: modules that are imported when they are first used, and members with public paths.

Pickles name a class or a function by its path. The paths that they name are public ones, and they load from the paths
of earlier versions.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def submodules(package: str, *names: str) -> Callable[[str], ModuleType]:
    """The ``__getattr__`` of a package (PEP 562) that imports those of its modules when they are first named."""

    def import_it(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return import_it


def publish(package: dict[str, Any]) -> None:
    """Say of the classes and functions in ``__all__`` of a package, whose globals are given, that they belong to it.

    Whichever module defines them: their pickles, which may be kept for long, then name the package.
    """
    for name in package["__all__"]:
        member = package.get(name)
        # Objects such as `gpucast.dtype` have no name of their own.
        if getattr(member, "__qualname__", None) == name:
            member.__module__ = package["__name__"]


def keep_names(package: str, moved: Mapping[str, str]) -> None:
    """Let pickles of earlier versions load: each key is the name that a module, of this package then, had in them, and
    each value is the module of gpucast, loaded already, that has the same members now.

    The package gets no attributes of those names: some are the names of functions.
    """
    for old, new in moved.items():
        sys.modules[f"{package}.{old}"] = sys.modules[f"gpucast.{new}"]
