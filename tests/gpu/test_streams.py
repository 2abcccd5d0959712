# SPDX-License-Identifier: Apache-2.0
"""Every public call comes after the work that fills its arrays, and before the work that uses its results or takes
their memory, whichever streams the libraries use: with a driver whose work runs as late as it may."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from delayed_driver import DelayedDriver
from delayed_streams import CUPY, INTERFACE, LENDER, TORCH, Streams
from gpucast import PackedArray, mixed
from gpucast.core.dtypes import dtype
from gpucast.kernel import driver
from gpucast.quantization import Quantized

ORDERS = tuple(itertools.permutations((CUPY, TORCH, INTERFACE, LENDER)))
X = np.linspace(-3, 5, 256, dtype=np.float32).reshape(4, 64)


#: A call with arrays of a library, and its results; they are the same for all libraries.
Call = Callable[[Streams, str], Any]


def _own(library: str) -> str:
    """The library of the results."""
    return "torch" if library == "torch" else "cupy"


def _out(streams: Streams, library: str, to: str) -> Any:
    return streams.new(library, np.full(X.shape, 9, dtype(to).numpy))


def _fused(streams: Streams, library: str) -> Any:
    owner = _own(library)
    amax = streams.new(owner, np.zeros((), np.float32))
    scale = streams.new(owner, np.array(0.5, np.float32))
    return gpucast.cast(streams.new(library, X), "FLOAT16", scale=scale, amax=amax), amax


def _many(streams: Streams, library: str) -> Any:
    # The second call is that of a plan.
    for _ in range(2):
        results = gpucast.cast_many([streams.new(library, X), streams.new(library, X[1:])], "FLOAT16")
        # Torch takes the memory of tensors back at once.
        streams.driver.kept.append(results)
    return results


def _many_into(streams: Streams, library: str, owner: str) -> Any:
    for _ in range(2):
        out = [_out(streams, owner, "FLOAT16"), _out(streams, owner, "FLOAT16")]
        scale = streams.new("cupy", np.array(0.5, np.float32))
        amax = streams.new("cupy", np.zeros(2, np.float32))
        gpucast.cast_many([streams.new(library, X) for _ in out], "FLOAT16", out=out, scale=scale, amax=amax)
    return *out, amax


def _unscaled(streams: Streams, library: str) -> Any:
    scale = mixed.DynamicLossScale(4.0)
    grads, finite = scale.unscale([streams.new(library, X), streams.new(library, X)])
    scale.adjust(finite)
    return *grads, finite, scale.loss_scale


def _delayed(streams: Streams, library: str) -> Any:
    scaling = mixed.DelayedScaling("FLOAT8E4M3FN")
    codes = scaling.cast(streams.new(library, X))
    scaling.update()
    return codes, scaling.scale, scaling.inverse


def _quantized(streams: Streams, library: str, format: str, **keywords: Any) -> Any:
    return gpucast.quantize(streams.new(library, X), format, **keywords)


def _there_and_back(streams: Streams, library: str, format: str, **keywords: Any) -> Any:
    q = _quantized(streams, library, format, **keywords)
    return q.dequantize(), q.get()


def _saved(streams: Streams, library: str, folder: Path) -> Any:
    x = streams.new(library, X)
    held = {"x": x, "packed": gpucast.cast(x, "INT4"), "q": gpucast.quantize(x, "nvfp4")}
    gpucast.save(folder / "x.safetensors", held)
    back = gpucast.load(folder / "x.safetensors")
    return back["x"], back["packed"].get(), str(back["q"]), *(part for part in back["q"].parts().values())


def _selected(streams: Streams, library: str) -> Any:
    flag = streams.new(library, np.array(True))
    return mixed.select_tree(flag, streams.new("cupy", X), streams.new("cupy", -X))


def _through_packed(streams: Streams, library: str) -> Any:
    p = gpucast.cast(streams.new(library, X), "INT4")
    return p, p[1:], p.codes(), gpucast.cast(p, "FLOAT"), p.get(), gpucast.cast(p, "FLOAT", device="cpu")


CALLS: dict[str, Call] = {
    "cast": lambda streams, library: gpucast.cast(streams.new(library, X), "FLOAT16"),
    "out": lambda streams, library: gpucast.cast(
        streams.new(library, X), "FLOAT16", out=_out(streams, _own(library), "FLOAT16")
    ),
    "fused": _fused,
    "to text": lambda streams, library: gpucast.cast(streams.new(library, X), "STRING"),
    "many": _many,
    "many into": lambda streams, library: _many_into(streams, library, _own(library)),
    "report": lambda streams, library: gpucast.cast_report(streams.new(library, X), "FLOAT8E4M3FN"),
    "unscaled": _unscaled,
    "delayed": _delayed,
    "packed": _through_packed,
    "pack": lambda streams, library: PackedArray.pack(streams.new(library, (X > 0).astype(np.uint8)), "INT4"),
    "selected": _selected,
    "mxfp8": lambda streams, library: _quantized(streams, library, "mxfp8e4m3"),
    "nvfp4 swizzled": lambda streams, library: _quantized(streams, library, "nvfp4", scale_layout="128x4"),
    "nvfp4 scaled": lambda streams, library: _quantized(
        streams, library, "nvfp4", scale=streams.new("cupy", np.float32([0.25]))
    ),
    "one scale": lambda streams, library: _quantized(streams, library, "float8e4m3fn_tensor"),
    "there and back": lambda streams, library: _there_and_back(streams, library, "int8_64"),
    "swizzled and back": lambda streams, library: _there_and_back(streams, library, "mxfp8e5m2", scale_layout="128x4"),
}
#: Those that take arrays of NumPy, CuPy, PyTorch and JAX alone.
NAMED = ("unscaled", "selected")


def outcome(results: Any, streams: Streams) -> list[Callable[[], Any]]:
    if isinstance(results, (tuple, list)):
        return [one for result in results for one in outcome(result, streams)]
    if isinstance(results, Quantized):
        return [streams.read(part, results.library) for part in results.parts().values()]
    if isinstance(results, np.ndarray) or not hasattr(results, "shape"):
        return [lambda: results.tobytes() if hasattr(results, "dtype") and results.dtype != object else str(results)]
    return [streams.read(results)]


def found(late: DelayedDriver, call: Callable[[Streams], Any], order: tuple[int, ...]) -> list[Any]:
    late.order = order
    read = outcome(call(Streams(late)), Streams(late))
    late.drain()
    return [one() for one in read]


def check(late: DelayedDriver, call: Callable[[Streams, str], Any], library: str, of: str = "cupy") -> None:
    """The results are those of CuPy's arrays, whose work is on one stream."""
    wanted = found(late, lambda streams: call(streams, of), ORDERS[0])
    for order in ORDERS:
        assert found(late, lambda streams: call(streams, library), order) == wanted, order


@pytest.mark.parametrize("name", [name for name in CALLS if name not in NAMED])
@pytest.mark.parametrize("library", ["interface", "lender"])
def test_calls(late: DelayedDriver, library: str, name: str) -> None:
    check(late, CALLS[name], library)


@pytest.mark.peers
@pytest.mark.parametrize("name", CALLS)
def test_calls_with_tensors(late: DelayedDriver, with_torch: None, name: str) -> None:
    check(late, CALLS[name], "torch")


@pytest.mark.peers
def test_an_out_of_another_library(late: DelayedDriver, with_torch: None) -> None:
    def into_tensor(streams: Streams, owner: str) -> Any:
        return gpucast.cast(streams.new("cupy", X), "FLOAT16", out=_out(streams, owner, "FLOAT16"))

    def into_packed(streams: Streams, library: str) -> Any:
        out = PackedArray(streams.new("cupy", np.zeros(128, np.uint8)), "INT4", X.shape)
        return gpucast.cast(streams.new(library, X), "INT4", out=out)

    def many(streams: Streams, owner: str) -> Any:
        return _many_into(streams, "cupy", owner)

    for call in (into_tensor, into_packed, many):
        check(late, call, "torch")


@pytest.mark.parametrize("library", ["cupy", "interface", "lender", pytest.param("torch", marks=pytest.mark.peers)])
def test_files(late: DelayedDriver, request: pytest.FixtureRequest, tmp_path: Path, library: str) -> None:
    if library == "torch":
        request.getfixturevalue("with_torch")
    check(late, lambda streams, library: _saved(streams, library, tmp_path), library)
    assert gpucast.load(tmp_path / "x.safetensors")["x"].tobytes() == X.tobytes()


def test_without_a_gpu_calls_say_why(late: DelayedDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sleeps(*_: Any) -> Any:
        raise AssertionError("asked a GPU that is not there")

    x = Streams(late).new("lender", X)
    monkeypatch.setattr(late, "unavailable", lambda: ("the GPU sleeps", "wake it"))
    monkeypatch.setattr(driver, "_available", False)
    for name in ("on", "using", "stream", "synchronize"):
        monkeypatch.setattr(late, name, sleeps)
    for call in (
        lambda: gpucast.cast(x, "FLOAT16"),
        lambda: gpucast.cast(X, "FLOAT16", out=x),
        lambda: gpucast.cast_many([x], "FLOAT16"),
        lambda: gpucast.quantize(x, "mxfp4"),
        lambda: gpucast.cast_report(x, "FLOAT16"),
        lambda: PackedArray.pack(x),
        lambda: gpucast.files.save(str(tmp_path / "x.npy"), {"x": x}),
    ):
        with pytest.raises(gpucast.DeviceUnavailable, match="the GPU sleeps; wake it"):
            call()
    # The memory is given back to a driver that works.
    monkeypatch.undo()
