# SPDX-License-Identifier: Apache-2.0
"""The second part of the suite: block formats. The input, its codes and its scales, as gpucast's reference has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.arithmetic import exact
from gpucast.core.fuse import Random
from gpucast.quantization import formats, recipes
from gpucast.quantization.exact_quantize import quantize
from gpucast.reference.exact_cast import random_words

NDArray = npt.NDArray[Any]

COLUMNS = 256
#: Rows of moderate numbers; formats with one scale for many rows get these alone, as one NaN would take all.
_MODERATE = 8
#: Recipes: the bits of other libraries, where no format above has them.
_RECIPES = """
torchao-0.18-mxfp8-floor torchao-0.18-mxfp8-even torchao-0.18-mxfp4-floor torchao-0.18-mxfp4-even
torchao-mxfp8-rceil torchao-mxfp4-rceil torchao-nvfp4 torchao-nvfp4-one-level torchao-float8-row torchao-float8-tensor
torchao-int4-32 torchao-int4-128 torchao-int8-row compressed-tensors-mxfp8 compressed-tensors-nvfp4
compressed-tensors-fp8 compressed-tensors-fp8-row compressed-tensors-int4-32 compressed-tensors-int4-128
compressed-tensors-int8-row deepgemm deepgemm-ue8m0 tilekernels te-float8-block te-nvfp4 modelopt-nvfp4
""".split()
_ALIKE = ("mxfp4_even", "mxfp6e2m3_even", "mxfp8e4m3_even", "int4_32_full_range", "int4_32_no_clipping")


def described(name: str) -> dict[str, Any]:
    """What a reader needs to know of a format. All have the shape of `inputs`, blocks along the last axis."""
    row = recipes.find(name, "blocks")
    shape = inputs(row).shape
    recipe = recipes.RECIPES.get(name)
    version = {} if recipe is None else {"of": f"{recipe.library} {recipe.version}"}
    return version | {
        "element": row.element.name,
        "scale": row.scale.name,
        "block": row.block_text,
        "rule": row.rule,
        "zero_point": None if row.zero_point is None else row.zero_point.name,
        "global_scale": row.global_scale,
        "shape": list(shape),
        "scales_shape": list(row.scales_shape(shape, 1)),
    }


@exact()
def inputs(row: formats.Format) -> NDArray:
    """FLOAT numbers: moderate ones; ties; ranges from subnormal to the largest; zeros, infinities and NaN."""
    moderate = _random(_MODERATE, 0) * 2.0 ** np.arange(-4, _MODERATE - 4)[:, None]
    if isinstance(row.block, str) or row.min_ndim == 2:
        return np.asarray(moderate, np.float32)
    halves = np.arange(COLUMNS) % 64 / 8 - 4.0
    edges = np.array([1, 1.75, 1.875, 3, 3.5, 6, 7, 7.5, 448, 464, 480, 57344], np.float32)
    near = np.concatenate([np.nextafter(edges, np.float32(end)) for end in (0, np.inf)])
    # Each is the largest number of a block of 16.
    peaks = np.resize(np.concatenate([edges, near]), (3, COLUMNS // 16)).repeat(16, axis=1)
    peaks = peaks * np.resize([1, -0.5, 0.25, 0.375, -0.3, 1e-3, 0.875, 0], COLUMNS)
    if row.global_scale:
        return np.concatenate([moderate, halves[None], peaks]).astype(np.float32)
    far = _random(6, 1) * 2.0 ** np.array([-150, -126, -100, 60, 100, 125])[:, None]
    special = _random(6, 2)
    special[0] = 0.0
    special[1] = -0.0
    special[2, 5::37] = np.inf
    special[3, 7::41] = np.nan
    special[4] = np.finfo(np.float32).max
    special[5] = -np.abs(special[5])
    rows = [moderate, halves[None], -halves[None] * 2.0**-130, peaks, far, special]
    with np.errstate(over="ignore", under="ignore"):
        x = np.concatenate(rows).astype(np.float32)
    if row.steps is None:
        return x
    # A recipe says nothing of other numbers.
    limit = np.float32(min(recipes.RECIPES[row.name].limit, np.finfo(np.float32).max))
    return np.clip(np.nan_to_num(x), -limit, limit)


def _random(rows: int, seed: int) -> NDArray:
    """Numbers in (-2, 2), more of them near zero, with as many bits as FLOAT has."""
    words = random_words(Random(seed, 0), rows * COLUMNS * 4).reshape(rows, COLUMNS, 4).astype(np.int64)
    return np.asarray((words.sum(axis=2) - 2**33) * 2.0**-32)


def block_table(name: str) -> dict[str, NDArray]:
    """The arrays of a format: codes one a byte, all in row-major order."""
    row = recipes.find(name, "blocks")
    x = inputs(row)
    parts = quantize(x, row)
    found = {
        "input": x,
        "codes": parts.data.view(row.element.code_numpy) & row.element.code_numpy.type(row.element.code_mask),
        "scales": parts.scales,
    }
    if parts.zero_points is not None:
        found["zero_points"] = parts.zero_points
    if parts.global_scale is not None:
        found["global_scale"] = parts.global_scale
    return found


FORMATS = {name: described(name) for name in (*formats.FORMATS, *_ALIKE, *_RECIPES)}
