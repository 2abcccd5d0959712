# SPDX-License-Identifier: Apache-2.0
"""The device path from `gpucast.cast` to the launch, on real CuPy arrays over host memory (see host_driver)."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import device_views
import gpucast
from gpucast import PackedArray
from gpucast.codegen.cast_kernel import kernel_source
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import resolve
from gpucast.gpu import cast_on_gpu
from gpucast.parity.cases import NUMERIC
from host_driver import HostDriver, both_shapes, device_array, download, installed, upload

ROWS = [dtype(name) for name in ("FLOAT", "INT4", "FLOAT8E4M3FN", "UINT16", "FLOAT6E2M3", "DOUBLE", "BOOL", "INT2")]
PAIRS = [(src, dst) for src in ROWS for dst in ROWS]


@pytest.fixture(scope="module")
def shared() -> HostDriver:
    driver = HostDriver()
    driver.prepare(both_shapes(resolve(src, dst) for src, dst in PAIRS))
    return driver


@pytest.fixture
def driver(shared: HostDriver) -> Iterator[HostDriver]:
    shared.loaded.clear()
    shared.launched.clear()
    shared.copied = shared.index = 0
    shared.capture = False
    with installed(shared):
        yield shared
    assert shared.index == 0


def codes(row: DType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random codes of a row, one element each, as the host has them."""
    high = 2 if row.family == "bool" else 1 << row.bits
    random = np.random.default_rng(seed).integers(0, high, shape, dtype=np.uint64)
    return random.astype(row.code_numpy).view(row.numpy)


def values(x: Any) -> np.ndarray:
    """A device result as the host has it."""
    if isinstance(x, PackedArray):
        return PackedArray(download(x.data), x.dtype, x.shape).get()
    return download(x)


def same(x: np.ndarray, y: np.ndarray) -> bool:
    row = dtype(y.dtype)
    assert (x.dtype, x.shape) == (y.dtype, y.shape)
    return bool((np.ascontiguousarray(x).view(row.code_numpy) == np.ascontiguousarray(y).view(row.code_numpy)).all())


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
def test_every_layout_of_a_pair(src: DType, dst: DType, driver: HostDriver) -> None:
    for shape in ((), (0,), (1,), (7,), (1000,), (5, 0, 2), (3, 4, 5), (33, 65)):
        x = codes(src, shape)
        wanted = gpucast.reference.cast(x, dst)
        sources = [upload(x), upload(x, offset=src.code_numpy.itemsize)]
        if src.packed:
            packed = PackedArray.pack(x)
            sources += [PackedArray(upload(packed.data, offset=offset), src, shape) for offset in (0, 1, 7)]
        for source in sources:
            result = gpucast.cast(source, dst)
            assert isinstance(result, PackedArray) == dst.packed
            assert result.dtype == (dst if dst.packed else dst.numpy)
            assert same(values(result), wanted)
            if dst.packed and result.nbytes:
                assert same(values(result.reshape(-1)), wanted.reshape(-1))


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
def test_strided_sources(src: DType, dst: DType, driver: HostDriver) -> None:
    host = codes(src, (4, 6, 10))
    device = upload(host)
    views = [
        lambda x: x.T,
        lambda x: x.transpose(1, 0, 2),
        lambda x: x[:, ::2],
        lambda x: x[::-1, :, ::-3],
        lambda x: x[1:3, 2, 4:9],
        lambda x: x[:, :1, :],
        lambda x: x[2],
        lambda x: (np if isinstance(x, np.ndarray) else sys.modules["cupy"]).broadcast_to(x[0, 0], (3, 2, 10)),
    ]
    for view in views:
        result = gpucast.cast(view(device), dst)
        wanted = gpucast.reference.cast(view(host), dst)
        assert same(values(result), wanted)
        if not dst.packed:
            # Order "K", as NumPy lays it out.
            assert result.strides == gpucast.cast(view(host), dst).strides


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
def test_out(src: DType, dst: DType, driver: HostDriver) -> None:
    x = codes(src, (6, 8))
    source, wanted = upload(x), gpucast.reference.cast(x, dst)
    if dst.packed:
        out = PackedArray(device_array((dst.nbytes(48),), np.uint8, offset=3), dst, (6, 8))
        assert gpucast.cast(source, dst, out=out) is out
        assert same(values(out), wanted)
        return
    for out in (
        device_array((6, 8), dst.code_numpy).view(dst.numpy),
        device_array((8, 6), dst.code_numpy).view(dst.numpy).T,
        device_array((6, 16), dst.code_numpy).view(dst.numpy)[:, ::2],
        device_array((6, 8), dst.code_numpy).view(dst.numpy)[::-1],
    ):
        assert gpucast.cast(source, dst, out=out) is out
        assert same(values(out), wanted)
        if src.packed:
            packed = PackedArray.pack(x)
            gpucast.cast(PackedArray(upload(packed.data), src, (6, 8)), dst, out=out)
            assert same(values(out), wanted)


@pytest.mark.parametrize("dst", ["FLOAT16", "DOUBLE", "INT2"])
def test_transposes_go_by_squares(dst: str, driver: HostDriver) -> None:
    """Into an `out` of the other order; packed results are row-major streams, which the strided kernel writes."""
    row = dtype(dst)
    x = codes(dtype("FLOAT"), (3, 40, 50))
    source, wanted = upload(x), gpucast.reference.cast(x, dst)
    if row.packed:
        out: Any = PackedArray(device_array((row.nbytes(x.size),), np.uint8), row, (3, 50, 40))
    else:
        out = device_array((3, 50, 40), row.code_numpy).view(row.numpy)
    gpucast.cast(source.transpose(0, 2, 1), dst, out=out)
    assert same(values(out), wanted.transpose(0, 2, 1))
    shape = "strided" if row.packed else "transposed"
    assert driver.launched == [(f"gpucast_float32_to_{row.numpy_name}_{shape}", 0)]


@pytest.mark.parametrize(("src", "dst"), PAIRS[::7], ids=str)
def test_views_on_the_device_are_strided_and_misaligned(src: DType, dst: DType, driver: HostDriver) -> None:
    """The sibling of test_every_pair in tests/gpu/test_gpu.py: what it does there, and that it launches what it
    means."""
    assert device_views.SIZES[1] == 7
    odd: list[int] = []
    real = driver.load

    def load(source: Any) -> Any:
        kernel = real(source)

        def launch(x: int, y: int, n: int, more: Any) -> None:
            odd.append((x | y) % 16)
            kernel(x, y, n, more)

        return launch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "load", load)
        device_views.check_pair(src, dst, (1, 7, 131))
    cast = source_of(src, dst)
    shapes = {name.rsplit("_", 1)[-1] == "strided" for name, _ in driver.launched if name.startswith(cast)}
    assert shapes == ({False} if src.packed else {False, True}), "packed types have no strides"
    assert {1, 0} <= set(odd) and any(odd)


def source_of(src: DType, dst: DType) -> str:
    """How the names of the kernels of a pair begin."""
    return kernel_source(resolve(src, dst)).name


def test_contiguous_and_permuted_arrays_take_the_contiguous_kernel(driver: HostDriver) -> None:
    x = upload(codes(dtype("FLOAT"), (4, 6, 10)))
    for view in (x, x.T, x.transpose(1, 2, 0), x[1:2], x.reshape(24, 10)):
        driver.launched.clear()
        gpucast.cast(view, "UINT16")
        assert driver.launched == [("gpucast_float32_to_uint16", 0)]
    driver.launched.clear()
    gpucast.cast(x[:, ::2], "UINT16")
    assert driver.launched == [("gpucast_float32_to_uint16_strided", 0)]
    driver.launched.clear()
    gpucast.cast(x[:0], "UINT16")
    assert driver.launched == []


def test_in_place(driver: HostDriver) -> None:
    host = np.array([1.5, -3, np.nan, 1e10, 7] * 100, np.float32)
    x = upload(host)
    out = x.view(np.int32)
    driver.prepare(both_shapes([resolve(dtype("FLOAT"), dtype("INT32"))]))
    gpucast.cast(x, "INT32", out=out)
    assert same(download(out), gpucast.reference.cast(host, "INT32"))


def test_a_plan_is_loaded_once_per_device(driver: HostDriver) -> None:
    x = codes(dtype("FLOAT"), (9,))
    for device in (0, 1, 0, 1):
        result = gpucast.cast(upload(x, device), "UINT16")
        assert result.device.id == device
    assert driver.loaded == [("gpucast_float32_to_uint16", 0), ("gpucast_float32_to_uint16", 1)]
    assert [stream for _, stream in driver.launched] == [0, 100, 0, 100]


def test_the_current_stream_is_used(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = upload(codes(dtype("FLOAT"), (9,)))
    monkeypatch.setitem(driver.streams, 0, 77)
    gpucast.cast(x, "UINT16")
    assert driver.launched == [("gpucast_float32_to_uint16", 77)]


def test_device_keyword_moves_both_ways_and_moves_the_fewer_bytes(driver: HostDriver) -> None:
    host = codes(dtype("FLOAT"), (1000,))
    for dst, moved in (("FLOAT8E4M3FN", 1000), ("DOUBLE", 4000), ("INT4", 500)):
        wanted = gpucast.reference.cast(host, dst)
        driver.copied = 0
        up = gpucast.cast(host, dst, device="cuda:1")
        assert driver.copied == moved and (up.data if isinstance(up, PackedArray) else up).device.id == 1
        assert same(values(up), wanted)
        driver.copied = 0
        down = gpucast.cast(upload(host), dst, device="cpu")
        assert driver.copied == moved and isinstance(down, np.ndarray)
        assert same(down, wanted)
        driver.copied = 0
        over = gpucast.cast(upload(host), dst, device="cuda:1")
        assert driver.copied == moved and (over.data if isinstance(over, PackedArray) else over).device.id == 1
        assert same(values(over), wanted)
    assert gpucast.cast(host, "UINT16", device="cuda").device.id == 0
    packed = gpucast.cast(PackedArray.pack(codes(dtype("INT4"), (9,))), "INT2", device="cuda:1")
    assert isinstance(packed, PackedArray) and packed.data.device.id == 1
    down = gpucast.cast(packed, "INT2", device="cpu")
    assert isinstance(down, PackedArray) and down.device == "cpu"
    with pytest.raises(
        gpucast.DeviceUnavailable, match="device='cuda:2' does not exist; expected 'cuda' or 'cuda:0' to"
    ):
        gpucast.cast(host, "UINT16", device="cuda:2")


def test_a_copy_between_devices_waits_for_its_source_and_is_waited_for(driver: HostDriver) -> None:
    x = upload(codes(dtype("FLOAT"), (6, 8)))
    one, other = driver.streams[0], driver.streams[1]
    driver.waits.clear()
    gpucast.cast(x, "UINT16", device="cuda:1")
    assert driver.waits == [(other, one), (one, other)]


def test_out_with_a_device(driver: HostDriver) -> None:
    host = codes(dtype("FLOAT"), (100,))
    wanted = gpucast.reference.cast(host, "UINT16")
    out = device_array((100,), np.uint16, device=1)
    assert gpucast.cast(host, "UINT16", device="cuda:1", out=out) is out
    assert same(download(out), wanted)
    assert gpucast.cast(upload(host), "UINT16", device="cuda:1", out=out) is out
    there = np.empty(100, np.uint16)
    assert gpucast.cast(upload(host), "UINT16", device="cpu", out=there) is there
    assert same(there, wanted)
    for x, place, match in (
        (host, None, "out is on cuda:1; the result belongs on the host"),
        (upload(host), None, "out is on cuda:1; the result belongs on cuda:0"),
        (host, "cuda:0", "out is on cuda:1; the result belongs on cuda:0"),
    ):
        with pytest.raises(ValueError, match=match):
            gpucast.cast(x, "UINT16", device=place, out=out)


def test_text_goes_through_the_host(driver: HostDriver) -> None:
    result = gpucast.cast(["1.5", "-2"], "FLOAT", device="cuda:1")
    assert result.device.id == 1 and download(result).tolist() == [1.5, -2]
    packed = gpucast.cast(["1", "-2"], "INT4", device="cuda")
    assert isinstance(packed, PackedArray) and values(packed).astype(int).tolist() == [1, -2]
    assert gpucast.cast(upload(np.array([1.5, np.inf], np.float32)), "STRING").tolist() == ["1.5", "INF"]
    assert gpucast.cast(PackedArray(upload(np.array([0x21], np.uint8)), "INT4", (2,)), "STRING").tolist() == ["1", "2"]
    with pytest.raises(ValueError, match="device='cuda' cannot hold STRING"):
        gpucast.cast([1.0], "STRING", device="cuda")
    with pytest.raises(ValueError, match="cannot hold STRING"):
        gpucast.empty(3, "STRING", device="cuda")


@pytest.mark.parametrize("row", NUMERIC, ids=str)
def test_empty_and_moves_of_every_type(row: DType, driver: HostDriver) -> None:
    array = gpucast.empty((3, 5), row, device="cuda:1")
    assert array.shape == (3, 5) and (array.data if row.packed else array).device.id == 1
    assert array.dtype == (row if row.packed else row.numpy)
    for like in (gpucast.empty_like(array), gpucast.empty_like(array, device="cpu")):
        assert isinstance(like, PackedArray) == row.packed and like.dtype == array.dtype and like.shape == (3, 5)
    host = codes(row, (3, 5))
    driver.prepare(both_shapes([resolve(row, row)]))
    there = gpucast.cast(host, row, device="cuda")
    assert isinstance(there, PackedArray) == row.packed
    assert same(values(there), host)
    back = gpucast.cast(there, row, device="cpu")
    assert same(back.get() if row.packed else back, host)


def test_a_report_of_a_device_array(driver: HostDriver) -> None:
    x = np.array([1.0, 1e9, np.nan, 0.1], np.float32)
    assert gpucast.cast_report(upload(x), "FLOAT16") == gpucast.cast_report(x, "FLOAT16")


def test_capture(driver: HostDriver) -> None:
    x, out = upload(codes(dtype("FLOAT"), (9,))), device_array((9,), np.uint16)
    driver.capture = True
    with pytest.raises(RuntimeError, match="not loaded yet.*gpucast.warmup"):
        gpucast.cast(x, "UINT16", out=out)
    with pytest.raises(RuntimeError, match="pass out="):
        gpucast.cast(x, "UINT16")
    driver.capture = False
    gpucast.cast(x, "UINT16", out=out)
    driver.capture = True
    assert gpucast.cast(x, "UINT16", out=out) is out


def test_wrong_arrays(driver: HostDriver) -> None:
    x = upload(codes(dtype("FLOAT"), (8,)))
    with pytest.raises(TypeError, match=r"x\.dtype='complex64' is complex"):
        gpucast.cast(device_array((3,), np.complex64), "FLOAT")
    with pytest.raises(TypeError, match=r"x\.dtype=.*is not a dtype"):
        gpucast.cast(device_array((3,), np.dtype("V3")), "FLOAT")
    for out, error, match in (
        (device_array((8,), np.int16), TypeError, "out has dtype int16; expected uint16"),
        (device_array((9,), np.uint16), ValueError, r"out has shape \(9,\); expected \(8,\)"),
        (np.empty(8, np.uint16), ValueError, "out is on the host; the result belongs on cuda:0"),
        (x.view(np.uint16)[4:12], ValueError, "out overlaps x"),
        (sys.modules["cupy"].broadcast_to(device_array((1,), np.uint16), (8,)), ValueError, "share memory"),
        (sys.modules["cupy"].broadcast_to(device_array((1,), np.uint16, 1), (8,)), ValueError, "share memory"),
        ([0] * 8, TypeError, "out is list; expected an array"),
    ):
        with pytest.raises(error, match=match):
            gpucast.cast(x, "UINT16", out=out)
    with pytest.raises(TypeError, match="expected a PackedArray of INT4"):
        gpucast.cast(x, "INT4", out=device_array((8,), np.uint8).view(ml_dtypes.int4))
    with pytest.raises(TypeError, match="expected an array of INT4"):
        gpucast.cast(x, "INT4", device="cpu", out=PackedArray(np.zeros(4, np.uint8), "INT4", (8,)))
    with pytest.raises(ValueError, match="data holds 3 bytes"):
        PackedArray(device_array((3,), np.uint8), "INT4", (8,))
    assert driver.launched == []


def test_out_of_memory_leaves_nothing_behind(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = upload(codes(dtype("FLOAT"), (9,)))

    def full(*args: Any) -> Any:
        raise MemoryError("Out of memory allocating 36 bytes")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "empty", full)
        with pytest.raises(MemoryError, match="Out of memory"):
            gpucast.cast(x, "UINT16")
    assert driver.launched == [] and gpucast.cast(x, "UINT16").shape == (9,)


def test_out_of_memory_after_a_move_frees_what_was_moved(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    host = codes(dtype("FLOAT"), (9,))
    moved = []
    move = driver.to_device

    def watched(x: Any) -> Any:
        copy = move(x)
        moved.append(weakref.ref(copy))
        return copy

    def full(*args: Any) -> Any:
        raise MemoryError("Out of memory allocating 72 bytes")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "to_device", watched)
        patch.setattr(driver, "empty", full)
        with pytest.raises(MemoryError, match="Out of memory"):
            gpucast.cast(host, "DOUBLE", device="cuda:1")
    gc.collect()
    assert [ref() for ref in moved] == [None]
    assert same(values(gpucast.cast(host, "DOUBLE", device="cuda:1")), host.astype(np.float64))


def test_two_threads(driver: HostDriver) -> None:
    host = [codes(dtype("FLOAT"), (5000,), seed) for seed in range(4)]
    results: dict[int, Any] = {}

    def work(i: int) -> None:
        results[i] = gpucast.cast(upload(host[i]), "FLOAT8E4M3FN")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert same(values(results[i]), gpucast.reference.cast(host[i], "FLOAT8E4M3FN"))


def test_a_strided_tagged_array_keeps_its_type_when_it_moves(driver: HostDriver) -> None:
    host = codes(dtype("INT4"), (6, 4))
    for moved in (cast_on_gpu.to_host(upload(host)[::2]), download(cast_on_gpu.to_device(upload(host)[::2], 1))):
        assert same(moved, host[::2])


def test_packing_a_strided_tagged_array(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy would copy on the device here: what matters is that it is asked for plain bytes."""
    x = upload(codes(dtype("INT4"), (6, 4)))[::2]
    seen = []
    monkeypatch.setattr(sys.modules["cupy"], "ascontiguousarray", lambda a: seen.append(a.dtype) or upload(download(a)))
    with pytest.raises(Exception, match="cuda|CUDA"):
        PackedArray.pack(x)
    assert seen == [np.uint8]


def test_copy_false(driver: HostDriver) -> None:
    x = upload(codes(dtype("FLOAT"), (9,)))
    assert gpucast.cast(x, "FLOAT", copy=False) is x
    assert gpucast.cast(x, "FLOAT") is not x
    assert gpucast.cast(x, "FLOAT", copy=False, device="cuda:1") is not x
