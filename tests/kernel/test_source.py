# SPDX-License-Identifier: Apache-2.0
"""The text of the kernels."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from gpucast.core.dtypes import dtype
from gpucast.core.rule import Options, resolve
from gpucast.kernel.cast_kernel import PARTS, tile_elements
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import parts_text
from gpucast.parity import host_build
from gpucast.parity.cases import NUMERIC, rules


def test_names_are_the_works_and_tell_every_kernel() -> None:
    assert cast_kernel(resolve(dtype("FLOAT"), dtype("FLOAT8E4M3FN"))).name == "gpucast_float32_to_float8e4m3fn"
    rounded = resolve(dtype("FLOAT"), dtype("INT4"), Options(rounding="nearest_even", overflow="saturate"))
    assert cast_kernel(rounded, "strided").name == "gpucast_float32_to_int4_saturate_nearest_even_strided"
    sources = [
        cast_kernel(rule, shape, unpacked=unpacked)
        for src in NUMERIC
        for dst in NUMERIC
        for rule in rules(src, dst)
        for shape in ("contiguous", "strided")
        for unpacked in ((False, True) if src.packed else (False,))
    ]
    assert len({source.name for source in sources}) == len(sources) > 3000
    for source in sources:
        assert re.fullmatch("gpucast_[a-z0-9_]+", source.name)
        assert f"({source.name}," in source.line


INSTRUCTIONS = (Path(__file__).parents[2] / "kernels" / "instructions.cuh").read_text()


def test_no_compiler_flag_can_bend_a_result() -> None:
    """Floats are touched by instructions alone that are written out, in one file; the C++ around them has no
    arithmetic of floats and no conversion."""
    code = re.sub(r"//.*", "", parts_text(PARTS))
    inline = re.sub(r"//.*", "", INSTRUCTIONS)
    assert inline in code
    elsewhere = code.replace(inline, "")
    assert "asm" not in elsewhere
    assert re.findall(r"\b(?:float|double)\(|\bf?(?:abs|min|max|fma)f?\(", re.sub(r"ptx::\w+", "", elsewhere)) == []
    mnemonics = re.findall(r'"([a-z]\w*\.[\w.]+)', inline)
    assert len(mnemonics) > 30
    # What is said of its result is exact whichever neighbour it gives: tests/quantization/test_quantization.py.
    assert [name for name in mnemonics if "ftz" in name or "approx" in name] == ["rcp.approx.ftz.f32"]
    assert "rcp" not in elsewhere


def test_every_instruction_has_a_model() -> None:
    """For each function of kernels/instructions.cuh the host build has one of the same name and number of forms."""
    inline = re.sub(r"//.*", "", INSTRUCTIONS)
    named = re.findall(r"^GPUCAST_(?:UNARY|BINARY|TERNARY)\((\w+),", inline, re.MULTILINE)
    named += re.findall(r"^GPUCAST_INLINE \w+ (\w+)\(", inline, re.MULTILINE)
    source = cast_kernel(resolve(dtype("FLOAT"), dtype("INT8")))
    models = host_build.unit_text([source]).partition(parts_text(source.parts))[0]
    found = Counter(re.findall(r"^inline (?:unsigned |long )*\w+ (\w+)\(", models, re.MULTILINE))
    for name, forms in Counter(named).items():
        assert found[name] == forms, name


@pytest.mark.parametrize("src", [2, 4, 6, 8, 16, 32, 64])
@pytest.mark.parametrize("dst", [2, 4, 6, 8, 16, 32, 64])
def test_a_tile_is_whole_bytes_and_one_vector_where_it_can(src: int, dst: int) -> None:
    elements = tile_elements(src, dst)
    assert elements * src % 8 == 0 and elements * dst % 8 == 0
    if 6 in (src, dst):
        # Three whole 32-bit words, or whole bytes.
        assert elements == (4 if 64 in (src, dst) else 16)
    elif elements > 4:
        assert elements * max(src, dst) == 128
