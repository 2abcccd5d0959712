# SPDX-License-Identifier: Apache-2.0
"""Every code of every type of 8 bits or fewer, into every type, under every rule: model = reference = host; of those of
16 bits a share, or with --exhaustive all."""

from __future__ import annotations

import numpy as np
import pytest

import exact
from codes import assert_codes, codes_of, every_code
from gpucast.core.dtypes import DType
from gpucast.host import numbers
from gpucast.parity.cases import NUMERIC, SMALL, rules
from gpucast.reference import casting as reference


def tried(src: DType, dst: DType, exhaustive: bool) -> np.ndarray:
    every = every_code(src)
    if exhaustive or src.bits <= 8:
        return every
    # Around the points where rounding to fewer bits changes, and of all others a part that the destination decides.
    return every[np.isin(every % 16, (0, 1, 7, 8, 9, 15)) | (every % 29 == dst.bits % 29)]


@pytest.mark.parametrize("src", SMALL, ids=str)
def test_every_code(src: DType, exhaustive: bool) -> None:
    for dst in NUMERIC:
        codes = tried(src, dst, exhaustive)
        x = codes.view(src.numpy)
        for rule in rules(src, dst):
            wanted = np.array(exact.cast_codes(codes, rule), dtype=np.uint64)
            got = np.empty(x.shape, dst.numpy)
            numbers.into(x, rule, got)
            for name, result in (("reference", reference.apply(x, rule)), ("host", got)):
                assert_codes(codes_of(result, dst), wanted, (name, rule), codes)
