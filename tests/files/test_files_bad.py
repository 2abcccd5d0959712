# SPDX-License-Identifier: Apache-2.0
"""Truncated and malformed files: always one clear FileError, never another error and never much memory."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import gpucast
from gpucast import files
from tensors import sample

#: More bytes than any machine has.
HUGE = 1 << 60


def read_all(path: Path) -> dict[str, np.ndarray]:
    """Read every element of every tensor, in both ways."""
    with files.TensorFile(str(path)) as file:
        for tensor in file.tensors:
            if tensor.dtype is not None:
                for _ in tensor.chunks():
                    pass
    return files.load(str(path))


def rewrite(path: Path, content: bytes | bytearray) -> None:
    """A new file each time: some file systems write a truncated one to the disk at once."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def good_files(folder: Path) -> Iterator[Path]:
    int4, text = sample(gpucast.dtype("INT4"), (5,)), sample(gpucast.dtype("STRING"), (3,))
    several = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "q": int4, "e": np.zeros((0, 2))}
    files.save(str(folder / "float.npy"), {"x": several["w"]})
    files.save(str(folder / "text.npy"), {"x": text})
    files.save(str(folder / "float8.npy"), {"x": sample(gpucast.dtype("FLOAT8E5M2"), (5,))})
    files.save(str(folder / "stored.npz"), {**several, "s": text})
    np.savez_compressed(folder / "compressed.npz", w=several["w"])
    files.save(str(folder / "several.safetensors"), several, {"format": "pt"})
    files.save(str(folder / "float.pb"), {"w": several["w"]})
    files.save(str(folder / "int4.pb"), {"w": int4})
    files.save(str(folder / "text.pb"), {"w": text})
    yield from sorted(folder.iterdir())


def test_every_truncation_is_a_file_error(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    for good in good_files(tmp_path / "good"):
        whole = good.read_bytes()
        tensors = read_all(good)
        bad = tmp_path / good.name
        for cut in range(len(whole)):
            rewrite(bad, whole[:cut])
            if good.name == "text.pb" and cut == len(whole) - len(b"\x42\x01w"):
                # Cut here, the file lacks only the name, a field that is optional.
                assert read_all(bad)["text"].tolist() == tensors["w"].tolist()
                continue
            with pytest.raises(files.FileError, match=good.name):
                read_all(bad)


def test_junk_and_strangers_are_refused(tmp_path: Path) -> None:
    npy = io.BytesIO()
    np.save(npy, np.zeros(3))
    for suffix in files.SUFFIXES:
        path = tmp_path / f"x{suffix}"
        for junk in (b"", b"\0", b"junk" * 100, b"\x80\x04K\x01.", b"PK\x05\x06" + bytes(18)):
            path.write_bytes(junk)
            if suffix == ".npz" and junk.startswith(b"PK"):
                # An archive without members.
                assert files.load(str(path)) == {}
                continue
            with pytest.raises(files.FileError):
                files.load(str(path))
        if suffix != ".npy":
            path.write_bytes(npy.getvalue())
            with pytest.raises(files.FileError):
                files.load(str(path))
    with pytest.raises(FileNotFoundError):
        files.load(str(tmp_path / "missing.npy"))
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(files.FileError, match="no regular file"):
        files.load(str(tmp_path / "folder.npy"))


def npy_bytes(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    text = header.encode("latin-1")
    length = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", length) + text + data


def npy_header(descr: str = "'<f4'", order: str = "False", shape: str = "(2,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy_bytes(npy_header(shape=f"({HUGE},)"), bytes(8)), f"claims {4 * HUGE} bytes of data, the file holds 8"),
        (npy_bytes(npy_header(shape=f"({HUGE}, {HUGE})"), bytes(8)), "2\\^63"),
        (npy_bytes(npy_header(shape=f"(0, {HUGE}, {HUGE})")), "2\\^63"),
        (npy_bytes(npy_header(), bytes(9)), "claims 8 bytes of data, the file holds 9"),
        *((npy_bytes(npy_header(shape=shape), bytes(8)), "shape") for shape in ("(-2,)", "(2.0,)", "(True,)")),
        (npy_bytes(npy_header(shape="[2]"), bytes(8)), "malformed"),
        (npy_bytes(npy_header(shape="(1,) * 2"), bytes(8)), "no dictionary"),
        (npy_bytes(npy_header(shape="(" + "1," * 65 + ")"), bytes(4)), "64 lengths"),
        (npy_bytes(npy_header(order="0"), bytes(8)), "malformed"),
        *(
            (npy_bytes(npy_header(descr=descr), bytes(16)), message)
            for message, kinds in (
                ("pickled Python objects", ("'|O'", "[('a', '|O')]")),
                ("unknown type", ("'<q9'", "3", "[('bfloat16', 1, 2, 3)]")),
            )
            for descr in kinds
        ),
        (npy_bytes(npy_header(descr="'<U0'", shape=f"({HUGE},)")), "no bytes"),
        *((npy_bytes(text), "no dictionary") for text in ("{}", "(" * 9000, "-" * 9000 + "1", "'\\d'")),
        (npy_bytes(npy_header(), bytes(8), version=(9, 9)), "version 9.9"),
        (npy_bytes(npy_header(), bytes(8), version=(2, 0), length=1 << 31), "claims 2147483648 bytes"),
        (npy_bytes(npy_header(), bytes(8), length=9999), "header is truncated"),
    ],
)
def test_malformed_npy(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(files.FileError, match=message):
        files.load(str(path))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(files.FileError, match=message):
        files.load(str(tmp_path / "x.npz"))


def test_types_of_numpy_that_cast_does_not_take_are_told(tmp_path: Path) -> None:
    for x in (np.zeros(2, complex), np.zeros(2, "M8[s]"), np.zeros(2, "f4,f4"), np.zeros(2, ml_dtypes.bfloat16)):
        np.save(tmp_path / "x.npy", x)
        with pytest.raises(files.FileError, match="which Cast does not take"):
            files.load(str(tmp_path / "x.npy"))


def npz_of(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npy_of(x: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, x)
    return buffer.getvalue()


def test_malformed_npz(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    good = npy_of(np.zeros(3, np.uint8))
    for members, how, message in [
        ({"x.txt": b"hello"}, zipfile.ZIP_STORED, "'x.txt' is no .npy file"),
        ({"x.npy": good}, zipfile.ZIP_BZIP2, "compressed in a way"),
        ({"x.npy": good, "__gpucast__.npy": npy_of(np.zeros(3))}, zipfile.ZIP_STORED, "not the text"),
        ({"x.npy": good, "__gpucast__.npy": npy_of(np.array("{"))}, zipfile.ZIP_STORED, "not the text"),
        ({"x.npy": good, "__gpucast__.npy": npy_of(np.array("[" * 5000))}, zipfile.ZIP_STORED, "not the text"),
        ({"x.npy": good, "__gpucast__.npy": npy_of(np.array('{"x": 3}'))}, zipfile.ZIP_STORED, "not the text"),
        *[
            ({"x.npy": good, "__gpucast__.npy": npy_of(np.array(json.dumps(types)))}, zipfile.ZIP_STORED, message)
            for types, message in [
                ({"y": {"dtype": "INT4", "shape": [6]}}, "no U8 tensor"),
                ({"x": {"dtype": "INT4", "shape": [7]}}, "takes 4 bytes, the file holds 3"),
                ({"x": {"dtype": "INT4", "shape": [HUGE]}}, "takes"),
                ({"x": {"dtype": "INT4", "shape": "6"}}, "shape"),
                ({"x": {"dtype": "INT8", "shape": [3]}}, "no type of 2, 4 or 6 bits"),
                ({"x": {"dtype": "INT5", "shape": [3]}}, "no type of 2, 4 or 6 bits"),
                ({"x": {"shape": [3]}}, "no type of 2, 4 or 6 bits"),
            ]
        ],
    ]:
        npz_of(path, members, how)
        with pytest.raises(files.FileError, match=message):
            files.load(str(path))


def test_two_members_of_one_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", npy_of(np.zeros(1)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", npy_of(np.zeros(2)))
    with pytest.raises(files.FileError, match="two tensors of the name 'x'"):
        files.load(str(tmp_path / "x.npz"))


def test_a_member_that_claims_more_than_the_archive_holds(tmp_path: Path) -> None:
    """The size in the central directory is checked too."""
    for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        content = npy_bytes(npy_header(shape=f"({HUGE},)", descr="'<U2'"), b"abc")
        npz_of(tmp_path / "x.npz", {"x.npy": content}, how)
        raw = bytearray((tmp_path / "x.npz").read_bytes())
        at = raw.rindex(b"PK\x01\x02") + 24
        raw[at : at + 4] = struct.pack("<I", (1 << 32) - 2)
        (tmp_path / "x.npz").write_bytes(raw)
        with pytest.raises(files.FileError, match="more than the file can hold"):
            files.load(str(tmp_path / "x.npz"))


def safetensors_bytes(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(code: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": code, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<Q", HUGE), f"header claims {HUGE} bytes"),
        (struct.pack("<Q", (1 << 64) - 1) + b"{}", "header claims"),
        (b"1234567", "has 7 bytes"),
        *(
            (safetensors_bytes(text), "no JSON object")
            for text in (b"[]", b"", b"{" * 50_000, b'{"\xff": 1}', b'{"a":' + b"9" * 5000 + b"}")
        ),
        (safetensors_bytes(b'{"a":' * 50_000), "header is nested too deep"),
        (safetensors_bytes(b'{"a": {}, "a": {}}'), "has 'a' twice"),
        (safetensors_bytes(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), "has 'dtype' twice"),
        *((safetensors_bytes({"a": one}, bytes(8)), "needs dtype") for one in (1, entry(code=3), entry(shape=None))),
        *(
            (safetensors_bytes({"a": entry(offsets=offsets)}, bytes(8)), "needs dtype")
            for offsets in ((0, 8.0), (8, 0), (-8, 0), (0, True))
        ),
        (safetensors_bytes({"a": entry(shape=[-2])}, bytes(8)), "shape"),
        (safetensors_bytes({"a": entry(shape=[HUGE])}, bytes(8)), "takes"),
        (safetensors_bytes({"a": entry(shape=[HUGE, HUGE])}, bytes(8)), "2\\^63"),
        (safetensors_bytes({"a": entry(shape=[3])}, bytes(8)), "takes 96 bits, but has 8 bytes"),
        (safetensors_bytes({"a": entry("F4", [3], (0, 1))}, bytes(1)), "takes 12 bits, but has 1 bytes"),
        (safetensors_bytes({"a": entry("C64", [2], (0, 8))}, bytes(8)), "takes 128 bits, but has 8 bytes"),
        (safetensors_bytes({"a": entry(shape=[HUGE], offsets=(0, 4 * HUGE))}, bytes(8)), "the file holds 8"),
        (safetensors_bytes({"a": entry()}, bytes(9)), "claims 8 bytes of data, the file holds 9"),
        (safetensors_bytes({"a": entry(offsets=(4, 12))}, bytes(12)), "begins at byte 4"),
        (safetensors_bytes({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "begins at byte 4"),
        (safetensors_bytes({"a": entry(), "b": entry(offsets=(9, 17))}, bytes(17)), "begins at byte 9"),
        (safetensors_bytes(b'{"\\ud800": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'), "tensor name"),
        (safetensors_bytes({"__metadata__": []}), "__metadata__"),
        (safetensors_bytes({"__metadata__": {"a": 1}}), "__metadata__"),
        *[
            (safetensors_bytes({"__metadata__": texts, "a": entry("U8", [3], (0, 3))}, bytes(3)), message)
            for texts, message in [
                ({"gpucast.dtype.a": "INT4"}, "shape"),
                ({"gpucast.dtype.a": "INT4", "gpucast.shape.a": "[7]"}, "takes 4 bytes, the file holds 3"),
                ({"gpucast.dtype.a": "INT4", "gpucast.shape.a": "[" * 50_000}, "shape"),
                ({"gpucast.dtype.a": "FLOAT", "gpucast.shape.a": "[3]"}, "no type of 2, 4 or 6 bits"),
            ]
        ],
    ],
)  # fmt: skip
def test_malformed_safetensors(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(files.FileError, match=message):
        files.load(str(path))


def test_a_header_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001))
        file.truncate(100_000_100)
    with pytest.raises(files.FileError, match="claims 100000001 bytes; expected at most 100000000"):
        files.load(str(path))


def test_malformed_pb(tmp_path: Path) -> None:
    path = tmp_path / "x.pb"
    for proto, message in [
        (TensorProto(dims=[2], raw_data=bytes(8)), "names no data type"),
        (TensorProto(dims=[2], data_type=1, raw_data=bytes(7)), "claims 8 bytes of data, the file holds 7"),
        (TensorProto(dims=[2], data_type=1, float_data=[1]), "claims 2 elements, the file holds 1"),
        (TensorProto(dims=[3], data_type=22, int32_data=[1]), "claims 2 bytes of data, the file holds 1"),
        (TensorProto(dims=[2], data_type=8, string_data=[b"a"]), "claims 2 elements, the file holds 1"),
        (TensorProto(dims=[1], data_type=8, string_data=[b"\xff"]), "not UTF-8"),
        (TensorProto(dims=[HUGE], data_type=1, raw_data=bytes(8)), "claims"),
        (TensorProto(dims=[HUGE, HUGE], data_type=1, raw_data=bytes(8)), "2\\^63"),
        (TensorProto(dims=[-1], data_type=1, raw_data=bytes(8)), "shape"),
        (TensorProto(dims=[1], data_type=1, raw_data=bytes(4), data_location=TensorProto.EXTERNAL), "external data"),
        (TensorProto(dims=[1], data_type=1, segment=TensorProto.Segment(begin=0, end=1)), "segment"),
        (TensorProto(dims=[1], data_type=14, raw_data=bytes(8)), "COMPLEX64, which Cast does not take"),
        (TensorProto(dims=[1], data_type=99, raw_data=bytes(8)), "ONNX type 99, which Cast does not take"),
        (TensorProto(dims=[1], data_type=1, raw_data=bytes(4), name="a\0"), "tensor name"),
    ]:
        onnx.save_tensor(proto, str(path))
        with pytest.raises(files.FileError, match=message):
            files.load(str(path))


def test_metadata_that_outlived_its_tensor_is_passed_over(tmp_path: Path) -> None:
    """Another program wrote other data and kept the metadata of a packed tensor."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({"__metadata__": {"gpucast.dtype.a": "INT4"}, "a": entry()}, bytes(8)))
    assert files.load(str(path))["a"].dtype == np.float32
