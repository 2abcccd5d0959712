# SPDX-License-Identifier: Apache-2.0
"""Casts that compiled code takes as objects: what it takes, what it leaves to the checked path, and that it keeps and
loses nothing."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.casting import plan_cache
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.core.rule import resolve
from gpucast.native import calls, library, threads
from gpucast.native import cast as native_cast
from gpucast.parity import hard_values
from gpucast.reference import casting as reference
from native_library import check_references, forget

Array = np.ndarray[Any, Any]
RULE = resolve(dtype("FLOAT"), dtype("INT16"))


class Own(np.ndarray):
    """A subclass, which may mean anything by its elements."""


class Run:
    """A cast by compiled code, and what it leaves to the checked path."""

    def __init__(self, rule: Any = RULE) -> None:
        self.left: list[Any] = []
        native_cast.find(rule, 1)
        library.finish()
        cast = native_cast.find(rule)
        assert cast is not None
        self.cast = cast
        self.run = cast.quicker(self._note)
        assert self.run != self._note

    def _note(self, *arguments: Any) -> str:
        self.left.append(arguments)
        return "left"

    def leaves(self, *arguments: Any) -> bool:
        """Whether it leaves such a call to the checked path, with just these arguments."""
        self.left.clear()
        result = self.run(*arguments)
        return result == "left" and all(a is b for a, b in zip(*self.left, arguments, strict=True))


def unaligned(kind: Any, size: int) -> Array:
    return np.zeros(size * np.dtype(kind).itemsize + 1, np.uint8)[1:].view(kind)


def frozen(x: Array) -> Array:
    x.flags.writeable = False
    return x


def test_arrays_of_every_shape(native: None) -> None:
    run = Run()
    for shape in ((), (1,), (0,), (3, 0, 2), (1, 1, 1), (5, 7), (2,) * 20, (0,) * 64, (4, 1 << 10), (1 << 20,)):
        x = np.resize(np.arange(-900, 900, dtype=np.float32), shape)
        out = np.full(shape, 77, np.int16)
        given = run.run(x, None)
        assert run.run(x, out) is out
        for y in (given, out):
            assert (type(y), y.dtype, y.shape, y.strides) == (np.ndarray, np.int16, shape, out.strides)
            assert np.array_equal(y, x)
        assert given.flags.carray and given.flags.owndata
    assert not run.left


@pytest.mark.parametrize("src", [kind.name for kind in DTYPES if kind.family != "string"])
def test_every_pair_is_the_references(src: str, native: None) -> None:
    kind = dtype(src)
    for dst in (row for row in DTYPES if row.family != "string" and row is not kind):
        run = Run(resolve(kind, dst))
        codes = hard_values.codes(kind, dst, seed=3, share=0, random=5)[:300] if kind.bits > 16 else np.arange(256)
        x = codes.astype(kind.code_numpy).view(kind.numpy)
        assert run.run(x, None).tobytes() == reference.apply(x, resolve(kind, dst)).tobytes(), dst
        assert not run.left


def test_other_objects_are_left_to_the_checked_path(native: None) -> None:
    run, x = Run(), np.arange(8, dtype=np.float32)
    square = np.zeros((4, 4), np.float32)
    tagged = np.dtype(np.float32, metadata={"a": 1})
    for other in (
        x.view(Own), np.ma.masked_array(x), np.float32(3), 3.0, 3, None, "x", b"x", [1.0], (), {}, object(), int, np,
        np.ndarray, memoryview(x), x.astype(">f4"), x.astype(float), x.astype(np.int32), x[::2], x[::-1], square.T,
        square[:, :2], np.broadcast_to(x[:1], 5), unaligned(np.float32, 3), np.zeros(3, tagged), np.zeros(3, object),
        np.zeros(3, "f4,f4"), np.zeros(3, "U4"), np.zeros(0, ">f4"), run.run, sys, ..., np.dtype(np.float32),
    ):  # fmt: skip
        assert run.leaves(other, None), other
        assert run.leaves(other, np.zeros(8, np.int16)), other


def test_other_outs_are_left_to_the_checked_path(native: None) -> None:
    run = Run()
    memory = np.zeros(64, np.uint8)
    x = memory[16:48].view(np.float32)
    good = np.zeros(16, np.int16)
    for other in (
        good[:8].view(Own), np.ma.zeros(8, np.int16), 0, "x", [0] * 8, (), object(), np.int16(3), False, ...,
        np.zeros(8, ">i2"), np.zeros(8, np.uint16), np.zeros(8, np.int32), np.zeros(8, np.float16), good[:7], good,
        good[:8].reshape(2, 4), np.zeros((), np.int16), good[::2], good[7::-1], frozen(np.zeros(8, np.int16)),
        np.broadcast_to(good[:1], 8), unaligned(np.int16, 8), x.view(np.int16)[:8], x.view(np.int16)[8:],
        memory[2:18].view(np.int16), memory[46:62].view(np.int16), np.zeros(8, "i2,i2"), np.zeros(8, object),
    ):  # fmt: skip
        before = memory.tobytes()
        assert run.leaves(x, other), other
        assert memory.tobytes() == before
    # Side by side to the byte.
    for out in (memory[:16].view(np.int16), memory[48:].view(np.int16)):
        assert run.run(x, out) is out


def test_wrong_numbers_of_arguments_reach_the_checked_path(native: None) -> None:
    run, x = Run(), np.zeros(1, np.float32)
    for arguments in ((), (x,), (x, None, None), (x, None, None, 1, 2)):
        # As a call without any: a function of two arguments tells Python what is wrong.
        run.left.clear()
        assert run.run(*arguments) == "left"
        assert run.left == [()]
    with pytest.raises(TypeError, match="keyword"):
        run.run(x, out=None)
    with pytest.raises(TypeError, match="2 required positional arguments"):
        run.cast.quicker(lambda x, out: out)(x)


def test_large_arrays_are_left_to_threads(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PART", 3_000)
    monkeypatch.setattr(threads, "most", lambda: 2)
    run = Run()
    assert run.run(np.ones(999, np.float32), None).sum() == 999
    assert run.leaves(np.ones(1_000, np.float32), None)
    assert run.leaves(np.ones(1_000, np.float32), np.zeros(1_000, np.int16))
    monkeypatch.setattr(threads, "most", lambda: 1)
    assert Run().run(np.ones(1_000, np.float32), None).sum() == 1_000


def test_errors_of_the_checked_path_come_through(native: None) -> None:
    def refuse(x: Any, out: Any) -> Any:
        raise LookupError("checked")

    with pytest.raises(LookupError, match="checked"):
        Run().cast.quicker(refuse)(1, None)


@pytest.mark.skipif(sys.platform != "linux", reason="the size of the process is read as Linux tells it")
def test_no_memory(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(threads, "PART", 1 << 60)
    run, x = Run(resolve(dtype("UINT8"), dtype("DOUBLE"))), np.zeros(1 << 26, np.uint8)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 28), hard))
    try:
        with pytest.raises(MemoryError):
            run.run(x, None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert run.run(x[:5], None).tolist() == [0] * 5
    assert not run.left


def test_nothing_is_kept_or_lost(native: None) -> None:
    run = Run()
    x, out = np.ones(3, np.float32), np.zeros(3, np.int16)
    objects = (x, out, x.dtype, out.dtype, None, np.ndarray, run.run, (3,))

    def each() -> None:
        assert run.run(x, out) is out
        run.run(x, None)
        run.run(x, 5)
        run.left.clear()

    check_references(each, objects)


def test_a_function_that_goes_takes_its_checked_path_along(native: None) -> None:
    class Checked:
        def __call__(self, x: Any, out: Any) -> Any:
            return None

    cast, checked = Run(), Checked()
    run = cast.cast.quicker(checked)
    gone = weakref.ref(checked)
    del checked
    gc.collect()
    assert gone() is not None and run(1, None) is None
    del run
    gc.collect()
    assert gone() is None
    assert cast.run(np.ones(2, np.float32), None).tolist() == [1, 1]


def test_several_threads_at_once(native: None) -> None:
    """Long ones run without Python's lock."""
    run = Run()
    arrays = [np.random.default_rng(i).integers(-999, 999, 200_000).astype(np.float32) for i in range(4)]
    wrong: list[int] = []

    def work(i: int) -> None:
        out = np.empty(arrays[i].shape, np.int16)
        for _ in range(30):
            results = run.run(arrays[i], None), run.run(arrays[i], out)
            wrong.extend(i for y in results if not np.array_equal(y, arrays[i]))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong and not run.left


# ---- public calls ----


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An interpreter, or a NumPy, whose objects are not known."""
    calls._is_started.cache_clear()
    monkeypatch.setattr(calls, "_python", lambda: None)
    forget()
    yield
    calls._is_started.cache_clear()
    forget()


def test_a_cast_that_becomes_ready_is_taken_by_calls_that_have_a_plan(native: None) -> None:
    x = np.arange(5, dtype=np.float32)
    # This library comes later.
    for _ in range(3):
        assert gpucast.cast(x, "UINT16").tolist() == [0, 1, 2, 3, 4]
    (plan,) = plan_cache.SIMPLE.values()
    assert type(plan.run) is type(lambda: None)
    gpucast.cast(np.zeros(5_000, np.float32), "UINT16")
    library.finish()
    gpucast.cast(np.zeros(5_000, np.float32), "UINT16")
    gpucast.cast(x, "UINT16")
    (plan,) = plan_cache.SIMPLE.values()
    assert type(plan.run) is type(len)
    assert gpucast.cast(x, "UINT16").tolist() == [0, 1, 2, 3, 4]


def test_without_known_objects_casts_are_the_same(native: None, unknown: None) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) * 50 for shape in ((), (70, 80), (0,), (3,))]
    wanted = [gpucast.reference.cast(x, "BFLOAT16").tobytes() for x in arrays]
    for _ in range(3):
        assert [gpucast.cast(x, "BFLOAT16").tobytes() for x in arrays] == wanted
        assert [y.tobytes() for y in gpucast.cast_many(arrays, "BFLOAT16")] == wanted
        library.finish()
    assert all(type(plan.run) is type(lambda: None) for plan in plan_cache.SIMPLE.values())
    assert calls.lists() is None


@pytest.mark.parametrize("change", ["implementation", "free-threaded", "abi", "table"])
def test_which_objects_are_known(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    python = calls._python.__wrapped__
    assert python() is not None
    if change == "implementation":
        monkeypatch.setattr(calls, "pointer", calls._by_ctypes)
    elif change == "free-threaded":
        monkeypatch.setattr(calls.sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    elif change == "abi":
        monkeypatch.setattr(calls, "_ABI", 0x03000000)
    else:
        monkeypatch.delitem(sys.modules, "numpy._core._multiarray_umath")
    assert python() is None


# ---- lists of arrays ----


@pytest.fixture
def lists(native: None) -> calls.Lists:
    calls.lists(1)
    library.finish()
    found = calls.lists()
    assert found is not None
    return found


def test_descriptions_of_lists(lists: calls.Lists) -> None:
    kinds = [np.zeros(3, row.numpy) for row in DTYPES if row.family != "string"]
    a, b = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    one = lists.describe([a, b])
    assert lists.describe([b, a]) == one
    others = [
        [a], [a, b, a], [a, b.reshape(3, 2)], [a, b.reshape(6)], [a, b.reshape(1, 2, 3)], [a, frozen(b.copy())],
        [a, b.view(np.int32)], [a, b.view(np.uint32)], [np.zeros((), np.float32)], [np.zeros(0, np.float32)], [],
        *([x] for x in kinds),
    ]  # fmt: skip
    described = [lists.describe(other) for other in others]
    assert len({one, *described}) == len(others) + 1
    for wrong in (1, None, "x", a.view(Own), a.T, a[:, :1], a.astype(">f4"), np.zeros(2, "f4,f4"), np.float32(1), [a]):
        for given in ([wrong], [a, wrong], [a, wrong, b]):
            with pytest.raises(TypeError, match="of another kind"):
                lists.describe(given)
    for no_list in (a, None, (a,), "xyz"):
        with pytest.raises(SystemError):
            lists.describe(no_list)


def test_addresses_and_new_arrays_of_lists(lists: calls.Lists) -> None:
    given = [np.zeros(shape, np.float32) for shape in ((), (0,), (3, 4), (2, 0, 5), (1,) * 30)]
    assert lists.addresses(given).tolist() == [x.ctypes.data for x in given]
    assert lists.addresses([]).tolist() == []
    made = lists.new(given, dtype("BFLOAT16").numpy)
    assert type(made) is list
    for x, y in zip(given, made, strict=True):
        assert (type(y), y.dtype, y.shape) == (np.ndarray, dtype("BFLOAT16").numpy, x.shape)
        assert y.flags.carray and y.flags.owndata
    kind, x = dtype("BFLOAT16").numpy, given[2]
    before = sys.getrefcount(kind), sys.getrefcount(x)
    for _ in range(1000):
        lists.describe(given), lists.addresses(given), lists.new(given, kind)
    assert abs(sys.getrefcount(kind) - before[0]) < 100 and sys.getrefcount(x) == before[1]
