# SPDX-License-Identifier: Apache-2.0
"""Many arrays in one call: the same bits as one by one, in one launch, by plans as well as without.

The device path runs on real CuPy arrays over host memory, with the host build of the very kernels.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import gpucast
from bench import idle_cuda
from codes import assert_same, values
from fused_cases import rule_of
from gpucast import PackedArray, dtype
from gpucast.casting import list_plans, plans
from gpucast.core.rule import resolve
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES, Kind, batch_kernel, sorted_kinds
from gpucast.kernel.fused_kernel import FusedOps
from host_driver import HostDriver, device_array, download, elements, upload


class Layer(NamedTuple):
    weight: Any
    bias: Any


def transformer(width: int = 8) -> list[tuple[int, ...]]:
    """The shapes of the 300 parameters of a transformer."""
    one = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,)]
    one += [(width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return one * 25


# ---- on the host ----


def batch_plans() -> list[list_plans.ListCalls]:
    """The calls on devices that are kept."""
    return [calls for known in list_plans._KNOWN.values() for calls in known.calls.values()]


def test_a_tree_in_gives_a_tree_of_the_same_casts() -> None:
    arrays = {
        "a": values("FLOAT", (3, 4)),
        "b": [values("INT64", 5), (None, Layer(values("FLOAT8E5M2", (2, 1, 2)), np.float64(2.5)))],
        "text": np.array(["1.5", "-inf"]),
        "packed": PackedArray.pack(values("INT4", 5)),
        3: [],
    }
    for to in ("FLOAT16", "FLOAT4E2M1", "STRING"):
        result = gpucast.cast_many(arrays, to)
        assert list(result) == list(arrays)
        assert result[3] == [] and result["b"][1][0] is None and type(result["b"][1][1]) is Layer
        pairs = [
            (result["a"], arrays["a"]),
            (result["b"][0], arrays["b"][0]),
            (result["b"][1][1].weight, arrays["b"][1][1].weight),
            (result["b"][1][1].bias, arrays["b"][1][1].bias),
            (result["text"], arrays["text"]),
        ]
        for y, x in pairs:
            assert_same(y, gpucast.cast(x, to), dtype(to))
        wanted = gpucast.cast(arrays["packed"], to)
        assert type(result["packed"]) is type(wanted)
        assert np.array_equal(np.asarray(result["packed"]), np.asarray(wanted))
    assert gpucast.cast_many([], "FLOAT") == []
    assert gpucast.cast_many(np.float32(1.5), "INT8") == 1


# ---- on a device ----


def blank(shape: tuple[int, ...], name: str, device: int = 0) -> Any:
    """An out without set values."""
    row = dtype(name)
    if row.packed:
        return PackedArray(device_array((row.nbytes(int(np.prod(shape))),), np.uint8, device), row, shape)
    return device_array(shape, row.code_numpy, device).view(row.numpy)


def test_300_tensors_are_one_launch(driver: HostDriver) -> None:
    kinds = ("FLOAT", "FLOAT16", "BFLOAT16")
    arrays = [values(kinds[i % 3], shape, i) for i, shape in enumerate(transformer())]
    there = [upload(x) for x in arrays]
    wanted = [gpucast.cast(x, "BFLOAT16") for x in arrays]
    # The second of each goes by a plan.
    for attempt in range(2):
        for y, codes in zip(gpucast.cast_many(there, "BFLOAT16"), wanted, strict=True):
            assert_same(elements(y), codes)
        out = [blank(x.shape, "BFLOAT16") for x in arrays]
        assert gpucast.cast_many(there, "BFLOAT16", out=out) is out
        for y, codes in zip(out, wanted, strict=True):
            assert_same(elements(y), codes)
        assert len(driver.launched) == 2 * (attempt + 1)
    assert len(batch_plans()) == 2
    assert driver.loaded == [(driver.launched[0][0], 0)]


def test_every_kind_of_leaf(driver: HostDriver) -> None:
    """No elements, one, odd addresses, looked-up types, one element per byte, packed, Fortran order, gaps."""
    given: dict[str, Any] = {
        "empty": upload(values("FLOAT", (0, 3))),
        "one": upload(values("DOUBLE", ())),
        "odd": upload(values("FLOAT", (1031,)), offset=3),
        "bytes": upload(values("FLOAT8E4M3FN", 2500), offset=1),
        "unpacked": upload(values("INT4", (7, 3))),
        "fortran": upload(values("INT16", (6, 5))).T,
        "long": upload(values("INT8", 3 * 8192 + 5), offset=7),
    }
    codes = PackedArray.pack(values("INT4", 4099))
    given["packed"] = PackedArray(upload(codes.data, offset=5), "INT4", (4099,))
    strided = upload(values("FLOAT", (9, 8)))[:, ::2]
    for to in ("FLOAT16", "INT4"):
        if to == "INT4":
            del given["bytes"], given["long"]
        wanted = {name: gpucast.cast(elements(x), to) for name, x in given.items()}
        out = {name: blank(x.shape, to) for name, x in given.items()}
        if to == "FLOAT16":
            out["fortran"] = blank(given["fortran"].T.shape, to).T
        for _ in range(2):
            driver.launched.clear()
            for result in (gpucast.cast_many(given, to), gpucast.cast_many(given, to, out=out)):
                for name, y in result.items():
                    assert_same(elements(y), wanted[name])
            # To INT4, a row-major stream, Fortran order is any order.
            assert len(driver.launched) == (2 if to == "FLOAT16" else 4)
    driver.launched.clear()
    out = [blank(strided.shape, "FLOAT16")]
    assert_same(
        elements(gpucast.cast_many([strided], "FLOAT16", out=out)[0]), gpucast.cast(elements(strided), "FLOAT16")
    )
    result = gpucast.cast_many([strided, given["odd"], strided], "FLOAT16")
    assert len(driver.launched) == 4
    for x, y in zip((strided, given["odd"], strided), result, strict=True):
        assert_same(elements(y), gpucast.cast(elements(x), "FLOAT16"))


def test_more_arrays_than_a_table_holds(driver: HostDriver) -> None:
    driver.argument_bytes = ARGUMENT_BYTES[0], ARGUMENT_BYTES[0]
    arrays = [values("FLOAT", 1 + i % 40, i) for i in range(300)]
    there, capacity = (
        [upload(x) for x in arrays],
        batch_kernel((Kind(resolve(dtype(1), dtype(10))),), 4096).capacity,
    )
    for _ in range(2):
        driver.launched.clear()
        for x, y in zip(arrays, gpucast.cast_many(there, "FLOAT16"), strict=True):
            assert_same(elements(y), gpucast.cast(x, "FLOAT16"))
        assert len(driver.launched) == -(-300 // capacity) == 3


def test_a_launch_has_no_block_without_work() -> None:
    """Those of aligned arrays are as many as their elements fill."""
    launches: list[tuple[int, Any]] = []
    batch = batch_kernel((Kind(resolve(dtype("FLOAT"), dtype("FLOAT16"))),), ARGUMENT_BYTES[0])
    run = HostDriver().load(batch.kernel)

    def launch_kernel(function: int, blocks: int, threads: int, stream: int, arguments: int) -> int:
        table = np.zeros((), batch.kernel.arguments.dtype)
        ctypes.memmove(table.ctypes.data, ctypes.c_void_p.from_address(arguments).value or 0, table.nbytes)
        launches.append((blocks, table))
        run(blocks, table)
        return 0

    full = int(batch.elements[0])
    sizes = (1, 768, full, full + 1, 4 * full)
    with idle_cuda.idle(launch_kernel):
        arrays = [idle_cuda.array((n,), np.float32) for n in sizes]
        out = [device_array((n,), np.float16) for n in sizes]
        for _ in range(2):
            gpucast.cast_many(arrays, "FLOAT16", out=out)
    assert [blocks for blocks, _ in launches] == [1 + 1 + 1 + 2 + 4] * 2
    for _, arguments in launches:
        table = arguments["table"]
        assert table["first_block"][:7].tolist() == [0, 1, 2, 3, 5, 2**32 - 1, 2**32 - 1]
        assert table["n"][:5].tolist() == list(sizes)
        assert table["dst"][:5].tolist() == [y.data.ptr for y in out]
    assert all((download(y) == 0).all() for y in out)


def test_what_is_fused_shares_the_launch(driver: HostDriver) -> None:
    """The bits are those of tests/parity; a number that is not finite is told by plans, too."""
    there = [upload(np.ones(n, kind)) for n, kind in ((700, np.float16), (15, np.float32), (9, np.int8))]
    number, nan = upload(np.float32([0.375])), upload(np.array([1, np.nan], ml_dtypes.float8_e4m3fn))
    for arrays, is_finite in ((there, True), ([*there, nan], False)):
        for scale in (0.375, number, number):
            driver.launched.clear()
            finite = upload(np.ones(1, bool))
            gpucast.cast_many(arrays, "FLOAT", scale=scale, finite=finite)
            assert len(driver.launched) == 1 and bool(download(finite)[0]) is is_finite
    # Random words are those of the row-major order, so that Fortran order takes its own launch.
    fortran = upload(values("FLOAT", (2, 6))).T
    for offset in (0, 3, 3, 2**64 - 50):
        random = {"rounding": "stochastic", "seed": 9, "offset": offset}
        driver.launched.clear()
        found = gpucast.cast_many([there[0][:30], there[1][:7], fortran], "BFLOAT16", **random)
        wanted = gpucast.cast_many(
            [np.ones(30, np.float16), np.ones(7, np.float32), download(fortran)], "BFLOAT16", **random
        )
        assert all(elements(y).tobytes() == x.tobytes() for y, x in zip(found, wanted, strict=True))
        assert len(driver.launched) == 2


AMAX_SHAPES = {"used": (700, (3, 5), 9, 40, (2, 3)), "one is empty": (700, 0, 9, 40, (2, 3))}


@pytest.mark.parametrize("shapes", AMAX_SHAPES.values(), ids=AMAX_SHAPES)
@pytest.mark.parametrize("scale", [None, 0.375, np.float32([2, 0.3, 5, 1, 7])], ids=["", "scaled", "each scaled"])
def test_amax_of_each_array_and_of_all(driver: HostDriver, shapes: tuple[Any, ...], scale: Any) -> None:
    """On the host and on a device, in one launch where every array has elements; a larger value from before stays."""
    names = ("FLOAT16", "FLOAT", "INT8", "FLOAT8E4M3FN", "DOUBLE")
    arrays = [values(name, shape, i) for i, (name, shape) in enumerate(zip(names, shapes, strict=True))]
    for i in (0, 1, 4):
        arrays[i] = np.where(np.isfinite(arrays[i]), arrays[i], 1).astype(arrays[i].dtype)
    arrays[3][7] = np.nan
    there = [upload(x) for x in arrays]
    before = np.float32([0, 1e-3, 1e38, 0, 0])
    each, one = before.copy(), np.zeros((), np.float32)
    each_scale = [scale] * 5 if scale is None or isinstance(scale, float) else scale.tolist()
    expected = []
    for i, x in enumerate(arrays):
        expected.append(gpucast.cast(x, "BFLOAT16", amax=each[i : i + 1], scale=each_scale[i]))
        gpucast.cast(x, "BFLOAT16", amax=one, scale=each_scale[i])
    assert each[2] == np.float32(1e38) and np.isnan(each[3]) and np.isnan(one)
    for count, wanted in ((5, each), (1, one)):
        on_host = before.copy() if count > 1 else np.zeros((), np.float32)
        for x, y in zip(gpucast.cast_many(arrays, "BFLOAT16", amax=on_host, scale=scale), expected, strict=True):
            assert_same(x, y)
        np.testing.assert_array_equal(on_host, wanted)
        for _ in range(2):
            amax = upload(before.copy() if count > 1 else np.zeros((), np.float32))
            driver.launched.clear()
            results = gpucast.cast_many(
                there, "BFLOAT16", amax=amax, scale=upload(scale) if isinstance(scale, np.ndarray) else scale
            )
            scattered = 0 in shapes and (count > 1 or isinstance(scale, np.ndarray))
            assert len(driver.launched) == (4 if scattered else 1)
            for x, y in zip(results, expected, strict=True):
                assert_same(elements(x), y)
            np.testing.assert_array_equal(download(amax), wanted)
    # A vector of scales or of amax leaves out an array without elements: that call has no plan.
    assert len(batch_plans()) == (2 if 0 not in shapes else 0 if isinstance(scale, np.ndarray) else 1)


def test_more_amax_than_a_launch_has_places(driver: HostDriver) -> None:
    """The second launch goes on in the vector."""
    arrays = [np.full(3, i + 1, np.float32) for i in range(1500)]
    there, amax = [upload(x) for x in arrays], upload(np.zeros(1500, np.float32))
    gpucast.cast_many(there, "FLOAT16", amax=amax)
    assert len(driver.launched) > 1
    assert download(amax).tolist() == [float(i + 1) for i in range(1500)]


def test_a_call_of_a_plan_is_no_other_call(driver: HostDriver) -> None:
    """Other types, shapes, attributes, classes and numbers of arrays after warm calls."""
    x = np.where(np.isfinite(x := values("FLOAT", (4, 6))), x, 1)
    there, flag = [upload(x), upload(x)], upload(np.ones(1, bool))
    for _ in range(2):
        for keywords in ({}, {"overflow": "saturate"}, {"scale": 3}, {"scale": np.pi}):
            more = {"finite": flag} if "scale" in keywords else {}
            for y in gpucast.cast_many(there, "FLOAT16", **keywords, **more):
                assert_same(elements(y), gpucast.cast(x, "FLOAT16", **keywords))
        for other in (there[::-1] * 2, [there[0], there[1].reshape(24)], [there[0], there[1].view(np.int32)]):
            for y, source in zip(gpucast.cast_many(other, "FLOAT16"), other, strict=True):
                assert_same(elements(y), gpucast.cast(elements(source), "FLOAT16"))
    made = len(batch_plans())
    for opset in (np.array(28), np.int64(28)):
        assert_same(elements(gpucast.cast_many(there, "FLOAT16", opset=opset)[0]), gpucast.cast(x, "FLOAT16"))
    assert len(batch_plans()) == made
    with pytest.raises(TypeError, match="saturate=1.0 must be True or False"):
        gpucast.cast_many(there, "FLOAT16", saturate=1.0)


def test_devices_and_the_host_in_one_call(driver: HostDriver) -> None:
    x = values("FLOAT", 50)
    arrays = {"h": x, "0": [upload(x), upload(x)], "1": [upload(x, 1), upload(x, 1)]}
    result = gpucast.cast_many(arrays, "FLOAT16")
    assert [stream for _, stream in driver.launched] == [driver.streams[0], driver.streams[1]]
    assert isinstance(result["h"], np.ndarray)
    assert [y.device.id for name in "01" for y in result[name]] == [0, 0, 1, 1]
    for y in (*result["0"], *result["1"]):
        assert_same(elements(y), result["h"])
    # The arrays of a plan on a device that is not the current one.
    plans.forget()
    list_plans._KNOWN.clear()
    for _ in range(3):
        (y, _) = gpucast.cast_many(arrays["1"], "FLOAT16")
        assert y.device.id == 1
        assert_same(elements(y), result["h"])
    # Those of two devices have none.
    for _ in range(2):
        assert [y.device.id for y in gpucast.cast_many([*arrays["0"], *arrays["1"]], "FLOAT16")] == [0, 0, 1, 1]
    assert len(batch_plans()) == 1


def test_a_warm_call_can_be_captured(driver: HostDriver) -> None:
    x = values("FLOAT", 50)
    arrays, out = [upload(x)] * 2, [blank((50,), "FLOAT16") for _ in range(2)]
    driver.capture = True
    with pytest.raises(RuntimeError, match="^gpucast: gpucast_many_.* is not loaded yet, and loading is"):
        gpucast.cast_many(arrays, "FLOAT16", out=out)
    driver.capture = False
    gpucast.cast_many(arrays, "FLOAT16")
    driver.capture = True
    for _ in range(2):
        gpucast.cast_many(arrays, "FLOAT16", out=out)
        with pytest.raises(RuntimeError, match="memory cannot be allocated then; pass out="):
            gpucast.cast_many(arrays, "FLOAT16")
    assert_same(elements(out[1]), gpucast.cast(x, "FLOAT16"))


# ---- what is wrong ----


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_what_is_wrong_is_told_and_nothing_written(driver: HostDriver, warm: bool) -> None:
    arrays = one, other = [upload(values("FLOAT", 8)), upload(values("FLOAT", (2, 3)))]
    out = y, z = [blank((8,), "FLOAT16"), blank((2, 3), "FLOAT16")]
    big = blank((32,), "FLOAT16")
    flag, number = upload(np.ones(1, bool)), upload(np.float32([2]))
    if warm:
        random = {"rounding": "stochastic", "seed": 1}
        for keywords in ({}, {"scale": 2, "finite": flag}, random):
            gpucast.cast_many(arrays, "FLOAT16", out=out, **keywords)
            gpucast.cast_many(arrays, "FLOAT16", **keywords)
    driver.launched.clear()
    texts = np.array(["1"])
    wrong_values: list[tuple[str, dict[str, Any]]] = [
        (r"out is a tuple of 2; expected a list of 2$", {"out": (y, z)}),
        (r"out\[1\] is None; expected an array$", {"out": [y, None]}),
        (r"arrays\[1\]: out has shape \(8,\); expected \(2, 3\)$", {"out": [y, blank((8,), "FLOAT16")]}),
        (r"arrays\[0\]: out is on cuda:1; the result belongs on cuda:0$", {"out": [blank((8,), "FLOAT16", 1), z]}),
        (r"out\[0\] shares memory with out\[1\]; expected separate", {"arrays": [one] * 2, "out": [y] * 2}),
        (r"out\[0\] shares memory with out\[1\]", {"out": [big[:8], big[4:10].reshape(2, 3)]}),
        (r"out\[1\] shares memory with arrays\[0\]", {"out": [y, one.view(np.float16)[2:8].reshape(2, 3)]}),
        (r"arrays\[0\]: out overlaps x", {"out": [one.view(np.float16)[:8], z]}),
        (r"scale=-1 must be finite, as a DOUBLE, and not negative$", {"scale": -1}),
        (r"scale=inf must be", {"scale": np.inf, "out": out}),
        (r"scale is on cuda:1; x is on cuda:0$", {"scale": upload(np.float32([2]), 1)}),
        (r"scale is on the host; x is on cuda:0$", {"scale": np.ones(2, np.float32)}),
        (r"scale is not contiguous", {"scale": upload(np.ones(4, np.float32))[::2]}),
        (r"out\[0\] shares memory with scale", {"scale": big[:2].view(np.float32), "out": [big[:8], z]}),
        (r"finite has shape \(8,\); expected one element$", {"finite": upload(np.ones(8, bool))}),
        (r"finite is on the host; x is on cuda:0$", {"finite": np.ones(1, bool)}),
        (r"finite is read-only", {"arrays": [np.ones(1)], "finite": np.frombuffer(b"\1", np.uint8)}),
        (r"finite shares memory with arrays\[0\]", {"finite": one.view(np.uint8)[5:6], "out": out}),
        (r"finite shares memory with arrays\[1\]", {"finite": other.view(np.uint8)[0, :1], "scale": 2}),
        (r"finite shares memory with scale", {"finite": number.view(np.uint8)[:1], "scale": number}),
        (r"amax has shape \(3,\); expected one element, or 2: one for each", {"amax": upload(np.zeros(3, np.float32))}),
        (r"amax is not contiguous", {"amax": upload(np.zeros(4, np.float32))[::2]}),
        (r"amax is on the host; x is on cuda:0$", {"amax": np.zeros(2, np.float32)}),
        (r"amax shares memory with arrays\[0\]", {"amax": one[2:4], "out": out}),
        (r"amax shares memory with scale", {"amax": number, "scale": number}),
        (r"arrays\[1\]: amax= does not apply to text", {"arrays": [np.ones(1), texts], "amax": np.zeros(1, "f4")}),
        (r"arrays\[1\]: scale= does not apply to text", {"arrays": [one, texts], "scale": 2}),
        (r"rounding='stochastic' needs seed=", {"rounding": "stochastic"}),
        (r"arrays\[0\]: rounding='stochastic' does not", {"to": "INT8", "rounding": "stochastic", "seed": 1}),
        (r"offset=-1 is out of range", {"rounding": "stochastic", "seed": 1, "offset": -1}),
        (r"seed=1 does not apply", {"seed": 1}),
        (r"arrays\[0\]: overflow='wrap' does not apply to FLOAT16", {"overflow": "wrap"}),
        # Without arrays too.
        (r"scale=-1 must be finite", {"arrays": [], "scale": -1}),
        (r"overflow='wrap' does not apply to FLOAT16", {"arrays": None, "overflow": "wrap"}),
    ]
    wrong_types: list[tuple[str, dict[str, Any]]] = [
        (r"to='float7' is not a dtype", {"to": "float7"}),
        (r"arrays\[1\]: out has dtype float32; expected float16$", {"out": [y, other]}),
        (r"finite has dtype float32; expected BOOL or UINT8$", {"finite": number}),
        (r"finite has dtype float32; expected BOOL or UINT8$", {"arrays": {}, "finite": number}),
        (r"amax has dtype float16; expected FLOAT$", {"amax": upload(np.zeros(2, np.float16))}),
        (r"arrays\[1\]: x\.dtype=.*complex", {"arrays": [one, np.ones(3, np.complex64)]}),
        (r"arrays\['a'\]\[0\]: x is of type object", {"arrays": {"a": [object()]}}),
        (r"arrays\[0\]: saturate=2.0 must be True or False$", {"saturate": 2.0}),
    ]
    for error, cases in ((ValueError, wrong_values), (TypeError, wrong_types)):
        for message, keywords in cases:
            before = [elements(one).tobytes() for one in (*arrays, *out, flag)]
            with pytest.raises(error, match=f"^cast_many: {message}"):
                gpucast.cast_many(**{"arrays": arrays, "to": "FLOAT16"} | keywords)
            assert [elements(one).tobytes() for one in (*arrays, *out, flag)] == before
    assert driver.launched == []


def test_no_arrays_and_all_keywords_of_a_device(driver: HostDriver) -> None:
    keywords = {"scale": upload(np.float32([2]), 1), "finite": upload(np.zeros(1, bool))}
    assert gpucast.cast_many({"a": []}, "FLOAT16", **keywords, rounding="stochastic", seed=1) == {"a": []}
    assert driver.launched == []


def test_without_a_gpu_arrays_on_a_device_are_refused() -> None:
    x = upload(values("FLOAT", 3))
    with pytest.raises(gpucast.DeviceUnavailable, match="^cast_many: no GPU can be used here"):
        gpucast.cast_many([x, x], "FLOAT16")


# ---- the text ----


def test_equal_sets_have_one_kernel() -> None:
    to = dtype("FLOAT16")
    kinds = [Kind(resolve(dtype(name), to)) for name in ("FLOAT", "INT8", "FLOAT", "FLOAT8E5M2")]
    one, other = (batch_kernel(sorted_kinds(order), ARGUMENT_BYTES[1]) for order in (kinds, kinds[::-1]))
    assert one is other
    assert one.kernel.name == "gpucast_many_float32_to_float16_float8e5m2_to_float16_int8_to_float16_1128"
    for limit in ARGUMENT_BYTES:
        for ops in (FusedOps(), FusedOps("narrow", finite=True)):
            rule = rule_of(dtype(1), to, ops, False)
            batch = batch_kernel((Kind(rule, ops=ops),), limit)
            size = batch.kernel.arguments.nbytes
            assert size <= limit < size * (batch.capacity + 16) / batch.capacity


def test_text_that_is_no_number_leaves_every_out_as_it_was() -> None:
    out = [np.full(1, 7, np.float32) for _ in range(3)]
    with pytest.raises(ValueError, match=r"^cast_many: arrays\[2\]: element 0 is 'nonsense'"):
        gpucast.cast_many([np.ones(1), np.array(["1"]), np.array(["nonsense"])], "FLOAT", out=out)
    assert all((y == 7).all() for y in out)


def test_memory_that_is_missing_leaves_everything_as_it_was() -> None:
    amax, finite = np.zeros(1, np.float32), np.ones(1, np.bool_)
    # A result of more bytes than a process can have.
    huge = np.broadcast_to(np.ones(1, np.float32), (1 << 46,))
    with pytest.raises(MemoryError):
        gpucast.cast_many([np.float32([np.inf]), huge], "FLOAT16", amax=amax, finite=finite)
    assert amax[0] == 0 and finite[0]


def test_lists_like_an_earlier_one_that_share_memory() -> None:
    """Disjoint lists, and then lists of which one thing has moved."""
    room = np.zeros(4 * 64, np.float16)
    arrays = [np.full(16, i, np.float32) for i in range(4)]
    outs = [room[64 * i : 64 * i + 16] for i in range(4)]
    for _ in range(3):
        gpucast.cast_many(arrays, "FLOAT16", out=outs)
    assert [float(y[0]) for y in outs] == [0, 1, 2, 3]
    amax = np.zeros((), np.float32)
    into = [*outs[:3], room[8:24]], [*outs[:3], arrays[0].view(np.float16)[:16]]
    for wrong, keywords in ((into[0], {}), (into[1], {}), (into[0], {"amax": amax})):
        with pytest.raises(ValueError, match="share"):
            gpucast.cast_many(arrays, "FLOAT16", out=wrong, **keywords)
        assert gpucast.cast_many(arrays, "FLOAT16", out=outs) is outs
    # What is written beside the results is looked at, too.
    inside = [*arrays[:3], np.frombuffer(memoryview(amax.reshape(1)), np.float32)]
    gpucast.cast_many([x[:1] for x in arrays], "FLOAT16", out=[y[:1] for y in outs], amax=amax)
    with pytest.raises(ValueError, match="share"):
        gpucast.cast_many([x[:1] for x in inside], "FLOAT16", out=[y[:1] for y in outs], amax=amax)


def test_a_list_that_no_plan_serves_is_given_memory_once() -> None:
    """Arrays that begin elsewhere modulo 64 bytes have other launches, which is known before results are made."""
    allocated = list[int]()

    def allocate(nbytes: int) -> Any:
        allocated.append(nbytes)
        return idle_cuda.fresh(nbytes)

    with idle_cuda.idle(allocate=allocate):
        arrays = [idle_cuda.array((40,), np.float32) for _ in range(3)]
        for first, count in ((0, 3), (0, 3), (3, 3), (3, 3)):
            allocated.clear()
            gpucast.cast_many([x[first : first + 32] for x in arrays], "FLOAT16")
            assert len(allocated) == count, first
