# SPDX-License-Identifier: Apache-2.0
"""Every public call comes after the work that fills its arrays, and before the work that uses its results or takes
their memory, whichever streams the libraries use: with a driver whose work runs as late as it may."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from delayed_driver import DelayedDriver, Memory
from gpucast import PackedArray, mixed
from gpucast.arrays import packed
from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.arrays.unowned import view_at
from gpucast.casting import host_lists
from gpucast.core.dtypes import dtype
from gpucast.interop import dlpack
from gpucast.quantization import Quantized
from host_driver import installed

_FLOAT, _CUDA = dtype("FLOAT"), 2
#: The current streams of CuPy and torch, that of a library with `__cuda_array_interface__`, and of one with DLPack.
CUPY, TORCH, INTERFACE, LENDER = 0, 777, 555, 900
ORDERS = tuple(itertools.permutations((CUPY, TORCH, INTERFACE, LENDER)))
X = np.linspace(-3, 5, 256, dtype=np.float32).reshape(4, 64)


class Interface:
    """An array with `__cuda_array_interface__` alone."""

    def __init__(self, memory: Memory, x: np.ndarray) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "version": 3, "shape": x.shape, "typestr": x.dtype.str, "data": (memory.address, False), "strides": None,
            "stream": INTERFACE,
        }  # fmt: skip


class Lender:
    """An array of a library like JAX, which gives its memory to others as soon as it is gone."""

    def __init__(self, driver: DelayedDriver, memory: Memory, x: np.ndarray) -> None:
        self.driver, self.codes = driver, view_at(memory.address, x.shape, None, dtype(x.dtype), None, memory)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0

    def __dlpack__(self, *, stream: int, max_version: Any = None) -> Any:
        self.driver.wait({1: 0}.get(stream, stream), LENDER)
        capsule = self.codes.__dlpack__(max_version=(1, 0))
        managed: Any = dlpack._Versioned.from_address(dlpack._pointer(capsule, b"dltensor_versioned"))
        managed.tensor.device_type = _CUDA
        return capsule


class Streams:
    """The libraries of a test, and the work that they give to their streams."""

    def __init__(self, driver: DelayedDriver) -> None:
        self.driver = driver

    def new(self, library: str, x: np.ndarray) -> Any:
        """An array of a library, which its stream will have written."""
        stream = {"cupy": CUPY, "torch": TORCH, "interface": INTERFACE, "lender": LENDER}[library]
        memory = Memory(self.driver, x.nbytes, stream)
        address = memory.address
        held = np.ascontiguousarray(x)
        self.driver.kept.append(held)
        self.driver.give(lambda: ctypes.memmove(address, held.ctypes.data, held.nbytes), stream)
        if library == "cupy":
            return memory.array(x.shape, x.dtype)
        if library == "interface":
            return Interface(memory, x)
        if library == "lender":
            return Lender(self.driver, memory, x)
        import torch

        return torch.from_numpy(view_at(address, x.shape, None, dtype(x.dtype), None, memory))

    def read(self, y: Any, library: str | None = None) -> Callable[[], bytes]:
        """Work that reads a result on the stream of its library, and a function that tells what it has read."""
        stream = TORCH if getattr(y, "library", library) == "torch" else CUPY
        if isinstance(y, PackedArray):
            y = y.data
        if isinstance(y, np.ndarray):
            return y.tobytes
        if hasattr(y, "data_ptr"):
            stream, address, nbytes = TORCH, y.data_ptr(), y.nbytes
        elif isinstance(y, Interface):
            stream, address, nbytes = INTERFACE, y.memory.address, y.memory.bytes.nbytes
        else:
            address, nbytes = y.data.ptr, y.nbytes
        found: list[bytes] = []
        self.driver.give(lambda: found.append(ctypes.string_at(address, nbytes)), stream)
        self.driver.kept.append(y)
        return lambda: found[0]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayedDriver]:
    with installed(DelayedDriver()) as driver:
        # CuPy's own kernels and copies, which need CUDA.
        def late(function: Callable[..., Any], nbytes: Callable[..., int]) -> Callable[..., Any]:
            def run(codes: Any, *arguments: Any) -> Any:
                if isinstance(codes, np.ndarray):
                    return function(codes, *arguments)
                y = driver.empty((nbytes(codes, *arguments),), np.dtype(np.uint8))
                address, size, to = codes.data.ptr, codes.nbytes, y.data.ptr

                def work() -> None:
                    found = function(np.frombuffer(ctypes.string_at(address, size), np.uint8), *arguments)
                    ctypes.memmove(to, np.ascontiguousarray(found).ctypes.data, found.nbytes)

                driver.give(work)
                return y

            return run

        monkeypatch.setattr(packed, "pack_codes", late(pack_codes, lambda codes, bits: -(-codes.size * bits // 8)))
        monkeypatch.setattr(packed, "unpack_codes", late(unpack_codes, lambda codes, bits, size: size))
        monkeypatch.setattr(packed, "to_numpy", lambda x: x if isinstance(x, np.ndarray) else driver.to_host(x))
        yield driver


@pytest.fixture
def with_torch(driver: DelayedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is taken for one on device 0."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from gpucast.interop.torch import plain, tensors

    monkeypatch.setattr(tensors, "device_of", lambda x, caller: 0)
    monkeypatch.setattr(tensors, "stream", lambda device: TORCH)
    # The extension module sees that they are on the host.
    monkeypatch.setattr(plain, "MODULE", None)
    monkeypatch.delitem(host_lists.RUNS, torch.Tensor, raising=False)
    new, from_array = tensors.new, tensors.from_array

    def kept(*arguments: Any) -> Any:
        y = new(*arguments)
        driver.kept.append(y.untyped_storage())
        return y

    def there(x: Any) -> Any:
        if isinstance(x, (PackedArray, np.ndarray)):
            return from_array(x)
        # By DLPack it would be on the device.
        return torch.from_numpy(view_at(x.data.ptr, x.shape, None, dtype(x.dtype), None, x))

    monkeypatch.setattr(tensors, "new", kept)
    monkeypatch.setattr(tensors, "from_array", there)


#: A call with arrays of a library, and its results; they are the same for all libraries.
Call = Callable[[Streams, str], Any]
#: The library of `out` where that is another one.
OTHER = {"cupy": "torch", "torch": "cupy", "interface": "cupy", "lender": "cupy"}


def _own(library: str) -> str:
    """The library of the results."""
    return "torch" if library == "torch" else "cupy"


def _out(streams: Streams, library: str, to: str) -> Any:
    return streams.new(library, np.full(X.shape, 9, dtype(to).numpy))


def _fused(streams: Streams, library: str, owner: str) -> Any:
    amax = streams.new(owner, np.zeros((), np.float32))
    scale = streams.new(owner, np.array(0.5, np.float32))
    return gpucast.cast(streams.new(library, X), "FLOAT16", scale=scale, amax=amax), amax


def _many(streams: Streams, library: str, **keywords: Any) -> Any:
    # The second call is that of a plan.
    for _ in range(2):
        results = gpucast.cast_many([streams.new(library, X), streams.new(library, X[1:])], "FLOAT16", **keywords)
        # Torch takes the memory of tensors back at once.
        streams.driver.kept.append(results)
    return results


def _many_into(streams: Streams, library: str, owner: str) -> Any:
    for _ in range(2):
        out = [_out(streams, owner, "FLOAT16"), _out(streams, owner, "FLOAT16")]
        scale = streams.new("cupy", np.array(0.5, np.float32))
        gpucast.cast_many([streams.new(library, X) for _ in out], "FLOAT16", out=out, scale=scale)
    return out


def _unscaled(streams: Streams, library: str) -> Any:
    scale = mixed.DynamicLossScale(4.0)
    grads, finite = scale.unscale([streams.new(library, X), streams.new(library, X)])
    scale.adjust(finite)
    return *grads, finite, scale.loss_scale


def _quantized(streams: Streams, library: str, format: str, **keywords: Any) -> Any:
    return gpucast.quantize(streams.new(library, X), format, **keywords)


def _there_and_back(streams: Streams, library: str, format: str, **keywords: Any) -> Any:
    q = _quantized(streams, library, format, **keywords)
    return q.dequantize(), q.get()


def _saved(streams: Streams, library: str, folder: Path) -> Any:
    gpucast.files.save(str(folder / "x.npy"), {"x": streams.new(library, X)})
    return gpucast.files.load(str(folder / "x.npy"))["x"]


def _selected(streams: Streams, library: str) -> Any:
    flag = streams.new(library, np.array(True))
    return mixed.select_tree(flag, streams.new("cupy", X), streams.new("cupy", -X))


def _through_packed(streams: Streams, library: str) -> Any:
    p = gpucast.cast(streams.new(library, X), "INT4")
    return p, p[1:], p.codes(), gpucast.cast(p, "FLOAT"), p.get(), gpucast.cast(p, "FLOAT", device="cpu")


CALLS: dict[str, Call] = {
    "cast": lambda streams, library: gpucast.cast(streams.new(library, X), "FLOAT16"),
    "transposed": lambda streams, library: gpucast.cast(streams.new(library, X), "FLOAT8E4M3FN", saturate=False),
    "out": lambda streams, library: gpucast.cast(
        streams.new(library, X), "FLOAT16", out=_out(streams, _own(library), "FLOAT16")
    ),
    "fused": lambda streams, library: _fused(streams, library, _own(library)),
    "fused by cupy": lambda streams, library: _fused(streams, library, "cupy"),
    "to text": lambda streams, library: gpucast.cast(streams.new(library, X), "STRING"),
    "many": _many,
    "many scaled": lambda streams, library: _many(streams, library, scale=streams.new("cupy", np.float32([2]))),
    "many into": lambda streams, library: _many_into(streams, library, _own(library)),
    "report": lambda streams, library: gpucast.cast_report(streams.new(library, X), "FLOAT8E4M3FN"),
    "unscaled": _unscaled,
    "packed": _through_packed,
    "pack": lambda streams, library: PackedArray.pack(streams.new(library, (X > 0).astype(np.uint8)), "INT4"),
    "selected": _selected,
    "mxfp8": lambda streams, library: _quantized(streams, library, "mxfp8e4m3"),
    "both ways": lambda streams, library: _quantized(streams, library, "mxfp4", transpose="both"),
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


def found(driver: DelayedDriver, call: Callable[[Streams], Any], order: tuple[int, ...]) -> list[Any]:
    driver.order = order
    read = outcome(call(Streams(driver)), Streams(driver))
    driver.drain()
    return [one() for one in read]


def check(driver: DelayedDriver, call: Callable[[Streams, str], Any], library: str, of: str = "cupy") -> None:
    """The results are those of CuPy's arrays, whose work is on one stream."""
    wanted = found(driver, lambda streams: call(streams, of), ORDERS[0])
    for order in ORDERS:
        assert found(driver, lambda streams: call(streams, library), order) == wanted, order


@pytest.mark.parametrize("name", [name for name in CALLS if name not in NAMED])
@pytest.mark.parametrize("library", ["interface", "lender"])
def test_calls(driver: DelayedDriver, library: str, name: str) -> None:
    check(driver, CALLS[name], library)


@pytest.mark.peers
@pytest.mark.parametrize("name", CALLS)
def test_calls_with_tensors(driver: DelayedDriver, with_torch: None, name: str) -> None:
    check(driver, CALLS[name], "torch")


@pytest.mark.peers
def test_an_out_of_another_library(driver: DelayedDriver, with_torch: None) -> None:
    def into_tensor(streams: Streams, owner: str) -> Any:
        return gpucast.cast(streams.new("cupy", X), "FLOAT16", out=_out(streams, owner, "FLOAT16"))

    def into_packed(streams: Streams, library: str) -> Any:
        out = PackedArray(streams.new("cupy", np.zeros(128, np.uint8)), "INT4", X.shape)
        return gpucast.cast(streams.new(library, X), "INT4", out=out)

    def many(streams: Streams, owner: str) -> Any:
        return _many_into(streams, "cupy", owner)

    for call in (into_tensor, into_packed, many):
        check(driver, call, "torch")


@pytest.mark.parametrize("library", ["cupy", "interface", "lender", pytest.param("torch", marks=pytest.mark.peers)])
def test_files(driver: DelayedDriver, request: pytest.FixtureRequest, tmp_path: Path, library: str) -> None:
    if library == "torch":
        request.getfixturevalue("with_torch")
    check(driver, lambda streams, library: _saved(streams, library, tmp_path), library)
    assert gpucast.files.load(str(tmp_path / "x.npy"))["x"].tobytes() == X.tobytes()


def test_what_the_driver_finds(driver: DelayedDriver) -> None:
    """It is late, and early: without waits other bytes are read."""
    streams = Streams(driver)
    x, y = streams.new("interface", X), Memory(driver, X.nbytes, CUPY)
    read = y.address
    driver.give(lambda: ctypes.memmove(read, x.memory.address, X.nbytes), CUPY)
    driver.order = (CUPY, INTERFACE)
    driver.drain()
    assert y.bytes.tobytes() != X.tobytes()
