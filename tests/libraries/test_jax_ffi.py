# SPDX-License-Identifier: Apache-2.0
"""The handlers for XLA's programs: that of the CPU by JAX, that of CUDA by calls as XLA makes them."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from fake_cuda import Cuda, arrays
from gpucast.core.dtypes import dtype
from gpucast.core.extension import MODULE
from gpucast.core.fuse import Random
from gpucast.core.rule import resolve
from gpucast.kernel import nvidia
from gpucast.kernel.fused_kernel import FUSED

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

from gpucast.libraries import jax_ffi  # noqa: E402

pytestmark = pytest.mark.skipif(MODULE is None, reason="the handlers are in the extension module, which is missing")

CAST = jax_ffi.ProgramCast(resolve(dtype("FLOAT"), dtype("FLOAT16")))


# ---- on the CPU ----


@pytest.mark.parametrize(
    ("to", "keywords"),
    [
        ("FLOAT8E4M3FN", {}),
        ("INT4", {}),
        ("FLOAT", {"scale": 0.1}),
        ("FLOAT4E2M1", {"scale": np.float32(3)}),
        ("BFLOAT16", {"rounding": "stochastic", "seed": 7}),
        ("FLOAT16", {"rounding": "upward"}),
        ("INT4", {"rounding": "nearest_away"}),
    ],
)
def test_no_cast_calls_python(to: str, keywords: dict[str, Any]) -> None:
    text = str(jax.make_jaxpr(lambda x: gpucast.cast(x, to, **keywords))(jnp.ones(3)))
    assert "ffi_call" in text and "pure_callback" not in text


PACKED = (("FLOAT", "INT4"), ("FLOAT4E2M1", "FLOAT"), ("INT2", "FLOAT4E2M1"))


@pytest.mark.parametrize(
    ("src", "to", "shape"),
    [
        *(("FLOAT", "FLOAT8E4M3FN", shape) for shape in ((), (0,), (3, 0, 2), (1,), (70_001,), (3, 5, 7))),
        *((*pair, shape) for pair in PACKED for shape in ((), (0,), (7,), (3, 5))),
    ],
)
def test_shapes_and_transforms(src: str, to: str, shape: tuple[int, ...]) -> None:
    x = values(dtype(src), (2, *shape))
    wanted = gpucast.reference.cast(x, to)
    cast = jax.jit(lambda x: gpucast.cast(x, to))
    assert_same(np.asarray(cast(jnp.asarray(x))), wanted)
    assert_same(np.asarray(jax.vmap(cast)(jnp.asarray(x))), wanted)
    assert_same(np.asarray(jax.lax.map(cast, jnp.asarray(x))), wanted)
    assert_same(np.asarray(cast(jnp.swapaxes(jnp.asarray(x), 0, -1))), wanted.swapaxes(0, -1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_programs_from_elsewhere() -> None:
    kind = jax.ShapeDtypeStruct((3,), ml_dtypes.bfloat16)
    # A product that this process has not traced.
    text = jax_ffi.ProgramCast(resolve(dtype("FLOAT"), dtype("BFLOAT16")), 0.3725).text()
    call = jax.jit(lambda x: jax.ffi.ffi_call("gpucast_cast", kind)(x, cast=text))
    assert jax_ffi.can_cast(CAST)
    assert_same(np.asarray(call(jnp.ones(3))), gpucast.cast(np.ones(3, np.float32), "BFLOAT16", scale=0.3725))
    with pytest.raises(Exception, match="the arrays have other sizes"):
        call(jnp.ones(4)).block_until_ready()
    call = jax.jit(lambda x: jax.ffi.ffi_call("gpucast_cast", kind)(x, cast=text.replace("BFLOAT16", "FLOAT7")))
    with pytest.raises(Exception, match="a cast of the program cannot be loaded; the reason was reported"):
        call(jnp.ones(3)).block_until_ready()


_ON_TWO_DEVICES = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import gpucast

x = np.linspace(-9, 9, 64, dtype=np.float32).reshape(8, 8)
mesh = Mesh(np.array(jax.devices()), ("d",))

def shard(function, out=P("d")):
    return jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=out)

for to, keywords in ("FLOAT8E4M3FN", {}), ("INT4", {}), ("FLOAT4E2M1", {"scale": 3.0}):
    y = jax.jit(shard(lambda x: gpucast.cast(x, to, **keywords)))(x)
    assert len(y.sharding.device_set) == 2
    wanted = np.asarray(gpucast.cast(x, to, **keywords))
    np.testing.assert_array_equal(np.asarray(y).astype(float), wanted.astype(float))
at_random = {"rounding": "stochastic", "seed": 7}
y = jax.jit(shard(lambda x: gpucast.cast(x, "BFLOAT16", **at_random)))(x)
parts = [gpucast.cast(part, "BFLOAT16", **at_random) for part in (x[:4], x[4:])]
np.testing.assert_array_equal(np.asarray(y), np.concatenate(parts))
for to, slope in ("BFLOAT16", 1), ("INT8", 0):
    dx = jax.grad(lambda x: shard(lambda x: gpucast.cast(gpucast.cast(x, to), "FLOAT"))(x).sum())(x)
    np.testing.assert_array_equal(dx, np.full_like(x, slope))
try:
    shard(lambda x: gpucast.cast(x, "FLOAT16"), P())(x)
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has no jax.shard_map")
def test_each_device_casts_its_part() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", _ON_TWO_DEVICES], env=environment, check=True, capture_output=True, text=True
    )
    # What the devices have is not the same, and JAX knows.
    assert "requires replication" in run.stdout or "require replication" in run.stdout


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


def _called(handler: Any, text: str, y: Any, *given: Any) -> str:
    """What the handler complains about when it casts an array into `y`, perhaps times a scale; "" for nothing."""
    said: list[str] = []

    def create(error: Any) -> int:
        said.append(error.contents.message.decode())
        return 1

    def find(request: Any) -> None:
        assert request.contents.context == 5
        request.contents.stream = 77

    api = _Api(0, None, _Version(0, None, 0, 3), None, _CREATE(create), (ctypes.c_void_p * 3)(), _FIND(find))
    held = []

    def buffers(*arrays: Any) -> Any:
        each = (ctypes.c_void_p * len(arrays))()
        for number, array in enumerate(arrays):
            dims = (ctypes.c_int64 * array.ndim)(*array.shape)
            buffer = _Buffer(0, None, 0, array.data.ptr, array.ndim, ctypes.addressof(dims))
            each[number] = ctypes.addressof(buffer)
            held.extend((dims, buffer))
        held.append(each)
        return _Each(0, None, len(arrays), None, ctypes.addressof(each))

    asked, types = _Text(text.encode(), len(text)), (ctypes.c_int * 1)(4)
    attribute = (ctypes.c_void_p * 1)(ctypes.addressof(asked))
    attributes = _Attributes(0, None, 1, ctypes.addressof(types), None, ctypes.addressof(attribute))
    frame = _Frame(0, None, ctypes.addressof(api), 5, 3, buffers(*given), buffers(y), attributes)
    failed = handler(ctypes.byref(frame))
    assert bool(failed) == bool(said)
    return said[0] if said else ""


class _CudaWithLast(Cuda):
    """It keeps the last argument of a fused kernel, too."""

    last = b""

    def launch(self, function: int, blocks: int, threads: int, stream: int, address: int) -> int:
        place = (ctypes.c_void_p * 5).from_address(address)[4]
        self.last = ctypes.string_at(place, FUSED.nbytes) if place else b""
        return super().launch(function, blocks, threads, stream, address)


@pytest.fixture
def cuda() -> Iterator[_CudaWithLast]:
    # Casts of programs are served for the life of the process: each test has a device of its own.
    cuda = _CudaWithLast()
    cuda.device = next(_DEVICES)
    with cuda.in_use():
        yield cuda


_DEVICES = itertools.count(1)


def _handler() -> Any:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    _, capsule = MODULE.xla_handlers(jax_ffi._serve, nvidia.function("cuCtxGetDevice"))
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(get(capsule, None))


def test_a_cast_on_the_stream_that_xla_names(cuda: _CudaWithLast) -> None:
    handler, text = _handler(), CAST.text()
    x, y = arrays(300)
    for _ in range(2):
        assert _called(handler, text, y.reshape(3, 100), x.reshape(3, 100)) == ""
        one = cuda.launches.pop()
        assert (one.stream, one.src, one.src_bit, one.dst, one.n) == (77, x.data.ptr, 0, y.data.ptr, 300)
        assert cuda.last == b""
    assert _called(handler, text, y[:0], x[:0]) == "" and not cuda.launches
    assert _called(handler, text, y[1:], x) == "gpucast: the arrays have other sizes"
    assert _called(handler, 300 * "x", y, x) == "gpucast: the text of the cast is too long"
    cuda.error = 700
    assert _called(handler, text, y, x) == "gpucast: the launch failed"


def test_fused_and_packed_casts(cuda: _CudaWithLast) -> None:
    handler = _handler()
    x, y = arrays(300)
    rule = replace(resolve(dtype("DOUBLE"), dtype("FLOAT16")), src=dtype("FLOAT"))
    assert _called(handler, jax_ffi.ProgramCast(rule, "narrow").text(), y, x, x[:1]) == ""
    assert cuda.last == FUSED.fill(scale=1.0, scale_at=x.data.ptr)
    assert _called(handler, jax_ffi.ProgramCast(rule, "narrow").text(), y, x, x[:2]).endswith("other sizes")
    at_random = replace(rule, rounding="stochastic")
    assert _called(handler, jax_ffi.ProgramCast(at_random, 0.3, Random(7, 5)).text(), y, x) == ""
    assert cuda.last == FUSED.fill(scale=0.3, random=(7, 5))
    packed = jax_ffi.ProgramCast(resolve(dtype("FLOAT"), dtype("INT2"))).text()
    assert _called(handler, packed, y.view(np.uint8)[:75], x) == "" and cuda.launches[-1].n == 300
    assert _called(handler, packed, y.view(np.uint8)[:74], x) == "gpucast: the arrays have other sizes"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_text_that_says_nothing(cuda: _CudaWithLast) -> None:
    x, y = arrays(300)
    assert "cannot be loaded" in _called(_handler(), "gpucast_float32_to_float16", y, x)
    assert not cuda.launches


def test_what_a_device_packs_is_unpacked_by_xla() -> None:
    # The branch for CUDA, lowered for it: the handler gives bytes of packed codes.
    x = jax.ShapeDtypeStruct((3, 5), np.float32)
    cast = jax.jit(lambda x: gpucast.cast(x, "INT4"))
    allowed = [jax.export.DisabledSafetyCheck.custom_call("gpucast_cast")]
    lowered = jax.export.export(cast, platforms=["cuda"], disabled_checks=allowed)(x)
    assert "tensor<8xui8>" in lowered.mlir_module()


def test_a_number_stays_a_double() -> None:
    # JAX would make a FLOAT of it.
    x = values(dtype("FLOAT"), (64,))
    found = jax.jit(lambda x: gpucast.cast(x, "FLOAT", scale=0.1))(jnp.asarray(x))
    assert_same(np.asarray(found), gpucast.cast(x, "FLOAT", scale=0.1))
