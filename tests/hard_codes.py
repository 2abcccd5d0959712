# SPDX-License-Identifier: Apache-2.0
"""Hard source codes of casts, from the tables of tests/conformance: edges, midpoints, subnormals, overflow, NaN."""

from __future__ import annotations

import functools

import numpy as np

from cast_conformance import generate
from codes import every_code
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType


def every_or_hard(src: DType, dst: DType, most: int) -> np.ndarray:
    """Every code of a source of 16 bits or fewer, else so many hard ones."""
    return every_code(src) if src.bits <= 16 else hard_codes(src, dst, most)


@functools.cache
def hard_codes(src: DType, dst: DType, most: int) -> np.ndarray:
    """Inputs of a table of tests/conformance, in any order: of each class of cases about equally many."""
    codes = generate.inputs(src, dst)
    codes = np.random.default_rng(1).permutation(codes)
    with exact():
        kinds = generate.classes(codes.view(src.numpy), src, dst)
    classes = np.unique(kinds)
    places = np.concatenate([np.flatnonzero(kinds == kind)[: -(-most // classes.size)] for kind in classes])
    return np.asarray(codes[np.sort(places)[:most]])
