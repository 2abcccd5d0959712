# SPDX-License-Identifier: Apache-2.0
"""Fills a cache with the host's library of casts from FLOAT."""

from __future__ import annotations

from gpucast.compile.cache import Cache
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.native import cast
from gpucast.native.library import NativeLibrary, finish

#: One of its casts, and what it is made of.
RULE = resolve(dtype("FLOAT"), dtype("FLOAT16"))
UNIT = cast._unit(RULE.src, True)


def fill(cache: Cache) -> None:
    """Compile the library, and wait for it. AssertionError where it cannot be compiled and loaded."""
    made = NativeLibrary(UNIT, cache, worth=0)
    made.library()
    finish()
    assert made.library() is not None
