# SPDX-License-Identifier: Apache-2.0
"""JAX arrays through `gpucast.cast`, on JAX's CPU backend; what a GPU adds is DLPack (see test_dlpack)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from foreign_arrays import HELD_BY_JAX as HELD
from foreign_arrays import wide  # noqa: F401
from gpucast import PackedArray
from gpucast.core.dtypes import DType, dtype
from host_driver import HostDriver, download, installed

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

from gpucast.arrays.packed import as_array  # noqa: E402
from gpucast.interop import dlpack  # noqa: E402
from gpucast.interop import jax as gpucast_jax  # noqa: E402

pytestmark = pytest.mark.usefixtures("wide")


@pytest.mark.parametrize("row", [row for row in HELD if not row.packed], ids=str)
def test_nothing_is_copied_where_nothing_has_to_be(row: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.asarray(values(row, (64,)))
    assert as_array(x, "test").ctypes.data == x.unsafe_buffer_pointer()
    rooms = []
    allocate = gpucast_jax._aligned
    monkeypatch.setattr(gpucast_jax, "_aligned", lambda *arguments: rooms.append(allocate(*arguments)) or rooms[-1])
    y = gpucast.cast(x, row)
    assert y.unsafe_buffer_pointer() == rooms[0].ctypes.data
    assert row.family == "bool" or gpucast.cast(x, row, copy=False) is x


def test_jax_types_name_types() -> None:
    for row in HELD:
        name = "bool_" if row.family == "bool" else row.numpy_name
        kind = getattr(jnp, name)
        assert gpucast.dtype(kind) is row and gpucast.dtype(jnp.dtype(kind)) is row
        assert gpucast.cast_like(jnp.ones(3), jnp.zeros(0, kind)).dtype == row.numpy
    with pytest.raises(TypeError, match="is complex"):
        gpucast.dtype(jnp.complex64)


def test_lent_memory_outlives_the_array() -> None:
    taken = as_array(jnp.arange(1000, dtype=jnp.float32) * 2, "test")
    gc.collect()
    for _ in range(20):
        jnp.zeros(1000, jnp.float32).block_until_ready()
    assert taken[-1] == 1998


def test_sixty_four_bits_need_jaxs_consent() -> None:
    x = jnp.ones(3, jnp.float32)
    jax.config.update("jax_enable_x64", False)
    for to in ("DOUBLE", "INT64", "UINT64"):
        with pytest.raises(TypeError, match=rf"cast: to={to} needs jax\.config\.update\('jax_enable_x64', True\)"):
            gpucast.cast(x, to)
    assert gpucast.cast(x, "INT32").dtype == jnp.int32
    out = np.zeros(3)
    assert gpucast.cast(x, "DOUBLE", out=out) is out and out.tolist() == [1, 1, 1]


def test_what_needs_values_is_refused_within_jit() -> None:
    x = jnp.asarray([0.5, 1e9, -3], jnp.float32)
    for call in (lambda x: gpucast.cast_report(x, "FLOAT16"), lambda x: gpucast.quantize(x, "mxfp4")):
        with pytest.raises(TypeError, match=r"x is being traced by JAX and has no values; .*jax\.pure_callback"):
            jax.jit(call)(x)

    def through_callback(x: Any) -> Any:
        kind = jax.ShapeDtypeStruct(x.shape, jnp.float8_e4m3fn)
        return jax.pure_callback(lambda x: gpucast.cast(np.asarray(x), "FLOAT8E4M3FN"), kind, x)

    wanted = gpucast.reference.cast(np.asarray(x), "FLOAT8E4M3FN")
    assert_same(np.asarray(jax.jit(through_callback)(x)), wanted)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda x: x.astype(complex), TypeError, r"x\.dtype='complex128' is complex"),
        (lambda x: jax.random.key(0), TypeError, r"x\.dtype=key<fry> is not a type that Cast takes"),
    ],
)
def test_arrays_that_cast_does_not_take(make: Any, error: type[Exception], match: str) -> None:
    for call in (gpucast.cast, gpucast.cast_report):
        with pytest.raises(error, match=match):
            call(make(jnp.ones(3)), "FLOAT16")


def test_spread_arrays_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spread:
        dtype = np.dtype(np.float32)

        def devices(self) -> set[str]:
            return {"one", "two"}

    with pytest.raises(ValueError, match="x is spread over 2 devices; expected an array on one"):
        gpucast_jax.take(Spread(), "cast")


def test_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX memory on the host in the place of a GPU's; the way back is stood in for, as it needs JAX's GPU backend."""
    driver = HostDriver()
    with installed(driver):
        monkeypatch.setattr(gpucast_jax, "_is_on_cpu", lambda x: False)
        monkeypatch.setattr(dlpack, "_ON_HOST", ())
        monkeypatch.setattr(dlpack, "_ON_DEVICE", (1,))
        given: list[Any] = []
        monkeypatch.setattr(jax.dlpack, "from_dlpack", lambda exported: given.append(exported) or "an array of JAX")
        # JAX's CPU backend takes no stream.
        lend = dlpack._import
        monkeypatch.setattr(
            dlpack, "_import", lambda x, device, caller, writing, _: lend(x, device, caller, writing, {})
        )
        x = values(dtype("FLOAT"), (4, 6))
        assert gpucast.cast(jnp.asarray(x), "FLOAT8E5M2") == "an array of JAX"
        assert_same(download(given[0]._codes.view(dtype("FLOAT8E5M2").numpy)), gpucast.reference.cast(x, "FLOAT8E5M2"))
        assert driver.waits == [(None, 0)]
        packed = gpucast.cast(jnp.asarray(x), "INT4")
        assert isinstance(packed, PackedArray) and packed.device.id == 0
        with pytest.raises(TypeError, match="JAX does not lend the memory of int4 on a GPU; cast x.astype"):
            gpucast.cast(jnp.zeros(3, jnp.int4), "FLOAT")
