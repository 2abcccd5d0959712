# SPDX-License-Identifier: Apache-2.0
"""Many arrays in one call: the same bits as one by one, in one launch, by plans as well as without.

The device path runs on real CuPy arrays over host memory, with the host build of the very kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import gpucast
from bench import cubin, idle_cuda
from bench.static import budget as static_budget
from bench.static import kernels as static_kernels
from codes import assert_same, random_codes
from gpucast import PackedArray, dtype
from gpucast.casting import batch_plans as device_plans
from gpucast.casting.fused_options import fused_rule
from gpucast.codegen.batch_kernel import ARGUMENT_BYTES, BatchSpec, sorted_kinds
from gpucast.codegen.fused_kernel import FusedOps
from gpucast.codegen.spec import CastSpec
from gpucast.core.rule import Options, resolve
from host_driver import HostDriver, device_array, download, installed, upload
from nvrtc_wheels import INSTALLED
from nvrtc_wheels import load as nvrtc

PROBLEM = gpucast.gpu.devices.unavailable()


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    with installed(HostDriver()) as ours:
        yield ours


class Layer(NamedTuple):
    weight: Any
    bias: Any


def values(name: str, shape: Any, seed: int = 0) -> np.ndarray:
    row = dtype(name)
    return random_codes(row, shape, seed).view(row.numpy)


def got(y: Any) -> np.ndarray:
    """A result of the device, unpacked."""
    if not isinstance(y, PackedArray):
        return download(y)
    return PackedArray(download(y.data), y.dtype, y.shape).get()


def transformer(width: int = 8) -> list[tuple[int, ...]]:
    """The shapes of the 300 parameters of a transformer."""
    one = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,)]
    one += [(width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return one * 25


# ---- on the host ----


def batch_plans() -> list[tuple[device_plans.BatchPlan, ...]]:
    """Those that are kept."""
    return list(device_plans._PLANS.values())


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


def test_attributes_and_out_on_the_host() -> None:
    arrays = [values("FLOAT", 100), values("BFLOAT16", (4, 5))]
    out = [np.empty(100, np.int8), np.empty((4, 5), np.int8)]
    keywords = {"rounding": "nearest_even", "overflow": "saturate"}
    assert gpucast.cast_many(arrays, "INT8", **keywords, out=out) is out
    for x, y in zip(arrays, out, strict=True):
        assert_same(y, gpucast.cast(x, "INT8", **keywords))


def test_text_that_is_no_number_leaves_every_out_as_it_was() -> None:
    out = [np.full(2, 7, np.float32), np.full(1, 7, np.float32), np.full(1, 7, np.float32)]
    with pytest.raises(ValueError, match=r"^cast_many: arrays\[2\]: element 0 is 'nonsense'"):
        gpucast.cast_many([np.ones(2), np.array(["1"]), np.array(["nonsense"])], "FLOAT", out=out)
    assert all((y == 7).all() for y in out)


def test_scale_finite_and_random_words_on_the_host() -> None:
    arrays = [values("FLOAT", 33) for _ in range(2)] + [np.array([1.5, -0.25])]
    seed, offset = 5, 2**64 - 40
    result = gpucast.cast_many(arrays, "FLOAT16", rounding="stochastic", seed=seed, offset=offset, scale=0.5)
    for x, y, at in zip(arrays[:1], result[:1], (0,), strict=True):
        assert_same(y, gpucast.cast(x, "FLOAT16", rounding="stochastic", seed=seed, offset=offset + at, scale=0.5))
    joined = np.concatenate([np.asarray(x, np.float64) for x in arrays])
    whole = gpucast.cast(joined, "FLOAT16", rounding="stochastic", seed=seed, offset=offset, scale=0.5)
    assert_same(np.concatenate(result), whole)
    for bad, kind in ((np.inf, bool), (np.nan, np.uint8)):
        finite = np.ones((), kind)
        gpucast.cast_many([np.ones(3, np.float32), np.int8([3])], "FLOAT8E4M3FN", finite=finite)
        assert finite == 1
        # Out of the destination's range, but a number.
        gpucast.cast_many([np.float32([1e9])], "FLOAT16", finite=finite)
        assert finite == 1
        gpucast.cast_many([np.ones(3, np.float32), np.array([0, bad], ml_dtypes.bfloat16)], "FLOAT", finite=finite)
        assert finite == 0
        gpucast.cast_many([np.ones(3, np.float32)], "FLOAT16", finite=finite)
        assert finite == 0


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
            assert_same(got(y), codes)
        out = [blank(x.shape, "BFLOAT16") for x in arrays]
        assert gpucast.cast_many(there, "BFLOAT16", out=out) is out
        for y, codes in zip(out, wanted, strict=True):
            assert_same(got(y), codes)
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
        wanted = {name: gpucast.cast(got(x), to) for name, x in given.items()}
        out = {name: blank(x.shape, to) for name, x in given.items()}
        if to == "FLOAT16":
            out["fortran"] = blank(given["fortran"].T.shape, to).T
        for _ in range(2):
            driver.launched.clear()
            for result in (gpucast.cast_many(given, to), gpucast.cast_many(given, to, out=out)):
                for name, y in result.items():
                    assert_same(got(y), wanted[name])
            # To INT4, a row-major stream, Fortran order is any order.
            assert len(driver.launched) == (2 if to == "FLOAT16" else 4)
    driver.launched.clear()
    result = gpucast.cast_many([strided, given["odd"], strided], "FLOAT16")
    assert len(driver.launched) == 3
    for x, y in zip((strided, given["odd"], strided), result, strict=True):
        assert_same(got(y), gpucast.cast(got(x), "FLOAT16"))


def test_more_arrays_than_a_table_holds(driver: HostDriver) -> None:
    driver.argument_bytes = ARGUMENT_BYTES[0]
    arrays = [values("FLOAT", 1 + i % 40, i) for i in range(300)]
    there, capacity = (
        [upload(x) for x in arrays],
        BatchSpec((CastSpec(resolve(dtype(1), dtype(10))),), 4096).source().capacity,
    )
    for _ in range(2):
        driver.launched.clear()
        for x, y in zip(arrays, gpucast.cast_many(there, "FLOAT16"), strict=True):
            assert_same(got(y), gpucast.cast(x, "FLOAT16"))
        assert len(driver.launched) == -(-300 // capacity) == 3


def test_a_launch_has_no_block_without_work() -> None:
    """Those of aligned arrays are as many as their elements fill."""
    launches: list[tuple[int, Any]] = []
    source = BatchSpec((CastSpec(resolve(dtype("FLOAT"), dtype("FLOAT16"))),), ARGUMENT_BYTES[0]).source()
    run = HostDriver().load_many(source)

    def launch_kernel(function: int, blocks: int, threads: int, stream: int, arguments: int) -> int:
        table = np.zeros((), source.table)
        ctypes.memmove(table.ctypes.data, ctypes.c_void_p.from_address(arguments).value or 0, table.nbytes)
        launches.append((blocks, table))
        run(blocks, table)
        return 0

    full = int(source.elements[0])
    sizes = (1, 768, full, full + 1, 4 * full)
    with idle_cuda.idle(launch_kernel):
        arrays = [idle_cuda.array((n,), np.float32) for n in sizes]
        out = [device_array((n,), np.float16) for n in sizes]
        for _ in range(2):
            gpucast.cast_many(arrays, "FLOAT16", out=out)
    assert [blocks for blocks, _ in launches] == [1 + 1 + 1 + 2 + 4] * 2
    for _, table in launches:
        assert table["first_block"][:7].tolist() == [0, 1, 2, 3, 5, 2**32 - 1, 2**32 - 1]
        assert table["n"][:5].tolist() == list(sizes)
        assert table["dst"][:5].tolist() == [y.data.ptr for y in out]
    assert all((download(y) == 0).all() for y in out)


def test_scale_finite_and_random_words_on_a_device(driver: HostDriver) -> None:
    names = ("FLOAT16", "FLOAT", "INT8", "FLOAT8E4M3FN")
    arrays = [values(name, shape, i) for i, (name, shape) in enumerate(zip(names, (700, (3, 5), 9, 40), strict=True))]
    arrays[0] = np.where(np.isfinite(arrays[0]), arrays[0], np.float16(1))
    for x in (arrays[1], arrays[3]):
        x[~np.isfinite(x.astype(np.float32))] = 1
    there, finite = [upload(x) for x in arrays], upload(np.ones(1, bool))
    number = upload(np.float32([0.375]))
    for scale in (0.375, number):
        for _ in range(2):
            driver.launched.clear()
            result = gpucast.cast_many(there, "FLOAT", scale=scale, finite=finite)
            assert len(driver.launched) == 1
            for x, y in zip(arrays, result, strict=True):
                assert_same(got(y), gpucast.cast(x, "FLOAT", scale=0.375))
            assert download(finite)[0]
    there[3] = upload(np.array([1, np.nan], ml_dtypes.float8_e4m3fn))
    for _ in range(2):
        flag = upload(np.ones(1, np.uint8))
        gpucast.cast_many(there, "FLOAT", scale=number, finite=flag)
        assert not download(flag)[0]
    # Both sides in Fortran order: the random words are those of the row-major order, so that it takes its own launch.
    arrays = [values("FLOAT", (5, 7)), values("DOUBLE", 33), values("BFLOAT16", 3), values("FLOAT", (6, 2)).T]
    there = [upload(x) for x in arrays[:3]] + [upload(arrays[3].T).T]
    for _ in range(2):
        for offset in (0, 3, 2**64 - 50):
            random = {"rounding": "stochastic", "seed": 9, "offset": offset}
            driver.launched.clear()
            for y, wanted in zip(
                gpucast.cast_many(there, "BFLOAT16", **random),
                gpucast.cast_many(arrays, "BFLOAT16", **random),
                strict=True,
            ):
                assert_same(got(y), wanted)
            assert len(driver.launched) == 2


def test_a_call_of_a_plan_is_no_other_call(driver: HostDriver) -> None:
    """Other types, shapes, attributes, classes and numbers of arrays after warm calls."""
    x = np.where(np.isfinite(x := values("FLOAT", (4, 6))), x, 1)
    there, flag = [upload(x), upload(x)], upload(np.ones(1, bool))
    for _ in range(2):
        for keywords in ({}, {"overflow": "saturate"}, {"scale": 3}, {"scale": np.pi}):
            more = {"finite": flag} if "scale" in keywords else {}
            for y in gpucast.cast_many(there, "FLOAT16", **keywords, **more):
                assert_same(got(y), gpucast.cast(x, "FLOAT16", **keywords))
        for other in (there[::-1] * 2, [there[0], there[1].reshape(24)], [there[0], there[1].view(np.int32)]):
            for y, source in zip(gpucast.cast_many(other, "FLOAT16"), other, strict=True):
                assert_same(got(y), gpucast.cast(got(source), "FLOAT16"))
    made = len(batch_plans())
    for opset in (np.array(28), np.int64(28)):
        assert_same(got(gpucast.cast_many(there, "FLOAT16", opset=opset)[0]), gpucast.cast(x, "FLOAT16"))
    assert len(batch_plans()) == made
    with pytest.raises(TypeError, match="saturate=1.0 must be True or False"):
        gpucast.cast_many(there, "FLOAT16", saturate=1.0)


def test_what_no_plan_is_for(driver: HostDriver) -> None:
    """Text, and arrays of other libraries, on a device."""
    x = values("FLOAT", 5)
    there = [upload(x), upload(x)]
    for _ in range(2):
        for out in (None, [np.empty(5, object) for _ in there]):
            for y in gpucast.cast_many(there, "STRING", out=out):
                assert y.tolist() == gpucast.cast(x, "STRING").tolist()
        for y in gpucast.cast_many([Interface(y) for y in there], "FLOAT16"):
            assert_same(got(y), gpucast.cast(x, "FLOAT16"))
    assert not batch_plans()


class Interface:
    """An array of a library that speaks __cuda_array_interface__, and nothing else."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.__cuda_array_interface__ = {
            "version": 3, "typestr": x.dtype.str, "shape": x.shape, "strides": None, "data": (x.data.ptr, False),
        }  # fmt: skip


class Foreign:
    """An array of a library that speaks DLPack, and nothing else."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.x.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def test_arrays_of_other_libraries() -> None:
    x = values("FLOAT", (3, 4))
    x[~np.isfinite(x)] = 0
    finite = np.ones(1, bool)
    y, z = gpucast.cast_many([Foreign(x), x], "FLOAT16", scale=2, finite=finite)
    assert_same(y, z)
    assert finite[0]
    x[1, 1] = np.inf
    out = [np.empty((3, 4), np.float16), Foreign(np.empty((3, 4), np.float16))]
    assert gpucast.cast_many([Foreign(x), x * 2], "FLOAT16", finite=finite, out=out) is out
    assert_same(out[0], gpucast.cast(x, "FLOAT16"))
    assert_same(out[1].x, gpucast.cast(x * 2, "FLOAT16"))
    assert not finite[0]


def test_devices_and_the_host_in_one_call(driver: HostDriver) -> None:
    x = values("FLOAT", 50)
    arrays = {"h": x, "0": [upload(x), upload(x)], "1": [upload(x, 1), upload(x, 1)]}
    result = gpucast.cast_many(arrays, "FLOAT16")
    assert [stream for _, stream in driver.launched] == [driver.streams[0], driver.streams[1]]
    assert isinstance(result["h"], np.ndarray)
    assert [y.device.id for name in "01" for y in result[name]] == [0, 0, 1, 1]
    for y in (*result["0"], *result["1"]):
        assert_same(got(y), result["h"])
    # The arrays of a plan on a device that is not the current one.
    device_plans._PLANS.clear()
    for _ in range(3):
        (y, _) = gpucast.cast_many(arrays["1"], "FLOAT16")
        assert y.device.id == 1
        assert_same(got(y), result["h"])
    assert [len(known) for known in batch_plans()] == [1]


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
    assert_same(got(out[1]), gpucast.cast(x, "FLOAT16"))


def test_in_place_and_interleaved_outs(driver: HostDriver) -> None:
    x = values("FLOAT", (6, 8))
    same = [upload(x), upload(x)]
    for _ in range(2):
        assert gpucast.cast_many(same, "UINT32", out=[y.view(np.uint32) for y in same])[0].data.ptr == same[0].data.ptr
    whole = blank((6, 8), "FLOAT16")
    gpucast.cast_many([upload(x[:, :3]), upload(x[:, 3:])], "FLOAT16", out=[whole[:, :3], whole[:, 3:]])
    assert_same(got(whole), gpucast.cast(x, "FLOAT16"))


# ---- what is wrong ----


def good() -> tuple[list[Any], list[Any]]:
    return [upload(values("FLOAT", 8)), upload(values("FLOAT", (2, 3)))], [
        blank((8,), "FLOAT16"),
        blank((2, 3), "FLOAT16"),
    ]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_what_is_wrong_is_told_and_nothing_written(driver: HostDriver, warm: bool) -> None:
    arrays, out = good()
    if warm:
        gpucast.cast_many(arrays, "FLOAT16", out=out)
        gpucast.cast_many(arrays, "FLOAT16", out=out, scale=2, finite=upload(np.ones(1, bool)))
        gpucast.cast_many(arrays, "FLOAT16", out=out, rounding="stochastic", seed=1)
        gpucast.cast_many(arrays, "FLOAT16")
        gpucast.cast_many(arrays, "FLOAT16", scale=2, finite=upload(np.ones(1, bool)))
    driver.launched.clear()
    big = blank((32,), "FLOAT16")
    flag, number = upload(np.ones(1, bool)), upload(np.float32([2]))
    cases: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (ValueError, r"out is a tuple of 2; expected a list of 2$", arrays, {"out": tuple(out)}),
        (ValueError, r"out\[1\] is None; expected an array$", arrays, {"out": [out[0], None]}),
        (TypeError, r"arrays\[1\]: out has dtype float32; expected float16$", arrays, {"out": [out[0], arrays[1]]}),
        (
            ValueError,
            r"arrays\[1\]: out has shape \(8,\); expected \(2, 3\)$",
            arrays,
            {"out": [out[0], blank((8,), "FLOAT16")]},
        ),
        (
            ValueError,
            r"arrays\[0\]: out is on cuda:1; the result belongs on cuda:0$",
            arrays,
            {"out": [blank((8,), "FLOAT16", 1), out[1]]},
        ),
        (
            ValueError,
            r"out\[0\] and out\[1\] share memory; expected separate arrays$",
            [arrays[0]] * 2,
            {"out": [out[0]] * 2},
        ),
        (ValueError, r"out\[0\] and out\[1\] share memory", arrays, {"out": [big[:8], big[4:10].reshape(2, 3)]}),
        (
            ValueError,
            r"out\[1\] overlaps arrays\[0\]; expected separate memory$",
            arrays,
            {"out": [out[0], arrays[0].view(np.float16)[2:8].reshape(2, 3)]},
        ),
        (ValueError, r"arrays\[0\]: out overlaps x", arrays, {"out": [arrays[0].view(np.float16)[:8], out[1]]}),
        (ValueError, r"scale=-1 must be finite, as a DOUBLE, and not negative$", arrays, {"scale": -1}),
        (ValueError, r"scale=inf must be", arrays, {"scale": np.inf, "out": out}),
        (ValueError, r"scale is on cuda:1; x is on cuda:0$", arrays, {"scale": upload(np.float32([2]), 1)}),
        (ValueError, r"out\[0\] overlaps scale", arrays, {"scale": big[:2].view(np.float32), "out": [big[:8], out[1]]}),
        (TypeError, r"finite has dtype float32; expected BOOL or UINT8$", arrays, {"finite": number}),
        (ValueError, r"finite has shape \(8,\); expected one element$", arrays, {"finite": upload(np.ones(8, bool))}),
        (ValueError, r"finite is on the host; x is on cuda:0$", arrays, {"finite": np.ones(1, bool)}),
        (ValueError, r"finite overlaps arrays\[0\]", arrays, {"finite": arrays[0].view(np.uint8)[5:6], "out": out}),
        (ValueError, r"finite overlaps arrays\[1\]", arrays, {"finite": arrays[1].view(np.uint8)[0, :1], "scale": 2}),
        (ValueError, r"finite overlaps scale", arrays, {"finite": number.view(np.uint8)[:1], "scale": number}),
        (ValueError, r"arrays\[1\]: scale= does not apply to text", [arrays[0], np.array(["1"])], {"scale": 2}),
        (ValueError, r"rounding='stochastic' needs seed=", arrays, {"rounding": "stochastic"}),
        (ValueError, r"offset=-1 is out of range", arrays, {"rounding": "stochastic", "seed": 1, "offset": -1}),
        (ValueError, r"seed=1 does not apply", arrays, {"seed": 1}),
        (TypeError, r"arrays\[1\]: x\.dtype=.*complex", [arrays[0], np.ones(3, np.complex64)], {}),
        (TypeError, r"arrays\['a'\]\[0\]: x is of type object", {"a": [object()]}, {}),
        (ValueError, r"arrays\[0\]: overflow='wrap' does not apply to FLOAT16", arrays, {"overflow": "wrap"}),
        (TypeError, r"arrays\[0\]: saturate=2.0 must be True or False$", arrays, {"saturate": 2.0}),
        # Without arrays too.
        (ValueError, r"scale=-1 must be finite", [], {"scale": -1}),
        (TypeError, r"finite has dtype float32; expected BOOL or UINT8$", {}, {"finite": number}),
        (ValueError, r"overflow='wrap' does not apply to FLOAT16", None, {"overflow": "wrap"}),
    ]
    for error, message, given, keywords in cases:
        before = [got(y).tobytes() for y in (*arrays, *out, flag)]
        with pytest.raises(error, match=f"^cast_many: {message}"):
            gpucast.cast_many(given, "FLOAT16", **keywords)
        assert [got(y).tobytes() for y in (*arrays, *out, flag)] == before
    assert driver.launched == []
    with pytest.raises(TypeError, match="^cast_many: to='float7' is not a dtype"):
        gpucast.cast_many(arrays, "float7")
    with pytest.raises(ValueError, match=r"arrays\[0\]: rounding='stochastic' does not apply to INT8"):
        gpucast.cast_many(arrays, "INT8", rounding="stochastic", seed=1)


def test_no_arrays_and_all_keywords_of_a_device(driver: HostDriver) -> None:
    keywords = {"scale": upload(np.float32([2]), 1), "finite": upload(np.zeros(1, bool))}
    assert gpucast.cast_many({"a": []}, "FLOAT16", **keywords, rounding="stochastic", seed=1) == {"a": []}
    assert driver.launched == []


@pytest.mark.parametrize("strided", [False, True])
def test_a_kernel_that_one_device_cannot_load_stops_all_of_them(
    driver: HostDriver, monkeypatch: pytest.MonkeyPatch, strided: bool
) -> None:
    x = values("FLOAT", 50)
    arrays = [upload(x), upload(x), upload(x, 1), upload(x, 1)]
    if strided:
        arrays = [arrays[0], arrays[2][::2]]
    out = [upload(np.zeros(y.shape, np.float16), y.device.id) for y in arrays]

    def load(before: Any, source: Any) -> Any:
        if driver.index == 1:
            raise RuntimeError("no image for this device")
        return before(source)

    for name in ("load", "load_many"):
        monkeypatch.setattr(driver, name, partial(load, getattr(driver, name)))
    with pytest.raises(RuntimeError, match="no image"):
        gpucast.cast_many(arrays, "FLOAT16", out=out)
    assert driver.loaded != [] and driver.launched == []
    assert not any(download(y).view(np.uint16).any() for y in out)


def test_without_a_gpu_arrays_on_a_device_are_refused() -> None:
    x = upload(values("FLOAT", 3))
    with pytest.raises(gpucast.DeviceUnavailable, match="^cast_many: no cast on a GPU"):
        gpucast.cast_many([x, x], "FLOAT16")


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.skipif(PROBLEM is not None, reason=f"siblings run without a GPU: {PROBLEM}")
def test_on_a_gpu() -> None:
    import cupy

    kinds = ("FLOAT", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN")
    host = [values(kinds[i % 4], shape, i) for i, shape in enumerate(transformer(width=64))]
    arrays = [gpucast.cast(x, x.dtype, device="cuda") for x in host]
    finite = cupy.ones(1, bool)
    for keywords in ({}, {"scale": 0.5, "finite": finite}, {"rounding": "stochastic", "seed": 3, "offset": 2**63}):
        wanted = gpucast.cast_many(host, "FLOAT16", **{k: v for k, v in keywords.items() if k != "finite"})
        out = [cupy.empty(x.shape, cupy.float16) for x in host]
        for result in (
            gpucast.cast_many(arrays, "FLOAT16", **keywords),
            gpucast.cast_many(arrays, "FLOAT16", **keywords, out=out),
            gpucast.cast_many(arrays, "FLOAT16", **keywords, out=out),
        ):
            for y, codes in zip(result, wanted, strict=True):
                assert_same(y.get(), codes)
    assert not finite.get()[0]
    wanted = [gpucast.cast(x, "FLOAT16") for x in host]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for y in out:
            y.fill(0)
        gpucast.cast_many(arrays, "FLOAT16", out=out)
        for y in out:
            y.fill(0)
        stream.begin_capture()
        gpucast.cast_many(arrays, "FLOAT16", out=out)
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
    for y, codes in zip(out, wanted, strict=True):
        assert_same(y.get(), codes)


# ---- the text ----


def test_equal_sets_have_one_kernel() -> None:
    to = dtype("FLOAT16")
    kinds = [CastSpec(resolve(dtype(name), to)) for name in ("FLOAT", "INT8", "FLOAT", "FLOAT8E5M2")]
    one, other = (BatchSpec(sorted_kinds(order), ARGUMENT_BYTES[1]).source() for order in (kinds, kinds[::-1]))
    assert one is other
    assert one.name == "gpucast_many_float32_to_float16_float8e5m2_to_float16_int8_to_float16_1128"
    for limit in ARGUMENT_BYTES:
        for ops in (FusedOps(), FusedOps("narrow", finite=True)):
            rule = fused_rule(dtype(1), to, scaled=ops.scaling != "none")
            source = BatchSpec((CastSpec.of(rule, ops=ops),), limit).source()
            assert source.table.itemsize <= limit < source.table.itemsize * (source.capacity + 16) / source.capacity


SETS: list[tuple[dict[str, Any], FusedOps, tuple[str, ...], str]] = [
    ({}, FusedOps(), ("FLOAT", "FLOAT16"), "BFLOAT16"),
    ({}, FusedOps(), ("FLOAT8E4M3FN", "INT4", "FLOAT"), "FLOAT16"),
    ({}, FusedOps("narrow", finite=True), ("FLOAT16", "BFLOAT16"), "FLOAT"),
    ({"rounding": "stochastic"}, FusedOps(), ("FLOAT", "BFLOAT16"), "BFLOAT16"),
]


def test_the_machine_code_keeps_the_budget_of_one_cast(exhaustive: bool) -> None:
    """Finding its array takes a thread no loop, and little beside its work."""
    cases = [("sm_90", "FLOAT", "BFLOAT16"), ("sm_100a", "FLOAT8E4M3FN", "FLOAT16")]
    for arch, src, dst in cases if exhaustive else cases[:1]:
        rule = resolve(dtype(src), dtype(dst))
        (one,), (many,) = (static_kernels.measure([rule], arch, shape) for shape in ("contiguous", "many"))
        assert static_budget.problems(many) == []
        assert many.per_element <= 1.3 * one.per_element + 1
        assert min(many.loads) >= min(one.loads) and min(many.stores) >= min(one.stores)


@pytest.mark.parametrize(("arch", "number"), [("sm_100a", 0), ("sm_80", 1), ("sm_90", 2), ("sm_80", 3)])
def test_kernels_compile_without_local_memory(arch: str, number: int, exhaustive: bool) -> None:
    attributes, ops, sources, to = SETS[number]
    rules = [fused_rule(dtype(src), dtype(to), Options(**attributes), scaled=ops.scaling != "none") for src in sources]
    kinds = sorted_kinds(CastSpec.of(rule, ops=ops) for rule in rules)
    for major in INSTALLED if exhaustive else INSTALLED[:1]:
        for limit in ARGUMENT_BYTES if exhaustive else ARGUMENT_BYTES[1:]:
            source = BatchSpec(kinds, limit).source()
            result = nvrtc(major).compile(source.text, source.name, arch, ("--std=c++17", "--fmad=false"))
            assert result.log == ""
            (fact,) = cubin.kernels(result.code).values()
            assert fact.local == 0
            assert fact.registers <= 64
