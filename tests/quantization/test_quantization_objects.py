# SPDX-License-Identifier: Apache-2.0
"""`gpucast.quantize` and `Quantized`: calls, layouts, files, DLPack, and what is said of bad use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from gpucast import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.files import FileError
from gpucast.kernel import driver
from gpucast.libraries.dlpack import take as taken
from gpucast.quantization import FORMATS, Format, Quantized, dequantize, quantize, swizzle
from quantization_cases import same

X = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)


def equal(one: Quantized, other: Quantized) -> bool:
    parts, others = one.parts(), other.parts()
    return (
        (one.format, one.dtype, one.axis, one.scale_layout, one.shape)
        == (other.format, other.dtype, other.axis, other.scale_layout, other.shape)
        and parts.keys() == others.keys()
        and all(same(bare(part), bare(others[name])) for name, part in parts.items())
    )


def bare(part: Any) -> Any:
    return part.data if isinstance(part, PackedArray) else part


# ---- calls ----


def test_transpose() -> None:
    for name in ("mxfp4", "nvfp4", "int4_32", "float8e4m3fn_128x128", "float8e4m3fn_axis", "uint4_zp_tensor"):
        plain, swapped = quantize(X, name), quantize(np.ascontiguousarray(X.T), name)
        assert equal(quantize(X, name, transpose=True), swapped)
        both = quantize(X, name, transpose="both")
        assert equal(both[0], plain) and equal(both[1], swapped)
    deep = np.stack([X, X + 1])
    q = quantize(deep, "mxfp6e2m3", transpose=True, rounding="stochastic", seed=1)
    assert equal(q, quantize(deep.swapaxes(1, 2).copy(), "mxfp6e2m3", rounding="stochastic", seed=1))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"format": "mxfp5"}, ValueError, "quantize: format='mxfp5' is not known; did you mean one of mxfp4, "),
        ({"format": "int4"}, ValueError, "did you mean one of int4_tensor, int4_axis, int4_32, .*int4_zp_128"),
        ({"format": "fp8"}, ValueError, "did you mean one of float8e4m3fn_tensor, .*float8e5m2_128x128"),
        ({"format": "NF4"}, ValueError, "did you mean one of nvfp4, mxfp4, int4_32"),
        ({"format": "gguf"}, ValueError, "format='gguf' is not known; expected one of float8e4m3fn_tensor"),
        ({"format": X}, TypeError, "quantize: format is an array; expected a name such as 'mxfp4', after the array$"),
        ({"format": 8}, TypeError, "quantize: format=8 must be a name or a gpucast.quantization.Format$"),
        ({"x": X.astype(np.int8)}, TypeError, "quantize: x.dtype=INT8 must be one of FLOAT"),
        ({"x": X.astype(complex)}, TypeError, "quantize: x.dtype=.*complex"),
        ({"x": quantize(X, "mxfp4").data}, TypeError, "quantize: x.dtype=FLOAT4E2M1 must be one of"),
        ({"axis": 2}, ValueError, r"quantize: axis=2 is out of bounds for shape \(5, 64\)"),
        ({"axis": 1.0}, TypeError, "quantize: axis=1.0 must be an integer"),
        ({"x": np.float32(1)}, ValueError, r"quantize: shape \(\) has 0 dimensions; mxfp4 needs at least 1"),
        ({"x": X[0], "format": "float8e5m2_128x128"}, ValueError, "has 1 dimensions; float8e5m2_128x128 needs at"),
        (
            {"x": X.reshape(5, 8, 8), "format": "float8e5m2_128x128", "axis": 0},
            ValueError,
            "axis=0; blocks of float8e5m2_128x128 lie on the last two dimensions",
        ),
        ({"transpose": np.ones(3)}, TypeError, "quantize: transpose=array.* must be False, True or 'both'"),
        ({"transpose": "yes"}, ValueError, "quantize: transpose='yes' must be False, True or 'both'"),
        ({"x": X[0], "transpose": True}, ValueError, "quantize: transpose=True needs two dimensions"),
        ({"scale_layout": "4x128"}, ValueError, "quantize: scale_layout='4x128' must be one of 'linear', '128x4'"),
        ({"x": X[:, :40], "scale_layout": "128x4"}, ValueError, "scale_layout='128x4' needs whole blocks: 40"),
        ({"axis": 0, "scale_layout": "128x4"}, ValueError, "needs blocks along the last axis; axis=0"),
        ({"format": "int8_32", "scale_layout": "128x4"}, ValueError, "with scales of one byte, not for int8_32"),
        ({"rounding": "stochastic"}, ValueError, "quantize: rounding='stochastic' needs seed="),
        ({"rounding": "truncate"}, ValueError, "quantize: rounding='truncate' must be None or 'stochastic'"),
        ({"seed": 1}, ValueError, "quantize: seed=1 does not apply"),
        (
            {"format": "int4_32", "rounding": "stochastic", "seed": 1},
            ValueError,
            "quantize: rounding='stochastic' is for elements that are floats; int4_32 has INT4",
        ),
        ({"scale": 1.0}, ValueError, "quantize: scale= is for formats with FLOAT scales and without zero points, not"),
        ({"format": "uint4_zp_32", "scale": 1.0}, ValueError, "quantize: scale= is for formats with FLOAT scales"),
        *(
            (
                {"format": "nvfp4", "scale": scale},
                ValueError,
                "quantize: scale=.* must be finite and above 0, as a FLOAT",
            )
            for scale in (np.nan, np.inf, 0.0, 1e-60, 1e60, -1)
        ),
        ({"format": "mxfp4", "amax": 1}, ValueError, "quantize: amax= is for formats with a global scale, not for"),
        ({"format": "nvfp4", "amax": 1, "scale": 1}, ValueError, "quantize: amax= and scale= both give"),
        ({"format": "nvfp4", "amax": [1, 2]}, ValueError, r"quantize: amax= has shape \(2,\); expected one element"),
        ({"format": "nvfp4", "amax": -1}, ValueError, "quantize: amax=-1.0 must be finite and not below 0"),
        ({"format": "nvfp4", "amax": np.nan}, ValueError, "quantize: amax=nan must be finite"),
        ({"format": "nvfp4", "amax": "1"}, TypeError, "quantize: amax="),
        ({"format": "torchao-nvfp4", "amax": 0.0}, ValueError, r"^quantize: amax=0.0 gives torchao-nvfp4 the global s"),
        ({"format": "int8_tensor", "scale": "1"}, TypeError, "quantize: scale=.* has dtype"),
        ({"format": "int8_axis", "scale": np.ones(3)}, ValueError, r"quantize: scale= has shape \(3,\); the scales"),
        ({"device": "tpu"}, ValueError, "quantize: device='tpu' is not a device"),
    ],
)
def test_bad_calls(keywords: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        quantize(**{"x": X, "format": "mxfp4", **keywords})


def test_without_a_gpu_the_caller_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "unavailable", lambda: ("there is none", "buy one"))
    with pytest.raises(gpucast.DeviceUnavailable, match="^quantize: no GPU can be used here: there is none"):
        quantize(X, "mxfp4", device="cuda")


def test_bad_dequantize() -> None:
    q = quantize(X, "mxfp4")
    with pytest.raises(TypeError, match="dequantize: q is ndarray; expected a Quantized"):
        dequantize(X)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dequantize: to=INT8 must be one of FLOAT, FLOAT16"):
        dequantize(q, "INT8")
    with pytest.raises(TypeError, match="dequantize: to='float7' is not a dtype"):
        q.dequantize("float7")


# ---- formats ----


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (("a", "FLOAT16", "FLOAT", "tensor", "amax"), TypeError, "element=FLOAT16 must be a float or integer type"),
        (("a", "BOOL", "FLOAT", "tensor", "amax"), TypeError, "element=BOOL must be"),
        (("a", "float7", "FLOAT", "tensor", "amax"), TypeError, "Format 'a': element='float7' is not a dtype"),
        (("a", "INT8", "FLOAT16", "tensor", "amax"), TypeError, "scale=FLOAT16 must be one of FLOAT, "),
        (("a", "INT8", "FLOAT", "tensor", "floor"), ValueError, "rule='floor' does not go with scales of FLOAT"),
        (("a", "FLOAT4E2M1", "FLOAT8E8M0", (32,), "amax"), ValueError, "expected 'floor' or 'up'"),
        (("a", "INT8", "FLOAT", "rows", "amax"), ValueError, "block='rows' must be 'tensor', 'axis' or"),
        (("a", "INT8", "FLOAT", (0,), "amax"), ValueError, r"block=\(0,\) must be"),
        (("a", "INT8", "FLOAT", (1, 2, 3), "amax"), ValueError, "one or two positive lengths"),
        (("a", "UINT8", "FLOAT", (32,), "amax"), ValueError, "UINT8 has no negative numbers"),
        (("a", "FLOAT8UE5M3", "FLOAT", (32,), "amax"), ValueError, "FLOAT8UE5M3 has no negative numbers"),
        (("a", "FLOAT4E2M1", "FLOAT", (32,), "amax", True), ValueError, "zero points need integers"),
        (("a", "INT8", "FLOAT", (32,), "amax", False, True), ValueError, "a global scale goes with scales of"),
    ],
)
def test_bad_formats(row: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Format(*row)


# ---- the object ----


def test_attributes() -> None:
    q = quantize(X, "nvfp4")
    assert (q.shape, q.ndim, q.size) == ((5, 64), 2, 320)
    assert q.nbytes == 160 + 20 + 4
    assert list(q.parts()) == ["data", "scales", "global_scale"]
    assert repr(q).startswith("Quantized(format='nvfp4', shape=(5, 64), dtype=FLOAT, axis=1, nbytes=184,\n  data=[[")
    assert ",\n  scales=[[" in repr(q) and repr(q).endswith(f",\n  global_scale={float(q.global_scale):.8f})")
    assert str(q) == f"{repr(q).partition(',')[0]}, shape={X.shape}, dtype=FLOAT, axis=1, nbytes={q.nbytes})"
    assert q.codes is q.data
    assert q.get() is q
    assert list(quantize(X, "int2_zp_32").parts()) == ["data", "scales", "zero_points"]
    for name, format in FORMATS.items():
        q = quantize(X.astype(ml_dtypes.bfloat16), name.upper())
        assert (q.shape, q.dtype.name, q.axis, q.device) == (X.shape, "BFLOAT16", 1, "cpu")
        assert isinstance(q.data, PackedArray) == format.element.packed
        assert same(dequantize(q, "FLOAT"), q.dequantize("FLOAT"))


def test_as_a_numpy_array_it_is_dequantized() -> None:
    for name in ("nvfp4", "int8_32", "mxfp8e4m3"):
        q = quantize(X, name)
        assert same(np.asarray(q), q.dequantize())
        assert same(np.asarray(q, dtype=np.float16), q.dequantize("FLOAT16"))
        assert same(np.array(q, dtype=ml_dtypes.bfloat16, copy=True), q.dequantize("BFLOAT16"))
        with pytest.raises(ValueError, match="dequantizing copies"):
            np.asarray(q, copy=False)
        with pytest.raises(TypeError, match="INT8 must be one of FLOAT"):
            np.asarray(q, dtype=np.int8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": "mxfp4"}, TypeError, "Quantized: data must be a PackedArray of FLOAT4E2M1, not ndarray"),
        ({"format": "mxfp8e5m2"}, TypeError, "Quantized: data has dtype FLOAT8E4M3FN; the format has FLOAT8E5M2"),
        ({"format": "float8e4m3fn_tensor"}, TypeError, "Quantized: scales has dtype FLOAT8E8M0; the format has FLOAT"),
        ({"data": None}, TypeError, "Quantized: data must be a NumPy or CuPy array of FLOAT8E4M3FN, not NoneType"),
        ({"data": X.astype(ml_dtypes.float8_e4m3fn)[:4]}, ValueError, r"scales has shape \(5, 2\); expected \(4, 2\)"),
        ({"scales": [1.0]}, TypeError, "Quantized: scales must be a NumPy or CuPy array of FLOAT8E8M0, not list"),
        (
            {"zero_points": np.zeros((5, 2), np.int8)},
            ValueError,
            "Quantized: zero_points is ndarray; expected None in this",
        ),
        (
            {"global_scale": np.ones((), np.float32)},
            ValueError,
            "Quantized: global_scale is ndarray; expected None in this",
        ),
        ({"dtype": "INT8"}, TypeError, "Quantized: dtype=INT8 must be one of FLOAT"),
        ({"axis": 0}, ValueError, r"scales has shape \(5, 2\); expected \(1, 64\)"),
        ({"scale_layout": "128x4"}, ValueError, r"scales has shape \(5, 2\); expected \(512,\)"),
        ({"scale_layout": "blocked"}, ValueError, "Quantized: scale_layout='blocked' must be one of"),
    ],
)
def test_parts_that_do_not_fit(change: dict[str, Any], error: type[Exception], message: str) -> None:
    q = quantize(X, "mxfp8e4m3")
    with pytest.raises(error, match=message):
        replace(q, **change)


def test_dlpack() -> None:
    q = quantize(X, "mxfp8e4m3")
    for part, row in (("data", "FLOAT8E4M3FN"), ("scales", "FLOAT8E8M0")):
        export = q.dlpack(part)
        assert export.__dlpack_device__() == (1, 0)
        found = taken(export, "test")
        assert dtype(found.dtype).name == row and same(found, getattr(q, part))
    pairs = quantize(X, "mxfp4").dlpack("data")
    assert isinstance(pairs.__dlpack__(), object) and pairs.__dlpack_device__() == (1, 0)
    with pytest.raises(ValueError, match="dlpack: part='zero_points' is none of data, scales"):
        q.dlpack("zero_points")
    with pytest.raises(BufferError, match="INT4"):
        quantize(X, "int4_32").dlpack("data")
    # DLPack has no byte orders: these bytes would be other numbers.
    q = quantize(X, "int8_tensor")
    swapped = replace(q, scales=q.scales.astype(q.scales.dtype.newbyteorder()))
    assert same(dequantize(swapped), dequantize(q))
    with pytest.raises(BufferError, match="dlpack: x.dtype='>f4' has a byte order that DLPack cannot tell"):
        swapped.dlpack("scales")


# ---- the order 128x4 ----


def test_offsets_of_the_tile() -> None:
    """The figures of cuBLAS' documentation: the first scales of rows 0, 32, 64, 96 lie in 16 bytes, then row 1."""

    def offset(row: int, col: int, columns: int) -> int:
        scales = np.zeros((129, columns), np.uint8)
        scales[row, col] = 1
        return int(swizzle.swizzle(scales).argmax())

    assert [offset(row, 0, 4) for row in (0, 32, 64, 96, 1, 127, 128)] == [0, 4, 8, 12, 16, 508, 512]
    assert [offset(0, col, 8) for col in (0, 1, 3, 4, 7)] == [0, 1, 3, 512, 515]
    assert offset(128, 0, 8) == 1024


def test_swizzled_results() -> None:
    for name in ("mxfp8e4m3", "nvfp4"):
        linear, swizzled = quantize(X, name), quantize(X, name, scale_layout="128x4")
        assert swizzled.scales.shape == (512,)
        assert same(swizzled.linear_scales(), linear.scales)
        assert same(swizzled.dequantize(), linear.dequantize())
        assert equal(linear.with_layout("128x4"), swizzled) and equal(swizzled.with_layout("linear"), linear)
        assert "scale_layout='128x4'" in repr(swizzled)
    with pytest.raises(ValueError, match=r"unswizzle: scales has shape \(511,\); .* have shape \(512,\)"):
        swizzle.unswizzle(swizzled.scales[1:], linear.scales.shape)
    with pytest.raises(ValueError, match="with_layout: scale_layout='128x4' needs blocks along the last axis"):
        quantize(X, "mxfp4", axis=0).with_layout("128x4")


# ---- files ----


def saved(q: Quantized, path: Any) -> Quantized:
    gpucast.save(path, {"q": q})
    back = gpucast.load(path)
    assert list(back) == ["q"]
    return back["q"]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("name", ["mxfp6e3m2", "nvfp4", "uint2_zp_64", "float8e5m2_tensor", "int4_axis"])
def test_saved_and_loaded(name: str, suffix: str, tmp_path: Path) -> None:
    for x in (X, X[:3, :33].astype(np.float16), np.zeros((2, 0, 64))):
        q = quantize(x, name)
        assert equal(saved(q, tmp_path / f"q{suffix}"), q)


def test_saved_and_loaded_otherwise(tmp_path: Path) -> None:
    mine = Format("mine", dtype("INT4"), dtype("FLOAT"), (3, 7), "amax")
    assert Format("mine", "int4", 1, (3, 7), "amax") == mine  # type: ignore[arg-type]
    for q in (quantize(X, mine, axis=0), quantize(X, "mxfp4", scale_layout="128x4"), quantize(np.float32(3), mine_too)):
        assert equal(saved(q, tmp_path / "q.SAFETENSORS"), q)


mine_too = Format("mine too", dtype("FLOAT8E5M2"), dtype("FLOAT"), "tensor", "amax")


def test_bad_files(tmp_path: Path) -> None:
    q = quantize(X, "mxfp8e4m3")
    for suffix in (".npy", ".pb"):
        with pytest.raises(FileError, match="no place for metadata, as of quantized arrays; write .safetensors"):
            gpucast.save(tmp_path / f"q{suffix}", {"q": q})
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "q.safetensors"
    gpucast.save(path, {"q": q})
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(FileError):
            gpucast.load(path)


GOOD = {
    "version": 1,
    "format": "mxfp8e4m3",
    "element": "FLOAT8E4M3FN",
    "scale": "FLOAT8E8M0",
    "block": [32],
    "rule": "floor",
    "zero_points": False,
    "global_scale": False,
    "axis": 1,
    "scale_layout": "linear",
    "dtype": "FLOAT",
}


def test_metadata_is_checked(tmp_path: Path) -> None:
    q = quantize(X, "mxfp8e4m3")
    path = tmp_path / "q.safetensors"

    def load(entry: Any, parts: dict[str, Any] | None = None) -> Quantized:
        """Saved once: to put each file on the disk takes long."""
        text = entry if isinstance(entry, str) else json.dumps(entry)
        if parts is not None or not path.exists():
            held = {"q" + ("" if part == "data" else f".{part}"): x for part, x in (parts or q.parts()).items()}
            gpucast.save(path, held, {"by": "a test"})
        whole = path.read_bytes()
        size = 8 + int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:size])
        header["__metadata__"]["gpucast.quantized.q"] = text
        written = json.dumps(header).encode()
        path.write_bytes(len(written).to_bytes(8, "little") + written + whole[size:])
        return gpucast.load(path)["q"]

    assert equal(load(GOOD), q)
    bad: list[Any] = ["", "[]", "{", "[" * 100_000, "null", {**GOOD, "version": 2}]
    bad += [{key: value for key, value in GOOD.items() if key != missing} for missing in GOOD]
    for key in GOOD:
        bad += [{**GOOD, key: value} for value in (None, 3, "x", [1], {"a": 1}, -1, 1e300, [[1]], True, [True])]
    for entry in bad:
        try:
            loaded = load(entry)
        except FileError:
            continue
        # What is not refused is a harmless other reading: a name, or a value that Python calls equal.
        assert equal(replace(loaded, format=replace(loaded.format, name="mxfp8e4m3")), q), entry
    with pytest.raises(FileError, match=r"tensor 'q': 'q\.scales' is missing"):
        load(GOOD, {"data": q.data})
    with pytest.raises(FileError, match="scales has shape"):
        load(GOOD, {"data": q.data, "scales": q.scales[:4]})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("to", "device='cuda'"),
        ("cpu", r"q\.get\(\)"),
        ("float", r"q\.dequantize\('FLOAT'\)"),
        ("nonsense", "'nonsense'$"),
    ],
)
def test_methods_of_other_libraries_say_what_to_call(name: str, advice: str) -> None:
    q = quantize(X, "mxfp4")
    assert not hasattr(q, name)
    with pytest.raises(AttributeError, match=advice):
        getattr(q, name)
