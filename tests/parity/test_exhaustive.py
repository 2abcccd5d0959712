# SPDX-License-Identifier: Apache-2.0
"""Every code of every type of 16 bits or fewer, into every type, under every rule: model = reference = host."""

from __future__ import annotations

import numpy as np
import pytest

import exact
from codes import assert_codes, codes_of, every_code
from gpucast.core.dtypes import DType
from gpucast.host import numbers
from gpucast.parity.cases import NUMERIC, SMALL, rules
from gpucast.reference import casting as reference


@pytest.mark.parametrize("dst", NUMERIC, ids=str)
@pytest.mark.parametrize("src", SMALL, ids=str)
def test_every_code(src: DType, dst: DType) -> None:
    codes = every_code(src)
    x = codes.view(src.numpy)
    for rule in rules(src, dst):
        wanted = np.array(exact.cast_codes(codes, rule), dtype=np.uint64)
        got = np.empty(x.shape, dst.numpy)
        numbers.into(x, rule, got)
        for name, result in (("reference", reference.apply(x, rule)), ("host", got)):
            assert_codes(codes_of(result, dst), wanted, (name, rule), codes)
