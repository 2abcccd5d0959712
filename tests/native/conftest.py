# SPDX-License-Identifier: Apache-2.0
"""The host's compiled library in a cache of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucast.casting import plan_cache
from gpucast.compile.cache import Cache
from gpucast.cpu import compiled
from gpucast.native import library as host_native
from native_library import needs_compiler


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    needs_compiler()
    return Cache(str(tmp_path_factory.mktemp("cache") / "native"), private=True)


@pytest.fixture
def native(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library is switched on, and compiled as soon as a cast is long."""
    monkeypatch.setenv("GPUCAST_NATIVE", "1")
    monkeypatch.setattr(host_native, "_cache", lambda: cache)
    monkeypatch.setattr(compiled, "READY", {})
    host_native._native.cache_clear()
    plan_cache.forget()
    yield
    host_native.finish()
    host_native._native.cache_clear()
    plan_cache.forget()
