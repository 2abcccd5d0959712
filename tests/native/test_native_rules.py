# SPDX-License-Identifier: Apache-2.0
"""The host's library against the reference under every rule, and the public calls that take it."""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.arrays.packed import PackedArray
from gpucast.cli import info
from gpucast.codegen.host import cast_unit, file_unit
from gpucast.compile.cache import Cache
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.options import Options
from gpucast.core.rule import CastRule, resolve
from gpucast.cpu import compiled
from gpucast.native import cast as native_cast
from gpucast.native import library as host_native
from gpucast.native import threads
from gpucast.parity import hard_values
from gpucast.parity.cases import rules
from gpucast.reference import casting as reference
from native_library import Noted, forget

NUMERIC = [kind for kind in DTYPES if kind.family != "string"]
#: The sources of every run, each compiled for the test, which takes seconds; with --exhaustive all are.
ALWAYS = ("BOOL", "INT4", "FLOAT8E8M0", "FLOAT16", "FLOAT", "INT64")


def found(rule: CastRule) -> native_cast.NativeCast:
    native_cast.find(rule, 1)
    host_native.finish()
    cast = native_cast.find(rule)
    assert cast is not None, rule
    return cast


def codes_of(src: DType, dst: DType) -> np.ndarray[Any, Any]:
    if src.bits > 16:
        return hard_values.codes(src, dst, seed=1, share=0.05, random=5_000)
    # Of types below a byte the upper bits do not count.
    return np.arange(max(256, 1 << src.bits)).astype(src.code_numpy)


def compare(rule: CastRule) -> None:
    codes = codes_of(rule.src, rule.dst)
    out, wanted = np.empty(codes.size, rule.dst.code_numpy), reference.apply(codes.view(rule.src.numpy), rule)
    found(rule)(codes, out)
    wrong = np.flatnonzero(out != wanted.view(rule.dst.code_numpy))
    assert not wrong.size, (rule, hex(codes[wrong[0]]), hex(out[wrong[0]]))


@pytest.mark.parametrize("src", [kind.name for kind in NUMERIC])
def test_every_rule_is_the_references(src: str, native: None, exhaustive: bool) -> None:
    if src not in ALWAYS and not exhaustive:
        pytest.skip("with --exhaustive")
    rules = native_cast._rules(dtype(src))
    assert {rule.dst for rule in rules} == set(NUMERIC) - {dtype(src)}
    for rule in rules:
        compare(rule)


@pytest.mark.parametrize("without", [["-mno-avx512f"], ["-mno-avx512f", "-mno-f16c"]], ids=" ".join)
@pytest.mark.parametrize("src", ["FLOAT", "DOUBLE", "INT64", "FLOAT16"])
def test_processors_without_an_instruction(
    src: str, without: list[str], native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not host_native._features():
        pytest.skip("options of x86 processors")
    flags = (*host_native._flags(), *without)
    monkeypatch.setattr(host_native, "_flags", lambda: flags)
    kinds = [*map(dtype, ("FLOAT", "DOUBLE", "BFLOAT16", "FLOAT16", "INT8", "UINT32"))]
    rules = [rule for rule in native_cast._rules(dtype(src)) if rule.dst in kinds]
    monkeypatch.setattr(native_cast, "_unit", lambda src, is_default: cast_unit(rules))
    for rule in rules:
        compare(rule)


def test_all_rules_are_known() -> None:
    """Every rule that an attribute leads to has a function, but for random rounding and what keeps its type."""
    for src in NUMERIC:
        wanted = {rule for dst in NUMERIC for rule in rules(src, dst) if native_cast.is_known(rule)}
        assert set(native_cast._rules(src)) == wanted, src
    assert not native_cast.is_known(resolve(dtype("FLOAT"), dtype("FLOAT")))
    assert not native_cast.is_known(resolve(dtype("FLOAT"), dtype("FLOAT16"), Options(rounding="stochastic")))
    assert not native_cast.is_known(resolve(dtype("STRING"), dtype("FLOAT")))


@pytest.mark.parametrize("to", ["BFLOAT16", "INT8", "FLOAT4E2M1", "DOUBLE"])
def test_public_casts_take_it(to: str, native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).standard_normal((70, 81)).astype(np.float32)
    x[3, :5] = np.nan, np.inf, -np.inf, -0.0, 1e30
    wanted = gpucast.reference.cast(x, to)
    rule = resolve(dtype("FLOAT"), dtype(to))
    cast = Noted(found(rule))
    monkeypatch.setitem(compiled.READY, rule, cast)
    strided = np.empty((70, 162), np.float32)[:, ::2]
    strided[...] = x
    for given in (x, np.asfortranarray(x), strided, x.astype(">f4")):
        assert gpucast.cast(given, to).tobytes() == wanted.tobytes()
    assert sum(cast.sizes) == 4 * x.size
    out = np.empty(x.shape, wanted.dtype)
    assert gpucast.cast(x, to, out=out) is out
    assert out.tobytes() == wanted.tobytes()
    (many,) = gpucast.cast_many([x], to)
    assert many.tobytes() == wanted.tobytes()
    assert sum(cast.sizes) == 6 * x.size


@pytest.mark.parametrize(
    ("src", "to"),
    [
        ("FLOAT", "INT8"), ("BFLOAT16", "DOUBLE"), ("INT32", "BFLOAT16"), ("INT8", "BOOL"), ("FLOAT", "FLOAT16"),
        ("DOUBLE", "FLOAT16"), ("FLOAT16", "FLOAT"), ("FLOAT16", "INT64"),
    ],
)  # fmt: skip
def test_results_do_not_depend_on_addresses(src: str, to: str, native: None) -> None:
    """Long arrays are cast from the start of a cache line on, wherever they begin."""
    rule = resolve(dtype(src), dtype(to))
    codes = codes_of(rule.src, rule.dst)
    x = np.resize(codes[:: max(1, codes.size // 5_000)], (1 << 14) + 200)
    cast, wanted = found(rule), reference.apply(x.view(rule.src.numpy), rule).view(rule.dst.code_numpy)
    for start in (*range(17), 31, 63, 64):
        for shift in (0, 1, 5):
            out = np.full(x.size + 64, 0x55, rule.dst.code_numpy)
            results = out[shift : shift + x.size - start]
            cast(x[start:], results)
            assert np.array_equal(results, wanted[start:]), (start, shift)
            assert np.all(out[:shift] == 0x55)
            assert np.all(out[shift + results.size :] == 0x55)


def test_results_do_not_depend_on_threads(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(4).standard_normal(100_003).astype(np.float32)
    cast = found(resolve(dtype("FLOAT"), dtype("BFLOAT16")))
    out, wanted = np.empty((2, x.size), np.uint16)
    cast(x.view(np.uint32), wanted)
    names: set[str] = set()
    monkeypatch.setattr(threads, "PART", 1 << 14)
    monkeypatch.setattr(threads, "most", lambda: 5)
    split = threads.split
    monkeypatch.setattr(
        threads, "split", lambda work, *rest: split(lambda *part: names.add(str(part)) or work(*part), *rest)
    )
    cast(x.view(np.uint32), out)
    assert len(names) == 5
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize(("src", "to"), [("FLOAT", "FLOAT16"), ("DOUBLE", "FLOAT"), ("FLOAT", "FLOAT8E8M0")])
def test_results_do_not_depend_on_how_the_thread_rounds(src: str, to: str, native: None) -> None:
    """Other libraries set that, and that subnormal numbers count as zero."""
    system = ctypes.CDLL(None)
    upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
    if upward is None:
        pytest.skip("nobody says what FE_UPWARD is here")
    rule = resolve(dtype(src), dtype(to))
    x = np.random.default_rng(6).standard_normal(1000).astype(rule.src.numpy)
    cast, out = found(rule), np.empty(x.size, rule.dst.code_numpy)
    wanted = reference.apply(x, rule).tobytes()
    assert system.fesetround(upward) == 0
    try:
        cast(x.view(rule.src.code_numpy), out)
        rounding = system.fegetround()
    finally:
        system.fesetround(0)
    assert out.tobytes() == wanted
    assert rounding == upward


def test_packed_arrays_take_it(native: None) -> None:
    x = PackedArray.pack(gpucast.cast(np.arange(5000) % 16, "UINT4"))
    wanted = gpucast.cast(x, "FLOAT8E5M2").tobytes()
    rule = resolve(dtype("UINT4"), dtype("FLOAT8E5M2"))
    found(rule)
    assert gpucast.cast(x, "FLOAT8E5M2").tobytes() == wanted


def test_short_arrays_take_code_that_is_ready(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = resolve(dtype("FLOAT"), dtype("BFLOAT16"))
    cast = Noted(found(rule))
    monkeypatch.setitem(compiled.READY, rule, cast)
    x = np.ones((10, 10), np.float32)
    for given in (x, x.T, x[::2], x[0, :0]):
        assert gpucast.cast(given, "BFLOAT16").tobytes() == b"\x80\x3f" * given.size
    assert cast.sizes == [100, 100, 50], "and nothing of nothing"


def test_many_short_casts_look_for_it(native: None) -> None:
    rule = resolve(dtype("FLOAT"), dtype("FLOAT16"))
    found(rule)
    forget()
    for _ in range(1000):
        gpucast.cast(np.ones(1, np.float32), "FLOAT16")
    assert rule in compiled.READY


def test_the_first_long_cast_compiles_and_a_later_process_does_not(cache: Cache, native: None) -> None:
    x = np.linspace(-5, 5, 4000, dtype=np.float32)
    wanted = gpucast.cast(x, "UINT2").tobytes()
    host_native.finish()
    assert gpucast.cast(x, "UINT2").tobytes() == wanted
    assert resolve(dtype("FLOAT"), dtype("UINT2")) in compiled.READY
    files = set(Path(cache.folder).iterdir())
    # What another process would find.
    host_native._native.cache_clear()
    forget()
    gpucast.cast(x, "UINT2")
    assert resolve(dtype("FLOAT"), dtype("UINT2")) in compiled.READY
    assert set(Path(cache.folder).iterdir()) == files


def test_big_endian_machines_take_numpys_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUCAST_NATIVE", "1")
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path))
    assert host_native._cache.__wrapped__() is not None
    monkeypatch.setattr(host_native.sys, "byteorder", "big")
    assert host_native._cache.__wrapped__() is None
    assert host_native.status() == "NumPy alone: this machine is big-endian"


def test_info_says_which_path_is_in_use_and_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GPUCAST_NATIVE", "0")
    assert host_native.status() == "NumPy alone: GPUCAST_NATIVE=0"
    monkeypatch.setenv("GPUCAST_NATIVE", "1")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert host_native.status().startswith("NumPy alone: native: CXX='no-such-compiler' is not a command")
    monkeypatch.setenv("CXX", f"{sys.executable} -O2")
    folder = tmp_path / "native"
    wanted = f"compiled by {sys.executable} -O2 at once, else NumPy; 0 parts are in {folder}"
    assert host_native.status() == wanted
    monkeypatch.delenv("GPUCAST_NATIVE")
    assert host_native.status() == wanted.replace("at once", "when 1 GB of a type are cast")
    assert info.collect()["host_casts"] == host_native.status()


def test_a_compiler_that_hangs_delays_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "hangs"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr(host_native, "_TIMEOUT", 0.05)
    native = host_native.NativeLibrary(file_unit(), Cache(str(tmp_path / "native"), private=True), 0)
    assert native.library(1) is None
    host_native.finish()
    assert native.library(1) is None
    assert list((tmp_path / "native").iterdir()) == []
