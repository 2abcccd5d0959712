# SPDX-License-Identifier: Apache-2.0
"""Which adapter an object has, arrays over the memory of others, and __cuda_array_interface__."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same, random_codes
from foreign_arrays import Interface, Speaker
from gpucast import PackedArray
from gpucast.arrays import libraries
from gpucast.arrays.libraries import Library, find
from gpucast.arrays.packed import as_array
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.kernel import streams
from gpucast.libraries import cuda_array, dlpack
from host_driver import HostDriver, download, upload

BUILTIN = [row for row in DTYPES if row.family != "string" and row.numpy.isbuiltin == 1]


def test_which_adapter_an_object_has(driver: HostDriver) -> None:
    host = np.ones(3, np.float32)
    device = upload(host)
    packed = PackedArray.pack(host.astype(ml_dtypes.float4_e2m1fn)[[0, 1]])
    for x in (
        packed,
        PackedArray(upload(packed.data), packed.dtype, packed.shape),
        host,
        host[0],
        host.view(np.recarray),
        1,
        1.5,
        True,
        "1",
        b"1",
        [1],
        (1, 2),
        None,
        device,
        device[::2],
        range(3),
    ):
        assert find(x) is None
    assert find(Interface(host)) is cuda_array.LIBRARY
    assert find(Speaker(host)) is dlpack.LIBRARY
    assert_same(gpucast.cast(Speaker(host), "INT8"), np.ones(3, np.int8))

    class ForNumpy(Speaker):
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return self.x.copy()

    # NumPy takes it as well, and nothing could be given back: as before, by NumPy.
    assert find(ForNumpy(host)) is None

    class OnDevice(ForNumpy):
        def __dlpack_device__(self) -> Any:
            return 2, 0

    class WithWayBack(ForNumpy):
        def __array_namespace__(self) -> Any:
            return np

    assert find(OnDevice(host)) is find(WithWayBack(host)) is dlpack.LIBRARY


def test_an_attribute_that_raises_is_no_protocol() -> None:
    class Shy:
        """As JAX has it for arrays on the CPU."""

        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("only for memory of a GPU")

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.ones(3, np.float32)

    assert find(Shy()) is None
    assert_same(gpucast.cast(Shy(), "INT8"), np.ones(3, np.int8))


@pytest.mark.parametrize("x", [object(), {1: 2}, {1.0}, slice(3), len])
def test_an_object_without_a_known_protocol(x: Any) -> None:
    with pytest.raises(TypeError, match=rf"cast: x is of type {type(x).__name__}; expected an array, .*__dlpack__"):
        gpucast.cast(x, "FLOAT")
    with pytest.raises(TypeError, match=rf"cast_report: x is of type {type(x).__name__}"):
        gpucast.cast_report(x, "FLOAT")


def test_no_library_is_imported_for_an_array_of_another() -> None:
    code = (
        "import sys, numpy, gpucast\n"
        "class X:\n"
        "    def __dlpack__(self, **k): return numpy.ones(3).__dlpack__(**k)\n"
        "    def __dlpack_device__(self): return 1, 0\n"
        "assert gpucast.cast(X(), 'INT8').tolist() == [1, 1, 1]\n"
        "assert not {'torch', 'jax', 'cupy', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_an_adapter_is_loaded_with_the_first_array_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that defines `take` alone: all else has a default that works."""

    class Array:
        def __init__(self, x: np.ndarray) -> None:
            self.x = x

    class SomeLibrary(Library):
        def take(self, x: Any, caller: str, writing: bool = False) -> Any:
            return x.x

    loads: list[SomeLibrary] = []
    adapter = SomeLibrary()

    def load() -> SomeLibrary:
        loads.append(adapter)
        return adapter

    monkeypatch.setattr(libraries, "_LIBRARIES", [*libraries._LIBRARIES])
    libraries.register(libraries.LibraryEntry("a_library", "Array", load))
    x = Array(np.array([1.5, -2.5], np.float32))
    assert find(x) is None and libraries.untraced(int, "3") == 3
    library = types.ModuleType("a_library")
    monkeypatch.setitem(sys.modules, "a_library", library)
    assert find(x) is None and not loads
    library.Array = Array  # type: ignore[attr-defined]
    assert find(x) is adapter and libraries.of_library("a_library") is adapter
    assert adapter.shape(np.ones((3, 2))) == (3, 2) and not adapter.is_transforming(x)
    assert adapter.untraced(int, "3") == 3 and adapter.from_array(x) is x
    assert_same(gpucast.cast(x, "INT8"), np.array([1, -2], np.int8))
    assert gpucast.cast(x, "FLOAT", copy=False) is x
    out = Array(np.zeros(2, np.int8))
    assert gpucast.cast(x, "INT8", out=out) is out and out.x.tolist() == [1, -2]
    many = gpucast.cast_many([x, x.x], "INT8", scale=2.0)
    assert [y.tolist() for y in many] == [[3, -5], [3, -5]]
    packed = PackedArray.pack(np.zeros(2, np.uint8), "INT4")
    with pytest.raises(TypeError, match=r"PackedArray: Some has no packed INT4; expected PyTorch, or pass x\.data"):
        adapter.from_packed(packed)
    with pytest.raises(TypeError, match="PackedArray: Some exports no arrays; expected DLPack"):
        adapter.export(packed)


# ---- __cuda_array_interface__ ----


@pytest.mark.parametrize("row", BUILTIN, ids=str)
def test_every_type_that_the_interface_has(row: DType, driver: HostDriver) -> None:
    host = random_codes(row, (4, 6)).view(row.numpy)
    driver.memory_of = 1
    for view in (host, host.T, host[::2, ::-1], host[:0], host[:0, :2], host[1, 2, ...]):
        taken = as_array(Interface(view), "test")
        assert taken.device.id == (1 if view.size else 0) and not driver.waits
        assert_same(download(taken), view)
        assert not view.size or (taken.data.ptr, taken.strides) == (view.ctypes.data, view.strides)
    assert_same(download(as_array(Interface(host, strides=None), "test")), host)


def test_the_stream_of_an_interface_is_waited_for(driver: HostDriver) -> None:
    host = np.ones(3, np.float32)
    driver.memory_of = 1
    for stream in (None, 1, 2, 0x5510):
        driver.waits.clear()
        with streams.visit(None, Interface(host, stream=stream)):
            # Device 1's current stream is 100.
            assert driver.waits == ([] if stream is None else [(100, stream)])
        assert driver.waits == ([] if stream is None else [(100, stream), (stream, 100)])


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ({"mask": object()}, TypeError, "x has a mask"),
        ({"typestr": "<V2"}, TypeError, "typestr '<V2'.*names no type; pass its codes as integers.*from_bytes"),
        ({"typestr": "<c8"}, TypeError, r"x\.dtype='complex64' is complex"),
        ({"typestr": "|O"}, TypeError, "typestr '|O'; expected numbers"),
        ({"typestr": ">f4"}, TypeError, "typestr '>f4'; expected numbers in native byte order"),
        ({"typestr": "f8,i4"}, TypeError, "malformed|names no type"),
        ({"data": None}, TypeError, "the __cuda_array_interface__ of Interface is malformed"),
        ({"shape": None}, TypeError, "malformed"),
        ({"stream": 0}, ValueError, "stream 0 is not allowed"),
    ],
)
def test_bad_interfaces(fields: Any, error: type[Exception], match: str, driver: HostDriver) -> None:
    with pytest.raises(error, match=match):
        gpucast.cast(Interface(np.ones(3, np.float32), **fields), "INT8")
    assert driver.launched == []


def test_a_read_only_interface_is_no_out(driver: HostDriver) -> None:
    out = Interface(np.zeros(3, np.int8))
    out.__cuda_array_interface__["data"] = (out.x.ctypes.data, True)
    with pytest.raises(ValueError, match="cast: out is read-only"):
        gpucast.cast(upload(np.ones(3, np.float32)), "INT8", out=out)
    assert out.x.tolist() == [0, 0, 0]


def test_an_out_on_another_device_than_its_mate(driver: HostDriver) -> None:
    driver.memory_of = 1
    out = Interface(np.zeros(3, np.int8))
    with pytest.raises(ValueError, match="out is on cuda:1; the result belongs on cuda:0"):
        gpucast.cast(upload(np.ones(3, np.float32)), "INT8", out=out)
    with pytest.raises(ValueError, match="out is on cuda:1; the result belongs on the host"):
        gpucast.cast(np.ones(3, np.float32), "INT8", out=out)


# ---- our own arrays, as others see them ----


def test_numpy_takes_packed_arrays_of_the_host_only(driver: HostDriver) -> None:
    host = random_codes(dtype("INT4"), (3, 5)).view(ml_dtypes.int4)
    packed = PackedArray.pack(host)
    assert_same(np.asarray(packed), host)
    device = PackedArray(upload(packed.data), "INT4", (3, 5))
    with pytest.raises(TypeError, match=r"PackedArray: NumPy takes no array from a device by itself; use \.get\(\)"):
        np.asarray(device)


def test_an_interface_without_a_gpu() -> None:
    with pytest.raises(gpucast.DeviceUnavailable, match="cast: no GPU can be used here"):
        gpucast.cast(Interface(np.ones(3, np.float32)), "INT8")
