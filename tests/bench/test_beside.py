# SPDX-License-Identifier: Apache-2.0
"""The figures of the README's picture: wrong codes are counted, and torchao's recipes have torchao's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast

pytestmark = pytest.mark.peers


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torchao")
    from bench.peers import beside

    monkeypatch.setattr(beside, "SHAPE", (64, 256))
    return beside


def test_codes_that_are_not_the_nearest_are_counted(beside: Any) -> None:
    x = beside.matrix(0)
    for format, axis in (("nvfp4", -1), ("mxfp8e4m3", -1), ("float8e4m3fn_axis", 0)):
        data, scales, one = beside._parts(gpucast.quantize(x, format, axis=axis))
        assert beside.not_nearest(x, format, data, scales, one) == 0, format
        wrong = data.copy()
        row, column = np.argwhere(data != 0)[7]
        wrong[row, column] *= -1
        assert beside.not_nearest(x, format, wrong, scales, one) == 1, format


def test_what_is_timed_is_the_same_work(beside: Any) -> None:
    import torch

    adapter, x = beside._adapter(), beside.matrix(1)
    for recipe in beside.QUANTIZERS:
        ours, (theirs, _, _) = gpucast.quantize(x, recipe), adapter.quantize_tensor(beside.tensor(x), recipe)
        assert np.array_equal(ours.codes.astype(np.float32), theirs), recipe
        timed = beside._quantizer(adapter, recipe)(beside.tensor(x))
        codes = timed if hasattr(timed, "element_size") else timed[1]
        assert codes.view(torch.uint8).numpy().tobytes() == ours.data.tobytes(), recipe
