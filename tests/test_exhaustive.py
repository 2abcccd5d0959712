# SPDX-License-Identifier: Apache-2.0
"""Every code of every type of 16 bits or fewer, into every type, under every rule: model = reference = host."""

from __future__ import annotations

import numpy as np
import pytest

import exact
from gpucast import host, reference
from gpucast.dtypes import DType
from gpucast.rules_of_pair import NUMERIC, SMALL, rules


def all_codes(row: DType) -> np.ndarray:
    count = 2 if row.family == "bool" else 1 << row.bits
    return np.arange(count, dtype=row.code_numpy)


@pytest.mark.parametrize("dst", NUMERIC, ids=str)
@pytest.mark.parametrize("src", SMALL, ids=str)
def test_every_code(src: DType, dst: DType) -> None:
    codes = all_codes(src)
    x = codes.view(src.numpy)
    for rule in rules(src, dst):
        wanted = np.array(exact.cast_codes(codes, rule), dtype=np.uint64)
        got = np.empty(x.shape, dst.numpy)
        host.apply(x, rule, got)
        for name, result in (("reference", reference.apply(x, rule)), ("host", got)):
            assert result.dtype == dst.numpy
            wrong = np.flatnonzero(result.view(dst.code_numpy) != wanted)
            assert wrong.size == 0, describe(name, rule, codes, wanted, result.view(dst.code_numpy), wrong)


def describe(name: str, rule: object, codes: np.ndarray, wanted: np.ndarray, got: np.ndarray, wrong: np.ndarray) -> str:
    i = wrong[0]
    return f"{name} {rule}: {wrong.size} wrong; first: code {codes[i]:#x} -> {got[i]:#x}, wanted {wanted[i]:#x}"
