# SPDX-License-Identifier: Apache-2.0
"""The onnx and safetensors packages read what gpucast writes, and gpucast what they write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
from onnx import numpy_helper

import gpucast
from codes import assert_same
from gpucast import PackedArray, files
from gpucast.core.dtypes import DTYPES, DType
from tensors import SHAPES, ids, sample

NUMERIC = [row for row in DTYPES if row.family != "string"]
#: Types that ONNX has.
ONNX = [row for row in DTYPES if row.number is not None]
#: Types that safetensors.numpy can read; the others it opens, but has no NumPy type for them.
SHOWN = [row for row in NUMERIC if row.safetensors and row.bits >= 8 and not row.name.startswith("FLOAT8")]


@pytest.mark.parametrize("row", ONNX, ids=ids)
def test_onnx_reads_what_is_written(row: DType, tmp_path: Path) -> None:
    path = str(tmp_path / "x.pb")
    for shape in SHAPES:
        x = sample(row, shape)
        files.save(path, {"w": x})
        proto = onnx.load_tensor(path)
        assert (proto.name, proto.data_type, tuple(proto.dims)) == ("w", row.number, shape)
        assert proto.HasField("raw_data") == (row.family != "string")
        if row.family == "string":
            assert [text.decode() for text in proto.string_data] == x.reshape(-1).tolist()
        else:
            assert numpy_helper.to_array(proto).tobytes() == x.tobytes()


@pytest.mark.parametrize("row", ONNX, ids=ids)
def test_what_onnx_writes_is_read(row: DType, tmp_path: Path) -> None:
    """onnx stores elements in two ways: raw_data and the typed fields."""
    path = str(tmp_path / "x.pb")
    for shape in SHAPES:
        x = sample(row, shape)
        for proto in (numpy_helper.from_array(x, "w"), typed(row, x)):
            onnx.save_tensor(proto, path)
            loaded = files.load(path)
            assert list(loaded) == ["w"]
            assert_same(loaded["w"], x, row)


def typed(row: DType, x: np.ndarray) -> onnx.TensorProto:
    """The elements in the typed field that onnx.proto gives for the type."""
    proto = onnx.TensorProto(name="w", dims=x.shape, data_type=row.number)
    flat = np.ascontiguousarray(x).reshape(-1)
    if row.family == "string":
        proto.string_data.extend(text.encode() for text in flat)
    elif row.name in ("FLOAT", "DOUBLE", "INT64"):
        {"FLOAT": proto.float_data, "DOUBLE": proto.double_data, "INT64": proto.int64_data}[row.name].extend(
            flat.tolist()
        )
    elif row.name in ("UINT32", "UINT64"):
        proto.uint64_data.extend(flat.tolist())
    elif row.bits in (2, 4):
        proto.int32_data.extend(PackedArray.pack(flat).data.tolist())
    elif row.family == "int":
        proto.int32_data.extend(flat.tolist())
    else:
        proto.int32_data.extend(flat.view(row.code_numpy).tolist())
    return proto


def test_a_pb_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    onnx.save_tensor(numpy_helper.from_array(np.zeros(2)), str(tmp_path / "weights.pb"))
    assert list(files.load(str(tmp_path / "weights.pb"))) == ["weights"]


def test_without_onnx_a_pb_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "x.pb")
    files.save(path, {"w": np.zeros(2)})
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    for call in (lambda: files.load(path), lambda: files.save(path, {"w": np.zeros(2)})):
        with pytest.raises(files.FileError, match="pip install onnx"):
            call()


@pytest.mark.parametrize("row", NUMERIC, ids=ids)
def test_safetensors_opens_what_is_written(row: DType, tmp_path: Path) -> None:
    path = str(tmp_path / "x.safetensors")
    for shape in SHAPES:
        x = sample(row, shape)
        files.save(path, {"w": x}, {"format": "np"})
        with safetensors.safe_open(path, "np") as file:
            assert list(file.keys()) == ["w"]
            assert file.metadata()["format"] == "np"
            stored = file.get_slice("w")
            if row in SHOWN:
                assert file.get_tensor("w").tobytes() == x.tobytes()
                assert stored.get_shape() == list(shape)
            elif stored.get_dtype() == "U8":
                assert file.get_tensor("w").tobytes() == (PackedArray.pack(x) if row.packed else x).tobytes()
                assert file.metadata()["gpucast.dtype.w"] == row.name
                assert json.loads(file.metadata()["gpucast.shape.w"]) == list(shape)
            else:
                assert stored.get_dtype() == row.safetensors
                assert stored.get_shape() == list(shape)


def test_types_below_a_byte_have_their_own_code_where_readers_know_it(tmp_path: Path) -> None:
    """float4 is stored natively if it fills whole bytes, float6 never: the safetensors package does not write it."""
    for name, size, code in [
        ("FLOAT4E2M1", 6, "F4"),
        ("FLOAT4E2M1", 7, "U8"),
        ("FLOAT6E2M3", 8, "U8"),
        ("INT4", 8, "U8"),
    ]:
        files.save(str(tmp_path / "x.safetensors"), {"w": sample(gpucast.dtype(name), (size,))})
        with safetensors.safe_open(str(tmp_path / "x.safetensors"), "np") as file:
            assert file.get_slice("w").get_dtype() == code


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    rows = [row for row in NUMERIC if row.safetensors and row.bits >= 8]
    tensors = {row.name: sample(row, (3, i)) for i, row in enumerate(rows)}
    path = str(tmp_path / "x.safetensors")
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    loaded = files.load(path)
    assert set(loaded) == set(tensors)
    for row in rows:
        assert_same(loaded[row.name], tensors[row.name], row)
    with files.TensorFile(path) as file:
        assert file.metadata == {"format": "pt"}


def test_float6_of_other_writers_is_read(tmp_path: Path) -> None:
    row = gpucast.dtype("FLOAT6E2M3")
    x = sample(row, (2, 4))
    data = PackedArray.pack(x).tobytes()
    write_safetensors(tmp_path / "x.safetensors", {"w": entry("F6_E2M3", [2, 4], 0, len(data))}, data)
    assert_same(files.load(str(tmp_path / "x.safetensors"))["w"], x, row)


def test_booleans_of_other_writers_are_read(tmp_path: Path) -> None:
    """Any byte but 0 is true, and becomes 1 in NumPy."""
    data, wanted = bytes([0, 1, 2, 255]), bytes([0, 1, 1, 1])
    write_safetensors(tmp_path / "x.safetensors", {"w": entry("BOOL", [4], 0, 4)}, data)
    onnx.save_tensor(onnx.TensorProto(dims=[4], data_type=9, raw_data=data), str(tmp_path / "x.pb"))
    onnx.save_tensor(onnx.TensorProto(dims=[4], data_type=9, int32_data=[0, 1, -2, 256]), str(tmp_path / "y.pb"))
    np.save(tmp_path / "x.npy", np.frombuffer(data, dtype=bool))
    for name in ("x.safetensors", "x.pb", "y.pb", "x.npy"):
        (x,) = files.load(str(tmp_path / name)).values()
        assert (x.dtype, x.tobytes()) == (np.dtype(bool), wanted)


def entry(code: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": code, "shape": shape, "data_offsets": [begin, end]}


def write_safetensors(path: Path, header: object, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
