# SPDX-License-Identifier: Apache-2.0
"""Every type comes back, bit for bit, from every format that holds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast import PackedArray, files
from gpucast.core.dtypes import DTYPES, DType
from tensors import HELD, REFUSED, SHAPES, ids, sample


@pytest.mark.parametrize(("suffix", "row"), HELD, ids=ids)
def test_every_type_comes_back(suffix: str, row: DType, tmp_path: Path) -> None:
    """Types below one byte by `gpucast.load` as a PackedArray, whichever form was saved."""
    path = str(tmp_path / f"x{suffix}")
    for shape in SHAPES:
        x = sample(row, shape)
        for given in (x, PackedArray.pack(x)) if row.packed else (x,):
            gpucast.save(path, {"x": given})
            loaded, back = files.load(path), gpucast.load(path)
            assert list(loaded) == list(back) == ["x"]
            assert_same(loaded["x"], x, row)
            assert isinstance(back["x"], PackedArray) == row.packed
            assert_same(back["x"].get() if row.packed else back["x"], x, row)
            bare = tmp_path.joinpath(f"x{suffix}").read_bytes()
            files.save(path, {"x": given})
            assert tmp_path.joinpath(f"x{suffix}").read_bytes() == bare


@pytest.mark.parametrize(("suffix", "row"), REFUSED, ids=ids)
def test_a_type_that_a_format_lacks_is_refused_by_name(suffix: str, row: DType, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    with pytest.raises(files.FileError, match=rf"(cannot hold|ONNX has no) {row.name}.*write \.npz"):
        files.save(str(path), {"x": sample(row, (3,))})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("suffix", "row"), HELD, ids=ids)
def test_small_pieces_join_to_the_whole(suffix: str, row: DType, tmp_path: Path) -> None:
    path = str(tmp_path / f"x{suffix}")
    x = sample(row, (7, 11))
    files.save(path, {"x": x})
    with files.TensorFile(path) as file:
        (tensor,) = file.tensors
        pieces = list(tensor.chunks(limit=1))
        assert [piece.size for piece in pieces] == [4] * 19 + [1]
        assert_same(np.concatenate(pieces).reshape(x.shape), x, row)
        assert tensor.itemsize == pieces[0].itemsize
        # A tensor can be read again, after others moved the file's position.
        assert_same(tensor.read(), x, row)
        parts = list(tensor.parts(limit=8 * tensor.itemsize))
        assert [part.size for part in parts] == [8] * 9 + [5]
        # In any order.
        found = [np.concatenate(list(part.chunks(limit=1))) for part in reversed(parts)]
        assert_same(np.concatenate(found[::-1]).reshape(x.shape), x, row)


def test_what_numpy_wrote_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "x.npy")
    wanted = np.arange(12, dtype=np.float32).reshape(3, 4)
    for x in (np.asfortranarray(wanted), wanted.astype(">f4"), wanted[:, ::-1], np.float32(3), wanted[:0]):
        np.save(path, x)
        assert_same(files.load(path)["x"], np.asarray(x, dtype=np.float32), gpucast.dtype("FLOAT"))
        with files.TensorFile(path) as file:
            pieces = [*file.tensors[0].chunks(limit=16), np.empty(0, np.float32)]
            assert np.concatenate(pieces).tolist() == np.asarray(x).reshape(-1).tolist()
    for texts in (np.array(["a", "bc", ""]), np.array([b"1", b"22"]), np.array(["a", "bc"]).astype(">U5")):
        np.save(path, texts)
        assert files.load(path)["x"].tolist() == texts.tolist()
    np.savez_compressed(tmp_path / "x.npz", w=wanted, n=np.array(["a", "b"]), b=np.array([True, False]))
    loaded = files.load(str(tmp_path / "x.npz"))
    assert loaded["w"].tolist() == wanted.tolist()
    assert loaded["n"].tolist() == ["a", "b"]
    assert loaded["b"].tolist() == [True, False]


@pytest.mark.parametrize("row", [row for row in DTYPES if row.family != "string"], ids=ids)
def test_plain_numpy_opens_what_is_written(row: DType, tmp_path: Path) -> None:
    x = sample(row, (3, 5))
    files.save(str(tmp_path / "x.npz"), {"x": x})
    with np.load(tmp_path / "x.npz") as archive:
        if row.packed:
            assert archive["x"].tobytes() == PackedArray.pack(x).tobytes()
            assert row.name in str(archive["__gpucast__"])
            return
        assert_same(archive["x"].view(row.numpy), x, row)
    files.save(str(tmp_path / "x.npy"), {"x": x})
    for mode in (None, "r"):
        assert_same(np.asarray(np.load(tmp_path / "x.npy", mmap_mode=mode)).view(row.numpy), x, row)


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    x = {"a": np.arange(5.0), "b": sample(gpucast.dtype("INT4"), (5,))}
    for suffix in (".npz", ".safetensors"):
        one, two = tmp_path / f"1{suffix}", tmp_path / f"2{suffix}"
        files.save(str(one), x)
        files.save(str(two), x)
        assert one.read_bytes() == two.read_bytes()


def test_text_that_numpy_would_cut_is_refused(tmp_path: Path) -> None:
    texts = np.array(["a", "b\0"], dtype=object)
    for suffix in (".npy", ".npz"):
        with pytest.raises(files.FileError, match=r"element 1 ends in NUL.*write \.pb"):
            files.save(str(tmp_path / f"x{suffix}"), {"x": texts})
    files.save(str(tmp_path / "x.pb"), {"x": texts})
    assert files.load(str(tmp_path / "x.pb"))["x"].tolist() == texts.tolist()
    with pytest.raises(files.FileError, match="UTF-8"):
        files.save(str(tmp_path / "x.pb"), {"x": np.array(["\ud800"], dtype=object)})
    with pytest.raises(files.FileError, match="not ASCII"):
        files.save(str(tmp_path / "x.pb"), {"x": np.array([b"\xe9"])})
    assert [path.name for path in tmp_path.iterdir()] == ["x.pb"]


def test_one_tensor_formats_refuse_several(tmp_path: Path) -> None:
    for suffix in (".npy", ".pb"):
        for count in (0, 2):
            with pytest.raises(files.FileError, match=f"holds one tensor, but there are {count}"):
                files.save(str(tmp_path / f"x{suffix}"), {str(i): np.zeros(1) for i in range(count)})


def test_names_that_files_cannot_hold_are_refused(tmp_path: Path) -> None:
    for suffix in files.SUFFIXES:
        for name in ("a\0b", "\ud800"):
            with pytest.raises(files.FileError, match="not a tensor name"):
                files.save(str(tmp_path / f"x{suffix}"), {name: np.zeros(1)})
    for suffix, name in ((".npz", "__gpucast__"), (".safetensors", "__metadata__")):
        with pytest.raises(files.FileError, match="reserved"):
            files.save(str(tmp_path / f"x{suffix}"), {name: np.zeros(1)})


def test_unknown_suffixes_and_complex_are_refused(tmp_path: Path) -> None:
    with pytest.raises(files.FileError, match=r"unknown format '\.bin'; expected one of \.npy"):
        files.save(str(tmp_path / "x.bin"), {"x": np.zeros(1)})
    with pytest.raises(TypeError, match="complex"):
        files.save(str(tmp_path / "x.npy"), {"x": np.zeros(1, complex)})
