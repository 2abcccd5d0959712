# SPDX-License-Identifier: Apache-2.0
"""The static check of the kernels that quantize: goals, spills and warnings. In CI for sm_90, else --exhaustive."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from bench import cubin
from bench.host import quantize as bench
from bench.static.budget import verdict
from bench.static.kernels import Cast, Code, compiled, facts
from bench.static.paths import full_tile, marked
from bench.static.quantize import BEFORE, CHOSEN, SOURCES, TILES, measure, two_passes, verdict_of_passes
from gpucast import cast, dtype
from gpucast.core.rule import CastRule
from gpucast.kernel import compiler
from gpucast.kernel.kernel import program
from gpucast.quantization import FORMATS, quantize_on_host, recipes
from gpucast.quantization.formats import ROW, Format
from gpucast.quantization.formats import SOURCES as EVERY_SOURCE
from gpucast.quantization.gpu.source import quantize_kernel
from gpucast.warmup import kinds
from quantization_cases import Array


def test_every_chosen_kernel_reaches_its_goal() -> None:
    found = measure("sm_90")
    assert len(found) == len(SOURCES) * sum(map(len, CHOSEN.values())) + sum(map(len, (BEFORE, TILES)))
    assert verdict(found) == verdict_of_passes(found) == []
    assert set(two_passes(found)) == {f"{src} {name}" for src in SOURCES for name in CHOSEN["extremes"]}
    # What is over, spills or is known in vain is told.
    keeps = next(one for one in found if one.kind == "rows")
    miss = dataclasses.replace(keeps, kernel=dataclasses.replace(keeps.kernel, path=100 * keeps.kernel.path))
    assert verdict([miss], {}) == [f"{miss}: {problem}" for problem in miss.problems()] != []
    assert verdict([miss], {keeps.key: "because"}) == []
    assert verdict([keeps], {keeps.key: "because"}) == [
        f"{keeps}: keeps what is checked; take it out of the known misses"
    ]
    kernel = dataclasses.replace(keeps.kernel, local=8, log="hm", loads={4: 16})
    spilt = dataclasses.replace(keeps, kernel=kernel)
    assert [text.split(":")[0] for text in spilt.problems()] == [
        "8 bytes of local memory", "the compiler says", "loads of 4 bytes at a time, not of 16",
    ]  # fmt: skip
    # Both ways for one read of what a thread holds, and 16 codes in each store.
    for one in found[-len(TILES) :]:
        results = 1 if one.kind in ("down", "whole") else 2
        assert one.kernel.loads == {16: 8 if one.name.startswith("BFLOAT16") else 16}
        assert one.kernel.stores == {16: 4 * results}
        assert one.kernel.shared <= 48 * 1024


#: One for each kind of formula: powers of two by exponents alone, products, quotients, and those of FLOATs that are
#: rounded to the type of the array, by kernels of rows and of elements.
COUNTED = (
    *("microxcaling-mxfp8", "te-mxfp8", "compressed-tensors-mxfp8", "torchao-0.18-mxfp8-even", "deepgemm-ue8m0"),
    *("deepgemm", "te-nvfp4", "modelopt-nvfp4", "vllm-fp8-group", "vllm-fp8-token", "torchao-float8-tensor"),
    *("compressed-tensors-fp8", "compressed-tensors-int8-row"),
)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100a"])
def test_recipes_cost_little_more_than_the_plain_format(arch: str) -> None:
    steps = {name: recipes.find(name, "test") for name in COUNTED}
    pairs = {
        name: (_of_bfloat16(one), _of_bfloat16(dataclasses.replace(one, steps=None))) for name, one in steps.items()
    }
    asked = {source.kernel.name: (source, stored) for pair in pairs.values() for source, stored in pair}
    code = compiled([source for source, _ in asked.values()], arch)
    assert code[0].log == ""
    found = {name: _instructions(*one, arch, made) for (name, one), made in zip(asked.items(), code, strict=True)}
    ratios = {name: found[one.kernel.name] / found[other.kernel.name] for name, ((one, _), (other, _)) in pairs.items()}
    assert all(0.4 < ratio <= 1.1 for ratio in ratios.values()), ratios


def _of_bfloat16(format: Format) -> tuple[Cast, int]:
    """The kernel for rows of whole blocks or for scales that are there; the bytes of a scale that a thread stores."""
    rule, length = CastRule(dtype("BFLOAT16"), format.element), format.block[-1] if format.block != "tensor" else ROW
    if length == ROW:
        return Cast(quantize_kernel(rule, format, "elements", single=format.block == "tensor"), rule), 0
    kernel = quantize_kernel(rule, format, "rows", block=int(length))
    return Cast(kernel, rule), format.scale.bits // 8 * (length == kernel.elements)


def _instructions(source: Cast, stored: int, arch: str, code: Code) -> int:
    """Those of a full tile. What a kernel calls is the slow path of a division."""
    flow = code.blocks
    calls = {number for number, block in enumerate(flow) if any(one.base == "CALL" for one in block.instructions)}
    store = source.kernel.elements * source.rule.dst.bits // 8 + stored
    path = full_tile(flow, source.kernel.elements * 2, store, avoid=marked(flow) | calls)
    kernel = facts(source, arch, code, path=path)
    assert sum(width * count for width, count in kernel.stores.items()) == store
    return kernel.instructions


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_what_is_checked_elsewhere(capability: tuple[int, int], exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("long: run with --exhaustive")
    assert verdict(measure(compiler.architecture(capability))) == []


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_kernels_compile_without_warnings_and_spills(arch: str, exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("long: run with --exhaustive")
    chosen = random.Random(arch).sample([(name, row) for name in FORMATS for row in EVERY_SOURCE], 24)
    kernels = {}
    for name, row in chosen:
        for stochastic in (False, True) if FORMATS[name].element.is_float else (False,):
            kernels |= {kernel.name: kernel for kernel in kinds.of_quantize(FORMATS[name], row, stochastic)}
    compiled = compiler.compile(program(list(kernels.values())), "quantize", arch)
    assert compiled.log == ""
    assert {name: found.local for name, found in cubin.kernels(compiled.code).items() if found.local} == {}


# ---- bench/host/quantize.py ----


@pytest.mark.parametrize("name", FORMATS)
def test_the_formulas_are_those_of_the_formats(name: str) -> None:
    format = FORMATS[name]
    x: Array = np.random.default_rng(5).standard_normal((128, 256)).astype(np.float32)
    for kind in bench.TYPES:
        given = cast(x, kind)
        parts = quantize_on_host.quantize(given, format)
        codes, scale, zero = bench.quantize_formula(given, format)
        assert codes.dtype == parts.data.dtype
        # A quotient rounded to FLOAT may be a midpoint, and so may many of numbers of few bits.
        differ = codes.reshape(x.shape).astype(np.float32) != parts.data.astype(np.float32)
        assert np.count_nonzero(differ) <= x.size // 100
        scales = (s.reshape(parts.scales.shape).astype(np.float32) for s in (scale, parts.scales))
        assert np.isclose(*scales).mean() > 0.99
        assert (zero is None) == (parts.zero_points is None)
        assert zero is None or np.mean(zero.reshape(parts.scales.shape) == parts.zero_points) > 0.98
        one, other = (f(parts, format, dtype(kind)) for f in (bench.dequantize_formula, quantize_on_host.dequantize))
        assert one.dtype == other.dtype and np.allclose(one.astype(float), other.astype(float), rtol=2.0**-7)
