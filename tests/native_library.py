# SPDX-License-Identifier: Apache-2.0
"""The host's compiled library in tests: whether it can be compiled here, and what is ready."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gpucast.casting import plan_cache
from gpucast.compile import cxx
from gpucast.cpu import compiled


def needs_compiler() -> None:
    """Skip where there is no compiler: the casts of NumPy's path are tried all the same."""
    try:
        cxx.find("test")
    except cxx.CompilerMissing:
        pytest.skip("no C++ compiler")


def check_references(call: Callable[[], None], objects: tuple[object, ...]) -> None:
    """A thousand calls keep no reference to these objects, and lose none."""
    call()
    gc.collect()
    before = [sys.getrefcount(one) for one in objects]
    for _ in range(1000):
        call()
    gc.collect()
    after = [sys.getrefcount(one) for one in objects]
    assert all(abs(a - b) < 100 for a, b in zip(before, after, strict=True)), (before, after)


def forget() -> None:
    """Have no cast ready, and no plan that was made for one."""
    compiled.READY.clear()
    plan_cache.forget()


class Noted:
    """Notes the sizes of what a compiled cast is called for; no call of Python's goes past it."""

    def __init__(self, cast: Any) -> None:
        self._cast = cast
        self.sizes: list[int] = []

    def __call__(self, x: Any, out: Any) -> None:
        self.sizes.append(x.size)
        self._cast(x, out)

    def quicker(self, run: Any) -> Any:
        return run
