# SPDX-License-Identifier: Apache-2.0
"""A repeated call of `gpucast.quantize` gives the bits, the class and the library of the first one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gpucast
from gpucast.casting import plans
from gpucast.quantization import host_plans
from gpucast.quantization.formats import FORMATS

BLOCKS = np.float32([[0, 1e-7, 1e-3, 1, 3e38, -5, 1e-30, 0.1]]).repeat(128, axis=1)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_repeats_its_bits(name: str) -> None:
    for x in (BLOCKS, np.zeros_like(BLOCKS), BLOCKS[:, ::-1].copy()):
        one, two, three = (gpucast.quantize(x, name) for _ in range(3))
        for part in ("data", "scales", "zero_points", "global_scale"):
            texts = [_bytes(getattr(q, part)) for q in (one, two, three)]
            assert texts[0] == texts[1] == texts[2], part


def _bytes(part: object) -> bytes | None:
    data = part.data if isinstance(part, gpucast.PackedArray) else part
    return None if data is None else np.asarray(data).tobytes()


def test_a_result_of_the_callers_own_class_is_no_pattern() -> None:
    class Mine(gpucast.Quantized):
        pass

    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64)
    parts = gpucast.quantize(x, "mxfp8e5m2").parts()
    gpucast.quantize(x, "mxfp8e5m2", out=Mine(**parts, format="mxfp8e5m2"))
    assert type(gpucast.quantize(x, "mxfp8e5m2")) is gpucast.Quantized


def test_a_list_of_outs_is_no_pattern() -> None:
    x = np.ones((64, 96), np.float32)
    given = list(gpucast.quantize(x, "mxfp8e4m3", transpose="both"))
    for _ in range(2):
        assert gpucast.quantize(x, "mxfp8e4m3", transpose="both", out=given) is given
        assert type(gpucast.quantize(x, "mxfp8e4m3", transpose="both")) is tuple


def test_an_array_reshaped_meanwhile_is_no_pattern() -> None:
    """Another thread may do so between the call and its plan."""
    x, format = np.ones((48, 96), np.float32), "mxfp8e5m2"
    result = gpucast.quantize(x, format)
    plans.forget()
    nothing = (-1, "linear", False, None, None, 0, None, None, None, None, None, None)
    assert host_plans.quantized(x, format, nothing, result) is not None
    assert host_plans.quantized(x.reshape(96, 48), format, nothing, result) is None


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_zp_32"])
def test_threads_of_little_stack_quantize(name: str) -> None:
    x = np.ones((64, 1024), np.float32)
    said: list[int] = []

    def job() -> None:
        said.extend(gpucast.dequantize(gpucast.quantize(x, name)).size for _ in range(3))

    before = threading.stack_size(64 << 10)
    try:
        thread = threading.Thread(target=job)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert said == [x.size] * 3
