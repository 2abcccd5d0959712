# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules, read and written: over NumPy arrays, and hand-made ones for what NumPy does not export."""

from __future__ import annotations

import ctypes
import gc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from foreign_arrays import Speaker
from gpucast import PackedArray
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.libraries import dlpack
from host_driver import HostDriver, download, upload

PACKED = [row for row in DTYPES if row.packed]
VERSIONS = [None, (1, 0), (1, 3)]


class Lender:
    """An array of another library: NumPy memory under any DLPack type, device, version and flags."""

    def __init__(self, codes: np.ndarray, kind: tuple[int, int, int], version: Any = None, **fields: Any) -> None:
        self.codes, self.kind, self.version, self.fields = codes, kind, version, fields
        self.device = fields.get("device_type", 1), fields.get("device_id", 0)
        self.asked: list[dict[str, Any]] = []
        self.kept: dict[str, Any] = {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.asked.append({"stream": stream, "max_version": max_version})
        capsule = self.codes.__dlpack__(max_version=self.version)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        structure = dlpack._Managed if self.version is None else dlpack._Versioned
        managed: Any = structure.from_address(dlpack._pointer(capsule, name))
        tensor = managed.tensor
        tensor.code, tensor.bits, tensor.lanes = self.kind
        for field, value in self.fields.items():
            if isinstance(value, tuple):
                value = self.kept[field] = (ctypes.c_int64 * len(value))(*value)
                value = ctypes.cast(value, ctypes.POINTER(ctypes.c_int64))
            setattr(managed if field in ("flags", "major") else tensor, field, value)
        return capsule


class Oldest(Lender):
    """A library from before versions: `__dlpack__` takes a stream alone."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return super().__dlpack__(stream=stream)


def kind(row: DType) -> tuple[int, int, int]:
    code = dlpack.code_of(row)
    assert code is not None
    return code, row.bits, 1


@pytest.mark.parametrize("row", [row for row in DTYPES if dlpack.code_of(row) is not None and not row.packed], ids=str)
def test_every_type_of_whole_bytes_both_ways(row: DType) -> None:
    host = values(row, (4, 6))
    for version in VERSIONS:
        for view in (host, host.T, host[::2, ::-3], host[1, 2, ...], host[:0]):
            lent = Lender(view.view(row.code_numpy), kind(row), version)
            taken = dlpack.take(lent, "test")
            assert_same(taken, view)
            assert not view.size or (taken.ctypes.data, taken.strides) == (view.ctypes.data, view.strides)
            again = gpucast.from_dlpack(gpucast.to_dlpack(view))
            assert_same(again, view)
            assert not view.size or again.ctypes.data == view.ctypes.data


def test_the_codes_are_those_of_the_header() -> None:
    """DLDataTypeCode, written down from dlpack.h."""
    names = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn"
    wanted = [4, 10, 11, 12, 13, 14, 17]
    assert [dlpack.code_of(dtype(name)) for name in names.split()] == wanted
    plain = "int8 uint64 int4 uint2 float16 float64 bool float6_e2m3fn float6_e3m2fn"
    assert [dlpack.code_of(dtype(name)) for name in plain.split()] == [0, 1, 0, 1, 2, 2, 6, 15, 16]


@pytest.mark.parametrize("row", PACKED, ids=str)
def test_types_below_one_byte(row: DType) -> None:
    host = values(row, (3, 8))
    packed = PackedArray.pack(host)
    # NumPy exports the bytes; over that is written what they hold: elements one by one, or as many as fill a byte.
    for lanes in (1, 8 // row.bits):
        if lanes * row.bits in (8, row.bits):
            shape = (3, 8 // lanes)
            lent = Lender(packed.data, (*kind(row)[:2], lanes), shape=shape, strides=(shape[1], 1), ndim=2)
            taken = dlpack.take(lent, "test")
            assert isinstance(taken, PackedArray) and taken.data.ctypes.data == packed.data.ctypes.data
            assert_same(taken.get(), host)
    # One element per byte, as the flag says.
    assert_same(dlpack.take(Lender(host.view(np.uint8).T, kind(row), (1, 3), flags=4), "test"), host.T)


def test_packed_elements_have_no_strides() -> None:
    data = np.zeros((4, 4), np.uint8)
    with pytest.raises(ValueError, match="x has strides; expected FLOAT4E2M1"):
        dlpack.take(Lender(data[:, ::2], (17, 4, 2)), "cast")


def test_packed_arrays_are_lent_in_pairs() -> None:
    host = values(dtype("FLOAT4E2M1"), (3, 8))
    packed = PackedArray.pack(host)
    taken = dlpack.take(packed, "test")
    assert isinstance(taken, PackedArray)
    assert_same(taken.get(), host)
    assert taken.data.ctypes.data == packed.data.ctypes.data and packed.__dlpack_device__() == (1, 0)
    for other, match in (
        (PackedArray.pack(values(dtype("FLOAT4E2M1"), (8, 3))), "the last axis of (8, 3) is not even"),
        (PackedArray.pack(values(dtype("FLOAT4E2M1"), ())), "the last axis of () is not even"),
        (PackedArray.pack(values(dtype("INT4"), (3, 8))), "no library takes INT4 through DLPack; exchange x.data"),
    ):
        with pytest.raises(BufferError) as caught:
            other.__dlpack__()
        assert match in str(caught.value)


def test_memory_is_given_back_once_and_not_before() -> None:
    for version in VERSIONS:
        host = np.arange(12, dtype=np.float32)
        freed: list[int] = []

        class Owned(np.ndarray):
            def __del__(self, freed: list[int] = freed) -> None:
                freed.append(1)

        lent = Lender(host.view(np.uint32).view(Owned), (2, 32, 1), version)
        taken = dlpack.take(lent, "test")
        part = taken[3:5]
        del lent, taken
        gc.collect()
        assert not freed and part.tolist() == [3, 4]
        del part
        gc.collect()
        assert freed == [1]


def test_a_capsule_is_taken_once() -> None:
    lent = Lender(np.zeros(3, np.uint32), (2, 32, 1))
    capsule = lent.__dlpack__()

    class Twice(Lender):
        def __dlpack__(self, **_: Any) -> Any:
            return capsule

    twice = Twice(lent.codes, lent.kind)
    dlpack.take(twice, "cast")
    with pytest.raises(TypeError, match="cast: __dlpack__ gave .*expected a capsule that nobody has taken"):
        dlpack.take(twice, "cast")


def test_versions_and_flags() -> None:
    host = np.arange(4, dtype=np.float32)
    lent = Lender(host, (2, 32, 1), (1, 0))
    assert dlpack.take(lent, "cast").flags.writeable
    assert lent.asked == [{"stream": None, "max_version": (1, 3)}]
    assert dlpack.take(Oldest(host, (2, 32, 1)), "cast").tolist() == host.tolist()
    readonly = Lender(host, (2, 32, 1), (1, 0), flags=1)
    assert not dlpack.take(readonly, "cast").flags.writeable
    with pytest.raises(ValueError, match="cast: out is read-only"):
        dlpack.take(readonly, "cast", writing=True)
    with pytest.raises(ValueError, match=r"__dlpack__ gave version 2\.0; expected 1\.x"):
        dlpack.take(Lender(host, (2, 32, 1), (1, 0), major=2), "cast")
    shifted = dlpack.take(Lender(host[:2], (2, 32, 1), byte_offset=8), "cast")
    assert shifted.tolist() == [2, 3]
    # No strides mean row-major order, as versions before 1.2 may have it.
    none = Lender(host.reshape(2, 2), (2, 32, 1), strides=ctypes.POINTER(ctypes.c_int64)())
    assert dlpack.take(none, "cast").tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ((5, 64, 1), "x.dtype='complex64' is complex"),
        ((3, 32, 1), "code=3, bits=32, lanes=1, which is no type"),
        ((2, 32, 4), "code=2, bits=32, lanes=4, which is no type"),
        ((7, 8, 1), "code=7, bits=8, lanes=1, which is no type"),
        ((17, 8, 1), "code=17, bits=8, lanes=1, which is no type"),
    ],
)
def test_types_that_cast_does_not_take(kind: tuple[int, int, int], match: str) -> None:
    with pytest.raises(TypeError) as caught:
        dlpack.take(Lender(np.zeros(4, np.uint32), kind), "cast")
    assert match in str(caught.value)


def test_other_devices() -> None:
    with pytest.raises(ValueError, match=r"x is on a device of DLPack type 10; expected the host \(1\) or CUDA \(2\)"):
        dlpack.take(Lender(np.zeros(4, np.uint32), (2, 32, 1), device_type=10), "cast")
    with pytest.raises(gpucast.DeviceUnavailable, match="cast: no GPU can be used here"):
        dlpack.take(Lender(np.zeros(4, np.uint32), (2, 32, 1), device_type=2), "cast")
    pinned = Lender(np.arange(4, dtype=np.float32), (2, 32, 1), device_type=3)
    assert dlpack.take(pinned, "cast").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "row", [dtype(name) for name in ("FLOAT", "FLOAT8E4M3FN", "BFLOAT16", "BOOL", "DOUBLE")], ids=str
)
def test_memory_of_a_device(row: DType, driver: HostDriver) -> None:
    host = values(row, (4, 6))
    for view in (host, host.T, host[1:, ::2], host[:0]):
        lent = Lender(view.view(row.code_numpy), kind(row), device_type=2, device_id=1)
        taken = dlpack.take(lent, "test")
        assert taken.device.id == 1
        assert_same(download(taken), view)
        assert not view.size or (taken.data.ptr == view.ctypes.data and taken.strides == view.strides)
        # The stream that the producer is to wait for: device 1's.
        assert lent.asked[0]["stream"] == 100
    lent = Lender(host.view(row.code_numpy), kind(row), device_type=2, device_id=0)
    dlpack.take(lent, "test")
    assert lent.asked[0]["stream"] == 1, "DLPack's name of CUDA's default stream"


def test_a_cast_of_lent_device_memory_waits_before_it_gives_the_memory_back(driver: HostDriver) -> None:
    host = np.array([0.5, 1e9, -np.inf, np.nan], np.float32)
    lent = Lender(host.view(np.uint32), (2, 32, 1), (1, 0), device_type=2, device_id=1)
    y = gpucast.cast(lent, "FLOAT8E4M3FN")
    assert y.device.id == 1
    assert_same(download(y), gpucast.reference.cast(host, "FLOAT8E4M3FN"))
    assert driver.launched == [("gpucast_float32_to_float8e4m3fn", 100)]
    assert driver.waits == [(None, 100)]
    packed = gpucast.cast(lent, "INT4")
    assert isinstance(packed, PackedArray) and packed.device.id == 1
    assert_same(PackedArray(download(packed.data), "INT4", (4,)).get(), gpucast.reference.cast(host, "INT4"))


def test_cupy_lends_codes(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy asks the driver about the pointer, so its export is stood in for by NumPy's over the same memory."""
    x = upload(values(dtype("FLOAT8E5M2"), (2, 3)))
    export = dlpack.Export(x)
    assert export._codes.dtype == np.uint8 and export._codes.data.ptr == x.data.ptr
    export._codes = download(export._codes)
    assert_same(dlpack.take(export, "test"), download(x))


def test_a_library_that_does_not_take_the_result() -> None:
    class Namespace:
        @staticmethod
        def from_dlpack(exported: Any) -> Any:
            return np.from_dlpack(exported)

    class Mine(Lender):
        def __array_namespace__(self) -> Any:
            return Namespace

    x = Mine(np.ones(3, np.float32), (2, 32, 1))
    assert_same(gpucast.cast(x, "INT8"), np.ones(3, np.int8))
    with pytest.raises(TypeError, match="does not take float8_e4m3fn back through DLPack"):
        gpucast.cast(x, "FLOAT8E4M3FN")


def test_what_fails_to_lend() -> None:
    class Broken(Lender):
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("no")

    class Nowhere(Lender):
        def __dlpack_device__(self) -> Any:
            raise BufferError("a TPU")

    with pytest.raises(TypeError, match="cast: Broken does not lend its memory through DLPack: no"):
        gpucast.cast(Broken(np.zeros(3, np.float32), (2, 32, 1)), "INT8")
    with pytest.raises(TypeError, match="cast: Nowhere does not say through DLPack where it is: a TPU"):
        gpucast.cast(Nowhere(np.zeros(3, np.float32), (2, 32, 1)), "INT8")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"data": None, "byte_offset": 64}, r"gave no memory for the shape \(3,\)"),
        ({"data": None}, r"gave no memory for the shape \(3,\)"),
        ({"shape": ctypes.POINTER(ctypes.c_int64)()}, "gave 1 dimensions and no shape"),
        ({"ndim": -1}, "gave -1 dimensions"),
        ({"shape": (-3,)}, r"gave the shape \(-3,\)"),
        ({"device_id": 0, "device_type": 2}, "gave memory on device 0 of DLPack type 2; __dlpack_device__ said the"),
    ],
    ids=["no memory, offset", "no memory", "no shape", "negative ndim", "negative length", "another device"],
)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_fields_that_contradict_are_refused(fields: dict[str, Any], match: str, version: Any) -> None:
    lent = Lender(np.zeros(3, np.float32), kind(dtype("FLOAT")), version, **fields)
    lent.device = (1, 0)
    with pytest.raises(ValueError, match=match):
        gpucast.cast(lent, "FLOAT16")
    empty = Lender(np.zeros(0, np.float32), kind(dtype("FLOAT")), version, data=None)
    assert np.asarray(dlpack.take(empty, "test")).shape == (0,)


def test_what_dlpack_does_not_take() -> None:
    with pytest.raises(TypeError, match="from_dlpack: list has no __dlpack__"):
        gpucast.from_dlpack([1, 2])
    with pytest.raises(TypeError, match="to_dlpack: list is no array"):
        gpucast.to_dlpack([1, 2])
    with pytest.raises(BufferError, match="INT4 cannot be exported"):
        gpucast.to_dlpack(values("INT4", 4))


def test_the_other_byte_order_is_not_exported_as_native() -> None:
    for kind in ("f4", "i2", "f8"):
        x = np.array([1, 2], np.dtype(kind).newbyteorder())
        with pytest.raises(BufferError, match="byte order"):
            gpucast.to_dlpack(x)


@pytest.mark.peers
def test_a_scale_of_another_library_scales_tensors() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.linspace(-2, 2, 33)
    wanted = gpucast.cast(x, "FLOAT16", scale=0.75)
    for scale in (Speaker(np.full(1, 0.75, np.float32)), np.full(1, 0.75), np.float64(0.75), Fraction(3, 4)):
        for _ in range(2):
            assert torch.equal(gpucast.cast(x, "FLOAT16", scale=scale), wanted)
