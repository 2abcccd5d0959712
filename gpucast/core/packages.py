# SPDX-License-Identifier: Apache-2.0
"""The parts of packages: modules that are imported when they are first used, and members with public paths."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from gpucast.core.arithmetic import exact

#: The threads within `importing`, and how deep.
_threads: dict[int, int] = {}
_changed = threading.Condition()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Here a thread imports. Forks wait for it: in the child the thread would not exist, and whoever imports the same
    there would wait for it for ever."""
    own = threading.get_ident()
    with _changed:
        _threads[own] = _threads.get(own, 0) + 1
    try:
        yield
    finally:
        with _changed:
            _threads[own] -= 1
            if not _threads[own]:
                del _threads[own]
                _changed.notify_all()


def _before_fork() -> None:
    _changed.acquire()
    # Not for ever: another thread may wait for what this one imports.
    _changed.wait_for(lambda: not _threads.keys() - {threading.get_ident()}, timeout=10)


def _in_child() -> None:
    own = threading.get_ident()
    for other in _threads.keys() - {own}:
        del _threads[other]
    _changed.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_changed.release, after_in_child=_in_child)


def submodules(package: str, *names: str) -> Callable[[str], ModuleType]:
    """A package's ``__getattr__`` (PEP 562) that imports a submodule when it is first named."""

    def import_it(name: str) -> ModuleType:
        if name in names:
            with importing(), exact():
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
