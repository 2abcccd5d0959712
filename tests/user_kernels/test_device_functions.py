# SPDX-License-Identifier: Apache-2.0
"""device_functions: one text, built by a C++ compiler and called with every code, and compiled by NVRTC in kernels."""

from __future__ import annotations

import ctypes
import itertools
import re
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest

import gpucast
from codes import assert_codes, codes_of
from functions_on_host import RANDOM, build, items_of, loops, run, wanted
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.parity.cases import all_cases, all_pairs
from gpucast.reference import exact_cast
from gpucast.user_kernels.device_functions import WIDTHS
from hard_codes import every_or_hard
from nvrtc_wheels import INSTALLED, load

#: A pair for each path of several values at a time, and each kind of keyword.
ITEMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("FLOAT", "FLOAT8E4M3FN", {}),
    ("FLOAT", "FLOAT4E2M1", {}),
    ("FLOAT16", "FLOAT8E5M2", {}),
    ("FLOAT8E4M3FN", "FLOAT", {}),
    ("FLOAT8E5M2", "FLOAT", {}),
    ("FLOAT8E5M2", "FLOAT", {"overflow": "saturate"}),
    ("FLOAT8E5M2FNUZ", "BFLOAT16", {}),
    ("FLOAT6E2M3", "FLOAT16", {}),
    ("FLOAT6E3M2", "FLOAT6E2M3", {}),
    ("DOUBLE", "FLOAT6E3M2", {}),
    ("FLOAT4E2M1", "FLOAT16", {}),
    ("INT4", "FLOAT16", {}),
    ("INT4", "INT8", {}),
    ("UINT2", "INT16", {}),
    ("INT8", "INT4", {}),
    ("INT64", "DOUBLE", {}),
    ("BOOL", "FLOAT8E8M0", {}),
    ("FLOAT", "INT8", {"rounding": "nearest_even", "overflow": "saturate"}),
    ("FLOAT", "FLOAT8E4M3FN", {"rounding": "upward"}),
    ("FLOAT", "FLOAT16", {"rounding": "nearest_away"}),
    ("DOUBLE", "INT4", {"rounding": "nearest_away"}),
    ("BFLOAT16", "FLOAT8E5M2", {"rounding": "stochastic"}),
    ("FLOAT", "FLOAT4E2M1", {"rounding": "stochastic"}),
)
#: One for each set of instructions.
ARCHITECTURES = (75, 80, 90, 100)
#: What NVRTC compiles for.
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_100a", "sm_120", "sm_120a")


def rule_of(src: Any, dst: Any, keywords: dict[str, Any]) -> CastRule:
    return resolve(gpucast.dtype(src), gpucast.dtype(dst), Options(**keywords))


def check(items: Any, folder: Path, arch: int) -> None:
    """Every function of some rules gives the bits of the reference, for every code of 16 bits and fewer."""
    rules = [rule_of(*item) for item in items]
    library = build(gpucast.device_functions(items) + loops(rules), folder, arch)
    for rule, (_, _, keywords) in zip(rules, items, strict=True):
        codes = every_or_hard(rule.src, rule.dst, 3000)
        # Whole groups of four.
        codes = np.resize(codes, -(-codes.size // 4) * 4)
        expected = wanted(rule, codes, keywords)
        words = exact_cast.random_words(RANDOM, codes.size)
        for end in WIDTHS:
            assert_codes(run(library, rule, codes, end, words), expected, f"{rule} {end} {arch}", codes)


@pytest.mark.parametrize("arch", (80, 100))
def test_they_are_the_rules_of_cast(arch: int, tmp_path: Path) -> None:
    check(ITEMS, tmp_path, arch)


def test_every_pair(exhaustive: bool, tmp_path: Path) -> None:
    """Every rule of every pair, on every set of instructions; in each run of the tests a few."""
    every = items_of(all_cases(all_pairs()))
    parts = [every[i : i + 25] for i in range(0, len(every), 25)]
    for arch, items in itertools.product(ARCHITECTURES, parts) if exhaustive else [(75, every[7::600])]:
        check(items, tmp_path, arch)


@pytest.mark.parametrize("major", INSTALLED)
def test_nvrtc_compiles_them(major: int, exhaustive: bool) -> None:
    items = ITEMS if exhaustive else ITEMS[major % 2 :: 4]
    rules = [rule_of(*item) for item in items]
    text = gpucast.device_functions(items) + loops(rules).replace("void run_", "__global__ void run_")
    nvrtc = load(major)
    for arch in TARGETS if exhaustive else ("sm_75", "sm_100a")[major % 2 :][:1]:
        found = nvrtc.compile(text, "functions", arch, ("--std=c++17", "--minimal"))
        assert not found.log, found.log


@pytest.mark.parametrize("arch", ["compute_75", "compute_90", "compute_100a"])
def test_fast_math_changes_no_result(arch: str, exhaustive: bool) -> None:
    """In the PTX nothing but comparisons of a number with itself, whether it is NaN, flush subnormal numbers then."""
    items = ITEMS if exhaustive else ITEMS[int(re.sub(r"\D", "", arch)) % 4 :: 4]
    text = gpucast.device_functions(items)
    text += loops([rule_of(*item) for item in items]).replace("void run_", "__global__ void run_")
    text += 'extern "C" __global__ void root(float* x) { *x = 1 / sqrtf(*x); }'
    plain, fast = (
        load(INSTALLED[-1]).compile(text, "functions", arch, ("--std=c++17", "--minimal", *more)).code.decode()
        for more in ((), ("--use_fast_math",))
    )
    kernels = [re.split(r"^\.visible \.entry ", ptx, flags=re.MULTILINE) for ptx in (plain, fast)]
    assert kernels[0][-1] != kernels[1][-1] and "sqrt.approx.ftz.f32" in kernels[1][-1]
    without = re.sub(r"(setp\.(?:nan|num))\.ftz(\.f32 \t%p\d+, (%\w+), \3;)", r"\1\2", "".join(kernels[1][:-1]))
    assert without == "".join(kernels[0][:-1])


def test_one_value_takes_its_word_of_a_stream(tmp_path: Path) -> None:
    src, dst = gpucast.dtype("FLOAT"), gpucast.dtype("FLOAT8E5M2")
    text = gpucast.device_function(src, dst, rounding="stochastic")
    loop = """
extern "C" void run(const float* x, unsigned char* y, int n) {
    for (int i = 0; i < n; ++i) y[i] = gpucast_float32_to_float8e5m2_stochastic(x[i], gpucast::Random{7, 1}, i);
}
"""
    library = build(text + loop, tmp_path)
    x = np.random.default_rng(0).standard_normal(1001).astype(np.float32)
    got = np.empty(x.size, dst.code_numpy)
    library.run(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(got.ctypes.data), x.size)
    assert_codes(got, codes_of(gpucast.reference.cast(x, dst, rounding="stochastic", seed=7, offset=1), dst))


def test_attributes_and_errors_are_those_of_cast() -> None:
    text = gpucast.device_function("FLOAT", "INT8", rounding="nearest_even", overflow="saturate")
    assert "signed char gpucast_float32_to_int8_saturate_nearest_even(float value)" in text
    assert "unsigned int gpucast_float32_to_int8_saturate_nearest_even_x4(gpucast::Vector<float, 4> values)" in text
    assert text == gpucast.device_functions(
        [("FLOAT", "INT8", {"rounding": "nearest_even", "overflow": "saturate"})] * 2
    )
    with pytest.raises(TypeError, match="device_function: dst='float7' is not a dtype"):
        gpucast.device_function("FLOAT", "float7")
    with pytest.raises(ValueError, match="STRING is cast on the host"):
        gpucast.device_function("FLOAT", "STRING")
    with pytest.raises(ValueError, match="device_functions: overflow='wrap' does not apply"):
        gpucast.device_functions([("FLOAT", "FLOAT16", {"overflow": "wrap"})])
    with pytest.raises(TypeError, match="device_functions: 'FLOAT' is not \\(src, dst\\)"):
        gpucast.device_functions(["FLOAT", "FLOAT16"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="device_functions: keywords={'scale': 2}; expected a dict of saturate"):
        gpucast.device_functions([("FLOAT", "FLOAT16", {"scale": 2})])


@pytest.mark.parametrize("major", INSTALLED)
def test_cupys_kernels_take_the_text(major: int) -> None:
    """As CuPy writes them, with flags of its own."""
    from cupy._core import _kernel, _reduction

    text = gpucast.device_functions([("FLOAT", "FLOAT8E4M3FN"), ("FLOAT8E4M3FN", "FLOAT")])
    types = _kernel._TypeMap(())

    def described(parameters: Any) -> Any:
        """Arrays of one dimension, and what CuPy adds: indexers and a number."""
        kinds = {"_in_ind": 2, "_out_ind": 2, "_ind": 2, "_block_stride": 3}
        return tuple(
            _kernel._ArgInfo(kinds.get(one.name, 1), cupy.ndarray, one.dtype, 1, True, True) for one in parameters
        )

    one = cupy.ElementwiseKernel(
        "float32 x, float32 scale", "uint8 y", "y = gpucast_float32_to_float8e4m3fn(x * scale)", "one", preamble=text
    )
    sum_of = cupy.ReductionKernel(
        "uint8 x", "float32 y", "gpucast_float8e4m3fn_to_float32(x)", "a + b", "y = a", "0", "sum_of", preamble=text
    )
    elementwise = _kernel._get_elementwise_kernel_code(
        described(one.params), types, one.params, one.operation, one.name, one.preamble
    )
    reads, writes = "const unsigned char& x = _raw_x[_in_ind.get()];", "float& y = _raw_y[_out_ind.get()];"
    reduction = _reduction._create_reduction_function_code(
        sum_of.name, 256, sum_of.reduce_type, sum_of._params, described(sum_of._params), sum_of.identity,
        sum_of.map_expr, sum_of.reduce_expr, sum_of.post_map_expr, types, reads, writes, sum_of.preamble, (),
    )  # fmt: skip
    include = Path(cupy.__file__).parent / "_core" / "include"
    flags = ("--std=c++17", f"-I{include}", f"-I{include}/cupy/_cccl/libcudacxx", "-ftz=true", "-DIndexT=int")
    for code, name in ((elementwise, "one"), (reduction, "sum_of")):
        made = load(major).compile(f"#include <cupy/carray.cuh>\n{code}", name, "sm_90", flags)
        assert not made.log and made.code.startswith(b"\x7fELF")
