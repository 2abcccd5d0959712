# SPDX-License-Identifier: Apache-2.0
"""Tables, vectors and host code of others, compared with casts of gpucast; nothing of them is kept here."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import tempfile
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from bench.peers.outcomes import NDArray, Outcome, compiled
from gpucast.core.dtypes import DType, dtype

_cast: Any = gpucast.cast


def p3109_tables(folder: Path, samples: int) -> Outcome:
    """P3109's own tables of finite formats, as rows of our table: each value, and its cast back to its code."""
    found = Outcome("P3109 value tables", "Interim Report 4.0", "types", licence="IEEE SA, not kept here")
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
        found.count(differ, codes.tolist(), path.stem)
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
    found = Outcome("CUDA's headers", f"{number // 1000}.{number % 1000 // 10}", "FLOAT8UE5M3", licence="NVIDIA")
    step, size = max(1, (1 << 32) // samples), 1 << 24
    convert = compiled(_CUDA, include).convert
    for clips in (True, False):
        for mode, rounding in enumerate(("nearest_even", "toward_zero", "upward")):
            for start in range(0, 1 << 32, size * step):
                codes = np.arange(start, min(start + size * step, 1 << 32), step, dtype=np.uint32)
                theirs = np.empty(codes.size, np.uint8)
                addresses = (ctypes.c_void_p(array.ctypes.data) for array in (codes, theirs))
                convert(*addresses, ctypes.c_long(codes.size), int(clips), mode)
                ours = _cast(codes.view(np.float32), "FLOAT8UE5M3", saturate=clips, rounding=rounding).view(np.uint8)
                found.count(ours != theirs, codes, f"{rounding}, saturate={clips}")
    return found


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
    found = Outcome("fast_float", version[1] if version else "", "text", licence="MIT")
    with tempfile.TemporaryDirectory() as where:
        shutil.copytree(folder / "include", f"{where}/include")
        for header in Path(where, "include").rglob("*.h"):
            # A suffix of C++23.
            text = re.sub(r"\b(\d+e\d+)f16\b", r"std::float16_t(\1)", header.read_text(encoding="utf-8"))
            header.write_text(text, encoding="utf-8")
        library = compiled(_FAST_FLOAT, f"{where}/include", standard="c++20")
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
        found.count(differ, given, f"text to {name}", legal)
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
