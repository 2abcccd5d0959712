# SPDX-License-Identifier: Apache-2.0
"""The library that the machine's compiler makes of the kernels' text: the reference's results, and nothing needs it."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from endings import HANGS
from gpucast import cli, files
from gpucast.checkpoints.losses import counts
from gpucast.checkpoints.streaming import checksums
from gpucast.codegen.cast import kernel_name
from gpucast.codegen.host import HostUnit, file_unit
from gpucast.compile import cxx
from gpucast.compile.cache import Cache
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.core.options import Options
from gpucast.core.rule import CastRule, resolve
from gpucast.cpu import compiled, lanes
from gpucast.native import cast as host_native_cast
from gpucast.native import library as host_native
from gpucast.native.cast import CastStats, FilePosition
from gpucast.parity import hard_values
from gpucast.quantization import host as quantization_host
from gpucast.quantization import native as quantization_native
from gpucast.quantization.cpu.blocks import BlockGrid
from gpucast.reference import casting as reference
from gpucast.reference.quantize import quantize as quantize_by_reference
from native_library import needs_compiler
from quantization_cases import ALL, beside_midpoints, rows

#: The attributes that change a cast to a float.
ATTRIBUTES = [
    {"saturate": saturate, "overflow": overflow, "opset": opset}
    for saturate, overflow, opset in itertools.product((True, False), (None, "saturate"), (19, 28))
]


def _rules() -> dict[CastRule, dict[str, Any]]:
    """The rules with casts that count, each with attributes that lead to it."""
    found = {}
    for src, dst, attributes in itertools.product(DTYPES, DTYPES, ATTRIBUTES):
        try:
            rule = resolve(src, dst, Options(**attributes))
        except (TypeError, ValueError):
            continue
        if host_native_cast.is_counted(rule):
            found[rule] = attributes
    return found


RULES = _rules()


def _name(rule: Any) -> str:
    return f"{rule.src}-{rule.dst}-{rule.overflow}{'-nan' * rule.infinity_is_nan}" if isinstance(rule, CastRule) else ""


def made(folder: Path, unit: HostUnit | None = None) -> host_native.NativeLibrary:
    """The library of a unit (that for files) in a cache folder, after the compiler had its turn."""
    native = _library(folder, unit or file_unit())
    native.library()
    host_native.finish()
    return native


def _library(folder: Path, unit: HostUnit | None = None, worth: int = 0) -> host_native.NativeLibrary:
    return host_native.NativeLibrary(unit or file_unit(), Cache(str(folder), private=True), worth)


def _kept(folder: Path) -> Path:
    """The file of the unit for files."""
    return folder / f"{_library(folder).key()}.kernel"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_compiler()
    kept = tmp_path_factory.mktemp("cache") / "native"
    assert made(kept).library() is not None
    return kept


@lru_cache(maxsize=64)
def _made(folder: Path, make: Callable[..., HostUnit], *arguments: Any) -> ctypes.CDLL:
    found = made(folder, make(*arguments)).library()
    assert found is not None
    return found


@pytest.fixture
def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every unit is there when it is asked for."""
    monkeypatch.setattr(compiled, "READY", {})
    monkeypatch.setattr(host_native, "library", lambda *unit, nbytes=0: _made(folder, *unit))


def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "READY", {})
    monkeypatch.setattr(host_native, "library", lambda *unit, nbytes=0: None)


def test_it_knows_what_checkpoints_hold() -> None:
    pairs = {(rule.src.name, rule.dst.name) for rule in RULES}
    wide, narrow = ("FLOAT", "BFLOAT16", "FLOAT16"), [row.name for row in DTYPES if row.family == "float"]
    assert pairs == {(src, dst) for src in wide for dst in narrow if src != dst and dst != "DOUBLE"}


@pytest.mark.parametrize("rule", RULES, ids=_name)
def test_casts_are_the_references(rule: CastRule, library: None) -> None:
    src, dst = rule.src, rule.dst
    codes = hard_values.codes(src, dst, 1, 0.05, 5_000) if src.bits > 16 else np.arange(1 << 16, dtype=np.uint16)
    cast = host_native_cast.find_counted(rule)
    assert cast is not None
    out = np.empty(codes.size, dst.code_numpy)
    cast(codes, out)
    wanted = reference.apply(codes.view(src.numpy), rule).view(dst.code_numpy)
    wrong = np.flatnonzero(out != wanted)
    assert not wrong.size, f"{codes[wrong[0]]:#x}: {out[wrong[0]]:#x}, expected {wanted[wrong[0]]:#x}"


@pytest.mark.parametrize("rule", RULES, ids=_name)
def test_counts_are_those_of_the_report(rule: CastRule, library: None) -> None:
    src, dst, attributes = rule.src, rule.dst, RULES[rule]
    cast = host_native_cast.find_counted(rule)
    assert cast is not None
    values = np.random.default_rng(5).uniform(-2, 2, 2000) * 2.0 ** np.random.default_rng(6).integers(-30, 0, 2000)
    ordinary = np.concatenate([values[:500], values, [0.0, -0.0, 0.0]])
    seldom = {"nan": np.nan, "inf": -np.inf, "large": 3e38, "largest": float(dst.max)}
    for name, value in {"none": 1.0, **seldom}.items():
        with np.errstate(over="ignore"):
            x = np.append(ordinary, value).astype(src.numpy)
        y = np.empty(x.shape, dst.numpy)
        seen = cast(x.view(src.code_numpy), y.view(dst.code_numpy))
        wanted = gpucast.cast_report(x, dst, **attributes)
        told = counts.from_stats(seen, x.size, src, dst, attributes)
        assert (told is not None) >= (name == "none")
        for found in (told or wanted, counts.count(x, y, src, dst, attributes, seen)):
            assert [getattr(found, field) for field in COUNTS] == [getattr(wanted, field) for field in COUNTS], name


COUNTS = ("elements", "nonzero", "saturated", "infinite", "nan", "nan_lost", "underflowed")


@pytest.mark.parametrize("size", [0, 1, 7, 15, 33, 100])
def test_any_length_and_address(size: int, library: None) -> None:
    x = np.random.default_rng(size).standard_normal(size + 3).astype(np.float32)[3:]
    for rule in (rule for rule in RULES if rule.src.name == "FLOAT"):
        cast, out = host_native_cast.find_counted(rule), np.full(size + 2, 0x55, rule.dst.code_numpy)
        assert cast is not None
        seen = cast(x.view(np.uint32), out[1:-1])
        assert np.array_equal(out[1:-1], reference.apply(x, rule).view(rule.dst.code_numpy))
        assert out[0] == out[-1] == 0x55
        assert seen.source_zeros == 0


def test_sums_are_those_of_numpy(library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(2).integers(0, 256, 5003, dtype=np.uint8)
    data[1000:3000] = 255
    cases = [(data[start:], position) for start in range(9) for position in (0, 3, 8)] + [(data[:5], 6), (data[:0], 0)]
    found = [checksums.checksum(*case) for case in cases]
    without_library(monkeypatch)
    assert found == [checksums.checksum(*case) for case in cases]


# ---- files ----


@pytest.mark.parametrize("to", ["BFLOAT16", "FLOAT8E5M2FNUZ", "FLOAT4E2M1", "FLOAT"])
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_files_are_the_same_without_it(
    to: str,
    suffix: str,
    library: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Several blocks; of "x" several parts, too.
    x = np.random.default_rng(0).standard_normal((1 << 21) + 5 if to == "BFLOAT16" else 140_003).astype(np.float32)
    lossy = x[:140_003].copy()
    lossy[[5, 70_000, 140_002]] = np.nan, np.inf, 1e30
    tensors = {"x": x, "lossy": lossy, "few": x[:5], "none": x[:0], "zeros": x[:100] * 0}
    half = {f"half.{name}": value[:10_000].astype(np.float16) for name, value in tensors.items()}
    files.save(str(tmp_path / f"in{suffix}"), {**tensors, **half, "big": x[:99].astype(">f4")})
    told = []
    for is_there in (True, False):
        if not is_there:
            without_library(monkeypatch)
        target = tmp_path / f"out{suffix}"
        argv = ["convert", str(tmp_path / f"in{suffix}"), str(target), "--to", to, "--scale", "none", "--allow-loss"]
        assert cli.main(argv) == 0
        printed = capsys.readouterr().out
        assert printed.endswith("; none lost\n") == (to in ("FLOAT", "BFLOAT16")), printed
        told.append((_tensors(target), printed))
        target.unlink()
    assert told[0] == told[1]


def _tensors(path: Path) -> dict[str, bytes]:
    with files.TensorFile(str(path)) as file:
        return {tensor.name: tensor.read().tobytes() for tensor in file.tensors}


def test_a_call_of_the_system_that_fails_is_told(library: None, tmp_path: Path) -> None:
    rule = resolve(dtype("FLOAT"), dtype("BFLOAT16"))
    cast, path = host_native_cast.find_counted(rule), tmp_path / "file"
    assert cast is not None
    path.write_bytes(bytes(4000))
    with path.open("rb") as source, (tmp_path / "out").open("w+b") as target:
        here, there = (source.fileno(), 0), (target.fileno(), 8)
        for src, dst, size, works in (
            (here, there, 1000, True),
            (here, there, 1001, False),
            (here, here, 1000, False),
            ((-1, 0), there, 1000, False),
        ):
            done = cast.file(FilePosition.of(rule.src, *src), FilePosition.of(rule.dst, *dst), size)
            assert done == ((CastStats(0, 1000, 1000), 0) if works else None)


@pytest.mark.parametrize("to", ["BFLOAT16", "FLOAT8E4M3FN"])
@pytest.mark.parametrize("size", [1, 5, 32768, 70_003])
def test_files_are_cast_and_summed(size: int, to: str, library: None, tmp_path: Path) -> None:
    rule, x = resolve(dtype("FLOAT"), dtype(to)), np.random.default_rng(size).standard_normal(size).astype(np.float32)
    (tmp_path / "in").write_bytes(b"123" + x.tobytes())
    cast = host_native_cast.find_counted(rule)
    assert cast is not None
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("w+b") as target:
        done = cast.file(
            FilePosition.of(rule.src, source.fileno(), 3), FilePosition.of(rule.dst, target.fileno(), 5), size
        )
    wanted = reference.apply(x, rule).tobytes()
    assert (tmp_path / "out").read_bytes() == bytes(5) + wanted
    assert done is not None
    assert done[1] == checksums.checksum(wanted)


def test_errors_of_the_system_are_the_same(
    library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files.save(str(tmp_path / "in.safetensors"), {"x": np.ones(1 << 22, np.float32)})

    def full(file: int, data: Any, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # As the library finds it, and then Python.
    monkeypatch.setattr(host_native_cast.CountedCast, "file", lambda *_: None)
    monkeypatch.setattr(os, "pwrite", full)
    argv = ["convert", str(tmp_path / "in.safetensors"), str(tmp_path / "out.safetensors"), "--to", "BFLOAT16"]
    assert cli.main(argv) == 1
    assert "No space left on device" in capsys.readouterr().err


# ---- scales ----


@pytest.mark.parametrize("src", ["FLOAT", "BFLOAT16", "FLOAT16"])
@pytest.mark.parametrize("name", ALL)
def test_quantized_arrays_are_the_references(name: str, src: str, library: None) -> None:
    format, rng = ALL[name], np.random.default_rng(4)
    ordinary = rng.standard_normal((32, 96))
    # Midpoints of codes, zeros, numbers of all sizes, ragged blocks, and what NumPy has to answer.
    grid = np.append(rng.integers(-31, 32, (32, 95)) / 16, np.full((32, 1), 448.0), axis=1)
    wide = ordinary * 2.0 ** rng.integers(-40 if src != "FLOAT16" else -16, 15, (32, 1))
    wide[3:9] = 0
    lost = ordinary.copy()
    lost[5, 7], lost[20, 8] = np.nan, np.inf
    edges = np.array([row for row in rows(format, dtype(src)).values() if np.isfinite(row.astype(float)).all()])
    for values in (ordinary, grid, wide, ordinary[:30, :70], lost, edges):
        x = gpucast.cast(np.ascontiguousarray(values), src)
        for axis in (0, 1):
            found, wanted = (how(x, format, axis=axis) for how in (quantization_host.quantize, quantize_by_reference))
            assert found.data.tobytes() == wanted.data.tobytes()
            assert found.scales.tobytes() == wanted.scales.tobytes()
            for part in ("zero_points", "global_scale"):
                assert np.array_equal(getattr(found, part), getattr(wanted, part)), part
    # Blocks of an axis are whole rows of axis 0, and columns of axis 1: there each element would take a call.
    grids = [BlockGrid.of(format, x.shape, axis) for axis in ((0, 1) if format.block == "axis" else (1,))]
    taken = [quantization_native.find(np.zeros(grid.shape, x.dtype), grid, format) is not None for grid in grids]
    assert taken == [True, False][: len(grids)]


@pytest.mark.parametrize("name", ["nvfp4", "float8e4m3fn_1x128", "int8_32", "int8_axis", "int4_zp_128", "uint4_zp_32"])
def test_quotients_beside_midpoints(name: str, library: None) -> None:
    x, _ = beside_midpoints(ALL[name], 1)
    found, wanted = (how(x, ALL[name], axis=1) for how in (quantization_host.quantize, quantize_by_reference))
    assert found.data.tobytes() == wanted.data.tobytes()


@pytest.mark.parametrize("name", ["float8e4m3fn_axis", "float8e5m2_axis"])
def test_quotients_beside_midpoints_of_subnormal_codes(name: str, library: None) -> None:
    """One in a block, which nothing else sends the slower way."""
    format, count = ALL[name], 2000
    element, rng = format.element, np.random.default_rng(8)
    x = np.zeros((count, 32), np.float32)
    x[:, 0] = rng.uniform(1, 2, count)
    scales = quantize_by_reference(x, format, axis=0).scales.astype(np.float64)
    middles = (rng.integers(0, 1 << element.mantissa_bits, count) + 0.5) * float(element.value(1))
    x[:, 5] = middles * scales
    found, wanted = (how(x, format, axis=0) for how in (quantization_host.quantize, quantize_by_reference))
    assert found.data.tobytes() == wanted.data.tobytes()
    # As FLOAT many of the quotients are the midpoint, and few are truly.
    near = x[:, 5] / scales.astype(np.float32) == middles
    assert np.count_nonzero(near & (x[:, 5] / scales != middles)) > count / 4


@pytest.mark.parametrize("row", ["FLOAT", "BFLOAT16", "FLOAT8E4M3FN"])
def test_a_look_at_codes(row: str, library: None) -> None:
    kind = dtype(row)
    codes = np.array([0, kind.sign_code, 5, kind.sign_code | 9, 0, 7] * 9, kind.code_numpy)
    assert host_native_cast.look(codes, kind.code_mask & ~kind.sign_code) == (9, 27)
    assert host_native_cast.look(codes[:0], kind.code_mask) == (0, 0)


@pytest.mark.parametrize(
    ("to", "scale"),
    [
        *itertools.product(["FLOAT8E4M3FN"], ["per-tensor", "per-channel", "block", "mx"]),
        *itertools.product(["INT4", "UINT8"], ["per-tensor", "per-channel", "block"]),
        ("FLOAT4E2M1", "nvfp4"),
    ],
)
def test_scaled_files_are_the_same_without_it(
    to: str,
    scale: str,
    library: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((260, 300)) * rng.choice([1e-6, 1.0, 30.0], (260, 1))
    lossy = x.copy()
    lossy[0, 0], lossy[200, 5] = np.nan, np.inf
    tensors = {
        f"{name}.{kind}": gpucast.cast(value, kind)
        for name, value in (("x", x), ("lossy", lossy), ("even", x[:, :288].copy()))
        for kind in WIDE
    }
    files.save(str(tmp_path / "in.safetensors"), tensors)
    told = []
    for is_there in (True, False):
        if not is_there:
            without_library(monkeypatch)
        target = tmp_path / "out.safetensors"
        argv = ["convert", str(tmp_path / "in.safetensors"), str(target), "--to", to, "--scale", scale]
        assert cli.main([*argv, "--allow-loss"]) == 0
        told.append((target.read_bytes(), capsys.readouterr().out))
        target.unlink()
    assert told[0] == told[1]


WIDE = ("FLOAT", "BFLOAT16", "FLOAT16")


# ---- what it does without ----


def test_nothing_is_compiled_for_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(cxx, "find", lambda *_: asked.append("c") or ["false"])
    native = _library(tmp_path / "native", worth=1000)
    assert native.library(999) is None
    assert not (tmp_path / "native").exists()
    # It is asked for once.
    for _ in range(3):
        native.library(1)
        host_native.finish()
    assert asked == ["c"]


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", f"{sys.executable} -c pass"])
def test_without_a_compiler_that_works(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert made(tmp_path / "native").library() is None
    assert list(tmp_path.glob("native/*")) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert made(tmp_path / "file" / "native").library() is None


def test_a_folder_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root's folders are anybody's.
    us, native = os.geteuid(), tmp_path / "native"
    if us == 0:
        native.mkdir()
        os.chown(native, 1, 1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    monkeypatch.setattr(cxx, "find", lambda *_: pytest.fail("nothing can be kept"))
    assert made(tmp_path / "native").library() is None
    assert list(tmp_path.glob("native/*")) == []


def test_a_file_that_others_may_write_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    kept = _kept(folder)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    copy = tmp_path / "native" / kept.name
    copy.parent.mkdir()
    copy.write_bytes(kept.read_bytes())
    for mode, loaded in ((0o644, True), (0o664, False), (0o646, False)):
        copy.chmod(mode)
        native = _library(copy.parent, worth=1)
        assert (native.library() is not None) == loaded


def test_a_damaged_file_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    kept = _kept(folder)
    (tmp_path / "native").mkdir()
    data = kept.read_bytes()
    for damaged in (b"", data[:100], data[:-1], data[:5000] + b"x" + data[5001:]):
        (tmp_path / "native" / kept.name).write_bytes(damaged)
        (tmp_path / "native" / kept.name).chmod(0o600)
        assert _library(tmp_path / "native", worth=1).library() is None
    # What is no library, but as it was kept.
    cache = Cache(str(tmp_path / "native"), private=True)
    cache.put(_library(tmp_path / "native").key(), b"\x7fELF")
    assert _library(tmp_path / "native", worth=1).library() is None


def test_a_library_that_computes_something_else_is_not_used(library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = resolve(dtype("FLOAT"), dtype("FLOAT16"))
    wrong = kernel_name(resolve(dtype("FLOAT"), dtype("BFLOAT16")))
    assert host_native_cast.find(rule) is not None
    # The function of another rule stands under the name of this one.
    monkeypatch.setattr(host_native_cast, "kernel_name", lambda rule: wrong)
    compiled.READY.clear()
    host_native_cast._checked.cache_clear()
    assert host_native_cast.find(rule) is None
    host_native_cast._checked.cache_clear()


@pytest.mark.parametrize(
    ("name", "value"), [("GPUCAST_NATIVE", "0"), ("GPUCAST_CACHE_SIZE", "0"), ("GPUCAST_CACHE_SIZE", "x")]
)
def test_it_can_be_switched_off(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCAST_NATIVE")
    assert host_native._cache.__wrapped__() is not None
    monkeypatch.setenv(name, value)
    assert host_native._cache.__wrapped__() is None


def test_a_conversion_says_how_much_there_is_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: dict[str, int] = {}

    def note(make: Callable[..., HostUnit], *arguments: Any, nbytes: int = 0) -> None:
        name = "-".join(map(str, (make.__module__.split(".")[1], make.__name__, *arguments)))
        said[name] = said.get(name, 0) + nbytes

    monkeypatch.setattr(host_native, "library", note)
    x = np.ones((64, 64))
    tensors = {"w": x.astype(np.float32), "half": x.astype(np.float16), "wide": x, "ids": np.arange(9)}
    files.save(str(tmp_path / "in.safetensors"), tensors)
    native = {"native-_counted_unit-FLOAT": 4, "native-_counted_unit-FLOAT16": 2, "codegen-file_unit": 6}
    quantized = {"quantization-_unit-FLOAT": 8, "quantization-_unit-FLOAT16": 4, "codegen-equal_unit": 12}
    for scale, wanted in (("none", native), ("mx", quantized)):
        target = str(tmp_path / f"{scale}.safetensors")
        argv = ["convert", str(tmp_path / "in.safetensors"), target, "--to", "FLOAT8E4M3FN", "--scale", scale]
        assert cli.main([*argv, "--quiet"]) == 0
        found = {name: nbytes for name, nbytes in said.items() if nbytes and not name.startswith("native-_unit")}
        assert found == {name: times * x.size for name, times in wanted.items()}
        said.clear()


def test_two_processes_that_compile_at_once(folder: Path, tmp_path: Path) -> None:
    code = (
        "from gpucast.native import library as host_native\n"
        "from gpucast.codegen.host import file_unit; native = host_native._native(file_unit)\n"
        f"host_native._TIMEOUT = {HANGS}; native.library()\n"
        "host_native.finish()\n"
        "print(native.library() is not None)"
    )
    environment = os.environ | {
        "GPUCAST_NATIVE": "1",
        "GPUCAST_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(gpucast.__file__).parents[1]),
    }
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in running] == ["True", "True"]
    (kept,) = (tmp_path / "native").iterdir()
    assert kept.name == _kept(folder).name


# ---- all codes ----


@pytest.mark.parametrize(
    "to", ["FLOAT16", "BFLOAT16", *(row.name for row in DTYPES if row.bits == 8 and row.family == "float")]
)
def test_codes_of_float(to: str, library: None, exhaustive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = resolve(dtype("FLOAT"), dtype(to))
    cast, block = host_native_cast.find(rule), 1 << 16
    assert cast is not None
    low, out = np.arange(block, dtype=np.uint32), np.empty(block, rule.dst.code_numpy)
    wanted = np.empty(block, rule.dst.numpy)
    without_library(monkeypatch)
    lane = lanes.lane(rule, 1 << 32, block)
    for high in range(0, 1 << 16, 1 if exhaustive else 1009):
        codes = low | np.uint32(high << 16)
        cast(codes, out)
        with np.errstate(all="ignore"):
            lane(codes, wanted.view(rule.dst.code_numpy))
        assert np.array_equal(out, wanted.view(rule.dst.code_numpy)), hex(high)
