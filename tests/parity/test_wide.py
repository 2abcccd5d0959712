# SPDX-License-Identifier: Apache-2.0
"""Sources of 32 and 64 bits, at their hard values, into every type, under every rule: model = reference = host."""

from __future__ import annotations

import numpy as np
import pytest

import exact
from codes import assert_codes, codes_of
from gpucast.core.dtypes import DType
from gpucast.host.numbers import into
from gpucast.parity import hard_values
from gpucast.parity.cases import NUMERIC, WIDE, rules
from gpucast.reference import casting as reference


@pytest.mark.parametrize("src", WIDE, ids=str)
def test_hard_values(src: DType, exhaustive: bool) -> None:
    share, random = (1.0, 20_000) if exhaustive else (1 / 512, 80)
    for dst in NUMERIC:
        codes = hard_values.codes(src, dst, seed=28, share=share, random=random)
        x = codes.view(src.numpy)
        numbers = [exact.decode(src, code) for code in codes.tolist()]
        for rule in rules(src, dst):
            every = codes if src is dst else [exact.cast(number, rule) for number in numbers]
            wanted, got = np.array(every, dtype=np.uint64), np.empty(x.shape, dst.numpy)
            into(x, rule, got)
            for name, result in (("reference", reference.apply(x, rule)), ("host", got)):
                assert_codes(codes_of(result, dst), wanted, (name, rule), codes)


def test_hard_values_include_double_rounding() -> None:
    """The samples hold cases that a detour through float32 gets wrong; else this file would prove little."""
    double, bfloat16 = (row for row in NUMERIC if row.name in ("DOUBLE", "BFLOAT16"))
    x = hard_values.codes(double, bfloat16, seed=28, share=1 / 16, random=0).view(np.float64)
    x = x[np.isfinite(x) & (np.abs(x) < 1e38)]
    with np.errstate(under="ignore"):
        twice = x.astype(np.float32).astype(bfloat16.numpy)
    once = reference.cast(x, "BFLOAT16")
    assert np.count_nonzero(twice.view(np.uint16) != once.view(np.uint16)) > 100
