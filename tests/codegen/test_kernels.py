# SPDX-License-Identifier: Apache-2.0
"""What the kernels compute: the host build against the reference, every pair under every rule."""

from __future__ import annotations

import numpy as np
import pytest

from codes import EXTRA, every_code, random_codes
from gpucast.codegen.cast_kernel import kernel_source
from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule
from gpucast.parity import hard_values, host_build
from gpucast.parity.cases import NUMERIC, rules
from kernels_on_host import cast_codes, to_bytes, wanted_codes


def sample(src: DType, dst: DType, exhaustive: bool) -> np.ndarray:
    """Every code of the sources of 16 bits or fewer; hard values and random ones of the wider."""
    if src.bits <= 16:
        return every_code(src)
    share, random = (1.0, 500_000) if exhaustive else (1 / 16, 500)
    return hard_values.codes(src, dst, seed=29, share=share, random=random)


def check(kernels: host_build.HostKernels, rule: CastRule, codes: np.ndarray) -> None:
    wanted, got = wanted_codes(codes, rule), cast_codes(kernels, rule, codes)
    wrong = np.flatnonzero(wanted != got)
    first = wrong[:1]
    assert wrong.size == 0, f"{rule}: {wrong.size} wrong; first: {codes[first]} -> {got[first]}, wanted {wanted[first]}"


@pytest.mark.parametrize("arch", [75, 80])
@pytest.mark.parametrize("src", [row for row in NUMERIC if row.bits == 16], ids=str)
def test_older_architectures_take_other_shortcuts(src: DType, arch: int) -> None:
    group = [rule for dst in NUMERIC if dst.family == "float" and dst.bits <= 8 for rule in rules(src, dst)]
    kernels = host_build.build(group, optimize=False, arch=arch)
    for rule in group:
        check(kernels, rule, every_code(src))


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_newer_architectures_have_more_instructions(src: DType, exhaustive: bool) -> None:
    pairs = [(src, dst) for dst in NUMERIC if exhaustive or any(row.is_float and row.bits <= 8 for row in (src, dst))]
    group = [rule for pair in pairs for rule in rules(*pair)]
    kernels = host_build.build(group, optimize=exhaustive, arch=100)
    for rule in group:
        check(kernels, rule, sample(src, rule.dst, exhaustive))


@pytest.mark.parametrize("row", EXTRA, ids=str)
def test_a_format_is_one_row(row: DType) -> None:
    """Kernels for a type that the table does not have, from its row alone."""
    group = [rule for other in (*NUMERIC, row) for pair in ((row, other), (other, row)) for rule in rules(*pair)]
    kernels = host_build.build(dict.fromkeys(group), optimize=False)
    rng = np.random.default_rng(28)
    for rule in group:
        small = rule.src.bits <= 16
        check(kernels, rule, sample(rule.src, rule.dst, False) if small else random_codes(rule.src, 5000, rng))


@pytest.mark.parametrize("row", [row for row in NUMERIC if row.packed or row.family == "bool"], ids=str)
def test_only_a_codes_own_bits_count(row: DType) -> None:
    """BOOL bytes other than 0 and 1 are true; one element per byte, the upper bits of packed types are ignored."""
    codes = np.arange(256, dtype=np.uint8)
    sources = [kernel_source(rules(row, dst)[0], unpacked=row.packed) for dst in NUMERIC]
    kernels = host_build.build(sources, optimize=False)
    for source in sources:
        rule = source.rule
        out = np.empty(rule.dst.nbytes(256), np.uint8)
        arguments = host_build.Arguments(codes.ctypes.data, out.ctypes.data, 256)
        kernels.run(rule, arguments, unpacked=source.unpacked)
        own = (codes != 0).astype(np.uint8) if row.family == "bool" else codes & np.uint8(row.code_mask)
        assert np.array_equal(out, to_bytes(wanted_codes(own, rule), rule.dst)), rule
