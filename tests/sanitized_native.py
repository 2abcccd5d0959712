# SPDX-License-Identifier: Apache-2.0
"""Run by test_native_sanitized.py in a process of its own: the host's library built with AddressSanitizer and UBSan.

Arrays have no bytes around them, so that any access outside is one outside of an allocation. With the argument
"overrun" the destination is one byte too short.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from gpucast.casting.fused import fused_rule
from gpucast.codegen.host import HostUnit, cast_unit, counted_unit, stochastic_unit
from gpucast.compile import cxx
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.core.formats import FORMATS
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.random import Random
from gpucast.core.rule import CastRule, resolve
from gpucast.cpu import fused as host_fused
from gpucast.native import calls
from gpucast.native import cast as native_cast
from gpucast.native import fused as native_fused
from gpucast.native import library as host_native
from gpucast.native import stochastic as native_stochastic
from gpucast.parity import hard_values
from gpucast.quantization import host as quantization_host
from gpucast.reference import casting as reference
from gpucast.reference.quantize import quantize as quantize_by_reference

_FLAGS = (
    "-std=c++17", "-O1", "-g1", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all",
    "-ffp-contract=off", "-Wno-unknown-pragmas", "-fPIC", "-shared",
    *(option for option in host_native._flags() if option.startswith("-march")),
)  # fmt: skip


@lru_cache(maxsize=64)
def sanitized(unit: HostUnit) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder) / "unit.cpp", Path(folder) / "made.so"
        text.write_text(unit.text)
        subprocess.run([*cxx.find("test"), *_FLAGS, "-o", str(made), str(text)], check=True)
        return ctypes.CDLL(str(made))


def codes_of(rule: CastRule, size: int) -> Any:
    if rule.src.bits > 16:
        return hard_values.codes(rule.src, rule.dst, seed=7, share=0, random=9)[:size]
    return np.arange(size).astype(rule.src.code_numpy)


def check_at_random(cast: native_stochastic.StochasticCast, rule: CastRule, size: int) -> None:
    codes, random = codes_of(rule, size), Random(11, 2**64 - 6)
    out = np.empty(codes.size, rule.dst.code_numpy)
    cast(codes, out, random)
    wanted = reference.apply(codes.view(rule.src.numpy), rule, reference.random_words(random, codes.size))
    assert np.array_equal(out, wanted.view(rule.dst.code_numpy)), rule


def check(cast: Any, rule: CastRule, size: int) -> None:
    codes = codes_of(rule, size)
    out = np.empty(codes.size, rule.dst.code_numpy)
    cast(codes, out)
    wanted = reference.apply(codes.view(rule.src.numpy), rule).view(rule.dst.code_numpy)
    assert np.array_equal(out, wanted), rule
    if isinstance(cast, native_cast.NativeCast):
        run, x = cast.quicker(checked), codes.view(rule.src.numpy)
        for y in (run(x, None), run(x, out.view(rule.dst.numpy))):
            assert np.array_equal(y.view(rule.dst.code_numpy), wanted), rule
        assert run("x", None) == run(None, out) == run(x, 5) == "checked"


def checked(x: Any, out: Any) -> str:
    return "checked"


def check_lists() -> None:
    """Of arrays, as `cast_many` looks at them."""
    lists = calls.lists()
    assert lists is not None
    arrays = [np.ones(shape, np.float32) for shape in ((), (0,), (3, 4), (1,) * 32)]
    assert lists.describe(arrays) == lists.describe([x.copy() for x in arrays])
    assert lists.addresses(arrays).tolist() == [x.ctypes.data for x in arrays]
    assert [y.shape for y in lists.new(arrays, np.dtype(np.float64))] == [x.shape for x in arrays]
    out = gpucast.cast_many(arrays, "BFLOAT16")
    for _ in range(2):
        out = gpucast.cast_many(arrays, "BFLOAT16", out=out)
        assert all((y == 1).all() for y in out)


def check_fused() -> int:
    """Casts of products and of sources, one of each kind, by a library that has no others."""
    pairs = (
        ("FLOAT", "FLOAT8E4M3FN"), ("BFLOAT16", "FLOAT"), ("DOUBLE", "BFLOAT16"), ("INT64", "DOUBLE"), ("INT2", "INT4"),
    )  # fmt: skip
    rules = [fused_rule(dtype(src), dtype(dst), scaled=True) for src, dst in pairs]
    compute = (dtype("FLOAT"), dtype("DOUBLE"))
    parts = {
        resolve(src, dst) for src in (*compute, *(rule.src for rule in rules)) for dst in compute if src is not dst
    }
    parts |= {replace(rule, src=src) for rule in rules for src in (*compute, rule.src) if src is not rule.dst}
    native_cast._unit = lambda src, is_default: cast_unit([rule for rule in parts if rule.src is src])
    for rule in rules:
        for size in (0, 1, 7, 5000):
            codes = np.resize(codes_of(rule, 700), size)
            for scale in (None, 0.1, 2.0**-5):
                cast = native_fused.find(rule, scale is not None)
                assert cast is not None, rule
                out, wanted = np.empty((2, size), rule.dst.code_numpy)
                given = FusedInputs(scale, np.zeros((), np.float32), np.ones((), np.uint8))
                cast(codes, out, given)
                host_fused.one_pass(codes.view(rule.src.numpy), rule, given, wanted.view(rule.dst.numpy))
                assert np.array_equal(out, wanted), (rule, scale)
    return len(rules)


def main() -> None:
    rng, count = np.random.default_rng(19), 0
    numeric = [kind for kind in DTYPES if kind.family != "string"]
    for src in numeric:
        # A seeded eighth of all rules.
        rules = [rule for rule in native_cast._rules(src) if rng.random() < 1 / 8]
        counted = [rule for rule in rules if native_cast.is_counted(rule)]
        library = sanitized(cast_unit(rules))
        for rule in rules:
            for size in (0, 1, 7, 700):
                check(native_cast.NativeCast(library, rule), rule, size)
        if counted:
            library = sanitized(counted_unit(counted))
            for rule in counted:
                for size in (0, 1, 7, 700):
                    check(native_cast.CountedCast(library, rule), rule, size)
        at_random = [rule for rule in native_stochastic._rules(src) if rng.random() < 1 / 8]
        library = sanitized(stochastic_unit(at_random))
        for rule in at_random:
            for size in (0, 1, 7, 700):
                check_at_random(native_stochastic.StochasticCast(library, rule), rule, size)
        count += len(rules) + len(counted) + len(at_random)
    host_native.library = lambda make, *arguments, nbytes=0: sanitized(make(*arguments))  # type: ignore[assignment]
    count += check_fused()
    check_lists()
    x = rng.standard_normal((5, 70)).astype(np.float32) * 40
    for name in ("float8e4m3fn_tensor", "mxfp6e3m2", "nvfp4", "int8_32", "uint4_zp_32"):
        found, wanted = (how(x, FORMATS[name]) for how in (quantization_host.quantize, quantize_by_reference))
        assert found.data.tobytes() == wanted.data.tobytes(), name
        assert found.scales.tobytes() == wanted.scales.tobytes(), name
    print(f"{count} functions clean")


def overrun() -> None:
    rule = resolve(dtype("FLOAT"), dtype("BFLOAT16"))
    cast = native_cast.NativeCast(sanitized(cast_unit([rule])), rule)
    out = np.empty(199, np.uint8)
    cast(np.zeros(100, np.uint32), np.lib.stride_tricks.as_strided(out.view(), (100,), (1,)))


if __name__ == "__main__":
    overrun() if sys.argv[1:] == ["overrun"] else main()
