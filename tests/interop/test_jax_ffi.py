# SPDX-License-Identifier: Apache-2.0
"""The handlers for XLA's programs: that of the CPU by JAX, that of CUDA by calls as XLA makes them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from fake_cuda import Cuda, arrays
from gpucast.codegen.cast_kernel import kernel_name
from gpucast.compile import nvidia
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.host.extension import MODULE

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

from gpucast.interop import jax_ffi  # noqa: E402

pytestmark = pytest.mark.skipif(MODULE is None, reason="the handlers are in the extension module, which is missing")

RULE = resolve(dtype("FLOAT"), dtype("FLOAT16"))


# ---- on the CPU ----


def test_plain_casts_call_no_python() -> None:
    text = str(jax.make_jaxpr(lambda x: gpucast.cast(x, "FLOAT8E4M3FN"))(jnp.ones(3)))
    assert "ffi_call" in text and "pure_callback" not in text


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (70_001,), (3, 5, 7)], ids=str)
def test_shapes_and_transforms(shape: tuple[int, ...]) -> None:
    x = values(dtype("FLOAT"), (2, *shape))
    wanted = gpucast.reference.cast(x, "FLOAT8E4M3FN")
    cast = jax.jit(lambda x: gpucast.cast(x, "FLOAT8E4M3FN"))
    assert_same(np.asarray(cast(jnp.asarray(x))), wanted)
    assert_same(np.asarray(jax.vmap(cast)(jnp.asarray(x))), wanted)
    assert_same(np.asarray(jax.lax.map(cast, jnp.asarray(x))), wanted)
    assert_same(np.asarray(cast(jnp.swapaxes(jnp.asarray(x), 0, -1))), wanted.swapaxes(0, -1))


@pytest.mark.parametrize("src", ["FLOAT", "BFLOAT16", "INT32"])
def test_directed_rounding(src: str) -> None:
    x = values(dtype(src), (3, 5))
    cast = jax.jit(lambda x: gpucast.cast(x, "FLOAT8E4M3FN", rounding="upward"))
    assert_same(np.asarray(cast(jnp.asarray(x))), gpucast.reference.cast(x, "FLOAT8E4M3FN", rounding="upward"))


def test_a_program_with_a_cast_that_is_not_known() -> None:
    kind = jax.ShapeDtypeStruct((3,), ml_dtypes.bfloat16)
    assert jax_ffi.can_cast(RULE)
    call = jax.jit(lambda x: jax.ffi.ffi_call("gpucast_cast", kind)(x, cast="gpucast_float32_to_float7"))
    with pytest.raises(Exception, match="a cast that this version of gpucast does not know"):
        call(jnp.ones(3)).block_until_ready()
    call = jax.jit(lambda x: jax.ffi.ffi_call("gpucast_cast", kind)(x, cast="gpucast_float32_to_bfloat16"))
    with pytest.raises(Exception, match="the arrays have other sizes"):
        call(jnp.ones(4)).block_until_ready()


# ---- on CUDA: XLA's structs, as far as the handler reads them ----


def _struct(*fields: tuple[str, Any]) -> Any:
    head = ("bytes", ctypes.c_size_t), ("extensions", ctypes.c_void_p)
    return type("Struct", (ctypes.Structure,), {"_fields_": (*head, *fields)})


_Version = _struct(("major", ctypes.c_int), ("minor", ctypes.c_int))
_Buffer = _struct(
    ("dtype", ctypes.c_int), ("data", ctypes.c_void_p), ("rank", ctypes.c_int64), ("dims", ctypes.c_void_p)
)
_Each = _struct(("count", ctypes.c_int64), ("types", ctypes.c_void_p), ("each", ctypes.c_void_p))
_Attributes = _struct(
    ("count", ctypes.c_int64), ("types", ctypes.c_void_p), ("names", ctypes.c_void_p), ("values", ctypes.c_void_p)
)
_Error = _struct(("message", ctypes.c_char_p), ("code", ctypes.c_int))
_Stream = _struct(("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))
_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Error))
_FIND = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Stream))
_Api = _struct(
    ("version", _Version), ("internal", ctypes.c_void_p), ("create", _CREATE), ("unused", ctypes.c_void_p * 3),
    ("find", _FIND),
)  # fmt: skip
_Frame = _struct(
    ("api", ctypes.c_void_p), ("context", ctypes.c_void_p), ("stage", ctypes.c_int), ("arguments", _Each),
    ("results", _Each), ("attributes", _Attributes),
)  # fmt: skip


class _Text(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_char_p), ("size", ctypes.c_size_t))


def _called(handler: Any, name: str, x: Any, y: Any) -> str:
    """What the handler complains about when it casts an array into another; "" for nothing."""
    said: list[str] = []

    def create(error: Any) -> int:
        said.append(error.contents.message.decode())
        return 1

    def find(request: Any) -> None:
        assert request.contents.context == 5
        request.contents.stream = 77

    api = _Api(0, None, _Version(0, None, 0, 3), None, _CREATE(create), (ctypes.c_void_p * 3)(), _FIND(find))
    held = []

    def buffers(array: Any) -> Any:
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        buffer = _Buffer(0, None, 0, array.data.ptr, array.ndim, ctypes.addressof(dims))
        each = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
        held.extend((dims, buffer, each))
        return _Each(0, None, 1, None, ctypes.addressof(each))

    text, types = _Text(name.encode(), len(name)), (ctypes.c_int * 1)(4)
    given = (ctypes.c_void_p * 1)(ctypes.addressof(text))
    attributes = _Attributes(0, None, 1, ctypes.addressof(types), None, ctypes.addressof(given))
    frame = _Frame(0, None, ctypes.addressof(api), 5, 3, buffers(x), buffers(y), attributes)
    failed = handler(ctypes.byref(frame))
    assert bool(failed) == bool(said)
    return said[0] if said else ""


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    with Cuda().in_use() as fake:
        yield fake


def _handler() -> Any:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    _, capsule = MODULE.xla_handlers(jax_ffi._load, nvidia.function("cuCtxGetDevice"))
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(get(capsule, None))


def test_a_cast_on_the_stream_that_xla_names(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    handler, name = _handler(), kernel_name(RULE)
    monkeypatch.setitem(jax_ffi._RULES, name, RULE)
    x, y = arrays(300)
    for _ in range(2):
        assert _called(handler, name, x.reshape(3, 100), y.reshape(3, 100)) == ""
        one = cuda.launches.pop()
        assert (one.stream, one.src, one.src_bit, one.dst, one.n) == (77, x.data.ptr, 0, y.data.ptr, 300)
    assert _called(handler, name, x[:0], y[:0]) == "" and not cuda.launches
    assert _called(handler, name, x, y[1:]) == "gpucast: the arrays have other sizes"
    assert _called(handler, 200 * "x", x, y) == "gpucast: the name of the cast is too long"
    cuda.error = 700
    assert _called(handler, name, x, y) == "gpucast: the launch failed"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_program_that_was_traced_elsewhere_has_no_kernels(cuda: Cuda) -> None:
    x, y = arrays(300)
    assert "cannot be loaded" in _called(_handler(), "gpucast_float32_to_elsewhere", x, y)
    assert not cuda.launches
