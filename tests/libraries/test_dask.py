# SPDX-License-Identifier: Apache-2.0
"""Casts of Dask arrays: in threads, and on a cluster of processes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast import PackedArray
from gpucast.core.dtypes import DTYPES, DType, dtype
from host_driver import download, upload

dask = pytest.importorskip("dask", reason="Dask is not installed")
import dask.array as da  # noqa: E402

from gpucast.libraries import dask as gpucast_dask  # noqa: E402

#: Chunks of several sizes along both axes, an empty one among them.
SHAPE, CHUNKS = (7, 9), ((3, 0, 4), (4, 4, 1))


def values(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    x = np.random.default_rng(8).normal(size=shape).astype(np.float32) * 100
    x.reshape(-1)[:3] = np.inf, np.nan, -0.0
    return x


def computed(array: Any) -> Any:
    return array.compute(scheduler="threads")


@pytest.mark.parametrize("row", DTYPES, ids=str)
def test_a_cast_by_chunks_equals_one_of_the_whole_array(row: DType) -> None:
    x = values()
    y = gpucast_dask.cast(da.from_array(x, CHUNKS), row)
    assert (y.dtype, y.shape, y.chunks) == (row.numpy, SHAPE, CHUNKS)
    assert type(y._meta) is np.ndarray and y._meta.dtype == row.numpy and y._meta.shape == (0, 0)
    assert_same(computed(y), gpucast.cast(x, row), row)


def test_arrays_of_no_dimension_and_of_unknown_sizes() -> None:
    assert computed(gpucast_dask.cast(da.from_array(np.float32(2.5)), "INT8")) == 2
    assert computed(gpucast_dask.cast(da.from_array(np.array("2.5", object)), "FLOAT")) == 2.5
    assert gpucast_dask.cast(da.from_array(np.float32(2.5)), "INT8")._meta.shape == ()
    x = values()
    array = da.from_array(x, CHUNKS)
    y = gpucast_dask.cast(array[array > 1], "INT16")
    assert math.isnan(y.shape[0])
    assert sorted(computed(y)) == sorted(gpucast.cast(x[x > 1], "INT16"))


def test_a_scale_may_be_the_outcome_of_a_computation() -> None:
    x = np.abs(values()[1:])
    array = da.from_array(x, (2, 4))
    scale = 448 / array.max()
    y = gpucast_dask.cast(array, "FLOAT8E4M3FN", scale=scale)
    assert_same(computed(y), gpucast.cast(x, "FLOAT8E4M3FN", scale=np.float32(448) / x.max()))
    with pytest.raises(ValueError, match=r"scale has shape \(6, 9\); expected one element"):
        gpucast_dask.cast(array, "FLOAT8E4M3FN", scale=array)
    with pytest.raises((TypeError, ValueError), match="scale"):
        gpucast_dask.cast(array, "FLOAT8E4M3FN", scale=array.max() > 0)


def test_random_rounding_goes_through_the_chunks_in_order() -> None:
    x = values()
    keywords: dict[str, Any] = {"rounding": "stochastic", "seed": 5}
    wanted = gpucast.cast(x, "FLOAT8E5M2", offset=1000, **keywords)
    rows = da.from_array(x, ((3, 0, 4), (9,)))
    assert_same(computed(gpucast_dask.cast(rows, "FLOAT8E5M2", offset=1000, **keywords)), wanted)
    # Chunk by chunk in their order, where they lie side by side.
    stream, parts = 0, []
    for r in (slice(0, 3), slice(3, 3), slice(3, 7)):
        parts.append([])
        for c in (slice(0, 4), slice(4, 8), slice(8, 9)):
            parts[-1].append(gpucast.cast(x[r, c], "FLOAT8E5M2", offset=stream, **keywords))
            stream += x[r, c].size
    both = gpucast_dask.cast(da.from_array(x, CHUNKS), "FLOAT8E5M2", **keywords)
    assert_same(computed(both), np.block(parts))
    with pytest.raises(ValueError, match="leaves no 64-bit number for each of 63 elements"):
        gpucast_dask.cast(rows, "FLOAT8E5M2", offset=2**64 - 62, **keywords)
    with pytest.raises(ValueError, match="sizes of some chunks are unknown"):
        gpucast_dask.cast(rows[rows > 0], "FLOAT8E5M2", **keywords)


def test_all_but_the_elements_is_checked_at_once() -> None:
    array = da.from_array(values(), CHUNKS)
    with pytest.raises(TypeError, match=r"cast: array is of type ndarray; expected a dask\.array\.Array"):
        gpucast_dask.cast(values(), "FLOAT16")
    with pytest.raises(TypeError, match="unexpected keyword argument 'saturated'"):
        gpucast_dask.cast(array, "INT8", saturated=True)
    with pytest.raises(ValueError, match="out would be written by every chunk"):
        gpucast_dask.cast(array, "FLOAT", out=values())
    with pytest.raises(ValueError, match="amax would be written by every chunk"):
        gpucast_dask.cast(array, "FLOAT16", amax=np.zeros(1, np.float32))
    with pytest.raises(TypeError, match="masked array, whose mask would be lost"):
        gpucast_dask.cast(da.ma.masked_array(array), "FLOAT16")
    with pytest.raises(ValueError, match="finite= does not work .* nor for lazy arrays"):
        gpucast.cast_many([array], "FLOAT16", finite=np.ones(1, bool))


def test_text_that_is_no_number_is_found_in_its_chunk() -> None:
    array = da.from_array(np.array(["1", "2", "x", "4"], object), 2)
    with pytest.raises(ValueError, match=r"element 0 is 'x'.* \(in chunk \(1,\) of the Dask array\)"):
        computed(gpucast_dask.cast(array, "INT8"))
    with pytest.raises(OverflowError, match=r"in chunk \(0,\)"):
        computed(gpucast_dask.cast(da.from_array(np.array(["300"])), "INT8"))


def test_equal_casts_have_equal_names() -> None:
    array = da.from_array(values(), CHUNKS)
    names = [
        gpucast_dask.cast(array, to, **keywords).name
        for to, keywords in [("FLOAT16", {}), (np.float16, {}), ("BFLOAT16", {}), ("FLOAT16", {"overflow": "saturate"})]
    ]
    assert names[0] == names[1] and len(set(names)) == 3
    assert all(name.startswith("cast-") for name in names)


# ---- chunks on a device ----


def test_chunks_on_a_device_stay_there_or_come_home(driver: None) -> None:
    x = values()[:3, :4]
    array = da.Array({("x", 0, 0): upload(x)}, "x", ((3,), (4,)), meta=upload(x[:0, :0]))
    y = gpucast_dask.cast(array, "BFLOAT16")
    assert type(y._meta) is type(upload(x)) and y.dtype == dtype("BFLOAT16").numpy
    (chunk,) = dask.get(y.__dask_graph__(), [(y.name, 0, 0)])
    assert_same(download(chunk), gpucast.cast(x, "BFLOAT16"))
    home = gpucast_dask.cast(array, "FLOAT4E2M1", device="cpu")
    assert type(home._meta) is np.ndarray
    assert_same(computed(home), gpucast.cast(x, "FLOAT4E2M1"))
    with pytest.raises(TypeError, match="FLOAT4E2M1 on a device is a PackedArray, which no Dask array can hold"):
        gpucast_dask.cast(array, "FLOAT4E2M1")
    # A meta that says nothing of the device hides it until the chunk is there.
    hidden = da.Array({("h", 0, 0): upload(x)}, "h", ((3,), (4,)), meta=x[:0, :0])
    with pytest.raises(TypeError, match=r"PackedArray.* \(in chunk \(0, 0\)"):
        computed(gpucast_dask.cast(hidden, "FLOAT4E2M1"))


# ---- a cluster ----


def test_processes_of_a_cluster_cast(cluster: Any) -> None:
    """Killed workers: tests/convert/test_convert_cluster.py."""
    x = values((15, 100))
    y = cluster.persist(gpucast_dask.cast(da.from_array(x, (1, 100)), "FLOAT8E5M2"))
    # The transpose makes workers send their chunks to each other.
    both = cluster.compute(da.stack([y, y[::-1]]).T).result()
    wanted = gpucast.cast(x, "FLOAT8E5M2")
    assert_same(both, np.stack([wanted, wanted[::-1]]).T)


def test_the_casts_of_gpucast_take_dask_arrays() -> None:
    """They give lazy arrays: a chunk that cannot be computed is no matter to them."""

    def broken(block: Any) -> Any:
        raise RuntimeError("computed")

    x = values()
    array = da.from_array(x, CHUNKS)
    lazy = array.map_blocks(broken, dtype=array.dtype, meta=array._meta)
    like = np.empty(0, np.float16)
    for cast in (
        lambda x: gpucast.cast(x, "FLOAT16", overflow="saturate"),
        lambda x: gpucast.cast_like(x, like, overflow="saturate"),
        lambda x: gpucast.cast_many({"w": [x]}, "FLOAT16", overflow="saturate")["w"][0],
    ):
        y = cast(lazy)
        assert isinstance(y, da.Array) and y.chunks == array.chunks and y.dtype == np.float16
        with pytest.raises(RuntimeError, match="computed"):
            y.compute(scheduler="synchronous")
        assert_same(computed(cast(array)), cast(x))
    with pytest.raises(TypeError, match="cast: to=FLOAT6E2M3 entered at opset 28; opset=25 has version 25"):
        gpucast.cast_like(array, PackedArray(np.zeros(3, np.uint8), "FLOAT6E2M3", 4), opset=28)
    both = gpucast.cast_many([array, x], "FLOAT8E5M2", rounding="stochastic", seed=3)
    rows = gpucast.cast_many([x, x], "FLOAT8E5M2", rounding="stochastic", seed=3)
    assert isinstance(both[0], da.Array)
    assert_same(both[1], rows[1])
