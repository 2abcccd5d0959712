# SPDX-License-Identifier: Apache-2.0
"""Many arrays of the host in one call of the compiled library: the bits of single casts by NumPy, and who takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast import mixed
from gpucast.casting import plan_cache
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.native import batch as native_batch
from gpucast.native import library as host_native
from gpucast.native import threads
from gpucast.parity import hard_values
from gpucast.reference import casting as reference
from native_library import forget

Array = np.ndarray[Any, Any]
SOURCES = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")


@pytest.fixture
def calls(native: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of arrays of each call of the library."""
    plan_cache.forget()
    cast_each, noted = native_batch._cast_each, []

    def note(*arguments: Any) -> None:
        noted.append(arguments[1].size)
        cast_each(*arguments)

    monkeypatch.setattr(native_batch, "_cast_each", note)
    yield noted
    plan_cache.forget()


def codes(src: str, size: int) -> Array:
    kind = dtype(src)
    found = hard_values.codes(kind, dtype("FLOAT"), seed=3, share=0.05, random=2_000) if kind.bits > 16 else None
    return np.resize(np.arange(1 << 16) if found is None else found, size).astype(kind.code_numpy).view(kind.numpy)


def arrays() -> list[Array]:
    return [
        codes(src, size).reshape(shape)
        for src in SOURCES
        for size, shape in ((1, ()), (70_000, (7, 10_000)), (0, (0, 3)), (65, (5, 13)))
    ]


def ready(call: Any) -> None:
    """Call until all is compiled and the call has a plan."""
    for _ in range(3):
        call()
        host_native.finish()


def bits(x: Any) -> bytes:
    return np.asarray(x).tobytes()


@pytest.mark.parametrize("to", ["INT8", "FLOAT8E4M3FN", "INT4", "BOOL"])
def test_results_are_the_references(to: str, calls: list[int]) -> None:
    given = arrays()
    ready(lambda: gpucast.cast_many(given, to))
    calls.clear()
    results = gpucast.cast_many(given, to)
    assert calls == [3] * len(SOURCES)
    for x, y in zip(given, results, strict=True):
        assert y.shape == x.shape
        assert bits(y) == bits(reference.apply(x, resolve(dtype(x.dtype), dtype(to))))


@pytest.mark.parametrize("scale", [2.0**-10, 0.1, 1e-300])
@pytest.mark.parametrize("to", SOURCES)
def test_scaled_results_are_those_of_numpy(
    to: str, scale: float, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arrays()
    ready(lambda: gpucast.cast_many(given, to, scale=scale, finite=np.ones((), bool)))
    calls.clear()
    finite = np.ones((), bool)
    results = gpucast.cast_many(given, to, scale=scale, finite=finite)
    assert calls == [3] * len(SOURCES)
    assert not finite, "there is an infinity"
    monkeypatch.setenv("GPUCAST_NATIVE", "0")
    monkeypatch.setattr(host_native, "_cache", lambda: None)
    host_native._native.cache_clear()
    forget()
    for x, y in zip(given, results, strict=True):
        assert bits(y) == bits(gpucast.cast(x, to, scale=scale))


def test_unscale_tells_whether_all_is_finite(calls: list[int]) -> None:
    scale = mixed.StaticLossScale(1024.0)
    grads = {name: np.arange(1, 100, dtype=np.float16) for name in "abc"}
    ready(lambda: scale.unscale(grads))
    calls.clear()
    results, finite = scale.unscale(grads)
    assert calls == [3]
    assert finite
    assert all(bits(y) == bits(np.arange(1, 100, dtype=np.float32) / 1024) for y in results.values())
    for bad in (np.inf, -np.inf, np.nan):
        grads["b"][98] = bad
        assert not scale.unscale(grads)[1]


def test_what_the_library_cannot_take(calls: list[int]) -> None:
    memory = np.zeros(2001, np.uint8)
    odd = [memory[1:].view(np.float16), np.ones(1000, np.float16)]
    even = [np.ones(1000, np.float16) for _ in range(2)]
    outs = [np.empty(1000, np.float32) for _ in range(2)]
    ready(lambda: gpucast.cast_many(even, "FLOAT"))
    ready(lambda: gpucast.cast_many(even, "FLOAT", out=outs))
    ready(lambda: gpucast.cast_many(even, "INT16", out=[np.empty(1000, np.int16) for _ in range(2)]))
    calls.clear()
    assert gpucast.cast_many(odd, "FLOAT")[0].dtype == np.float32
    own = [x.view(np.int16) for x in even]
    gpucast.cast_many(even, "INT16", out=own)
    assert (own[0] == 1).all()
    assert calls == [], "an odd address, and results over their own sources"
    outs[1].flags.writeable = False
    even = [np.ones(1000, np.float16) for _ in range(2)]
    with pytest.raises(ValueError, match="read-only"):
        gpucast.cast_many(even, "FLOAT", out=outs)
    outs[1] = outs[0]
    with pytest.raises(ValueError, match="share memory"):
        gpucast.cast_many(even, "FLOAT", out=outs)
    assert calls == []


def test_threads_share_the_arrays(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PART", 1000)
    monkeypatch.setattr(threads, "most", lambda: 4)
    given = [np.arange(size, dtype=np.float32) for size in (1, 1_600, 0, 3, 3, 700, 1_600, 1, 1_600, 1_500)]
    ready(lambda: gpucast.cast_many(given, "INT32"))
    calls.clear()
    for x, y in zip(given, gpucast.cast_many(given, "INT32"), strict=True):
        assert np.array_equal(x, y)
    assert calls == [9]
    # Of one large array all threads take a part.
    given[0] = np.arange(20_000, dtype=np.float32)
    ready(lambda: gpucast.cast_many(given, "INT32"))
    assert calls == [9]
