# SPDX-License-Identifier: Apache-2.0
"""Quotients beside the midpoints of two codes, by every way that an architecture's instructions offer.

The kernels run as host code with models of the instructions; the sibling on a GPU is in
tests/quantization/test_gpu_quantization.py.
"""

from __future__ import annotations

import numpy as np
import pytest

import quotient_cases as cases
from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.casting.cast import cast
from gpucast.codegen.cast_kernel import KernelSource
from gpucast.core.dtypes import dtype
from gpucast.core.formats import Format
from gpucast.core.rule import CastRule
from gpucast.parity import host_build
from gpucast.parity.host_build import HostKernels
from gpucast.quantization import FORMATS
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.gpu.source import QuantizeArguments, QuantizeSpec, divide_by

#: Below sm_89 no conversion to float8, below sm_100a none to float4.
SOME = {
    80: ("float8e4m3fn_1x128", "nvfp4"),
    90: ("float8e4m3fn_1x128", "nvfp4", "int4_zp_32"),
    100: ("float8e5m2_1x128", "nvfp4", "int8_64"),
}
MORE = "float8e4m3fn_1x128 float8e5m2_1x128 nvfp4 int8_64 uint8_zp_32 int4_64 int4_zp_32 int2_32 uint2_zp_32".split()
SOURCES = ("FLOAT", "BFLOAT16")
VECTOR = 16


def forth(name: str, source: str) -> KernelSource:
    return QuantizeSpec(CastRule(dtype(source), FORMATS[name].element), FORMATS[name], "elements").source()


def back(name: str, to: str) -> KernelSource:
    return QuantizeSpec(CastRule(FORMATS[name].element, dtype(to)), FORMATS[name], "back").source()


class Run:
    """Launches of one build. Each row of a matrix is a block."""

    def __init__(self, names: tuple[str, ...], arch: int, sources: tuple[str, ...], tos: tuple[str, ...]) -> None:
        made = [forth(name, source) for name in names for source in sources]
        made += [back(name, to) for name in names for to in tos]
        self.kernels: HostKernels = host_build.build(made, optimize=False, arch=arch)

    def _launch(self, kernel: KernelSource, src: np.ndarray, out: np.ndarray, shape: tuple[int, ...], format: Format,
                scales: np.ndarray, zero: int, g: float) -> None:  # fmt: skip
        whole, zeros = np.array([g], np.float32), np.full(shape[0], zero & 0xFF, np.uint8)
        scales = np.ascontiguousarray(scales)
        arguments = QuantizeArguments(
            BlockGrid((1, *shape), (1, 1, shape[1]), (1, shape[0], 1)),
            scales.ctypes.data,
            zeros.ctypes.data if format.zero_points else 0,
            whole.ctypes.data if format.global_scale else 0,
        )
        n = shape[0] * shape[1]
        more = arguments.to_bytes()
        self.kernels.launch(kernel.name, host_build.Arguments(src.ctypes.data, out.ctypes.data, n, more=more))

    def codes(
        self, name: str, source: str, x: np.ndarray, scales: np.ndarray, zero: int = 0, g: float = 1
    ) -> np.ndarray:
        format = FORMATS[name]
        x = np.ascontiguousarray(x)
        out = np.zeros(format.element.nbytes(x.size), np.uint8)
        self._launch(forth(name, source), x, out, x.shape, format, scales, zero, g)
        return (unpack_codes(out, format.element.bits, x.size) if format.element.packed else out).reshape(x.shape)

    def numbers(
        self, name: str, to: str, codes: np.ndarray, scales: np.ndarray, zero: int = 0, g: float = 1
    ) -> np.ndarray:
        format = FORMATS[name]
        data = pack_codes(codes.reshape(-1), format.element.bits) if format.element.packed else codes.reshape(-1)
        data = np.ascontiguousarray(data)
        out = np.zeros(codes.shape, dtype(to).numpy)
        self._launch(back(name, to), data, out, codes.shape, format, scales, zero, g)
        return out


def check(run: Run, name: str, source: str, count: int) -> None:
    format = FORMATS[name]
    zero = 3 if format.zero_points else 0
    if format.global_scale:
        for g in cases.divisors(count // 16)[:-4]:
            # Every scale but the zero and NaN; of some the divisor is beyond the quick ways.
            scales = np.arange(1, 127, 7, dtype=np.uint8).view(format.scale.numpy)
            d = scales.astype(np.float64) * np.float64(g)
            x = cases.rows(format, dtype(source), d, VECTOR)
            assert np.array_equal(run.codes(name, source, x, scales, g=float(g)), cases.codes(format, x, d)), (name, g)
        return
    d = cases.divisors(count)
    x = cases.rows(format, dtype(source), d, VECTOR)
    found, wanted = run.codes(name, source, x, d, zero), cases.codes(format, x, d, zero)
    where = np.argwhere(found != wanted)
    assert not where.size, (name, source, where[0], x[tuple(where[0])], d[where[0][0]])


def check_every_code(run: Run, name: str, source: str, d: np.ndarray) -> None:
    x = np.tile(cases.every_number(dtype(source)), (d.size, 1))
    zero = 3 if FORMATS[name].zero_points else 0
    scales, g = d, 1.0
    if FORMATS[name].global_scale:
        scales, g = np.full(d.size, 0x47, np.uint8).view(FORMATS[name].scale.numpy), float(d[0])
        d = scales.astype(np.float64) * g
    assert np.array_equal(run.codes(name, source, x, scales, zero, g), cases.codes(FORMATS[name], x, d, zero)), name


def check_back(run: Run, name: str, to: str, count: int) -> None:
    """Every code with scales of all lengths, among them such that products are ties of the destination."""
    format = FORMATS[name]
    scales, zero, g = cases.divisors(count), 3 if format.zero_points else 0, 1.0
    codes = np.resize(np.arange(1 << format.element.bits, dtype=np.uint8), (count, 256))
    exponents = np.random.default_rng(5).integers(0, 255, count).astype(np.uint32)
    scales[::3] = (scales[::3].view(np.uint32) & 0x7FFFFF | exponents[::3] << 23).view(np.float32)
    scales[1::3] = cases.factors(dtype(to), count)[1::3]
    value = np.array([float(format.element.value(int(code))) for code in codes[0]])
    for g in scales[::4] if format.global_scale else [np.float32(1)]:
        own = scales
        if format.scale is not dtype("FLOAT"):
            # The codes below NaN.
            own = np.resize(np.arange(format.scale.nan_code, dtype=np.uint8), count).view(format.scale.numpy)
        with np.errstate(invalid="ignore"):
            product = (value - zero)[None] * own.astype(np.float64)[:, None] * np.float64(g)
        wanted = cast(product, to)
        nan = np.isnan(product)
        found = run.numbers(name, to, codes, own, zero, float(g))
        code = f"u{found.itemsize}"
        assert np.array_equal(found.view(code)[~nan], wanted.view(code)[~nan]), (name, to, g)
        assert np.isnan(found[nan].astype(np.float32)).all()


@pytest.mark.parametrize("arch", SOME)
def test_beside_midpoints(arch: int) -> None:
    run = Run(SOME[arch], arch, SOURCES, ("BFLOAT16",))
    for name in SOME[arch]:
        for source in SOURCES:
            check(run, name, source, 64)
        check_every_code(run, name, "BFLOAT16", cases.divisors(16)[[5, -6]])
        check_back(run, name, "BFLOAT16", 96)


@pytest.mark.parametrize("arch", [75, 80, 89, 90, 100])
def test_beside_midpoints_everywhere(arch: int, exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("long: run with --exhaustive")
    every = (*SOURCES, "FLOAT16")
    run = Run((*MORE, "mxfp8e4m3", "mxfp8e5m2", "mxfp4"), arch, every, every)
    for name in (*MORE, "mxfp8e4m3", "mxfp8e5m2", "mxfp4"):
        for source in every:
            if name in MORE:
                check(run, name, source, 400)
                if source != "FLOAT":
                    check_every_code(run, name, source, cases.divisors(32)[3:-4])
            check_back(run, name, source, 512)


def test_the_cases_hit_midpoints() -> None:
    """Quotients on a midpoint, and so near that a FLOAT division would land on it."""
    format, d = FORMATS["float8e4m3fn_1x128"], cases.divisors(64)
    x = cases.rows(format, dtype("FLOAT"), d, VECTOR).astype(np.float64)
    middle = cases.midpoints(format.element)
    exact = np.isin(np.abs(x), np.outer(d.astype(np.float64), middle))
    rounded = np.isin(np.abs(x.astype(np.float32) / d[:, None]), middle.astype(np.float32))
    assert exact.sum() > 1000 and (rounded & ~exact).sum() > 100


def test_division_by_multiplication() -> None:
    rng = np.random.default_rng(1)
    near = [2**k + step for k in (1, 3, 16, 31) for step in (-1, 0, 1)]
    for n in (*near, 7, 10, 641, 2**32 - 1, *rng.integers(1, 2**32, 500).tolist()):
        factor, first, second = divide_by(n)
        multiples = [n * k for k in (0, 1, 2, (2**32 - 1) // n)]
        for i in {0, 2**32 - 1, *multiples, *(i - 1 for i in multiples), *rng.integers(0, 2**32, 8).tolist()}:
            if 0 <= i < 2**32:
                part = factor * i >> 32
                part += (i - part) >> first
                assert part < 2**32 and part >> second == i // n, (i, n)
    assert divide_by(0) == divide_by(2**32) == (0, 0, 0)
