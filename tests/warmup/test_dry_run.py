# SPDX-License-Identifier: Apache-2.0
"""Recorded calls ask for the kernels of real ones, and leave nothing behind: no plan, no loaded kernel, no other
thread's work."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from bench.static.calls import Tracer
from gpucast.casting import list_plans, plans
from gpucast.core.dtypes import dtype
from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel import driver as launch
from gpucast.quantization import FORMATS
from gpucast.quantization.formats import find
from gpucast.warmup import calls, dry_run
from gpucast.warmup.compile_ahead import recorded
from gpucast.warmup.dry_run import Recorder
from gpucast.warmup.request import WarmupRequest
from host_driver import HostDriver, download, installed, upload

X = np.linspace(-3, 3, 60, dtype=np.float32).reshape(4, 15)
#: Calls on one array, by the place that makes it: of a recorder, or on the host build.
CALLS: dict[str, Callable[[Any], Any]] = {
    "cast": lambda x: gpucast.cast(x, "FLOAT16"),
    "strided": lambda x: gpucast.cast(x[:, ::2], "FLOAT8E4M3FN", scale=0.5),
    "tree": lambda x: gpucast.cast_many([x, x], "BFLOAT16"),
    "quantize": lambda x: gpucast.quantize(x, "mxfp8e4m3", transpose="both"),
    "global scale": lambda x: gpucast.quantize(x, "nvfp4").dequantize(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_recorded_call_asks_for_the_kernels_of_a_real_one(name: str) -> None:
    call = CALLS[name]
    with dry_run.dry_run(Tracer) as recorder:
        call(recorder.array(X.shape, "FLOAT"))
    with installed(HostDriver()) as driver:
        call(upload(X))
    assert [one.kernel.name for one in recorder.launched] == [of for of, _ in driver.launched]
    assert [kernel.name for kernel in recorder.kernels] == list(dict.fromkeys(of for of, _ in driver.loaded))


def batches_kept() -> list[list_plans.ListCalls]:
    return [calls for known in list_plans._KNOWN.values() for calls in known.calls.values()]


def test_nothing_of_a_recorded_call_is_kept() -> None:
    with installed(HostDriver()) as driver:
        gpucast.cast(upload(X), "FLOAT16")
        kept, loaded, batches = plans.count(), dict(launch._loaded), batches_kept()
        with dry_run.dry_run(Tracer) as recorder:
            for _ in range(2):
                for call in CALLS.values():
                    call(recorder.array(X.shape, "FLOAT"))
                packed = recorder.array((64,), "INT4", packed=True)
                gpucast.cast_many([packed, packed], "UINT4")
                gpucast.cast(packed, "FLOAT")
        assert len(recorder.launched) > len(recorder.kernels) > 8
        assert (plans.count(), launch._loaded, batches_kept()) == (kept, loaded, batches)
        # The next calls of the same kinds compute.
        assert download(gpucast.cast(upload(X), "BFLOAT16")).tobytes() == gpucast.cast(X, "BFLOAT16").tobytes()
        two = gpucast.cast_many([upload(X), upload(X)], "BFLOAT16")
        assert download(two[1]).tobytes() == gpucast.cast(X, "BFLOAT16").tobytes()
        nibbles = gpucast.PackedArray.pack(np.arange(64, dtype=np.uint8) % 16, "INT4")
        there = [gpucast.PackedArray(upload(nibbles.data), "INT4", (64,)) for _ in range(2)]
        wrapped = gpucast.cast_many(there, "UINT4")[1]
        assert download(wrapped.data).tobytes() == gpucast.cast(nibbles, "UINT4").tobytes()
        assert driver.launched


def test_other_threads_go_on_with_their_work() -> None:
    wanted, results, stop = gpucast.cast(X, "FLOAT8E5M2").tobytes(), list[bool](), threading.Event()
    with installed(HostDriver()):
        x = upload(X)
        gpucast.cast(x, "FLOAT8E5M2")

        def work() -> None:
            while not stop.is_set():
                results.append(download(gpucast.cast(x, "FLOAT8E5M2")).tobytes() == wanted)

        other = threading.Thread(target=work)
        other.start()
        try:
            with dry_run.dry_run(Tracer) as recorder:
                for _ in range(50):
                    gpucast.cast(recorder.array(X.shape, "FLOAT"), "FLOAT8E5M2")
        finally:
            stop.set()
            other.join()
    assert len(recorder.launched) == 50
    assert results and all(results)


def test_arrays_are_places_apart() -> None:
    with dry_run.dry_run(Tracer) as recorder:
        one, other = (recorder.array((1 << 20, 1 << 12), "DOUBLE") for _ in range(2))
        assert other.data.ptr - one.data.ptr == one.nbytes == recorder.memory[one.data.ptr][0]
        assert all(type(view) is type(one) for view in (one[::2], one.T, one.view(np.uint8), one.reshape(-1)))
        with pytest.raises(ValueError, match="out overlaps x"):
            gpucast.cast(one[1:], "DOUBLE", out=one[:-1])


@pytest.mark.parametrize("name", ["mxfp8e4m3", "float8e4m3fn_1x128", "nvfp4"])
def test_scales_in_every_order_are_there(name: str) -> None:
    with dry_run.dry_run(Tracer) as recorder:
        calls.quantized(recorder, name, find(name, ""), dtype("BFLOAT16"), {})
    names = [kernel.name for kernel in recorder.kernels]
    layouts = ("128x4", "8x4", "mn_major") if FORMATS[name].scale.bits == 8 else ("mn_major",)
    for layout in layouts:
        for work in ("_rows_", "swapped_down", "_swizzle", "_unswizzle"):
            assert any(work in one and one.endswith(f"_{layout}") for one in names), (work, layout)


def test_every_format_is_recorded_whole() -> None:
    """To the way back, which is asked for last."""
    for name, format in FORMATS.items():
        with dry_run.dry_run(Tracer) as recorder:
            calls.quantized(recorder, name, format, dtype("BFLOAT16"), {})
        assert any("_back" in kernel.name for kernel in recorder.kernels), name


def test_trees_of_any_length_have_their_kernels() -> None:
    """Warm-up records two arrays for any number; a table holds fewer arrays with a scale."""
    for scaled, lengths in ((False, (2, 136, 137)), (True, (2, 100, 130))):
        listed = recorded(WarmupRequest([("FLOAT", "BFLOAT16")], scale=scaled, many=True))
        names = {kernel.name for kernel in listed if kernel.name.startswith("gpucast_many")}
        with installed(HostDriver()) as driver:
            x, scale = upload(X), 0.5 if scaled else None
            for length in lengths:
                gpucast.cast_many([x] * length, "BFLOAT16", scale=scale)
        asked = {name for name, _ in driver.loaded}
        assert len(asked) == 2 and asked <= names, (asked, names)


def test_between_packed_arrays_there_are_no_strides() -> None:
    listed = [kernel.name for kernel in recorded(WarmupRequest([("INT4", "UINT4")]))]
    assert listed == [f"gpucast_int4_to_uint4{end}" for end in ("_unpacked", "_unpacked_strided", "")]


def test_without_cupy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    dry_run._array_class.cache_clear()
    with pytest.raises(DeviceUnavailable, match="warmup: CuPy is not installed; run pip install"):
        Recorder()


def test_what_is_recorded_leaves_no_memory_for_real_calls() -> None:
    """The cell in which blocks meet is kept for a stream, but not one without memory."""
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    wanted = gpucast.quantize(x, "nvfp4")
    with installed(HostDriver(1)):
        with dry_run.dry_run(Tracer) as recorder:
            gpucast.quantize(recorder.array((32, 64), "FLOAT"), "nvfp4")
        for _ in range(2):
            # The second call finds the zeros that the first one left.
            found = gpucast.quantize(upload(x), "nvfp4")
            for part in ("global_scale", "scales"):
                assert download(getattr(found, part)).tobytes() == np.asarray(getattr(wanted, part)).tobytes()
