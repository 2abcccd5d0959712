# SPDX-License-Identifier: Apache-2.0
"""The three dimensions of a block grid against the formats' own statement in all dimensions of an array."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpucast.core.formats import FORMATS, Format
from gpucast.quantization.block_grid import BlockGrid

SHAPES = ((70,), (5, 70), (70, 5), (129, 130), (3, 40, 1), (2, 33, 35), (1, 1, 1), (2, 1, 16), (4, 3, 17, 2))
SOME = [FORMATS[name] for name in ("int8_tensor", "int8_axis", "mxfp4", "nvfp4", "int4_128", "float8e4m3fn_1x128")]
SOME += [FORMATS["float8e4m3fn_128x128"], Format("mine", "INT4", "FLOAT", (3, 5), "amax")]
CASES = [
    (format, shape, axis)
    for format in SOME
    for shape in SHAPES
    if len(shape) >= format.min_ndim
    for axis in range(len(shape) - 2 if format.min_ndim == 2 else 0, len(shape))
]


@pytest.mark.parametrize(("format", "shape", "axis"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_every_element_is_in_its_block(format: Format, shape: tuple[int, ...], axis: int) -> None:
    lengths, counts = format.lengths(shape, axis), format.grid(shape, axis)
    index = np.indices(shape)
    wanted = np.ravel_multi_index([i // length for i, length in zip(index, lengths, strict=True)], counts).reshape(-1)
    grid = BlockGrid.of(format, shape, axis)
    assert math.prod(grid.shape) == math.prod(shape)
    assert np.array_equal(grid.block_of(np.arange(math.prod(shape))), wanted)
    assert grid.size == math.prod(counts) == math.prod(format.scales_shape(shape, axis))
    assert grid.largest == math.prod(lengths)
    assert grid.splits_outer == isinstance(format.block, tuple)
