# SPDX-License-Identifier: Apache-2.0
"""Fused casts for the tests: pairs with fused operations, and their kernels on a stand-in for the driver."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

import gpucast
from gpucast import PackedArray
from gpucast.casting.fused_options import fused_rule
from gpucast.codegen.fused_kernel import FusedOps, fused_source
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import Random
from gpucast.core.rule import STOCHASTIC, CastRule, Options
from gpucast.gpu import driver as launch
from host_driver import HostDriver, download, installed, upload

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
    return fused_rule(src, dst, Options(rounding=STOCHASTIC if random else None), scaled=asked.scaling != "none")


#: The kernels of the cases: each takes a part of a second to build, and half of that where it shares a program.
SOURCES = [
    fused_source(rule_of(*case), case[2], shape, unpacked=unpacked)
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


def on_host(x: Any) -> np.ndarray:
    """A copy, of a PackedArray unpacked; from a real GPU by a cast."""
    if not isinstance(launch.driver(), HostDriver):
        x = gpucast.cast(x, gpucast.dtype(x.dtype), device="cpu")
        return x.get() if isinstance(x, PackedArray) else x
    return PackedArray(download(x.data), x.dtype, x.shape).get() if isinstance(x, PackedArray) else download(x)


def to_device(x: np.ndarray) -> Any:
    return upload(x) if isinstance(launch.driver(), HostDriver) else cupy.asarray(x)
