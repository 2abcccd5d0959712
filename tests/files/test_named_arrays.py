# SPDX-License-Identifier: Apache-2.0
"""`gpucast.save` and `gpucast.load`: arrays of every kind come back, and other programs read the files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors

import gpucast
from codes import assert_same, codes_of
from gpucast import PackedArray, Quantized, files
from gpucast.core.dtypes import DTYPES
from gpucast.files import named_arrays
from gpucast.quantization import FORMATS
from host_driver import HostDriver, download, installed, upload
from tensors import sample

X = np.random.default_rng(5).standard_normal((4, 66)).astype(np.float32)
#: One array of each kind that a file of several may have.
KINDS = {
    "numpy": X,
    "ml_dtypes": X.astype(ml_dtypes.float8_e5m2),
    "packed": PackedArray.pack(gpucast.cast(X, "INT4")),
    "quantized": gpucast.quantize(X, "nvfp4"),
    "number": np.float16(3.5),
    "list": [1.5, 2.0],
}


def assert_comes_back(got: Any, wanted: Any) -> None:
    if isinstance(wanted, Quantized):
        assert type(got) is Quantized and repr(got) == repr(wanted) and got.format == wanted.format
        for name, part in vars(wanted.native("test")).items():
            if part is not None:
                assert_comes_back(getattr(got.native("test"), name), part)
    elif isinstance(wanted, PackedArray):
        assert type(got) is PackedArray and (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert got.data.tobytes() == wanted.data.tobytes()
    else:
        wanted = np.asarray(wanted)
        assert_same(got, wanted, gpucast.dtype(wanted.dtype))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_every_kind_in_one_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    gpucast.save(path, KINDS, {"license": "x"})
    back = gpucast.load(str(path))
    assert back.keys() == KINDS.keys()
    for name, wanted in KINDS.items():
        assert_comes_back(back[name], wanted)
    with files.TensorFile(str(path)) as file:
        assert file.metadata["license"] == "x"


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_every_format_of_quantization(suffix: str, tmp_path: Path) -> None:
    held = {name: gpucast.quantize(X, name) for name in FORMATS}
    gpucast.save(tmp_path / f"q{suffix}", held)
    for name, q in gpucast.load(tmp_path / f"q{suffix}").items():
        assert_comes_back(q, held[name])
    # In a process that has not quantized yet.
    code = f"import gpucast; print(float(gpucast.load({str(tmp_path / f'q{suffix}')!r})['mxfp4'].dequantize()[1, 2]))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(said.stdout) == held["mxfp4"].dequantize()[1, 2]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy", ".pb"])
def test_layouts_in_memory_do_not_matter(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    deep = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for x in (
        deep.astype(">f4"),
        np.asfortranarray(deep),
        deep[:, ::-1, ::2],
        deep.transpose(2, 0, 1),
        deep.astype(ml_dtypes.bfloat16).T,
        np.broadcast_to(np.float32(3), (2, 3)),
        deep.astype("<u2").astype(">u2"),
    ):
        gpucast.save(path, {"x": x})
        (back,) = gpucast.load(path).values()
        assert back.dtype.isnative and np.array_equal(back, np.asarray(x)) and back.shape == x.shape


def test_numpy_reads_what_is_saved(tmp_path: Path) -> None:
    """Also types that it lacks, whose codes it gives in a field: casts take them as they are."""
    whole = [row for row in DTYPES if not row.packed and row.family != "string"]
    held = {row.name: sample(row, (3, 4)) for row in whole} | {"packed": KINDS["packed"]}
    gpucast.save(tmp_path / "x.npz", held)
    with np.load(tmp_path / "x.npz") as loaded:
        for row in whole:
            found, wanted = loaded[row.name], held[row.name]
            assert found.tobytes() == wanted.tobytes()
            for view in (lambda x: x, lambda x: x.T, lambda x: x[::2, ::-1]):
                x, y = view(found), gpucast.cast(view(wanted), "DOUBLE")
                assert gpucast.cast(x, "DOUBLE").tobytes() == y.tobytes()
                assert_same(gpucast.cast(x, row), gpucast.cast(view(wanted), row), row)
            (many,) = gpucast.cast_many([found], "DOUBLE")
            assert many.tobytes() == gpucast.cast(wanted, "DOUBLE").tobytes()
        assert loaded["packed"].tobytes() == KINDS["packed"].data.tobytes()
        big = loaded["BFLOAT16"].astype(loaded["BFLOAT16"].dtype.newbyteorder(">"))
        assert gpucast.cast(big, "FLOAT").tobytes() == gpucast.cast(held["BFLOAT16"], "FLOAT").tobytes()
    gpucast.save(tmp_path / "x.npy", {"x": held["FLOAT8E4M3FN"]})
    x = np.load(tmp_path / "x.npy")
    assert x.dtype == np.dtype([("float8_e4m3fn", "u1")]) and gpucast.dtype(x.dtype).name == "FLOAT8E4M3FN"
    gpucast.save(tmp_path / "again.npy", {"x": x})
    assert_same(gpucast.load(tmp_path / "again.npy")["again"], held["FLOAT8E4M3FN"])
    assert gpucast.quantize(loaded_bfloat16(tmp_path), "mxfp4").dtype.name == "BFLOAT16"


def loaded_bfloat16(folder: Path) -> np.ndarray:
    gpucast.save(folder / "b.npy", {"b": X.astype(ml_dtypes.bfloat16)})
    found: np.ndarray = np.load(folder / "b.npy")
    return found


def test_safetensors_reads_what_is_saved(tmp_path: Path) -> None:
    q = KINDS["quantized"]
    path = tmp_path / "x.safetensors"
    gpucast.save(path, KINDS)
    with safetensors.safe_open(path, "np") as file:
        codes = {name: file.get_slice(name).get_dtype() for name in file.keys()}
        assert codes == {
            "numpy": "F32", "ml_dtypes": "F8_E5M2", "packed": "U8", "quantized": "F4", "quantized.scales": "F8_E4M3",
            "quantized.global_scale": "F32", "number": "F16", "list": "F64",
        }  # fmt: skip
        assert file.get_tensor("packed").tobytes() == KINDS["packed"].data.tobytes()
        assert file.get_tensor("numpy").tobytes() == X.tobytes()
        assert json.loads(file.metadata()["gpucast.quantized.quantized"])["format"] == q.format.name
    # By hand, as a reader without gpucast finds them.
    whole = path.read_bytes()
    size = 8 + int.from_bytes(whole[:8], "little")
    begin, end = json.loads(whole[8:size])["quantized"]["data_offsets"]
    assert whole[size + begin : size + end] == q.data.data.tobytes()


def test_what_was_lost_by_numpy_says_how_to_give_it_back(tmp_path: Path) -> None:
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        np.save(tmp_path / "x.npy", X.astype(kind))
        x = np.load(tmp_path / "x.npy")
        for call in (gpucast.cast, gpucast.cast_report):
            with pytest.raises(TypeError, match=r"is not a dtype: .*x\.view\(ml_dtypes\..*gpucast\.save"):
                call(x, "FLOAT")
        assert np.array_equal(gpucast.cast(x.view(kind), "FLOAT"), X.astype(kind).astype(np.float32))
        with pytest.raises(files.FileError, match=r"has type <?\|?V\d, .*x\.view\(ml_dtypes\."):
            gpucast.load(tmp_path / "x.npy")


def test_other_fields_are_no_dtype() -> None:
    for kind in ([("a", "f4")], [("float32", "u4")], [("bfloat16", "u1")], [("bfloat16", "u2"), ("b", "u1")]):
        with pytest.raises(TypeError, match="is not a dtype"):
            gpucast.cast(np.zeros(3, kind), "FLOAT")


# ---- other libraries ----


def test_jax(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    held = {name: x for name, x in KINDS.items() if name != "list"}
    of_jax = {
        "numpy": jax.numpy.asarray(X), "ml_dtypes": jax.numpy.asarray(KINDS["ml_dtypes"]),
        "packed": jax.numpy.asarray(KINDS["packed"].get()), "number": jax.numpy.float16(3.5),
        "quantized": gpucast.quantize(jax.numpy.asarray(X), "nvfp4"),
    }  # fmt: skip
    for suffix in (".safetensors", ".npz"):
        path = tmp_path / f"x{suffix}"
        gpucast.save(path, of_jax)
        for name, back in gpucast.load(path).items():
            assert_comes_back(back, held[name])
        for name, back in gpucast.load(path, library="jax").items():
            if name == "quantized":
                assert all(isinstance(part, jax.Array) for part in back.parts().values())
                assert isinstance(back.dequantize(), jax.Array)
                assert_comes_back(back.plain(), held[name])
            else:
                assert isinstance(back, jax.Array)
                wanted = held[name].get() if name == "packed" else np.asarray(held[name])
                assert np.array_equal(np.asarray(back), wanted)
    if not jax.config.read("jax_enable_x64"):
        gpucast.save(path, {"ids": np.arange(3)})
        with pytest.raises(TypeError, match="load: tensor 'ids': .*jax_enable_x64"):
            gpucast.load(path, library="jax")


@pytest.mark.peers
def test_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import safetensors.torch

    def same_bytes(one: Any, other: Any) -> bool:
        flat = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (one, other))
        return bool(torch.equal(*flat))

    x = torch.from_numpy(X)
    held = {
        "x": x,
        "t": x.T,
        "grad": torch.nn.Parameter(x),
        "bf16": x.to(torch.bfloat16),
        "f8": x.to(torch.float8_e4m3fn),
        "pairs": gpucast.cast(x, "FLOAT4E2M1"),
        "int4": gpucast.cast(x, "INT4"),
        "f6": gpucast.quantize(x, "mxfp6e2m3"),
        "q": gpucast.quantize(x, "mxfp4"),
        "number": torch.tensor(3, dtype=torch.int32),
    }
    path = tmp_path / "x.safetensors"
    gpucast.save(path, held)
    of_others = safetensors.torch.load_file(path)
    for name in ("x", "t", "grad", "bf16", "f8", "number"):
        assert of_others[name].shape == held[name].shape and same_bytes(of_others[name], held[name]), name
    assert of_others["q.scales"].dtype is torch.float8_e8m0fnu
    back = gpucast.load(path, library="torch")
    assert back.keys() == held.keys()
    for name, wanted in held.items():
        found = back[name]
        if isinstance(wanted, Quantized):
            assert found.library == "torch" and found.scales.dtype is torch.float8_e8m0fnu
            assert torch.equal(found.dequantize(), wanted.dequantize()) and repr(found) == repr(wanted)
        elif isinstance(wanted, PackedArray):
            assert torch.equal(gpucast.cast(found, "FLOAT"), gpucast.cast(wanted, "FLOAT"))
        else:
            assert found.dtype is wanted.dtype and found.shape == wanted.shape and not found.requires_grad
            assert same_bytes(found, wanted), name
    assert back["q"].data.dtype is torch.float4_e2m1fn_x2
    assert gpucast.load(path)["q"].library is None


def test_a_device(tmp_path: Path) -> None:
    for suffix in (".safetensors", ".npz"):
        path = tmp_path / f"x{suffix}"
        with installed(HostDriver()):
            held = {
                "x": upload(X),
                "f8": upload(KINDS["ml_dtypes"]),
                "packed": gpucast.cast(upload(X), "INT4"),
                "q": gpucast.quantize(upload(X), "nvfp4"),
            }
            gpucast.save(path, held | {"text": np.array(["a"])} if suffix == ".npz" else held)
            for keywords in ({"device": "cuda"}, {"library": "cupy"}):
                back = gpucast.load(path, **keywords)
                assert back["q"].device != "cpu" and back["packed"].device != "cpu"
                assert download(back["x"]).tobytes() == X.tobytes()
                assert codes_of(download(back["f8"]), gpucast.dtype("FLOAT8E5M2")).tobytes() == held_bytes("ml_dtypes")
                assert download(back["packed"].data).tobytes() == KINDS["packed"].data.tobytes()
                assert_comes_back(back["q"].get(), KINDS["quantized"])
        for name, wanted in (("x", X), ("packed", KINDS["packed"]), ("q", KINDS["quantized"])):
            assert_comes_back(gpucast.load(path)[name], wanted)


def held_bytes(name: str) -> bytes:
    found: bytes = KINDS[name].tobytes()
    return found


# ---- bad use ----


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("x.npz", X), TypeError, "save: arrays is ndarray; expected a dict of arrays by name, as {'x': x}"),
        ((X, "x.npz"), TypeError, "save: path is ndarray; expected text or a pathlib.Path"),
        (("x.npz", {"a": X, "b": 1j}), TypeError, "save: tensor 'b': 'complex128' is complex"),
        (("x.npz", {"a": X, "b": {"c": X}}), TypeError, "save: tensor 'b': x is of type dict"),
        (("x.npz", {3: X}), ValueError, "x.npz: 3 is not a tensor name"),
        (("x.npz", {"a": X}, {"a": 3}), TypeError, "save: metadata={'a': 3} must be a dict of texts"),
        (("x.npy", {"a": X}, {"a": "b"}), ValueError, "x.npy: such a file has no place for metadata"),
        (("x.npy", {"a": X, "b": X}), ValueError, "x.npy: .npy holds one tensor, but there are 2"),
        (("x.npy", {"a": KINDS["packed"]}), ValueError, "x.npy: .npy cannot hold INT4.*write .npz"),
        (("x.txt", {"a": X}), ValueError, "x.txt: unknown format '.txt'; expected one of .npy"),
        (("x.onnx", {"a": X}), ValueError, "x.onnx: an .onnx file holds a model, not arrays alone; expected .npy"),
        (("x.safetensors", {"a": X, "s": ["a"]}), ValueError, "x.safetensors: .safetensors cannot hold STRING"),
        (("x.npz", {"__gpucast__": X}), ValueError, "the name '__gpucast__' is reserved"),
        (
            ("x.npz", {"q": KINDS["quantized"], "q.scales": X}),
            ValueError,
            "'q.scales' is that of an array and of a part",
        ),
        (
            ("x.npz", {"q.scales": X, "q": KINDS["quantized"]}),
            ValueError,
            "'q.scales' is that of an array and of a part",
        ),
        (("x.npz", {"a": X, "b": ["x", None]}), ValueError, "element 1|index 1"),
    ],
)
def test_bad_saves_leave_the_file_as_it_was(
    arguments: Any, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(arguments[0], str):
        Path(arguments[0]).write_bytes(b"old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(error, match=message):
        gpucast.save(*arguments)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"library": "tf"}, "load: library='tf' is not known; expected one of 'numpy', 'cupy', 'torch', 'jax'"),
        ({"library": "numpy", "device": "cuda"}, "load: library='numpy' has arrays of 'cpu'; got device='cuda'"),
        ({"library": "cupy", "device": "cpu"}, "load: library='cupy' has arrays of 'cuda'; got device='cpu'"),
        ({"device": "tpu"}, "load: device='tpu' is not a device"),
    ],
)
def test_bad_loads(keywords: Any, message: str, tmp_path: Path) -> None:
    gpucast.save(tmp_path / "x.npz", {"x": X})
    with pytest.raises(ValueError, match=message):
        gpucast.load(tmp_path / "x.npz", **keywords)


def test_without_a_gpu_or_a_library_it_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucast.kernel.driver, "unavailable", lambda: ("there is none", "buy one"))
    for keywords in ({"device": "cuda"}, {"library": "cupy"}):
        with pytest.raises(gpucast.DeviceUnavailable, match="^load: no GPU can be used here: there is none; buy one"):
            gpucast.load(tmp_path / "missing.npz", **keywords)
    monkeypatch.undo()
    code = "import sys; sys.modules['torch'] = None; import gpucast; gpucast.load('missing.npz', library='torch')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs PyTorch" in said.stderr and "pip install torch" in said.stderr


def test_the_names_of_its_own_metadata_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save: metadata has 'gpucast.dtype.x'; names that begin with 'gpucast.'"):
        gpucast.save(tmp_path / "x.safetensors", {"x": X}, {"gpucast.dtype.x": "INT4", "author": "me"})
    assert not list(tmp_path.iterdir())


def test_files_that_others_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As another program may write them.
    monkeypatch.setattr(named_arrays, "_texts", lambda texts: dict(texts or {}))
    path = tmp_path / "x.safetensors"
    gpucast.save(path, {"q": KINDS["quantized"], "x": X})
    with files.TensorFile(str(path)) as file:
        texts = file.metadata
    # The tensors are gone, and the metadata stay.
    gpucast.save(path, {"x": X}, texts)
    assert list(gpucast.load(path)) == ["x"]
    parts = files.load(str(path)) | {"q": KINDS["quantized"].data}
    gpucast.save(path, parts, texts)
    with pytest.raises(files.FileError, match=r"x\.safetensors: tensor 'q': 'q\.scales' is missing"):
        gpucast.load(path)
    gpucast.save(path, {**parts, "q": X, "q.scales": X, "q.global_scale": X}, texts)
    with pytest.raises(files.FileError, match=r"x\.safetensors: tensor 'q': Quantized: data must be a PackedArray"):
        gpucast.load(path)
    gpucast.save(path, {"q": X}, {"gpucast.quantized.q": "{"})
    with pytest.raises(files.FileError, match=r"tensor 'q': .*is not what this version of gpucast writes"):
        gpucast.load(path)


def test_metadata_of_npz_is_checked(tmp_path: Path) -> None:
    for entry in ({"__metadata__": 3}, {"__metadata__": {"a": 3}}, {"__metadata__": {}, "x": 3}):
        np.savez(tmp_path / "x.npz", x=X, __gpucast__=json.dumps(entry))
        with pytest.raises(files.FileError, match="is not the text that gpucast writes"):
            gpucast.load(tmp_path / "x.npz")
