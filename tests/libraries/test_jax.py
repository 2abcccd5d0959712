# SPDX-License-Identifier: Apache-2.0
"""JAX arrays through `gpucast.cast`, on JAX's CPU backend; what a GPU adds is DLPack (see test_dlpack)."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from bench.entered import functions
from codes import assert_same, values
from foreign_arrays import HELD_BY_JAX as HELD
from foreign_arrays import wide  # noqa: F401
from gpucast import PackedArray, mixed
from gpucast.casting import plans
from gpucast.core.dtypes import DType, dtype
from host_driver import HostDriver, download, installed

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

from gpucast.arrays.packed import as_array  # noqa: E402
from gpucast.libraries import dlpack  # noqa: E402
from gpucast.libraries import jax as gpucast_jax  # noqa: E402

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


# ---- within transforms of JAX: the bits of a call outside, and the gradient ----

#: Of each kind of floats one: to compile takes long.
FLOATS = [dtype(name) for name in ("FLOAT", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E8M0", "FLOAT4E2M1")]


@pytest.mark.parametrize("src", HELD, ids=str)
def test_within_jit_bits_are_those_of_a_call_outside(src: DType) -> None:
    x = values(src, (4, 6))
    # Half of the pairs: to compile takes long.
    chosen = HELD[HELD.index(src) % 2 :: 2]
    ys = jax.jit(lambda x: [gpucast.cast(x, dst) for dst in chosen])(jnp.asarray(x))
    for y, dst in zip(ys, chosen, strict=True):
        assert isinstance(y, jax.Array)
        assert_same(np.asarray(y), gpucast.reference.cast(x, dst))


def test_the_scale_may_be_traced() -> None:
    x, scale = values(dtype("FLOAT"), (5,)), np.float32(0.375)
    wanted = gpucast.cast(x, "FLOAT16", scale=scale)
    assert_same(np.asarray(jax.jit(lambda x, s: gpucast.cast(x, "FLOAT16", scale=s))(x, scale)), wanted)
    assert_same(np.asarray(jax.jit(lambda s: gpucast.cast(jnp.asarray(x), "FLOAT16", scale=s))(scale)), wanted)
    scales = np.array([0.375, 2.0], np.float32)
    both = jax.vmap(lambda s: gpucast.cast(jnp.asarray(x), "FLOAT16", scale=s))(jnp.asarray(scales))
    assert_same(np.asarray(both), np.stack([wanted, gpucast.cast(x, "FLOAT16", scale=scales[1])]))


@pytest.mark.parametrize("inside", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("src", FLOATS, ids=str)
def test_the_gradient_is_the_cast_back(src: DType, inside: Callable[..., Any]) -> None:
    x, scale = values(src, (3, 4)), 0.625
    # To compile takes long.
    for dst in FLOATS if inside is not jax.jit or src is FLOATS[0] else FLOATS[:1]:
        dy = values(dst, (3, 4), seed=2)
        for keywords in ({}, {"scale": scale}):

            def pulled(x: Any, dy: Any, keywords: Any = keywords, dst: DType = dst) -> Any:
                y, pull = jax.vjp(lambda x: gpucast.cast(x, dst, **keywords), x)
                return y, pull(dy)[0]

            y, dx = inside(pulled)(jnp.asarray(x), jnp.asarray(dy))
            assert_same(np.asarray(y), gpucast.cast(x, dst, **keywords))
            assert_same(np.asarray(dx), gpucast.cast(dy, src, **keywords))


def test_integers_and_scales_have_no_gradient() -> None:
    x = jnp.asarray([1.5, -2.5], jnp.float32)
    through = jax.grad(lambda x: gpucast.cast(gpucast.cast(x, "INT8"), "FLOAT").sum())
    assert through(x).tolist() == jax.jit(through)(x).tolist() == [0, 0]
    of_scale = jax.grad(lambda s: gpucast.cast(x, "FLOAT16", scale=s).astype(jnp.float32).sum())
    assert float(of_scale(jnp.float32(2))) == float(jax.jit(of_scale)(jnp.float32(2))) == 0
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: gpucast.cast(x, "FLOAT16"), (x,), (x,))


def test_trees_and_policies() -> None:
    tree = {"w": jnp.asarray([0.1, 1e9], jnp.float32), "n": jnp.arange(3)}
    policy = mixed.get_policy("p=f32,c=bf16,o=f32")
    inside = jax.jit(policy.cast_to_compute)(tree)
    assert inside["w"].dtype == jnp.bfloat16 and inside["n"].dtype == tree["n"].dtype
    assert_same(np.asarray(inside["w"]), np.asarray(policy.cast_to_compute(tree)["w"]))
    many = jax.jit(lambda tree: gpucast.cast_many(tree, "FLOAT8E5M2", rounding="stochastic", seed=1))(tree)
    for name, wanted in gpucast.cast_many(tree, "FLOAT8E5M2", rounding="stochastic", seed=1).items():
        assert_same(np.asarray(many[name]), np.asarray(wanted))
    like = jax.jit(gpucast.cast_like)(tree["w"], jnp.zeros(0, jnp.float16))
    assert like.dtype == jnp.float16


@pytest.mark.parametrize(
    ("to", "keywords", "error", "message"),
    [
        ("FLOAT6E2M3", {}, TypeError, "cast: to=FLOAT6E2M3 is no type of JAX"),
        ("STRING", {}, TypeError, "cast: to=STRING is no type of JAX"),
        ("FLOAT16", {"device": "cpu"}, ValueError, "cast: device= cannot be used within a transform of JAX"),
        ("FLOAT16", {"amax": np.zeros(1, np.float32)}, ValueError, "cast: amax= cannot be used within a transform"),
        ("FLOAT16", {"out": np.zeros(3, np.float16)}, ValueError, "cast: out= cannot be used within a transform"),
        ("INT8", {"rounding": "neerest"}, ValueError, "cast: rounding='neerest'"),
        ("FLOAT16", {"scale": -1.0}, ValueError, "cast: scale=-1.0 must be finite"),
        ("FLOAT16", {"rounding": "stochastic"}, ValueError, "seed"),
    ],
)
def test_what_is_wrong_is_said_when_the_function_is_traced(
    to: str, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda x: gpucast.cast(x, to, **keywords), jnp.ones(3, jnp.float32))


def test_sixty_four_bits_need_jaxs_consent_within_jit_too() -> None:
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(TypeError, match=r"cast: to=INT64 needs jax\.config\.update"):
        jax.jit(lambda x: gpucast.cast(x, "INT64"))(jnp.ones(3, jnp.float32))


def test_flags_of_gradients_need_values() -> None:
    with pytest.raises(ValueError, match="finite= does not work within a transform of torch.func or JAX"):
        jax.jit(lambda x: gpucast.cast_many([x], "FLOAT16", finite=np.ones(1, bool)))(jnp.ones(3, jnp.float32))
    with pytest.raises(TypeError, match="unscale: x is being traced by JAX and has no values"):
        jax.jit(lambda g: mixed.StaticLossScale(2.0).unscale(g)[0])(jnp.ones(3, jnp.float32))


@pytest.mark.parametrize("name", ["mxfp8e4m3", "nvfp4", "int4_zp_32", "uint2_zp_64", "mxfp6e2m3"])
def test_parts_of_a_quantized_array_are_of_jax(name: str) -> None:
    x = np.random.default_rng(4).standard_normal((6, 128)).astype(np.float32)
    q, wanted = gpucast.quantize(jnp.asarray(x), name), gpucast.quantize(x, name)
    assert q.library == "jax" and q.format == wanted.format and repr(q) == repr(wanted)
    for part, found in q.parts().items():
        plain = getattr(wanted, part)
        if plain.dtype in (dtype("FLOAT6E2M3"),):
            assert isinstance(found, PackedArray) and found.data.tobytes() == plain.data.tobytes()
        else:
            assert isinstance(found, jax.Array)
            plain = plain.get() if isinstance(plain, PackedArray) else plain
            assert found.dtype == plain.dtype and np.asarray(found).tobytes() == plain.tobytes()
    for again in (q, q.get(), pickle.loads(pickle.dumps(q)), gpucast.Quantized(**q.parts(), format=name)):
        y = again.dequantize()
        assert isinstance(y, jax.Array) and np.array_equal(np.asarray(y), wanted.dequantize())
    with pytest.raises(ValueError, match="^quantize: out is a JAX array, which cannot be written"):
        gpucast.quantize(x, name, out=q)
    assert gpucast.quantize(jnp.asarray(x), name, out=wanted) is wanted


def test_repeated_calls_run_plans_of_numpy() -> None:
    x = jax.numpy.asarray(np.linspace(-3, 3, 256, dtype=np.float32).reshape(4, 64))
    q = gpucast.quantize(x, "mxfp8e4m3")
    amax, wide_x = np.zeros((), np.float32), x.astype(np.int64)
    ends, scales = jax.numpy.asarray(np.array([1, 4])), jax.numpy.asarray(np.array([0.5, 0.25], np.float32))
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "cast": (lambda: gpucast.cast(x, "FLOAT8E4M3FN"), 10),
        "scale": (lambda: gpucast.cast(x, "FLOAT16", scale=0.5, amax=amax), 10),
        "stochastic": (lambda: gpucast.cast(x, "FLOAT16", rounding="stochastic", seed=3), 10),
        "quantize": (lambda: gpucast.quantize(x, "mxfp8e4m3"), 40),
        "packed": (lambda: gpucast.quantize(x, "nvfp4", amax=2.0), 90),
        "dequantize": (lambda: gpucast.dequantize(q, "FLOAT16"), 45),
        "hadamard": (lambda: gpucast.hadamard(x, 32), 40),
        "to packed elements": (lambda: gpucast.cast(x, "FLOAT4E2M1"), 10),
        "to 64 bits": (lambda: gpucast.cast(x, "INT64"), 12),
        "from 64 bits": (lambda: gpucast.cast(wide_x, "DOUBLE", scale=3.0), 12),
        "grouped": (lambda: gpucast.quantize_grouped(x, ends, "mxfp8e4m3", pad=4), 90),
        "grouped, scales": (lambda: gpucast.quantize_grouped(x, ends, "nvfp4", pad=4, scale=scales), 90),
        "cast_grouped": (lambda: gpucast.cast_grouped(x, ends, "FLOAT8E4M3FN", scale=scales), 90),
    }
    for name, (call, most) in calls.items():
        plans.forget()
        first = call()
        checked = len(functions(lambda call=call: (plans.forget(), call())))
        call()
        repeated = functions(call)
        assert len(repeated) <= most and checked > 1.5 * most, (name, len(repeated), checked)
        again = call()
        for one, other in zip(_parts(first), _parts(again), strict=True):
            assert type(one) is type(other) and np.asarray(one).tobytes() == np.asarray(other).tobytes(), name
            assert not isinstance(one, jax.Array) or one.devices() == other.devices()


@pytest.mark.parametrize("to", ["FLOAT4E2M1", "INT4", "UINT2", "FLOAT6E3M2", "DOUBLE", "UINT64"])
def test_repeated_casts_are_those_of_other_numbers(to: str) -> None:
    for value in (0.5, -2.25, 7.0, 1e30):
        x = np.full((3, 5), value, np.float32)
        expected, y = gpucast.cast(x, to), gpucast.cast(jax.numpy.asarray(x), to)
        if to == "FLOAT6E3M2":
            # JAX has no such type.
            assert isinstance(y, PackedArray)
            expected = PackedArray.pack(expected)
        assert [np.asarray(part).tobytes() for part in _parts(y)] == [np.asarray(p).tobytes() for p in _parts(expected)]


def test_repeated_groups_are_those_of_other_arrays() -> None:
    rng = np.random.default_rng(3)
    for layout in ("linear", "linear", "128x4", "128x4"):
        for ends in (np.array([3, 8]), np.array([0, 8]), np.array([5, 2])):
            x = rng.standard_normal((8, 64)).astype(np.float32)
            expected = gpucast.quantize_grouped(x, ends, "mxfp8e4m3", scale_layout=layout)
            y = gpucast.quantize_grouped(jnp.asarray(x), jnp.asarray(ends), "mxfp8e4m3", scale_layout=layout)
            assert [np.asarray(part).tobytes() for part in y] == [np.asarray(part).tobytes() for part in expected]
            for one in (ends, jnp.asarray(ends.astype(np.int32))):
                other = gpucast.quantize_grouped(jnp.asarray(x), one, "mxfp8e4m3", scale_layout=layout)
                assert np.asarray(other.data).tobytes() == np.asarray(expected.data).tobytes()


def _parts(found: Any) -> list[Any]:
    if isinstance(found, PackedArray):
        return [found.data]
    if isinstance(found, tuple):
        return [part for one in found if one is not None for part in _parts(one)]
    if not isinstance(found, gpucast.Quantized):
        return [found]
    assert found.library == "jax"
    return [part.data if isinstance(part, PackedArray) else part for part in found.parts().values()]


def test_plans_refuse_what_the_checked_path_does() -> None:
    x = jax.numpy.ones((4, 64), np.float32)
    for _ in range(3):
        gpucast.cast(x, "FLOAT16", scale=2.0)
        gpucast.cast(x, "FLOAT16")
        gpucast.quantize(x, "nvfp4", scale=0.5)
    with pytest.raises(ValueError, match="out is a JAX array"):
        gpucast.cast(x, "FLOAT16", out=gpucast.cast(x, "FLOAT16"))
    with pytest.raises(ValueError, match="scale"):
        gpucast.cast(x, "FLOAT16", scale=-1.0)
    with pytest.raises(ValueError, match="scale"):
        gpucast.quantize(x, "nvfp4", scale=float("nan"))
    for _ in range(2):
        assert gpucast.cast(x, "DOUBLE").dtype == np.float64
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(TypeError, match="jax_enable_x64"):
            gpucast.cast(x, "DOUBLE")
    finally:
        jax.config.update("jax_enable_x64", True)
    x.delete()
    for call in (gpucast.cast, lambda y, to: gpucast.quantize(y, "nvfp4", scale=0.5)):
        with pytest.raises((TypeError, RuntimeError), match="deleted"):
            call(x, "FLOAT16")
