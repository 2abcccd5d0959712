# SPDX-License-Identifier: Apache-2.0
"""What holds for the arrays of every library: the bits of NumPy's arrays, results of the library, the same errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from foreign_arrays import (
    HELD_BY_JAX,
    NUMERIC,
    PAIRED,
    Interface,
    Namespaced,
    from_jax,
    from_torch,
    tensor,
    wide,  # noqa: F401
)
from gpucast import PackedArray
from gpucast.core.dtypes import DType, dtype
from gpucast.kernel import devices
from host_driver import elements

_HAS_GPU = devices.unavailable() is None


class Library(NamedTuple):
    #: An array of the library with the elements of one of NumPy's.
    new: Callable[[np.ndarray], Any]
    #: The elements of a result, whose class it checks.
    get: Callable[[Any, DType], np.ndarray]
    #: The types of its arrays, and those that are tried as destinations.
    held: list[DType]
    targets: list[DType] = NUMERIC
    views: bool = False
    writable: bool = False
    lazy: bool = False
    #: Its transforms of functions: the whole array at once, and row by row.
    transforms: Callable[[Any], tuple[Any, ...]] = lambda function: ()
    #: Whether the numbers of a quantized array come back as an array of the library.
    comes_back: bool = False
    #: A package or a fixture.
    needs: str = ""


def to_dask(x: np.ndarray) -> Any:
    return importlib.import_module("dask.array").from_array(x, tuple(max(1, n // 2) for n in x.shape))


def from_dask(y: Any, row: DType) -> np.ndarray:
    assert y.dtype == row.numpy
    return np.asarray(y.compute(scheduler="synchronous"))


def from_dlpack(y: Any, row: DType) -> np.ndarray:
    assert isinstance(y, PackedArray if row.packed else Namespaced)
    return y.get() if isinstance(y, PackedArray) else y.x


def from_interface(y: Any, row: DType) -> np.ndarray:
    assert type(y).__name__ == ("PackedArray" if row.packed else "ndarray") and not isinstance(y, np.ndarray)
    return elements(y)


def torch_types() -> list[DType]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return [*(row for row in NUMERIC if hasattr(torch, row.numpy_name)), PAIRED]


def new_jax(x: np.ndarray) -> Any:
    return importlib.import_module("jax.numpy").asarray(x)


def of_jax(function: Any) -> tuple[Any, ...]:
    jax = importlib.import_module("jax")
    return jax.jit(function), jax.vmap(function)


def of_torch(function: Any) -> tuple[Any, ...]:
    return function, importlib.import_module("torch").vmap(function)


#: What DLPack has a code for.
WHOLE = [row for row in NUMERIC if not row.packed and not row.numpy.names]
#: Tensors have no FLOAT8UE5M3.
OF_ONNX = [row for row in NUMERIC if row.number is not None]
SOME = [dtype(name) for name in ("FLOAT16", "FLOAT8E4M3FN", "INT4")]
LIBRARIES = {
    "dlpack": Library(Namespaced, from_dlpack, WHOLE, WHOLE, views=True, writable=True, needs="numpy"),
    # Its kernels are compiled one by one.
    "interface": Library(Interface, from_interface, [dtype("FLOAT")], SOME, views=True, writable=True, needs="driver"),
    "dask": Library(to_dask, from_dask, NUMERIC, SOME, views=True, lazy=True, needs="dask"),
    "jax": Library(new_jax, from_jax, HELD_BY_JAX, transforms=of_jax, comes_back=True, needs="jax"),
    "torch": Library(
        tensor, from_torch, [], OF_ONNX, writable=True, transforms=of_torch, comes_back=True, needs="torch"
    ),
    "torch on a GPU": Library(
        lambda x: tensor(x).cuda(), from_torch, [], OF_ONNX, writable=True, comes_back=True, needs="torch"
    ),
}
_SIBLINGS = "[torch] on the host and tests/libraries/test_torch_device.py on a stand-in"
MARKS = {
    "torch": pytest.mark.peers,
    "torch on a GPU": [
        pytest.mark.gpu,
        pytest.mark.skipif(
            not _HAS_GPU,
            reason="the test of [torch] runs it on the host, tests/libraries/test_torch_device.py on a stand-in",
        ),
    ],
}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in LIBRARIES])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    found = LIBRARIES[request.param]
    if found.needs == "driver":
        request.getfixturevalue("driver")
    else:
        pytest.importorskip(found.needs, reason=f"{found.needs} is not installed")
    if found.needs == "jax":
        request.getfixturevalue("wide")
    yield found if found.held else found._replace(held=torch_types())


def test_every_pair(library: Library) -> None:
    for src in library.held:
        x = values(src, (4, 6))
        given = library.new(x)
        for dst in library.targets:
            assert_same(library.get(gpucast.cast(given, dst), dst), gpucast.reference.cast(x, dst))
        if not library.lazy:
            text = gpucast.reference.cast(x, "STRING").tolist()
            assert gpucast.cast(given, "STRING").tolist() == text


def test_layouts(library: Library) -> None:
    x = values("FLOAT", (4, 6))
    for view in (x, x.T, x[1:, ::2], x[::-1], x[:0], x[2, 3:4].reshape(()), np.broadcast_to(x[0], (3, 6))):
        given = library.new(view if library.views else np.ascontiguousarray(view).reshape(view.shape))
        for dst in library.targets[:3]:
            assert_same(library.get(gpucast.cast(given, dst), dst), gpucast.reference.cast(view, dst))


#: Calls that give what they give for NumPy's arrays.
KEYWORDS: list[tuple[str, dict[str, Any]]] = [
    ("FLOAT8E4M3FN", {"saturate": False}),
    ("FLOAT8E8M0", {"round_mode": "nearest"}),
    ("FLOAT8E4M3FNUZ", {"opset": 19}),
    ("FLOAT8E4M3FNUZ", {"saturate": np.bool_(False), "opset": np.int64(20)}),
    ("INT8", {"rounding": "nearest_even", "overflow": "saturate"}),
    ("BFLOAT16", {"scale": 0.375}),
    ("FLOAT16", {"scale": np.float32(3), "overflow": "saturate"}),
    ("DOUBLE", {"scale": np.array([0.1])}),
    ("INT4", {"scale": 2.0, "overflow": "saturate"}),
    ("FLOAT8E5M2", {"rounding": "stochastic", "seed": 2**64 - 1, "offset": 5}),
    ("FLOAT4E2M1", {"scale": 0.1, "rounding": "stochastic", "seed": 0}),
    ("FLOAT8E4M3FN", {"rounding": "upward"}),
    ("FLOAT16", {"rounding": "nearest_away"}),
    ("INT4", {"rounding": "nearest_away", "overflow": "saturate"}),
    # JAX would make a FLOAT of the scale.
    ("FLOAT", {"scale": 0.1}),
]


@pytest.mark.parametrize(("to", "keywords"), KEYWORDS, ids=str)
def test_keywords(library: Library, to: str, keywords: dict[str, Any]) -> None:
    x, row = values("FLOAT", (4, 6)), dtype(to)
    given = library.new(x)
    if library.lazy and "seed" in keywords:
        # Chunk by chunk; tests/libraries/test_dask.py.
        given = given.rechunk((1, 6))
    if row.packed and library.targets is WHOLE:
        pytest.skip("it takes no such type back")
    wanted = gpucast.cast(x, to, **keywords)
    for _ in range(2):
        assert_same(library.get(gpucast.cast(given, to, **keywords), row), wanted)
    # Each row of a batch is cast as if it were alone.
    rows = np.stack([gpucast.cast(part, to, **keywords) for part in x])
    for function, expected in zip(
        library.transforms(lambda x: gpucast.cast(x, to, **keywords)), (wanted, rows), strict=False
    ):
        if not (to == "INT4" and library.needs == "torch"):
            assert_same(library.get(function(given), row), expected)


def test_amax(library: Library) -> None:
    x, wanted = np.float32([[1.5, -3.0], [2.0, 0.0]]), np.zeros(1, np.float32)
    if library.writable:
        amax = library.new(wanted)
        gpucast.cast(library.new(x), "FLOAT8E4M3FN", scale=0.5, amax=amax)
        assert (amax.x if isinstance(amax, Interface) else library.get(amax, dtype("FLOAT"))).tolist() == [3]
        return
    with pytest.raises((TypeError, ValueError), match="amax"):
        gpucast.cast(library.new(x), "FLOAT8E4M3FN", scale=0.5, amax=library.new(x)[:1])


def test_other_calls(library: Library) -> None:
    x = values("FLOAT", (4, 6))
    x[~np.isfinite(x)] = 1
    given = library.new(x)
    for to in ("FLOAT16", "BFLOAT16", "INT8"):
        row, wanted = dtype(to), gpucast.cast(x, to)
        assert_same(library.get(gpucast.cast_like(given, wanted), row), wanted)
        one, other = gpucast.cast_many({"a": given, "b": [x]}, to).values()
        assert_same(library.get(one, row), wanted)
        assert_same(other[0], wanted)
    if library.lazy:
        with pytest.raises(TypeError, match="is a Dask array, whose elements are not there yet"):
            gpucast.cast_report(given, "FLOAT16")
    else:
        assert gpucast.cast(given, "FLOAT", copy=False) is given
        assert gpucast.cast_report(given, "FLOAT8E4M3FN") == gpucast.cast_report(x, "FLOAT8E4M3FN")


@pytest.mark.parametrize("name", ["mxfp4", "int8_32", "nvfp4", "float8e4m3fn_tensor", "int4_zp_32"])
def test_quantizing(library: Library, name: str) -> None:
    x = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    if library.lazy:
        with pytest.raises(TypeError, match="is a Dask array, whose elements are not there yet; call it for chunks"):
            gpucast.quantize(library.new(x), name)
        return
    q, wanted = gpucast.quantize(library.new(x), name), gpucast.quantize(x, name)
    for to in ("FLOAT", "BFLOAT16"):
        for y in (q.dequantize(to), gpucast.dequantize(q, to)):
            assert_same(library.get(y, dtype(to)) if library.comes_back else elements(y), wanted.dequantize(to))
    if library.comes_back:
        for part, native in q.parts().items():
            assert isinstance(native, PackedArray) or type(native) is type(library.new(x)), part
    for part, native in vars(q.plain().get().native("test")).items():
        if native is not None:
            plain = getattr(wanted, part)
            assert (native.shape, native.dtype, native.nbytes) == (plain.shape, plain.dtype, plain.nbytes)
            assert bytes_of(native) == bytes_of(plain)
    if library.needs != "driver":
        assert type(np.asarray(q)) is np.ndarray and repr(q) == repr(wanted)


def bytes_of(part: Any) -> bytes:
    found: bytes = (part.data if isinstance(part, PackedArray) else part).tobytes()
    return found


def test_out(library: Library) -> None:
    x = values("FLOAT", (4, 6))
    given = library.new(x)
    if not library.writable:
        for source in (given, x):
            with pytest.raises((TypeError, ValueError), match=r"^cast: (out is a|x is a Dask|out would be written)"):
                gpucast.cast(source, "FLOAT16", out=library.new(np.zeros((4, 6), np.float16)))
        return
    for dst in library.held:
        out = library.new(np.zeros((4, 6), dst.numpy))
        assert gpucast.cast(given, dst, out=out) is out
        assert_same(out.x if isinstance(out, Interface) else library.get(out, dst), gpucast.reference.cast(x, dst))
    with pytest.raises(TypeError, match="^cast: out has dtype float32; expected int8"):
        gpucast.cast(given, "INT8", out=library.new(np.zeros((4, 6), np.float32)))
    with pytest.raises(ValueError, match=r"^cast: out has shape \(3, 6\); expected \(4, 6\)"):
        gpucast.cast(given, "FLOAT", out=library.new(np.zeros((3, 6), np.float32)))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"to": "float7"}, TypeError, "^cast: to='float7' is not a dtype"),
        ({"to": "complex64"}, TypeError, "is complex"),
        ({"opset": 99}, ValueError, "^cast: opset=99 is not supported"),
        ({"to": "FLOAT6E2M3", "opset": 25}, TypeError, "^cast: to=FLOAT6E2M3 entered at opset 28"),
        ({"overflow": "wrap"}, ValueError, "^cast: overflow='wrap' does not apply to FLOAT16"),
        ({"saturate": "no"}, TypeError, "^cast: saturate='no' must be True or False"),
        ({"to": "INT8", "rounding": "stochastic", "seed": 1}, ValueError, "^cast: rounding='stochastic' does not"),
        ({"rounding": "stochastic"}, ValueError, "^cast: rounding='stochastic' needs seed="),
        ({"seed": 1}, ValueError, "^cast: seed=1 does not apply to rounding=None"),
        ({"scale": -1.0}, ValueError, "^cast: scale=-1.0 must be finite, as a DOUBLE, and not negative"),
        ({"scale": np.ones(2)}, ValueError, r"^cast: scale has shape \(2,\); expected one element"),
        ({"device": "tpu"}, ValueError, "^cast: device='tpu' is not a device"),
        ({"copy": 1}, TypeError, "^cast: copy=1 must be True or False"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_errors(library: Library, keywords: dict[str, Any], error: type[Exception], message: str) -> None:
    x = library.new(np.ones((4, 6), np.float32))
    for _ in range(2):
        with pytest.raises(error, match=message):
            gpucast.cast(x, **{"to": "FLOAT16", **keywords})
        gpucast.cast(x, "FLOAT16")


def test_no_gpu(library: Library) -> None:
    if library.lazy or library.needs == "driver" or _HAS_GPU:
        pytest.skip("it is computed later, or there is one")
    with pytest.raises(gpucast.DeviceUnavailable, match="^cast: no GPU can be used here"):
        gpucast.cast(library.new(np.ones(3, np.float32)), "FLOAT16", device="cuda")
