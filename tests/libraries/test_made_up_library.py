# SPDX-License-Identifier: Apache-2.0
"""A library that nobody has: one class, one adapter and one registration, and every public call takes its arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.arrays import libraries
from gpucast.core import dtypes


class Wood:
    """The dtypes of the library, in a module below its own, with names that nobody else has."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __str__(self) -> str:
        return f"wood of {self.kind}"


Wood.__module__ = "abacus.woods"


class Beads:
    """The arrays of the library ``abacus``. NumPy knows nothing of them."""

    __array__ = None

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    @property
    def dtype(self) -> Any:
        return Wood(self.rows.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape)


class AbacusLibrary(libraries.Library):
    def take(self, x: Beads, caller: str, writing: bool = False) -> Any:
        return x.rows

    def from_array(self, x: Any) -> Any:
        return Beads(x)


@pytest.fixture(autouse=True)
def _abacus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("abacus")
    module.Array = Beads  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "abacus", module)
    monkeypatch.setattr(libraries, "_LIBRARIES", [*libraries._LIBRARIES])
    monkeypatch.setitem(dtypes.FOREIGN, ("abacus.woods", "Wood"), str)
    libraries.register(
        libraries.LibraryEntry(
            "abacus", "Array", AbacusLibrary, dtype="abacus.woods.Wood", dtype_name=lambda wood: wood.kind.name
        )
    )
    yield
    assert libraries.library_of(Beads(X)) == "abacus"


X = np.array([[1.25, -2.5, 300.0, 0.1] * 16], np.float32)
OTHER = np.array([[0.5, 2.0, 1.0, -8.0] * 16], np.float32)


def test_casts() -> None:
    wanted = gpucast.cast(X, "FLOAT8E4M3FN")
    y = gpucast.cast(Beads(X), "FLOAT8E4M3FN")
    assert type(y) is Beads and y.rows.dtype == wanted.dtype and y.rows.tobytes() == wanted.tobytes()
    like = gpucast.cast_like(Beads(X), y)
    assert type(like) is Beads and like.rows.tobytes() == wanted.tobytes()
    out = Beads(np.zeros_like(wanted))
    assert gpucast.cast(Beads(X), "FLOAT8E4M3FN", out=out) is out and out.rows.tobytes() == wanted.tobytes()
    halves = gpucast.cast(Beads(X), "INT8", scale=0.5, rounding="nearest_even", overflow="saturate")
    assert halves.rows.tolist() == [[1, -1, 127, 0] * 16]
    unchanged = Beads(X)
    assert gpucast.cast(unchanged, "FLOAT", copy=False) is unchanged
    report = gpucast.cast_report(Beads(X), "FLOAT8E4M3FN")
    assert str(report) == str(gpucast.cast_report(X, "FLOAT8E4M3FN"))


def test_dtypes() -> None:
    half = Wood(np.dtype(np.float16))
    assert gpucast.dtype(half).name == "FLOAT16"
    wanted = X.astype(np.float16).tobytes()
    assert gpucast.cast(Beads(X), half).rows.tobytes() == gpucast.cast(X, half).tobytes() == wanted
    with pytest.raises(TypeError, match="to='complex64' is complex"):
        gpucast.cast(X, Wood(np.dtype(np.complex64)))
    chosen = gpucast.mixed.select_tree(Beads(np.array(True)), {"a": Beads(X)}, {"a": Beads(OTHER)})
    assert chosen["a"].rows is X


def test_lists() -> None:
    many = gpucast.cast_many([Beads(X), OTHER, Beads(OTHER)], "INT8")
    assert [type(y) for y in many] == [Beads, np.ndarray, Beads]
    for y, x in zip(many, (X, OTHER, OTHER), strict=True):
        assert (y if isinstance(y, np.ndarray) else y.rows).tobytes() == gpucast.cast(x, "INT8").tobytes()


class SharingLibrary(AbacusLibrary):
    """With memory for results, so that its arrays share launches with ours."""

    batches = True

    def cast(self, cast: Any, x: Any, to: Any, options: Any) -> Any:
        raise AssertionError("cast alone")

    def empty_like(self, x: Beads, dst: Any, caller: str) -> tuple[Beads, Any]:
        array = np.empty_like(x.rows, dst.numpy)
        return Beads(array), array

    def attach(self, sources: list[Any], results: list[Any], scale: Any) -> list[Any]:
        assert [type(x) for x in (*sources, *results)] == [Beads] * 4
        return results


def test_lists_of_a_library_that_shares_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SharingLibrary()
    entry = libraries.LibraryEntry("abacus", "Array", lambda: library)
    monkeypatch.setattr(libraries, "_LIBRARIES", [entry])
    many = gpucast.cast_many([Beads(X), OTHER, Beads(OTHER)], "INT8")
    assert [type(y) for y in many] == [Beads, np.ndarray, Beads]
    for y, x in zip(many, (X, OTHER, OTHER), strict=True):
        assert (y if isinstance(y, np.ndarray) else y.rows).tobytes() == gpucast.cast(x, "INT8").tobytes()
    outs = [Beads(np.zeros_like(X, np.int8)), np.zeros_like(OTHER, np.int8)]
    assert gpucast.cast_many([Beads(X), OTHER], "INT8", out=outs) is outs
    assert outs[0].rows.tobytes() == gpucast.cast(X, "INT8").tobytes()


def test_quantizing() -> None:
    wanted, q = gpucast.quantize(X, "mxfp8e4m3"), gpucast.quantize(Beads(X), "mxfp8e4m3")
    assert q.library == "abacus" and type(q.data) is Beads and type(q.scales) is Beads
    assert q.data.rows.tobytes() == wanted.data.tobytes() and q.scales.rows.tobytes() == wanted.scales.tobytes()
    y = q.dequantize()
    assert type(y) is Beads and y.rows.tobytes() == wanted.dequantize().tobytes()
    out = Beads(np.empty_like(X))
    assert gpucast.dequantize(q, out=out) is out and out.rows.tobytes() == y.rows.tobytes()
    assert gpucast.quantize(Beads(X), "mxfp8e4m3", out=q) is q
    turned = gpucast.hadamard(Beads(X), 16)
    assert type(turned) is Beads and turned.rows.tobytes() == gpucast.hadamard(X, 16).tobytes()


def test_functions_and_layers() -> None:
    f = gpucast.ufunc("a * b + 1", out="BFLOAT16")
    y = f(Beads(X), OTHER)
    assert type(y) is Beads and y.rows.tobytes() == f(X, OTHER).tobytes()
    layer = gpucast.layers.Cast("FLOAT16", lda_coeff=0.5)
    forward = layer.forward(Beads(X))
    assert type(forward) is Beads and forward.rows.tobytes() == X.astype(np.float16).tobytes()
    backward = layer.backward(forward)
    assert type(backward) is Beads
    assert backward.rows.tolist() == (X.astype(np.float16).astype(np.float32) * 0.5).tolist()


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    gpucast.save(path, {"x": Beads(X), "q": gpucast.quantize(Beads(X), "mxfp8e4m3")})
    loaded = gpucast.load(path, library="abacus")
    assert type(loaded["x"]) is Beads and loaded["x"].rows.tobytes() == X.tobytes()
    assert type(loaded["q"].dequantize()) is Beads


def test_unknown_libraries_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    gpucast.save(path, {"x": X})
    for name in ("dask.array", "sliderule"):
        with pytest.raises(ValueError, match=rf"library='{name}' is not known; expected one of .*'torch'.*'abacus'"):
            gpucast.load(path, library=name)
