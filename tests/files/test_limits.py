# SPDX-License-Identifier: Apache-2.0
"""Small files that claim much: refused, or read within a bound of memory that is measured in a process of its own."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import gpucast
from gpucast import files
from gpucast.convert.scales import config_json
from gpucast.files import file_limits

HERE = Path(__file__).parents[2]


def memory(code: str, *args: Any) -> tuple[int, str]:
    """The MiB that running the code adds to what the imports take, and what it prints."""
    program = (
        "import sys\n"
        "import numpy as np\n"
        "from gpucast import convert, files\n"
        "from gpucast.convert.scales import config_json\n"
        # getrusage counts the memory of the process that started this one, and so hides growth.
        "status = lambda: open('/proc/self/status').read()\n"
        "peak = lambda: int(status().partition('VmHWM:')[2].split()[0]) >> 10\n"
        "before = peak()\n"
        "try:\n"
        f"    {code}\n"
        "except files.FileError as error:\n"
        "    print('refused:', error)\n"
        "print(peak() - before, file=sys.stderr)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, args)], capture_output=True, text=True, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return int(ended.stderr), ended.stdout


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


# ---- JSON ----


def test_text_with_many_marks_is_no_list_of_many_values() -> None:
    text = json.dumps({"chat_template": "[,]{:}" * 1_000_000})
    assert file_limits.parsed_json(text) == json.loads(text)
    values = [0] * (file_limits.VALUES - 2)
    assert file_limits.parsed_json(json.dumps(values)) == values
    with pytest.raises(file_limits.OverLimit, match="holds more than 4194304 values"):
        file_limits.parsed_json(json.dumps([*values, 1, 2, 3]))


@pytest.mark.parametrize("value", ["{}", '"ab":0'])
def test_a_header_of_many_values_takes_bounded_memory(value: str, tmp_path: Path) -> None:
    text = ",".join([value] * 5_000_000)
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors((f"{{{text}}}" if ":" in value else f'{{"a":[{text}]}}').encode()))
    used, said = memory("files.load(sys.argv[1])", path)
    assert "the .safetensors header holds more than 4194304 values" in said
    assert used < 200


def test_a_config_of_any_size_takes_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"[" + b"{}," * 5_000_000 + b"{}]")
    used, said = memory("config_json.block_size(config_json.sections(sys.argv[1]))", tmp_path)
    assert "config.json: expected at most 10000000 bytes of config.json" in said
    assert used < 100
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"weight_block_size": [128, 128]}}))
    assert config_json.block_size(config_json.sections(str(tmp_path))) == (128, 128)


# ---- .npy and .npz ----


def npy(descr: str, shape: tuple[int, ...], data: bytes = b"", fortran: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return buffer.getvalue() + data


@pytest.mark.parametrize("descr", ["<U0", "|S0", "|V0"])
def test_texts_that_take_no_bytes(descr: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(npy(descr, (3,)))
    with pytest.raises(files.FileError, match="take no bytes"):
        files.load(str(path))
    for shape in ((0,), (0, 3), (3, 0)):
        path.write_bytes(npy(descr, shape))
        with files.TensorFile(str(path)) as file:
            (tensor,) = file.tensors
            if descr != "|V0":
                assert tensor.read().shape == shape
                assert list(tensor.chunks()) == list(tensor.parts()) == list(tensor.pieces(4)) == []
        if descr != "|V0":
            files.save(str(tmp_path / "y.npz"), files.load(str(path)))
            assert files.load(str(tmp_path / "y.npz"))["x"].shape == shape


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 5), (1, 9), (9, 1), (0, 4), (4, 0), (), (1,), (2, 3000), (3000, 2)])
@pytest.mark.parametrize("kind", [np.float32, np.uint8, "<U3"])
@pytest.mark.parametrize("limit", [16, 100, 1 << 23])
def test_fortran_order_is_read_in_row_major_order(
    shape: tuple[int, ...], kind: Any, limit: int, tmp_path: Path
) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    path = tmp_path / "x.npy"
    path.write_bytes(npy(x.dtype.str, shape, x.tobytes("F"), fortran=True))
    with files.TensorFile(str(path)) as file:
        (tensor,) = file.tensors
        chunks = list(tensor.chunks(limit))
        assert all(chunk.ndim == 1 and chunk.size and chunk.size % 4 == 0 for chunk in chunks[:-1])
        assert all(chunk.nbytes <= max(limit, 4 * x.itemsize) for chunk in chunks)
        assert np.concatenate([*chunks, np.empty(0, x.dtype)]).tolist() == x.reshape(-1).tolist()
        assert tensor.read().tolist() == x.tolist()


def test_fortran_order_is_read_once(tmp_path: Path) -> None:
    x = np.asfortranarray(np.random.default_rng(0).integers(0, 256, (1 << 13, 1 << 13), np.uint8))
    np.savez(tmp_path / "x.npz", x=x)
    code = "[None for t in files.TensorFile(sys.argv[1]).tensors for _ in t.chunks()]"
    used, said = memory(code, tmp_path / "x.npz")
    assert said == ""
    assert used < 64 + 50
    path = tmp_path / "small.npz"
    np.savez_compressed(path, x=np.zeros((1 << 15, (1 << 13) + 1), np.uint8, order="F"))
    assert path.stat().st_size < 1 << 20
    used, said = memory(code, path)
    assert "is in Fortran order, which is read as a whole, and has 268468224 bytes in " in said
    assert used < 50
    # In C order it is read piece by piece.
    np.savez_compressed(path, x=np.zeros((1 << 15, 1 << 12), np.uint8))
    used, said = memory(code, path)
    assert said == ""
    assert used < 100


def test_members_that_overlap_are_bounded_in_sum(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8))
    whole = path.read_bytes()
    start, end = whole.index(b"PK\1\2"), whole.index(b"PK\5\6")
    entry = whole[start:end]
    # The same member under many names.
    entries = b"".join(entry.replace(b"x.npy", b"%c.npy" % name) for name in b"abcdefgh")
    last = bytearray(whole[end:])
    struct.pack_into("<HHLL", last, 8, 8, 8, len(entries), start)
    path.write_bytes(whole[:start] + entries + last)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.infolist()) == 8
    with pytest.raises(files.FileError, match=r"its members claim \d+ bytes, the file holds \d+"):
        files.load(str(path))


# ---- shapes and names ----


@pytest.mark.parametrize("shape", [[0, 1 << 62], [1 << 59, 0], [0, 1 << 40, 1 << 40], [0] * 65])
def test_a_shape_that_numpy_does_not_take_is_a_file_error(shape: list[int], tmp_path: Path) -> None:
    """Though the tensor has no elements."""
    entry = {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]}
    (tmp_path / "x.safetensors").write_bytes(safetensors(json.dumps({"x": entry}).encode()))
    (tmp_path / "x.npy").write_bytes(npy("|u1", tuple(shape)))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", npy("|u1", tuple(shape)))
    (tmp_path / "x.pb").write_bytes(TensorProto(dims=shape, data_type=TensorProto.UINT8).SerializeToString())
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(
            files.FileError, match=r"has shape .*; expected up to 64 lengths, fewer than 2\^63 elements"
        ):
            files.load(str(path))


def test_texts_that_numpy_does_not_take_are_a_file_error(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(npy("<U1000", (0, 1 << 58)))
    with pytest.raises(files.FileError, match=r"takes 2\^63 bytes or more"):
        files.load(str(path))


def test_names_have_a_length_that_every_format_holds(tmp_path: Path) -> None:
    for name in ("é" * (file_limits.NAME // 2), "x" * file_limits.NAME):
        for suffix in (".npz", ".safetensors"):
            files.save(str(tmp_path / f"x{suffix}"), {name: np.zeros(1)})
            assert list(files.load(str(tmp_path / f"x{suffix}"))) == [name]
    for name in ("é" * (file_limits.NAME // 2 + 1), "x" * (file_limits.NAME + 1)):
        with pytest.raises(
            files.FileError, match=r"'\S{79,85} is not a tensor name; .* of at most 65531 bytes"
        ) as refused:
            files.save(str(tmp_path / "x.npz"), {name: np.zeros(1)})
        assert len(str(refused.value)) < 300
    header = {"x" * (file_limits.NAME + 1): {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}}
    (tmp_path / "x.safetensors").write_bytes(safetensors(json.dumps(header).encode(), b"\0"))
    with pytest.raises(files.FileError, match="is not a tensor name"):
        files.load(str(tmp_path / "x.safetensors"))


def test_an_unknown_type_has_a_short_name(tmp_path: Path) -> None:
    for length, message in (
        (file_limits.KIND, "which Cast does not take"),
        (file_limits.KIND + 1, "the dtype has 101 characters"),
    ):
        header = {"x": {"dtype": "Z" * length, "shape": [1], "data_offsets": [0, 1]}}
        (tmp_path / "x.safetensors").write_bytes(safetensors(json.dumps(header).encode(), b"\0"))
        with pytest.raises(files.FileError, match=message):
            files.load(str(tmp_path / "x.safetensors"))
    assert gpucast.dtype("FLOAT8E4M3FN").safetensors == "F8_E4M3"


def test_sections_in_lists_go_too() -> None:
    held = {"a": [{"quant_method": "fp8"}, {"b": 1}, {"quantization_config": {"quant_method": "fp8"}}]}
    assert config_json.without_sections(held) == {"a": [{"b": 1}, {}]}
