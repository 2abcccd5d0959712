# SPDX-License-Identifier: Apache-2.0
"""Fused casts for the tests: pairs with fused operations, and their kernels on a stand-in for the driver."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.kernel.fused_kernel import FusedOps, fused_kernel
from gpucast.reference import exact_cast
from host_driver import HostDriver, installed

#: Blocks of random words begin within vectors, and the sum with an index has 65 bits.
RANDOM = Random(seed=0xFEDCBA9876543210, offset=2**64 - 3)

#: Every width on both sides and every family of destination, with the fused operations.
CASES = [
    (dtype(src), dtype(dst), FusedOps(scaling, "a" in flags, "f" in flags), "r" in flags)
    for src, dst, scaling, flags in (
        ("FLOAT", "FLOAT8E4M3FN", "narrow", "a"),
        ("FLOAT", "BFLOAT16", "narrow", "f"),
        ("FLOAT", "BFLOAT16", "none", "r"),
        ("FLOAT", "FLOAT", "narrow", "f"),
        ("FLOAT", "FLOAT16", "wide", ""),
        ("BFLOAT16", "FLOAT8E4M3FNUZ", "narrow", ""),
        ("FLOAT16", "FLOAT8E5M2", "narrow", "ar"),
        ("FLOAT8E5M2", "BFLOAT16", "narrow", ""),
        ("FLOAT8E4M3FNUZ", "FLOAT", "narrow", "af"),
        ("DOUBLE", "FLOAT8E8M0", "wide", "af"),
        ("DOUBLE", "FLOAT16", "none", "afr"),
        ("INT64", "DOUBLE", "wide", "a"),
        ("FLOAT6E3M2", "UINT64", "wide", "a"),
        ("FLOAT", "FLOAT6E2M3", "narrow", "ar"),
        ("INT2", "FLOAT4E2M1", "narrow", "a"),
        ("FLOAT4E2M1", "INT2", "none", "a"),
        ("UINT4", "BOOL", "none", "a"),
        ("FLOAT8E8M0", "FLOAT8E8M0", "narrow", "af"),
        ("BOOL", "INT4", "wide", "a"),
    )
]


def rule_of(src: DType, dst: DType, asked: FusedOps, random: bool) -> CastRule:
    rounding, scale = STOCHASTIC if random else None, None if asked.scaling == "none" else 1.0
    return resolve(src, dst, Options(rounding=rounding, scale=scale))


#: The kernels of the cases: each takes a part of a second to build, and half of that where it shares a program.
SOURCES = [
    fused_kernel(rule_of(*case), case[2], shape, unpacked=unpacked)
    for case in CASES
    for shape in ("contiguous", "strided")
    for unpacked in sorted({False, case[0].packed})
]


@functools.cache
def _prepared() -> HostDriver:
    driver = HostDriver()
    driver.prepare(SOURCES)
    return driver


@contextlib.contextmanager
def in_use() -> Iterator[HostDriver]:
    """The driver, with the kernels of all cases."""
    driver = _prepared()
    driver.launched.clear()
    driver.capture = False
    with installed(driver):
        yield driver


def product(x: np.ndarray, scale: float) -> np.ndarray:
    """As DOUBLE; one that is NaN has no payload, and that of infinity and 0 no sign."""
    wide = exact_cast.cast(x, "DOUBLE")
    with np.errstate(all="ignore"):
        found = np.where(np.isnan(wide), np.copysign(np.nan, wide), wide * np.float64(scale))
    return np.asarray(np.where(np.isinf(wide) & (scale == 0), np.nan, found))


def oracle(x: np.ndarray, dst: DType, scale: float | None = None, **attributes: Any) -> np.ndarray:
    """By the reference: the product as DOUBLE, rounded once more."""
    x = np.ascontiguousarray(x).reshape(x.shape)
    return exact_cast.cast(x if scale is None else product(x, scale), dst, **attributes)


def largest(x: np.ndarray, src: DType) -> np.ndarray:
    """That of the magnitudes as FLOAT, rounded once; NaN where there is one."""
    if not src.is_float:
        numbers = np.unique(x).astype(object if src.bits > 8 else np.int16)
        return exact_cast.cast(np.array(max(map(abs, numbers), default=0), np.uint64), "FLOAT")
    magnitudes = abs(exact_cast.cast(x, "DOUBLE"))
    nan = np.array(dtype("FLOAT").nan_code, np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        return nan if np.isnan(magnitudes).any() else np.asarray(magnitudes.max(initial=0).astype(np.float32))
