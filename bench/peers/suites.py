# SPDX-License-Identifier: Apache-2.0
"""Runs suites that others wrote on casts of gpucast: ``python -m bench.peers.suites softfloat zmij p3109``.

Packages are compared directly. Tests of others are run from a checkout or a source distribution, with their rounding
replaced: ``gfloat=FOLDER``, ``ml_dtypes=FOLDER``, where FOLDER has the tests, ``p3109=FOLDER`` with its tables, and
``cuda=FOLDER`` with its headers; nothing of them is kept here. The counts are written to bench/results/suites.json,
which docs/ledger.md shows.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import datetime
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from bench.revision import ROOT
from gpucast.core.dtypes import DType, dtype
from gpucast.parity.hard_values import codes as hard_values

RESULT = Path(os.environ.get("SUITES_RESULT", ROOT / "bench" / "results" / "suites.json"))
NDArray = np.ndarray[Any, Any]
_cast: Any = gpucast.cast


@dataclass
class Outcome:
    suite: str
    version: str
    #: The claim of the ledger that it belongs to: "casts", "text" or "types".
    kind: str
    cases: int
    #: Cases that differ for no reason, and those that may.
    differ: int
    legal: int
    #: Why these may, and the first one of the others.
    why: str = ""
    first: str = ""
    licence: str = ""


# ---- Berkeley's SoftFloat ----

_FLOATS = {"f16": "FLOAT16", "f32": "FLOAT", "f64": "DOUBLE"}
_INTEGERS = {"i32": "INT32", "i64": "INT64", "ui32": "UINT32", "ui64": "UINT64"}
_MODES = {"NEAR_EVEN": "nearest_even", "MIN_MAG": "toward_zero", "MIN": "downward", "MAX": "upward",
          "NEAR_MAX_MAG": "nearest_away"}  # fmt: skip
_TO_INTEGER = {"NEAR_EVEN": "nearest_even", "MIN_MAG": "truncate", "NEAR_MAX_MAG": "nearest_away"}
_CLASSES = {"f16": "Float16", "f32": "Float32", "f64": "Float64", "bf16": "BFloat16",
            "i32": "Int32", "i64": "Int64", "ui32": "UInt32", "ui64": "UInt64"}  # fmt: skip


def softfloat(samples: int) -> Outcome:
    """All conversions between FLOAT16, FLOAT, DOUBLE and integers of 32 and 64 bits, in every mode; exhaustive for 16
    bits."""
    import softfloatpy

    found = Outcome(
        "SoftFloat (softfloatpy)", metadata.version("softfloatpy"), "casts", 0, 0, 0, licence="BSD-3-Clause"
    )
    found.why = "NaN has a payload there; what no integer is has a value of the processor that it imitates"
    names = _FLOATS | _INTEGERS
    for src, dst in ((a, b) for a in names for b in names if a != b and not (a in _INTEGERS and b in _INTEGERS)):
        convert = getattr(softfloatpy, f"{src}_to_{dst}")
        of = getattr(softfloatpy, _CLASSES[src]).from_bytes
        codes = _codes(dtype(names[src]), dtype(names[dst]), samples)
        operands = [of(code.tobytes()[::-1]) for code in codes]
        x = codes.view(dtype(names[src]).numpy)
        for mode, rounding in (_TO_INTEGER if dst in _INTEGERS else _MODES).items():
            softfloatpy.set_rounding_mode(softfloatpy.RoundingMode[mode])
            theirs = np.frombuffer(b"".join(convert(one).to_bytes()[::-1] for one in operands), codes_of(names[dst]))
            overflow = "saturate" if dst in _INTEGERS else None
            ours = _cast(x, names[dst], rounding=rounding, overflow=overflow).view(theirs.dtype)
            differ = ours != theirs
            legal = np.isnan(_cast(x, "DOUBLE"))
            if dst in _INTEGERS:
                legal |= _is_outside(x, dtype(names[dst]), rounding)
            _count(found, differ, legal, codes, f"{src} to {dst}, {mode}")
    softfloatpy.set_rounding_mode(softfloatpy.RoundingMode.NEAR_EVEN)
    return found


def codes_of(name: str) -> np.dtype[Any]:
    return dtype(name).code_numpy


def _codes(src: DType, dst: DType, samples: int) -> NDArray:
    """Every code of 16 bits; of more the hard ones, and random ones."""
    if src.bits == 16:
        every = np.arange(1 << 16, dtype=np.uint16)
        return every if samples >= 1 << 16 else every[:: (1 << 16) // samples]
    hard = hard_values(src, dst, seed=3, share=0.05, random=1)
    rng = np.random.default_rng(7)
    if hard.size > samples // 2:
        hard = rng.choice(hard, samples // 2, replace=False)
    more = rng.integers(0, src.code_mask, samples - hard.size, src.code_numpy, endpoint=True)
    return np.concatenate([hard, more]).astype(src.code_numpy)


def _is_outside(x: NDArray, dst: DType, rounding: str) -> Any:
    """Which numbers an integer type does not hold when they are rounded."""
    value = _cast(x, "DOUBLE")
    with np.errstate(all="ignore"):
        whole = {"truncate": np.trunc(value), "nearest_even": np.rint(value)}.get(
            rounding, np.trunc(value + np.copysign(0.5, value))
        )
        return ~np.isfinite(value) | (whole >= float(dst.max + 1)) | (whole < float(dst.min))


def _count(found: Outcome, differ: NDArray, legal: NDArray, given: Any, what: str) -> None:
    found.cases += differ.size
    found.legal += int((differ & legal).sum())
    wrong = np.flatnonzero(differ & ~legal)
    found.differ += wrong.size
    if wrong.size and not found.first:
        found.first = f"{what}: {given[int(wrong[0])]}"


# ---- text ----


def zmij(samples: int) -> Outcome:
    """The shortest digits of DOUBLE, as the library of the author of {fmt} finds them; layouts differ."""
    import pyzmij

    found = Outcome("zmij (pyzmij)", metadata.version("pyzmij"), "text", 0, 0, 0, licence="MIT")
    codes = _codes(dtype("DOUBLE"), dtype("FLOAT"), samples)
    x = codes.view(np.float64)
    x = x[np.isfinite(x)]
    ours = _cast(x, "STRING").tolist()
    theirs = pyzmij.format_many(x.tolist())
    differ = np.array([Decimal(a).normalize() != Decimal(b).normalize() for a, b in zip(ours, theirs, strict=True)])
    _count(found, differ, np.zeros(differ.shape, bool), ours, "text")
    return found


# ---- the types of P3109 ----


def p3109(samples: int) -> Outcome:
    """The values of the formats of P3109's report that equal ours: finite, signed, of 8 bits."""
    from gfloat import Domain, decode_float
    from gfloat.formats import format_info_p3109

    found = Outcome("P3109 value tables (gfloat)", metadata.version("gfloat"), "types", 0, 0, 0, licence="MIT")
    for precision, name in ((4, "FLOAT8E4M3FNUZ"), (3, "FLOAT8E5M2FNUZ")):
        info, row = format_info_p3109(8, precision, domain=Domain.Finite), dtype(name)
        theirs = np.array([decode_float(info, code).fval for code in range(256)])
        ours = np.array([row.value(code) for code in range(256)])
        differ = (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))
        _count(found, differ, np.zeros(256, bool), range(256), name)
    return found


def p3109_tables(folder: Path) -> Outcome:
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
        _count(found, differ, np.zeros(differ.shape, bool), codes.tolist(), path.stem)
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
                _count(found, ours != theirs, np.zeros(ours.shape, bool), codes, f"{rounding}, saturate={clips}")
    return found


# ---- tests of others, with our rounding ----

#: Calls of the tests that gpucast answered.
ANSWERED: Counter[str] = Counter()
_GFLOAT = {
    "ocp_e5m2": "FLOAT8E5M2", "ocp_e4m3": "FLOAT8E4M3FN", "ocp_e3m2": "FLOAT6E3M2", "ocp_e2m3": "FLOAT6E2M3",
    "ocp_e2m1": "FLOAT4E2M1", "binary16": "FLOAT16", "binary32": "FLOAT", "bfloat16": "BFLOAT16",
}  # fmt: skip
_GFLOAT_MODES = {"TiesToEven": None, "TowardZero": "toward_zero", "TowardNegative": "downward",
                 "TowardPositive": "upward", "TiesToAway": "nearest_away"}  # fmt: skip


def round_float(fi: Any, v: float, rnd: Any = None, sat: bool = False, *more: Any, **keywords: Any) -> float:
    """gfloat's function of this name, for the types that gpucast has."""
    import gfloat

    rnd = gfloat.RoundMode.TiesToEven if rnd is None else rnd
    name = _GFLOAT.get(fi.name)
    if name is None or rnd.name not in _GFLOAT_MODES or more or keywords or not (sat or dtype(name).has_nan):
        return float(gfloat.round_float(fi, v, rnd, sat, *more, **keywords))
    ANSWERED["calls"] += 1
    how: dict[str, Any] = {"overflow": "saturate"} if sat else {"saturate": False} if dtype(name).bits == 8 else {}
    found = _cast(np.array(v, np.float64), name, rounding=_GFLOAT_MODES[rnd.name], **how)
    return float(_cast(found, "DOUBLE"))


def round_ndarray(fi: Any, v: NDArray, rnd: Any = None, sat: bool = False, *more: Any, **keywords: Any) -> Any:
    import gfloat

    rnd = gfloat.RoundMode.TiesToEven if rnd is None else rnd
    if _GFLOAT.get(fi.name) is None or rnd.name not in _GFLOAT_MODES or more or keywords:
        return gfloat.round_ndarray(fi, v, rnd, sat, *more, **keywords)
    return np.array([round_float(fi, float(one), rnd, sat) for one in np.ravel(v)]).reshape(np.shape(v))


def astype(x: Any, kind: Any, *more: Any, **keywords: Any) -> Any:
    """``x.astype(kind)`` by gpucast where it knows both types, as NumPy has it: without saturation, truncated."""
    try:
        known = not more and not keywords and isinstance(x, np.ndarray) and {dtype(x.dtype), dtype(kind)}
    except TypeError:
        known = False
    if not known or np.dtype(kind).kind == "O":
        return x.astype(kind, *more, **keywords)
    ANSWERED["calls"] += 1
    return _cast(x, kind, saturate=False)


#: By suite: files; the licence; what is replaced in their text, a pattern and its replacement.
_HEAD = "from bench.peers.suites import {}\n"
TESTS = {
    "gfloat": (
        ("test_round.py",),
        "MIT",
        [(r"(from gfloat\.formats import \*\n)", r"\1" + _HEAD.format("round_float, round_ndarray"))],
    ),
    "ml_dtypes": (
        ("custom_float_test.py", "intn_test.py"),
        "Apache-2.0",
        [(r"(import numpy as np\n)", r"\1" + _HEAD.format("astype as gpucast_astype"))],
    ),
}


#: Tests that fail with gpucast, by a pattern of their names, and why they may.
_LEGAL = {
    r"float8_e8m0fnu": "FLOAT8E8M0 is rounded up here, negative numbers to 0; by ml_dtypes to nearest, and to NaN",
    r"Predicate.*fnuz": "the NaN of FNUZ types has no sign here",
}


def foreign_tests(name: str, folder: Path) -> Outcome:
    """Run the tests in a folder as they are, and again with what they test replaced."""
    before, _ = _failures(name, folder, replaces=False)
    failed, (ran, calls) = _failures(name, folder, replaces=True)
    failed -= before
    legal = {test for test in failed for pattern in _LEGAL if re.search(pattern, test)}
    why = [f"{calls:,} calls of the tests were answered by gpucast"]
    why += [text for pattern, text in _LEGAL.items() if any(re.search(pattern, test) for test in legal)]
    why += [f"{len(before)} fail without it, too"] * bool(before)
    wrong = sorted(failed - legal)
    return Outcome(
        f"{name}'s tests",
        metadata.version(name),
        "casts",
        ran,
        len(wrong),
        len(legal),
        "; ".join(why),
        ", ".join(wrong),
        TESTS[name][1],
    )


def _failures(name: str, folder: Path, *, replaces: bool) -> tuple[set[str], tuple[int, int]]:
    """The names of failed tests; how many ran, and how many of their calls gpucast answered."""
    files, _, replaced = TESTS[name]
    with tempfile.TemporaryDirectory() as where:
        for path in folder.glob("*.py"):
            text = path.read_text(encoding="utf-8")
            if path.name in files and replaces:
                for pattern, to in replaced:
                    text = re.sub(pattern, to, text, count=1)
                text = _functions(text) if name == "ml_dtypes" else text
            Path(where, path.name).write_text(text, encoding="utf-8")
        answered, junit = Path(where, "answered"), Path(where, "junit.xml")
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{where}", "GPUCAST_ANSWERED": str(answered)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={where}",
                   f"--junitxml={junit}", *files]  # fmt: skip
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
        if not junit.exists():
            raise RuntimeError(f"{name}: its tests did not run: {(done.stdout + done.stderr)[-2000:]}")
        tests = list(ElementTree.parse(junit).iter("testcase"))
        calls = sum(map(int, answered.read_text().split())) if answered.exists() else 0
    failed = {test.get("name", "") for test in tests if test.find("failure") is not None}
    return failed, (sum(test.find("skipped") is None for test in tests), calls)


def _functions(text: str) -> str:
    """The text with ``x.astype(kind)`` as a function of both."""
    import ast

    class Replaced(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
                name = ast.Name("gpucast_astype", ast.Load())
                return ast.copy_location(ast.Call(name, [node.func.value, *node.args], node.keywords), node)
            return node

    return ast.unparse(ast.fix_missing_locations(Replaced().visit(ast.parse(text))))


def _tell() -> None:
    path = os.environ.get("GPUCAST_ANSWERED")
    if path and ANSWERED:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{ANSWERED['calls']}\n")


atexit.register(_tell)

PACKAGES: dict[str, Callable[[int], Outcome]] = {"softfloat": softfloat, "zmij": zmij, "p3109": p3109}


def outcomes(names: list[str], samples: int) -> Iterator[Outcome]:
    for asked in names:
        name, _, folder = asked.partition("=")
        if name == "cuda":
            yield cuda(Path(folder), samples)
        elif folder:
            yield p3109_tables(Path(folder)) if name == "p3109" else foreign_tests(name, Path(folder))
        else:
            yield PACKAGES[name](samples)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.suites", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME[=FOLDER]", help=", ".join((*PACKAGES, *TESTS)))
    parser.add_argument("--samples", type=int, default=10**6, help="of a source of more than 16 bits (default: 10^6)")
    given = parser.parse_args()
    known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else []
    wrong = 0
    for one in outcomes(given.names, given.samples):
        print(f"{one.suite} {one.version}: {one.cases:,} cases, {one.differ:,} differ, {one.legal:,} may. {one.first}")
        wrong += one.differ
        known = [row for row in known if row["suite"] != one.suite]
        known.append({**asdict(one), "date": datetime.date.today().isoformat()})
        RESULT.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
