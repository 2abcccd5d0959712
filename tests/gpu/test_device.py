# SPDX-License-Identifier: Apache-2.0
"""The device path from `gpucast.cast` to the launch, on real CuPy arrays over host memory (see host_driver)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from gpucast import PackedArray
from gpucast.casting import cuda
from gpucast.core.dtypes import dtype
from host_driver import HostDriver, device_array, download, elements, upload


@pytest.mark.parametrize("dst", ["FLOAT16", "DOUBLE", "INT2"])
def test_transposes_go_by_squares(dst: str, driver: HostDriver) -> None:
    """Into an `out` of the other order; packed results are row-major streams, which the strided kernel writes."""
    row = dtype(dst)
    x = values("FLOAT", (3, 40, 50))
    source, wanted = upload(x), gpucast.reference.cast(x, dst)
    if row.packed:
        out: Any = PackedArray(device_array((row.nbytes(x.size),), np.uint8), row, (3, 50, 40))
    else:
        out = device_array((3, 50, 40), row.code_numpy).view(row.numpy)
    gpucast.cast(source.transpose(0, 2, 1), dst, out=out)
    assert_same(elements(out), wanted.transpose(0, 2, 1))
    shape = "strided" if row.packed else "transposed"
    assert driver.launched == [(f"gpucast_float32_to_{row.numpy_name}_{shape}", 0)]


def test_contiguous_and_permuted_arrays_take_the_contiguous_kernel(driver: HostDriver) -> None:
    x = upload(values("FLOAT", (4, 6, 10)))
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


def test_a_plan_is_loaded_once_per_device(driver: HostDriver) -> None:
    x = values("FLOAT", (9,))
    for device in (0, 1, 0, 1):
        result = gpucast.cast(upload(x, device), "UINT16")
        assert result.device.id == device
    assert driver.loaded == [("gpucast_float32_to_uint16", 0), ("gpucast_float32_to_uint16", 1)]
    assert [stream for _, stream in driver.launched] == [0, 100, 0, 100]


def test_device_keyword_moves_both_ways_and_moves_the_fewer_bytes(driver: HostDriver) -> None:
    host = values("FLOAT", (1000,))
    for dst, moved in (("FLOAT8E4M3FN", 1000), ("DOUBLE", 4000), ("INT4", 500)):
        wanted = gpucast.reference.cast(host, dst)
        driver.copied = 0
        up = gpucast.cast(host, dst, device="cuda:1")
        assert driver.copied == moved and (up.data if isinstance(up, PackedArray) else up).device.id == 1
        assert_same(elements(up), wanted)
        driver.copied = 0
        down = gpucast.cast(upload(host), dst, device="cpu")
        assert driver.copied == moved and isinstance(down, np.ndarray)
        assert_same(down, wanted)
        driver.copied = 0
        over = gpucast.cast(upload(host), dst, device="cuda:1")
        assert driver.copied == moved and (over.data if isinstance(over, PackedArray) else over).device.id == 1
        assert_same(elements(over), wanted)
    assert gpucast.cast(host, "UINT16", device="cuda").device.id == 0
    packed = gpucast.cast(PackedArray.pack(values("INT4", (9,))), "INT2", device="cuda:1")
    assert isinstance(packed, PackedArray) and packed.data.device.id == 1
    down = gpucast.cast(packed, "INT2", device="cpu")
    assert isinstance(down, PackedArray) and down.device == "cpu"
    with pytest.raises(
        gpucast.DeviceUnavailable, match="device='cuda:2' does not exist; expected 'cuda' or 'cuda:0' to"
    ):
        gpucast.cast(host, "UINT16", device="cuda:2")


def test_a_copy_between_devices_waits_for_its_source_and_is_waited_for(driver: HostDriver) -> None:
    x = upload(values("FLOAT", (6, 8)))
    one, other = driver.streams[0], driver.streams[1]
    driver.waits.clear()
    gpucast.cast(x, "UINT16", device="cuda:1")
    assert driver.waits == [(other, one), (one, other)]


def test_out_with_a_device(driver: HostDriver) -> None:
    host = values("FLOAT", (100,))
    wanted = gpucast.reference.cast(host, "UINT16")
    out = device_array((100,), np.uint16, device=1)
    assert gpucast.cast(host, "UINT16", device="cuda:1", out=out) is out
    assert_same(download(out), wanted)
    assert gpucast.cast(upload(host), "UINT16", device="cuda:1", out=out) is out
    there = np.empty(100, np.uint16)
    assert gpucast.cast(upload(host), "UINT16", device="cpu", out=there) is there
    assert_same(there, wanted)
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
    assert isinstance(packed, PackedArray) and elements(packed).astype(int).tolist() == [1, -2]
    assert gpucast.cast(upload(np.array([1.5, np.inf], np.float32)), "STRING").tolist() == ["1.5", "INF"]
    assert gpucast.cast(PackedArray(upload(np.array([0x21], np.uint8)), "INT4", (2,)), "STRING").tolist() == ["1", "2"]
    with pytest.raises(ValueError, match="device='cuda' cannot hold STRING"):
        gpucast.cast([1.0], "STRING", device="cuda")
    with pytest.raises(ValueError, match="cannot hold STRING"):
        gpucast.empty(3, "STRING", device="cuda")


@pytest.mark.parametrize("name", ["INT4", "FLOAT6E2M3", "BOOL", "BFLOAT16", "DOUBLE"])
def test_empty_and_moves_of_every_width(name: str, driver: HostDriver) -> None:
    row = dtype(name)
    array = gpucast.empty((3, 5), row, device="cuda:1")
    assert array.shape == (3, 5) and (array.data if row.packed else array).device.id == 1
    assert array.dtype == (row if row.packed else row.numpy)
    for like in (gpucast.empty_like(array), gpucast.empty_like(array, device="cpu")):
        assert isinstance(like, PackedArray) == row.packed and like.dtype == array.dtype and like.shape == (3, 5)
    host = values(row, (3, 5))
    there = gpucast.cast(host, row, device="cuda")
    assert isinstance(there, PackedArray) == row.packed
    assert_same(elements(there), host)
    back = gpucast.cast(there, row, device="cpu")
    assert_same(back.get() if row.packed else back, host)


@pytest.mark.parametrize("name", ["INT4", "FLOAT8E5M2", "FLOAT"])
def test_strided_arrays_are_moved(name: str, driver: HostDriver) -> None:
    host = values(name, (6, 4))
    for moved in (cuda.to_host(upload(host)[::2]), download(cuda.to_device(upload(host)[::2], 1))):
        assert_same(moved, host[::2])


def test_packing_a_strided_tagged_array(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy would copy on the device here: what matters is that it is asked for plain bytes."""
    seen = []
    monkeypatch.setattr(sys.modules["cupy"], "ascontiguousarray", lambda a: seen.append(a.dtype) or upload(download(a)))
    with pytest.raises(Exception, match="cuda|CUDA"):
        PackedArray.pack(upload(values("INT4", (6, 4)))[::2])
    assert seen == [np.uint8]
