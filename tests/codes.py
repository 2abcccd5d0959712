# SPDX-License-Identifier: Apache-2.0
"""Codes of a dtype: all, random ones, those of an array's elements; bitwise comparisons of arrays; a share of rules."""

from __future__ import annotations

import numpy as np

import gpucast
from gpucast.core.dtypes import DType
from gpucast.core.rounding import BY_RULE
from gpucast.core.rule import CastRule
from gpucast.parity.cases import NUMERIC, by_rule_cases

# A new format of a known kind is one entry of the dtype table: these exist in tests only. NumPy and ml_dtypes lack the
# last one, which is of an opset to come.
EXTRA = (
    DType("FLOAT8E3M4", None, "float", 8, 1, 3, 4, 3, "ieee", None, "float8_e3m4", None),
    DType("FLOAT8E4M3B11FNUZ", None, "float", 8, 1, 4, 3, 11, "fnuz", None, "float8_e4m3b11fnuz", None),
    DType("FLOAT8E6M1", 200, "float", 8, 1, 6, 1, 31, "none", 99, "float8_e6m1", None),
)

#: One pair at least for every kind of loop of the host.
HOST_LOOPS = [
    tuple(map(gpucast.dtype, pair.split(":")))
    for pair in (
        "FLOAT:FLOAT INT4:INT4 BOOL:BOOL UINT8:INT8 INT64:INT16 INT8:INT4 FLOAT:BOOL FLOAT16:BOOL FLOAT8E8M0:BOOL "
        "FLOAT8E4M3FNUZ:BOOL INT2:BOOL FLOAT8E4M3FN:INT8 FLOAT8E5M2:BFLOAT16 FLOAT6E2M3:FLOAT FLOAT4E2M1:DOUBLE "
        "FLOAT16:FLOAT FLOAT16:UINT64 INT16:FLOAT8E5M2 BFLOAT16:FLOAT16 BOOL:FLOAT16 INT4:INT8 INT2:INT4 BOOL:INT32 "
        "BOOL:UINT2 UINT4:BFLOAT16 INT16:UINT4 UINT16:BFLOAT16 BFLOAT16:INT8 BFLOAT16:FLOAT FLOAT:DOUBLE DOUBLE:FLOAT "
        "FLOAT:INT8 FLOAT:INT16 FLOAT:INT32 FLOAT:UINT32 FLOAT:UINT64 DOUBLE:INT2 DOUBLE:INT16 DOUBLE:UINT64 "
        "FLOAT:FLOAT16 FLOAT:BFLOAT16 FLOAT:FLOAT8E4M3FN FLOAT:FLOAT8E8M0 DOUBLE:FLOAT16 DOUBLE:BFLOAT16 "
        "DOUBLE:FLOAT4E2M1 INT32:FLOAT16 INT32:BFLOAT16 INT64:FLOAT8E5M2FNUZ UINT64:BFLOAT16 INT64:FLOAT8E8M0"
    ).split()
]


def unaligned(x: np.ndarray) -> np.ndarray:
    """A copy one byte behind an aligned address."""
    store = np.zeros(x.nbytes + 1, np.uint8)
    found = store[1:].view(x.dtype).reshape(x.shape)
    found[...] = x
    return found


def every_code(dtype: DType) -> np.ndarray:
    """Each code of a dtype of 16 bits or fewer, in order."""
    assert dtype.bits <= 16
    return np.arange(2 if dtype.family == "bool" else 1 << dtype.bits, dtype=dtype.code_numpy)


def by_rule(src: DType, dst: DType, exhaustive: bool) -> list[CastRule]:
    """The rules that round neither to nearest even nor at random, all of which share one path; of these one for each
    overflow, each pair another."""
    every = [case.rule for case in by_rule_cases(src, dst)]
    return (
        every
        if exhaustive
        else every[(NUMERIC.index(src) + NUMERIC.index(dst)) % len(BY_RULE["float"]) :: len(BY_RULE["float"])]
    )


def random_codes(dtype: DType, shape: int | tuple[int, ...], seed: int | np.random.Generator = 0) -> np.ndarray:
    """Uniformly random codes of a dtype; a Generator continues from its state."""
    top = 1 if dtype.family == "bool" else dtype.code_mask
    drawn = np.random.default_rng(seed).integers(0, top, shape, dtype=dtype.code_numpy, endpoint=True)
    return np.asarray(drawn)


def values(dtype: DType | str, shape: int | tuple[int, ...], seed: int = 0) -> np.ndarray:
    """An array of uniformly random codes."""
    row = gpucast.dtype(dtype)
    return random_codes(row, shape, seed).view(row.numpy)


def codes_of(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The elements of an array as they are in memory, including bits above the dtype's own."""
    assert x.dtype == dtype.numpy
    return x.view(dtype.code_numpy)


def assert_same(got: np.ndarray, wanted: np.ndarray, dtype: DType | None = None) -> None:
    """Equal shapes, types and bits. If the dtype is STRING, texts are compared, not how NumPy stores them."""
    if dtype is None:
        assert got.dtype == wanted.dtype
        dtype = gpucast.dtype(wanted.dtype)
    if dtype.family == "string":
        assert got.shape == wanted.shape
        assert got.tolist() == wanted.tolist()
    else:
        assert_codes(codes_of(got, dtype), codes_of(wanted, dtype))


def assert_codes(got: np.ndarray, wanted: np.ndarray, case: object = "", of: np.ndarray | None = None) -> None:
    """Arrays of codes are equal; the message names the first that differs, the case, and the source code in `of`."""
    assert got.shape == wanted.shape, case
    wrong = np.flatnonzero(got != wanted)
    if wrong.size:
        i = int(wrong[0])
        source = "" if of is None else f" from {of.flat[i]:#x}"
        first = f"element {i}{source} is {got.flat[i]:#x}, wanted {wanted.flat[i]:#x}"
        raise AssertionError(f"{case}: {wrong.size} of {got.size} codes differ; first: {first}")
