# SPDX-License-Identifier: Apache-2.0
"""device_function: its text compiled for the host, called with values, and compiled by NVRTC inside a kernel."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

import functions_on_host
import gpucast
from codes import assert_codes, codes_of, every_code
from gpucast.codegen.cast_kernel import kernel_name
from gpucast.codegen.device_function import _type
from gpucast.compile import compiler
from gpucast.core.rule import resolve
from gpucast.parity import hard_values

PAIRS = [
    ("FLOAT", "FLOAT8E4M3FN"),
    ("FLOAT16", "FLOAT"),
    ("DOUBLE", "BFLOAT16"),
    ("INT64", "DOUBLE"),
    ("INT8", "INT4"),
    ("INT4", "INT16"),
    ("BOOL", "FLOAT8E8M0"),
    ("FLOAT6E2M3", "BOOL"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_it_is_the_rule_of_cast(one: str, other: str, tmp_path: Path) -> None:
    src, dst = gpucast.dtype(one), gpucast.dtype(other)
    name = kernel_name(resolve(src, dst))
    loop = f"""
extern "C" void run(const {_type(src)}* x, {_type(dst)}* y, int n) {{
    for (int i = 0; i < n; ++i) y[i] = {name}(x[i]);
}}
"""
    library = functions_on_host.build(gpucast.device_function(one, other) + loop, tmp_path)
    if src.bits > 16:
        codes = hard_values.codes(src, dst, seed=1, share=1 / 16, random=500)
    else:
        codes = every_code(src)
    got = np.empty(codes.size, dst.code_numpy)
    library.run(ctypes.c_void_p(codes.ctypes.data), ctypes.c_void_p(got.ctypes.data), codes.size)
    wanted = gpucast.reference.cast(codes.view(src.numpy), dst)
    assert_codes(got, codes_of(wanted, dst), name, codes)


def test_at_random_it_takes_random_bits(tmp_path: Path) -> None:
    src, dst = gpucast.dtype("FLOAT"), gpucast.dtype("FLOAT8E5M2")
    text = gpucast.device_function(src, dst, rounding="stochastic")
    call = "gpucast_float32_to_float8e5m2_stochastic(x[i], gpucast::Random{7, 1}.one(i))"
    loop = f"""
extern "C" void run(const float* x, unsigned char* y, int n) {{
    for (int i = 0; i < n; ++i) y[i] = {call};
}}
"""
    library = functions_on_host.build(text + loop, tmp_path)
    x = np.random.default_rng(0).standard_normal(1001).astype(np.float32)
    got = np.empty(x.size, dst.code_numpy)
    library.run(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(got.ctypes.data), x.size)
    assert_codes(got, codes_of(gpucast.reference.cast(x, dst, rounding="stochastic", seed=7, offset=1), dst))
    kernel = (
        f'extern "C" __global__ void kernel(const float* x, unsigned char* y) {{ const int i = 0; y[i] = {call}; }}\n'
    )
    assert compiler.compile(text + kernel, "kernel", "sm_90").code.startswith(b"\x7fELF")


def test_attributes_and_errors_are_those_of_cast() -> None:
    text = gpucast.device_function("FLOAT", "INT8", rounding="nearest_even", overflow="saturate")
    assert "signed char gpucast_float32_to_int8_saturate_nearest_even(float value)" in text
    with pytest.raises(TypeError, match="device_function: dst='float7' is not a dtype"):
        gpucast.device_function("FLOAT", "float7")
    with pytest.raises(ValueError, match="STRING is cast on the host"):
        gpucast.device_function("FLOAT", "STRING")
    with pytest.raises(ValueError, match="device_function: overflow='wrap' does not apply"):
        gpucast.device_function("FLOAT", "FLOAT16", overflow="wrap")
