# SPDX-License-Identifier: Apache-2.0
"""A repeated call of `gpucast.quantize` gives the bits, the class and the library of the first one."""

from __future__ import annotations

import numpy as np
import pytest

import gpucast
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
