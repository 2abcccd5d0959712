# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

import gpucast
from codes import random_codes
from gpucast import PackedArray
from gpucast.arrays.bitpacking import unpack_codes
from gpucast.core.dtypes import DTYPES, DType
from gpucast.parity.cases import NUMERIC

PACKED = [row for row in DTYPES if row.packed]


def bit_stream(codes: np.ndarray, bits: int) -> bytes:
    """ONNX raw_data, read off its definition: the codes as one little-endian integer."""
    number = sum(int(code) << i * bits for i, code in enumerate(codes.reshape(-1)))
    return number.to_bytes(-(-codes.size * bits // 8), "little")


def test_the_bytes_that_onnx_packs() -> None:
    for name, values, wanted in [
        ("UINT4", [1, 2, 3, 4, 5], "214305"),
        ("INT4", [-1, -2, 3, 4, -8], "ef4308"),
        ("UINT2", [0, 1, 2, 3, 1], "e401"),
        ("INT2", [-2, -1, 0, 1, -1], "4e03"),
        ("FLOAT4E2M1", [0.5, 1, 6, -1, -0.0], "21a708"),
        ("FLOAT6E2M3", [0, 1, 7.5, -1, 0.125], "00f2a101"),
    ]:
        packed = PackedArray.pack(gpucast.cast(np.array(values, np.float32), name))
        assert packed.tobytes().hex() == wanted
        assert packed.get().astype(np.float32).tolist() == values


@pytest.mark.parametrize("row", PACKED, ids=str)
def test_every_length_and_shape(row: DType) -> None:
    for shape in (*((size,) for size in (*range(70), 1000, 4095)), (), (3, 5), (2, 0, 3), (7, 1, 3)):
        codes = random_codes(row, shape, len(shape))
        packed = PackedArray.pack(codes.view(row.numpy))
        assert packed.tobytes() == bit_stream(codes, row.bits)
        assert packed.nbytes == row.nbytes(codes.size) == len(packed.tobytes())
        assert (packed.shape, packed.size, packed.ndim, packed.device) == (shape, codes.size, len(shape), "cpu")
        assert packed.get().dtype == np.asarray(packed).dtype == row.numpy
        assert np.array_equal(packed.get().view(np.uint8), codes)
        assert packed.reshape(-1).shape == (codes.size,) and packed.reshape(-1).data is packed.data
        assert not shape or len(packed) == shape[0]
        for other in (pickle.loads(pickle.dumps(packed)), packed.copy()):
            assert other.tobytes() == packed.tobytes() and (other.dtype, other.shape) == (row, shape)


@pytest.mark.parametrize("row", PACKED, ids=str)
@pytest.mark.parametrize("shape", [(1001,), (5, 300), (300, 5), (7, 6, 30), (1, 2000), (0, 3), ()])
def test_a_large_array_is_shown_as_numpy_shows_it(row: DType, shape: tuple[int, ...]) -> None:
    packed = PackedArray.pack(random_codes(row, shape), row)
    values = np.array([row.value(code) for code in range(1 << row.bits)])[packed.codes()]
    shown = np.array2string(values, separator=", ", prefix="PackedArray(")
    assert repr(packed) == f"PackedArray({shown}, dtype={row.name}, shape={shape})"


def test_elements_as_python_numbers() -> None:
    packed = gpucast.PackedArray.pack(gpucast.cast([[1, -8], [7, 0]], "INT4"))
    assert int(packed[0, 0]) == 1 and float(packed[0, 1]) == -8.0
    assert packed[1, 0].item() == packed.item(2) == packed.item(1, 0) == packed.item((1, 0)) == 7
    assert type(packed.item(0)) is int
    assert packed.tolist() == [[1, -8], [7, 0]] and packed[0, 0].tolist() == 1
    halves = gpucast.PackedArray.pack(gpucast.cast([0.5, -6.0], "FLOAT4E2M1"))
    assert halves.tolist() == [0.5, -6.0] and type(halves.item(0)) is float
    for convert in (int, float, PackedArray.item):
        with pytest.raises(ValueError, match="can only convert an array of size 1"):
            convert(packed)
    with pytest.raises(IndexError):
        packed.item(4)


@pytest.mark.parametrize("row", PACKED, ids=str)
def test_astype_is_a_cast(row: DType) -> None:
    packed = PackedArray.pack(random_codes(row, (3, 5)), row)
    for dst in NUMERIC:
        wanted, found = gpucast.cast(packed, dst), packed.astype(dst)
        assert type(found) is type(wanted)
        assert np.array_equal(np.asarray(found).view(dst.code_numpy), np.asarray(wanted).view(dst.code_numpy))
        array = np.asarray(packed, dtype=dst.numpy)
        assert array.dtype == dst.numpy
        assert np.array_equal(array.view(dst.code_numpy), np.asarray(wanted).view(dst.code_numpy))
    assert np.asarray(packed, dtype=object).tolist() == packed.tolist()
    assert np.asarray(packed, dtype=np.complex64).real.tolist() == packed.tolist()


@pytest.mark.parametrize("row", PACKED, ids=str)
def test_equality_is_by_element(row: DType) -> None:
    packed = PackedArray.pack(random_codes(row, (4, 5)), row)
    values = np.array(packed.tolist())
    one, narrow = packed.item(0), gpucast.cast(values, "FLOAT6E2M3")
    for found, wanted in [
        (packed == packed, np.ones((4, 5), bool)),
        (packed != packed, np.zeros((4, 5), bool)),
        (packed == packed.copy(), np.ones((4, 5), bool)),
        (packed == one, values == one),
        (one == packed, values == one),
        (packed != packed[0], values != values[0]),
        (packed == values, np.ones((4, 5), bool)),
        (values == packed, np.ones((4, 5), bool)),
        (packed == packed.get(), np.ones((4, 5), bool)),
        (packed == gpucast.cast(values, "BFLOAT16"), np.ones((4, 5), bool)),
        (packed == PackedArray.pack(narrow), values == gpucast.cast(narrow, "DOUBLE")),
        (packed == "text", np.zeros((4, 5), bool)),
        (packed == None, np.zeros((4, 5), bool)),  # noqa: E711
    ]:
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("row", PACKED, ids=str)
def test_indexing_copies(row: DType) -> None:
    codes = random_codes(row, (4, 5, 6))
    packed = PackedArray.pack(codes.view(row.numpy))
    for key in (0, -1, (1, 2, 3), slice(1, 3), (slice(None), 2), (..., slice(None, None, -2)), [3, 1], codes > 1, None):
        part = packed[key]
        assert isinstance(part, PackedArray)
        assert np.array_equal(part.get().view(np.uint8), codes[key])
        assert not np.shares_memory(part.data, packed.data)
    for wrong in (9, -5, np.int64(4), (slice(None), 5), (0, 0, 0, 0)):
        with pytest.raises(IndexError):
            packed[wrong]


@pytest.mark.parametrize("row", PACKED, ids=str)
@pytest.mark.parametrize("shape", [(11,), (5, 3), (4, 1, 7), (0, 3), (3, 0)])
def test_rows_that_begin_and_end_inside_a_byte(row: DType, shape: tuple[int, ...]) -> None:
    codes = random_codes(row, shape)
    packed = PackedArray.pack(codes, row)
    bounds, steps = (None, *range(-6, 7)), (None, 1, 2, -1, -3)
    for key in itertools.product(bounds, bounds, steps):
        assert packed[slice(*key)].tobytes() == bit_stream(codes[slice(*key)], row.bits), key
    for i in range(-shape[0], shape[0]):
        for part in (packed[i], packed[np.int8(i)], packed[(i,)], packed[i, ...]):
            assert part.tobytes() == bit_stream(codes[i], row.bits), i
        assert packed[i, None].shape == (1, *shape[1:])
    for key in (True, False, np.True_, ()):
        assert np.array_equal(packed[key].codes(), codes[key])


def test_a_row_of_a_large_array_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = []

    def watched(data: np.ndarray, bits: int, size: int) -> np.ndarray:
        unpacked.append((data.size, size))
        return unpack_codes(data, bits, size)

    codes = random_codes(gpucast.dtype("FLOAT6E2M3"), (100, 7))
    packed = PackedArray.pack(codes, "FLOAT6E2M3")
    monkeypatch.setattr("gpucast.arrays.packed.unpack_codes", watched)
    assert [part.tobytes() for part in packed] == [bit_stream(row, 6) for row in codes]
    assert len(unpacked) == 100
    with pytest.raises(TypeError, match="shape \\(\\)"):
        list(packed[0, 0])
    # A row is 42 bits; up to three codes of its first group lie before it.
    assert max(unpacked) <= (8, 10)


def test_upper_bits_of_an_unpacked_array_do_not_count() -> None:
    packed = PackedArray.pack(np.array([0xF1, 0x32], np.uint8), "UINT4")
    assert packed.tobytes() == b"\x21"
    assert PackedArray(np.array([0x21, 0xF3], np.uint8), "UINT4", 3).get().view(np.uint8).tolist() == [1, 2, 3]


def test_strided_and_fortran_arrays_pack_row_major() -> None:
    codes = random_codes(gpucast.dtype("INT4"), (6, 4))
    for view in (codes.T, codes[::2], codes[:, ::-1], np.asfortranarray(codes), np.broadcast_to(codes[0], (3, 4))):
        assert PackedArray.pack(view, "INT4").tobytes() == bit_stream(view, 4)


def test_reshape() -> None:
    packed = PackedArray.pack(random_codes(gpucast.dtype("INT2"), (2, 3)), "INT2")
    assert packed.reshape(3, 2).shape == packed.reshape((3, -1)).shape == packed.reshape([3, 2]).shape == (3, 2)
    for wrong in (2.5, "a", (2.0, 3)):
        with pytest.raises(TypeError, match="^PackedArray: shape .* must be made of ints"):
            packed.reshape(wrong)
    for wanted in ((4, 2), (-1, -1), (7,)):
        with pytest.raises(ValueError, match=r"^PackedArray: cannot reshape \(2, 3\) to"):
            packed.reshape(wanted)


def test_transpose_raises() -> None:
    packed = PackedArray.pack(random_codes(gpucast.dtype("INT2"), (2, 3)), "INT2")
    for transpose in (lambda: packed.T, packed.transpose, lambda: packed.transpose(1, 0)):
        with pytest.raises(TypeError, match="cannot be transposed"):
            transpose()


@pytest.mark.parametrize(
    ("data", "kind", "shape", "error", "match"),
    [
        (np.zeros(2, np.uint8), "INT4", (5,), ValueError, r"data holds 2 bytes; INT4 of shape \(5,\) takes 3"),
        (np.zeros(4, np.uint8), "INT4", (5,), ValueError, "data holds 4 bytes"),
        (np.zeros(4, np.uint8), "INT4", (2, -4), ValueError, "negative length"),
        (np.zeros(4, np.uint8), "INT4", 2.5, TypeError, "must be an int or a sequence of ints"),
        (np.zeros(4, np.int8), "INT4", (8,), TypeError, "expected flat contiguous uint8"),
        (np.zeros((2, 2), np.uint8), "INT4", (8,), TypeError, "expected flat contiguous uint8"),
        (np.zeros(8, np.uint8)[::2], "INT4", (8,), TypeError, "expected flat contiguous uint8"),
        (b"abcd", "INT4", (8,), TypeError, "data=bytes must be a NumPy or CuPy array"),
        (np.zeros(4, np.uint8), "INT8", (4,), TypeError, "INT8 has 8 bits; expected a type of 2, 4 or 6 bits"),
        (np.zeros(4, np.uint8), "i4", (4,), TypeError, "PackedArray: dtype='i4' is ambiguous"),
    ],
)
def test_wrong_arguments(data: object, kind: str, shape: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        PackedArray(data, kind, shape)


def test_pack_refuses_other_dtypes() -> None:
    with pytest.raises(TypeError, match="float32 has|FLOAT has 32 bits"):
        PackedArray.pack(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="x has dtype float32; expected int4"):
        PackedArray.pack(np.zeros(3, np.float32), "INT4")


def test_asarray_without_a_copy_raises() -> None:
    packed = PackedArray.pack(np.zeros(3, np.uint8), "INT4")
    with pytest.raises(ValueError, match="unpacking copies"):
        packed.__array__(copy=False)


@pytest.mark.parametrize("row", DTYPES, ids=str)
def test_empty_and_empty_like(row: DType) -> None:
    for shape in ((), (3,), (2, 0), (2, 3)):
        array = gpucast.empty(shape, row)
        assert array.shape == shape and array.dtype == row.numpy
        for like in (gpucast.empty_like(array), gpucast.empty_like(np.zeros(shape), row)):
            assert like.shape == shape and like.dtype == row.numpy
    if row.packed:
        packed = gpucast.empty_like(PackedArray.pack(np.zeros((3, 3), np.uint8), "INT4"), row)
        assert isinstance(packed, PackedArray) and packed.dtype is row and packed.shape == (3, 3)
    assert gpucast.empty(4, row, device="cpu").shape == (4,)


@pytest.mark.parametrize("row", [row for row in DTYPES if row.family != "string"], ids=str)
def test_from_bytes(row: DType) -> None:
    shape = (3, 5)
    codes = np.arange(15, dtype=row.code_numpy) & row.code_numpy.type(row.code_mask)
    if row.family == "bool":
        codes %= 2
    raw = bit_stream(codes, row.bits)
    for buffer in (raw, bytearray(raw), memoryview(raw), np.frombuffer(raw, np.uint8)):
        array = gpucast.from_bytes(buffer, row, shape)
        assert array.shape == shape
        unpacked = array.get() if row.packed else array
        assert unpacked.dtype == row.numpy
        assert np.array_equal(np.ascontiguousarray(unpacked).view(row.code_numpy).reshape(-1), codes)
    assert gpucast.from_bytes(b"", row, (0, 3)).shape == (0, 3)
    with pytest.raises(ValueError, match="takes"):
        gpucast.from_bytes(raw + b"\0", row, shape)


def test_from_bytes_refuses() -> None:
    for kind in ("INT4", "FLOAT16"):
        with pytest.raises(ValueError, match=f"^from_bytes: got 3 bytes; {kind} of shape \\(9,\\) takes"):
            gpucast.from_bytes(b"abc", kind, 9)
    with pytest.raises(TypeError, match="STRING has no raw bytes"):
        gpucast.from_bytes(b"abc", "STRING", 3)
    with pytest.raises(TypeError, match="no bytes-like object"):
        gpucast.from_bytes("abc", "UINT8", 3)
    with pytest.raises(TypeError, match="expected a flat uint8 array"):
        gpucast.from_bytes(np.zeros(3), "UINT8", 3)
    with pytest.raises(ValueError, match="the buffer is not contiguous"):
        gpucast.from_bytes(memoryview(b"abcdef")[::2], "UINT8", 3)
    assert gpucast.empty_like([1, 2]).dtype == np.int64 and gpucast.empty_like(1.0).shape == ()
    with pytest.raises(ValueError, match="not contiguous"):
        gpucast.from_bytes(np.zeros(6, np.uint8)[::2], "UINT8", 3)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("to", "device='cuda'"),
        ("cpu", r"p\.get\(\)"),
        ("float", r"gpucast\.cast\(p, 'FLOAT'\)"),
        ("nonsense", "'nonsense'$"),
    ],
)
def test_methods_of_other_libraries_say_what_to_call(name: str, advice: str) -> None:
    p = PackedArray.pack(gpucast.cast([1, 2], "INT4"))
    assert not hasattr(p, name)
    with pytest.raises(AttributeError, match=advice):
        getattr(p, name)
