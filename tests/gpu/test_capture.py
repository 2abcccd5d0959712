# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: what was called once, or loaded by `gpucast.warmup`, is captured without an allocation, and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from delayed_driver import DelayedDriver
from delayed_streams import CUPY, TORCH, Streams
from fake_cuda import Cuda
from gpucast.kernel.driver import CupyDriver
from gpucast.warmup import compile_ahead
from quantization_cases import bytes_of

X = np.linspace(-3, 5, 256, dtype=np.float32).reshape(4, 64)
Y = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
#: Formats by the ways through the kernels, with the layout of their scales.
FORMATS = (
    ("mxfp8e4m3", "linear"), ("mxfp4", "128x4"), ("nvfp4", "linear"), ("nvfp4", "128x4"), ("int8_axis", "linear"),
    ("float8e4m3fn_tensor", "linear"), ("uint4_zp_32", "linear"),
)  # fmt: skip


def replayed(late: DelayedDriver, stream: int, library: str, call: Callable[[Any], Any]) -> list[bytes]:
    """The results of a graph of `call(x)` for an x with the numbers of Y, which had others while it was captured."""
    streams = Streams(late)
    x = streams.new(library, X)
    call(x)
    with late.capture_of(stream) as graph:
        results = call(x)
    streams.write(x, Y, stream)
    for work in graph:
        late.give(work, stream)
    read = [streams.read(part, library) for part in results]
    late.drain()
    return [one() for one in read]


@pytest.mark.parametrize("library", ["cupy", pytest.param("torch", marks=pytest.mark.peers)])
@pytest.mark.parametrize(("format", "layout"), FORMATS)
def test_quantizing(late: DelayedDriver, request: Any, format: str, layout: Any, library: str) -> None:
    if library == "torch":
        request.getfixturevalue("with_torch")
    streams = Streams(late)
    q = gpucast.quantize(streams.new(library, X), format, scale_layout=layout)
    y = streams.new(library, np.zeros_like(X))

    def call(x: Any) -> Any:
        assert gpucast.quantize(x, format, scale_layout=layout, out=q) is q
        assert gpucast.dequantize(q, out=y) is y
        return *q.parts().values(), y

    wanted = gpucast.quantize(Y, format, scale_layout=layout)
    found = replayed(late, TORCH if library == "torch" else CUPY, library, call)
    assert found == [*bytes_of(wanted), wanted.dequantize().tobytes()]


def test_both_results_with_given_scales(late: DelayedDriver) -> None:
    scale = Streams(late).new("cupy", np.float32([0.25]))
    for format in ("nvfp4", "float8e4m3fn_tensor"):
        both = gpucast.quantize(Streams(late).new("cupy", X), format, transpose="both", scale=scale)

        def call(x: Any, both: Any = both, format: str = format) -> Any:
            assert gpucast.quantize(x, format, transpose="both", scale=scale, out=both) is both
            return [part for q in both for part in q.parts().values()]

        wanted = gpucast.quantize(Y, format, transpose="both", scale=np.float32([0.25]))
        assert replayed(late, CUPY, "cupy", call) == [part for q in wanted for part in bytes_of(q)]


@pytest.mark.peers
def test_both_results_as_tensors(late: DelayedDriver, with_torch: None) -> None:
    """They have one global scale, or one scale, which two tensors hold."""
    for format in ("nvfp4", "float8e4m3fn_tensor"):
        both = gpucast.quantize(Streams(late).new("torch", X), format, transpose="both")

        def call(x: Any, both: Any = both, format: str = format) -> Any:
            assert gpucast.quantize(x, format, transpose="both", out=both) is both
            return [part for q in both for part in q.parts().values()]

        wanted = gpucast.quantize(Y, format, transpose="both")
        assert replayed(late, TORCH, "torch", call) == [part for q in wanted for part in bytes_of(q)]


def test_a_first_call_that_would_allocate(late: DelayedDriver) -> None:
    x = Streams(late).new("cupy", X)
    q = gpucast.quantize(x, "int8_axis")
    y = Streams(late).new("cupy", np.zeros_like(X))
    with late.capture_of(CUPY) as graph:
        for call in (
            lambda: gpucast.quantize(x, "int8_axis"),
            lambda: gpucast.quantize(x, "int8_axis", out=q),
            lambda: gpucast.quantize(x, "int8_axis", scale=0.5, out=q),
            lambda: gpucast.dequantize(q),
            lambda: gpucast.cast(x, "FLOAT16"),
        ):
            with pytest.raises(RuntimeError, match="a CUDA graph is being captured, and memory cannot be allocated"):
                call()
        with pytest.raises(RuntimeError, match="is not loaded yet.*warmup"):
            gpucast.dequantize(q, out=y)
    assert not graph
    assert bytes_of(gpucast.quantize(x, "int8_axis", out=q).get()) == bytes_of(gpucast.quantize(X, "int8_axis"))


def test_the_capture_of_another_stream_does_not_count(late: DelayedDriver) -> None:
    x = Streams(late).new("cupy", X)
    with late.capture_of(TORCH) as graph:
        y = gpucast.cast(x, "FLOAT8E5M2")
        q = gpucast.quantize(x, "mxfp4")
    read = [Streams(late).read(part) for part in (y, *q.parts().values())]
    late.drain()
    assert not graph
    wanted = gpucast.cast(X, "FLOAT8E5M2").tobytes(), *bytes_of(gpucast.quantize(X, "mxfp4"))
    assert tuple(one() for one in read) == wanted


def test_warm_up_capture_replay(late: DelayedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "_architectures", lambda arch: ["sm_90"])
    kernels = gpucast.warmup([("FLOAT", "BFLOAT16")], load=True)
    assert len(late.loaded) == kernels * late.count()
    x, y = (Streams(late).new("cupy", np.zeros(X.shape, kind)) for kind in (X.dtype, gpucast.dtype("BFLOAT16").numpy))
    with late.capture_of(CUPY) as graph:
        gpucast.cast(x, "BFLOAT16", out=y)
    Streams(late).write(x, X, CUPY)
    for work in graph:
        late.give(work, CUPY)
    read = Streams(late).read(y)
    late.drain()
    assert read() == gpucast.cast(X, "BFLOAT16").tobytes()


def test_what_warmup_refuses_to_load(late: DelayedDriver) -> None:
    with pytest.raises(ValueError, match="load=True is for the GPUs of this machine; expected no arch, got 'sm_90'"):
        gpucast.warmup([("FLOAT", "INT8")], "sm_90", load=True)
    with pytest.raises(TypeError, match="load=1 must be True or False"):
        gpucast.warmup([("FLOAT", "INT8")], load=1)  # type: ignore[arg-type]


def test_a_default_stream_beside_a_capture() -> None:
    """CUDA refuses the question while a blocking stream is captured."""
    from cupy_backends.cuda.api import runtime

    refusals = (906, RuntimeError, "default stream cannot be used"), (1, runtime.CUDARuntimeError, "InvalidValue")
    for status, error, match in refusals:

        class Busy(Cuda):
            def capturing(self, stream: int, status: int = status) -> bool:
                raise runtime.CUDARuntimeError(status)

        with Busy().in_use(), pytest.raises(error, match=match):
            CupyDriver().capturing()
