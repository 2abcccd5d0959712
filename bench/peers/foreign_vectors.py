# SPDX-License-Identifier: Apache-2.0
"""Tables, vectors and host code of others, compared with casts of gpucast; nothing of them is kept here."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from bench.peers.outcomes import NDArray, Outcome
from gpucast.core.dtypes import DType, dtype

_cast: Any = gpucast.cast


def p3109_tables(folder: Path, samples: int) -> Outcome:
    """P3109's own tables of finite formats, as rows of our table: each value, and its cast back to its code."""
    found = Outcome("P3109 value tables", "Interim Report 4.0", "types", 0, 0, 0, licence="IEEE SA, not kept here")
    for path in sorted(folder.rglob("*f.csv")):
        k, p, sign = re.fullmatch(r"Binary(\d+)p(\d+)([su])f", path.stem).groups()  # type: ignore[union-attr]
        bits, mantissa, signed = int(k), int(p) - 1, sign == "s"
        # Others have no layout here, or numbers that DOUBLE lacks.
        if bits not in (4, 6, 8, 16) or not 1 <= bits - signed - mantissa <= 10:
            continue
        specials: Any = "fnuz" if signed else "nan_ff"
        bias = 1 << (bits - mantissa - 1 - signed)
        row = DType(path.stem.upper(), None, "float", bits, int(signed), bits - signed - mantissa, mantissa, bias,
                    specials, None, path.stem.lower(), None)  # fmt: skip
        lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        theirs = np.array([math.nan if text == "NaN" else float.fromhex(text) for _, text, *_ in lines])
        codes = np.array([int(code, 16) for code, *_ in lines], row.code_numpy)
        with dtype.registered(row):
            ours = _cast(codes.view(row.numpy), "DOUBLE")
            back = gpucast.reference.cast(theirs, row).view(row.code_numpy)
        differ = ((ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))) | (back != codes)
        found.count(differ, np.zeros(differ.shape, bool), codes.tolist(), path.stem)
    return found


# ---- CUDA's type ----

_CUDA = """#include <cuda_runtime_api.h>
#include <cuda_fp8.h>
extern "C" void convert(const float* in, unsigned char* out, long n, int clips, int mode) {
  for (long i = 0; i < n; ++i) {
    out[i] = __nv_cvt_float_to_ue5m3(in[i], clips ? __NV_SATFINITE : __NV_NOSAT, static_cast<cudaRoundMode>(mode));
  }
}
"""


def cuda(include: Path, samples: int) -> Outcome:
    """FLOATs, evenly spaced codes, to FLOAT8UE5M3 by the host code of CUDA's headers, in three modes."""
    version = re.search(r"define CUDART_VERSION\s+(\d+)", (include / "cuda_runtime_api.h").read_text(encoding="utf-8"))
    number = int(version[1]) if version else 0
    found = Outcome(
        "CUDA's headers", f"{number // 1000}.{number % 1000 // 10}", "FLOAT8UE5M3", 0, 0, 0, licence="NVIDIA"
    )
    step, size = max(1, (1 << 32) // samples), 1 << 24
    with tempfile.TemporaryDirectory() as where:
        Path(where, "a.cpp").write_text(_CUDA, encoding="utf-8")
        command = [os.environ.get("CXX", "c++"), "-O2", "-w", "-shared", "-fPIC", f"-I{include}", "-o", f"{where}/a.so"]
        subprocess.run([*command, f"{where}/a.cpp"], check=True)
        convert = ctypes.CDLL(f"{where}/a.so").convert
    for clips in (True, False):
        for mode, rounding in enumerate(("nearest_even", "toward_zero", "upward")):
            for start in range(0, 1 << 32, size * step):
                codes = np.arange(start, min(start + size * step, 1 << 32), step, dtype=np.uint32)
                theirs = np.empty(codes.size, np.uint8)
                addresses = (ctypes.c_void_p(array.ctypes.data) for array in (codes, theirs))
                convert(*addresses, ctypes.c_long(codes.size), int(clips), mode)
                ours = _cast(codes.view(np.float32), "FLOAT8UE5M3", saturate=clips, rounding=rounding).view(np.uint8)
                found.count(ours != theirs, np.zeros(ours.shape, bool), codes, f"{rounding}, saturate={clips}")
    return found


# ---- t27: a catalogue of formats, and packs of vectors ----

#: Packs by the name of their file: the type, and the keywords of the cast.
_PACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("BFLOAT16", {}),
    "fp8_e4m3": ("FLOAT8E4M3FN", {}),
    "fp8_e5m2": ("FLOAT8E5M2", {"saturate": False}),
    "e8m0_block": ("FLOAT8E8M0", {"round_mode": "nearest", "saturate": False}),
    "gf16": ("GF16", {}),
}
#: Formats of the catalogue that are types here, or whose elements are.
_CATALOGUE = {
    "binary16": "FLOAT16", "binary32": "FLOAT", "binary64": "DOUBLE", "bfloat16": "BFLOAT16", "gf16": "GF16",
    "fp8_e4m3": "FLOAT8E4M3FN", "fp8_e5m2": "FLOAT8E5M2", "fp6_e3m2": "FLOAT6E3M2", "fp6_e2m3": "FLOAT6E2M3",
    "fp4_e2m1": "FLOAT4E2M1", "mxfp8": "FLOAT8E4M3FN", "mxfp6": "FLOAT6E3M2", "mxfp4": "FLOAT4E2M1",
    "nvfp4": "FLOAT4E2M1", "int4": "INT4", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "per_channel_scale": "INT8",
}  # fmt: skip
_GF16 = DType("GF16", None, "float", 16, 1, 6, 9, 31, "ieee", None, "gf16", None)


def t27(folder: Path, samples: int) -> Outcome:
    """t27's packs by our reader, its catalogue beside our table, and our codes by its codecs of GF16 and MXFP4."""
    packs = {path.name.removesuffix("_conformance_v0.json"): json.loads(path.read_text(encoding="utf-8"))["vectors"]
             for path in sorted((folder / "vectors").glob("*_conformance_v0.json"))}  # fmt: skip
    version = re.search(r'^version = "(.*)"', (folder / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    found = Outcome("t27 (tt-lang-t27)", version[1] if version else "", "types", 0, 0, 0, licence="Apache-2.0")
    formats = json.loads((folder / "vectors" / "all_formats_v0.json").read_text(encoding="utf-8"))["formats"]
    with dtype.registered(_GF16):
        for name, (kind, keywords) in _PACKS.items():
            _pack(found, packs[name], dtype(kind), keywords)
        known = [(one, dtype(_CATALOGUE[one["id"]])) for one in formats if one["id"] in _CATALOGUE]
        theirs = [tuple(int(one[name]) for name in ("bits", "s", "e", "m", "bias")) for one, _ in known]
        ours = [
            (row.bits, int(row.signed), row.exponent_bits, row.mantissa_bits or row.bits - 1, row.bias)
            for _, row in known
        ]
        _compare(found, theirs, ours, [one["id"] for one, _ in known])
        sys.path.insert(0, str(folder / "src"))
        from tt_lang_t27 import gf16, mxfp4

        sys.path.pop(0)
        _compare(found, map(gf16.gf16_decode, range(1 << 16)), map(_GF16.value, range(1 << 16)), range(1 << 16))
    blocks = [one["input_f32"] for one in packs["mxfp4"] if one["kind"] == "block"]
    wanted = [bytes.fromhex(one["expected_bytes_hex"]) for one in packs["mxfp4"] if one["kind"] == "block"]
    # Magnitudes whose quotient by 6 has a logarithm that DOUBLE cannot mistake for a whole number.
    more = np.random.default_rng(11).standard_normal((samples // 1000, 32)).astype(np.float32)
    more *= np.exp2(np.random.default_rng(12).integers(-60, 60, (len(more), 1))).astype(np.float32)
    blocks += more.tolist()
    wanted += [mxfp4.pack_block_to_bytes(mxfp4.encode_block(block)) for block in more.tolist()]
    q = gpucast.quantize(np.array(blocks, np.float32), "mxfp4_up")
    codes, scales = q.data.data.reshape(-1, 16), q.scales.view(np.uint8).reshape(-1, 1)
    given = np.concatenate([scales, codes], 1)
    _compare(found, wanted, [row.tobytes() for row in given], [f"MXFP4 block {row[0]}, ..." for row in blocks])
    back = [mxfp4.decode_block(mxfp4.unpack_bytes_to_block(row.tobytes())) for row in given]
    _compare(found, np.ravel(back), np.ravel(gpucast.dequantize(q)), np.ravel(blocks))
    found.why = (
        f"any NaN of FLOAT8E5M2 is one; of {len(formats)} formats {len(known)} are types or elements here, the others"
        " are decimal, logarithmic, posits, takums, historical, of other lengths, or techniques"
    )
    return found


def _pack(found: Outcome, vectors: list[dict[str, Any]], row: DType, keywords: dict[str, Any]) -> None:
    """Inputs to codes, and codes to numbers."""

    def column(pattern: str) -> list[Any]:
        return [next(value for key, value in one.items() if re.fullmatch(pattern, key)) for one in vectors]

    x, decoded = (np.array([float(value) for value in column(rf"{what}_f\d+")]) for what in ("input", "decoded"))
    codes = np.array(column(r"\w+_int"), row.code_numpy)
    ours = gpucast.reference.cast(x, row, **keywords).view(row.code_numpy)
    names = [f"{row.name} {one['name']}" for one in vectors]
    found.count(ours != codes, np.isnan(x) & np.isnan([row.value(int(code)) for code in codes]), names, "to a code")
    _compare(found, decoded, [row.value(int(code)) for code in codes], names)


def _compare(found: Outcome, theirs: Iterable[Any], ours: Iterable[Any], given: Any) -> None:
    """Count pairs that are not the same number, or the same object."""
    differ = np.array([a != b and not (a != a and b != b) for a, b in zip(theirs, ours, strict=True)])
    found.count(differ, np.zeros(differ.shape, bool), given, "t27")


# ---- fast_float ----

_FAST_FLOAT = """#include <cstdint>
#include <cstring>
#include <limits>
#ifndef __STDCPP_FLOAT16_T__
#define __STDCPP_FLOAT16_T__ 1
namespace std {
using float16_t = _Float16;
template <> struct numeric_limits<_Float16> : numeric_limits<float> {};
}
#endif
#include <fast_float/fast_float.h>
template <class T> long parse(const char* text, const long* ends, long n, T* out) {
  for (long i = 0, at = 0; i < n; at = ends[i++]) {
    if (fast_float::from_chars(text + at, text + ends[i], out[i]).ptr != text + ends[i]) return i + 1;
  }
  return 0;
}
extern "C" long parse16(const char* t, const long* e, long n, std::float16_t* out) { return parse(t, e, n, out); }
extern "C" long parse32(const char* t, const long* e, long n, float* out) { return parse(t, e, n, out); }
extern "C" long parse64(const char* t, const long* e, long n, double* out) { return parse(t, e, n, out); }
"""


def fast_float(folder: Path, samples: int) -> Outcome:
    """Text to FLOAT16, FLOAT and DOUBLE: every tie of FLOAT16 with its neighbours, ties of FLOAT, shortest digits."""
    version = re.search(
        r"project\(fast_float VERSION ([\d.]+)", (folder / "CMakeLists.txt").read_text(encoding="utf-8")
    )
    found = Outcome("fast_float", version[1] if version else "", "text", 0, 0, 0, licence="MIT")
    with tempfile.TemporaryDirectory() as where:
        shutil.copytree(folder / "include", f"{where}/include")
        for header in Path(where, "include").rglob("*.h"):
            # A suffix of C++23.
            text = re.sub(r"\b(\d+e\d+)f16\b", r"std::float16_t(\1)", header.read_text(encoding="utf-8"))
            header.write_text(text, encoding="utf-8")
        Path(where, "a.cpp").write_text(_FAST_FLOAT, encoding="utf-8")
        command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-w", "-shared", "-fPIC", f"-I{where}/include"]
        subprocess.run([*command, "-o", f"{where}/a.so", f"{where}/a.cpp"], check=True)
        library = ctypes.CDLL(f"{where}/a.so")
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (finite[1:] + finite[:-1]) / 2
    rng = np.random.default_rng(5)
    wide = rng.integers(0, 0x7F800000, samples // 10, np.uint32).view(np.float32).astype(np.float64)
    tied = wide + np.spacing(wide.astype(np.float32)).astype(np.float64) / 2
    random = rng.integers(0, 0x7FEFFFFF_FFFFFFFF, samples // 10, np.uint64).view(np.float64)
    for name, given in (
        ("FLOAT16", [*_near(ties), *map(repr, finite.tolist())]),
        ("FLOAT", [*_near(tied), *map(repr, wide.tolist())]),
        ("DOUBLE", [*map(repr, random.tolist()), *(f"{x:.17e}" for x in random.tolist())]),
    ):
        row = dtype(name)
        theirs = np.empty(len(given), row.numpy)
        joined, ends = "".join(given).encode(), np.cumsum([len(one) for one in given])
        addresses = (ctypes.c_void_p(ends.ctypes.data), ctypes.c_long(len(given)), ctypes.c_void_p(theirs.ctypes.data))
        if getattr(library, f"parse{row.bits}")(joined, *addresses):
            raise RuntimeError("fast_float: a text was not read to its end")
        ours = _cast(np.array(given, object), name)
        # Where they differ, exact fractions say who is right.
        differ = ours != theirs
        legal = np.zeros(differ.shape, bool)
        for i in np.flatnonzero(differ):
            legal[i] = (
                abs(Fraction(given[i]) - Fraction(float(ours[i])))
                <= abs(Fraction(given[i]) - Fraction(float(theirs[i])))
                and not int(ours.view(row.code_numpy)[i]) & 1
            )
        found.count(differ, legal, given, f"text to {name}")
    found.why = "there a tie of FLOAT16 goes to the odd neighbour, by exact fractions"
    return found


def _near(ties: NDArray) -> Iterable[str]:
    """Exact decimal text of numbers, and of what is a little more and less."""
    for tie in ties.tolist():
        text = f"{Decimal(tie):f}"
        text += "" if "." in text else "."
        yield text
        yield text + "0" * 30 + "1"
        yield f"{Decimal(math.nextafter(tie, 0.0)):f}"
