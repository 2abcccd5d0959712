# SPDX-License-Identifier: Apache-2.0
"""Runs suites that others wrote on casts of gpucast: ``python -m bench.peers.suites softfloat zmij p3109``.

Packages are compared directly; of others a folder is named, and nothing of them is kept here. Tables, vectors,
references and headers: ``p3109=FOLDER``, ``t27=FOLDER``, ``fast_float=FOLDER``, ``cuda=FOLDER``,
``fouroversix=FOLDER@dadfad6``; ``testfloat=PROGRAM``, which is ``testfloat_gen``. Tests, with their rounding replaced,
of a checkout, whose commit may be named, or of a package: ``gfloat=FOLDER``, ``torchao=FOLDER@36027d8``,
``numpy=.../numpy/_core/tests``. The counts are written to bench/results/suites.json, which docs/ledger.md shows.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from decimal import Decimal
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from bench.peers.foreign_tests import SUITES, foreign_tests
from bench.peers.foreign_vectors import cuda, fast_float, p3109_tables
from bench.peers.four_over_six import four_over_six
from bench.peers.outcomes import NDArray, Outcome
from bench.peers.t27 import t27
from bench.revision import ROOT
from gpucast.core.dtypes import DType, dtype
from gpucast.parity.hard_values import codes as hard_values

RESULT = Path(os.environ.get("SUITES_RESULT", ROOT / "bench" / "results" / "suites.json"))
_cast: Any = gpucast.cast


# ---- Berkeley's SoftFloat and TestFloat ----

_FLOATS = {"f16": "FLOAT16", "f32": "FLOAT", "f64": "DOUBLE"}
_INTEGERS = {"i32": "INT32", "i64": "INT64", "ui32": "UINT32", "ui64": "UINT64"}
_NAMES = _FLOATS | _INTEGERS
#: The mode of SoftFloat, the option of TestFloat, and the rounding of a cast to floats and to integers.
_MODES = (
    ("NEAR_EVEN", "near_even", "nearest_even", "nearest_even"), ("MIN_MAG", "minMag", "toward_zero", "truncate"),
    ("MIN", "min", "downward", ""), ("MAX", "max", "upward", ""), ("", "odd", "odd", ""),
    ("NEAR_MAX_MAG", "near_maxMag", "nearest_away", "nearest_away"),
)  # fmt: skip
_CLASSES = {"f16": "Float16", "f32": "Float32", "f64": "Float64",
            "i32": "Int32", "i64": "Int64", "ui32": "UInt32", "ui64": "UInt64"}  # fmt: skip


def _conversions() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Source, destination, and modes: SoftFloat's, TestFloat's option, our rounding."""
    for src, dst in product(_NAMES, _NAMES):
        if src != dst and not {src, dst} <= _INTEGERS.keys():
            modes = [(mode, option, how[dst in _INTEGERS]) for mode, option, *how in _MODES]
            yield src, dst, [one for one in modes if one[2]]


def _ours(x: NDArray, dst: str, rounding: str) -> NDArray:
    overflow = "saturate" if dst in _INTEGERS else None
    codes: NDArray = _cast(x, _NAMES[dst], rounding=rounding, overflow=overflow).view(codes_of(_NAMES[dst]))
    return codes


def softfloat(samples: int) -> Outcome:
    """All conversions between FLOAT16, FLOAT, DOUBLE and integers of 32 and 64 bits, in every mode; exhaustive for 16
    bits."""
    import softfloatpy

    found = Outcome("SoftFloat (softfloatpy)", metadata.version("softfloatpy"), "casts", licence="BSD-3-Clause")
    found.why = "NaN has a payload there; what no integer is has a value of the processor that it imitates"
    for src, dst, modes in _conversions():
        convert = getattr(softfloatpy, f"{src}_to_{dst}")
        of = getattr(softfloatpy, _CLASSES[src]).from_bytes
        codes = _codes(dtype(_NAMES[src]), dtype(_NAMES[dst]), samples)
        operands = [of(code.tobytes()[::-1]) for code in codes]
        x = codes.view(dtype(_NAMES[src]).numpy)
        for mode, _, rounding in modes:
            if mode:
                softfloatpy.set_rounding_mode(softfloatpy.RoundingMode[mode])
                theirs = b"".join(convert(one).to_bytes()[::-1] for one in operands)
                legal = np.isnan(_cast(x, "DOUBLE"))
                if dst in _INTEGERS:
                    legal |= _is_outside(x, dtype(_NAMES[dst]), rounding)
                differ = _ours(x, dst, rounding) != np.frombuffer(theirs, codes_of(_NAMES[dst]))
                found.count(differ, codes, f"{src} to {dst}, {mode}", legal)
    softfloatpy.set_rounding_mode(softfloatpy.RoundingMode.NEAR_EVEN)
    return found


def testfloat(program: Path, samples: int) -> Outcome:
    """The same conversions on the inputs of Berkeley's ``testfloat_gen``, to odd, too."""
    found = Outcome("TestFloat (testfloat_gen)", "3e", "casts", licence="BSD-3-Clause")
    found.why = "NaN and what no integer is, as in SoftFloat"
    for src, dst, modes in _conversions():
        for _, option, rounding in modes:
            command = [str(program), "-level", "2", f"-r{option}", "-exact", f"{src}_to_{dst}"]
            words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            given, theirs, flags = (np.array([int(word, 16) for word in words[at::3]], np.uint64) for at in range(3))
            codes = given.astype(codes_of(_NAMES[src]))
            x = codes.view(dtype(_NAMES[src]).numpy)
            # Whether TestFloat calls the operation invalid.
            legal = flags & np.uint64(0x10) != 0 if dst in _INTEGERS else np.isnan(_cast(x, "DOUBLE"))
            found.count(_ours(x, dst, rounding) != theirs, codes, f"{src} to {dst}, {option}", legal)
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


# ---- text ----


def zmij(samples: int) -> Outcome:
    """The shortest digits of DOUBLE, as the library of the author of {fmt} finds them; layouts differ."""
    import pyzmij

    found = Outcome("zmij (pyzmij)", metadata.version("pyzmij"), "text", licence="MIT")
    codes = _codes(dtype("DOUBLE"), dtype("FLOAT"), samples)
    x = codes.view(np.float64)
    x = x[np.isfinite(x)]
    ours = _cast(x, "STRING").tolist()
    theirs, same = (map(Decimal.normalize, map(Decimal, texts)) for texts in (pyzmij.format_many(x.tolist()), ours))
    found.compare(theirs, same, ours, "text")
    return found


# ---- the types of P3109 ----


def p3109(samples: int) -> Outcome:
    """The values of the formats of P3109's report that equal ours: finite, signed, of 8 bits."""
    from gfloat import Domain, decode_float
    from gfloat.formats import format_info_p3109

    found = Outcome("P3109 value tables (gfloat)", metadata.version("gfloat"), "types", licence="MIT")
    for precision, name in ((4, "FLOAT8E4M3FNUZ"), (3, "FLOAT8E5M2FNUZ")):
        info, row = format_info_p3109(8, precision, domain=Domain.Finite), dtype(name)
        theirs = [decode_float(info, code).fval for code in range(256)]
        found.compare(theirs, map(row.value, range(256)), range(256), name)
    return found


# ---- ONNX's node tests ----


def onnx(samples: int) -> Outcome:
    """The results that the node tests of Cast and CastLike expect, element by element."""
    from onnx import TensorProto
    from onnx.backend.test.case import node
    from onnx.numpy_helper import to_array

    from gpucast.onnx.backend import Backend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for module in ("cast", "castlike"):
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
    found = Outcome("ONNX's node tests", metadata.version("onnx"), "onnx", licence="Apache-2.0")
    for case in node._NodeTestCases:
        if not case.name.startswith(("test_cast_", "test_castlike_")):
            continue
        given, wanted = case.data_sets[0]
        arrays = [to_array(one) if isinstance(one, TensorProto) else one for one in (*given, *wanted)]
        ours, theirs = Backend.run_model(case.model, arrays[: len(given)])[0], np.asarray(arrays[-1])
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, case.name
        if ours.dtype == object:
            differ, legal = ours != theirs, np.zeros(ours.size, bool)
        else:
            legal = np.isnan(_cast(ours, "DOUBLE")) & np.isnan(_cast(theirs, "DOUBLE"))
            a, b = (np.frombuffer(x.tobytes(), f"u{x.itemsize}") for x in (ours, theirs))
            differ = a != b
        found.count(np.ravel(differ), np.ravel(ours), case.name, np.ravel(legal))
    found.why = "the NaN of FNUZ types has no sign here; the sign of ml_dtypes' is set"
    return found


PACKAGES: dict[str, Callable[[int], Outcome]] = {"softfloat": softfloat, "zmij": zmij, "p3109": p3109, "onnx": onnx}


FOLDERS: dict[str, Callable[[Path, int], Outcome]] = {
    "p3109": p3109_tables, "cuda": cuda, "t27": t27, "fast_float": fast_float, "testfloat": testfloat,
    "fouroversix": four_over_six,
}  # fmt: skip


def outcomes(names: list[str], samples: int) -> Iterator[Outcome]:
    for asked in names:
        name, _, place = asked.partition("=")
        folder, _, version = place.partition("@")
        if not folder:
            yield PACKAGES[name](samples)
        elif name in FOLDERS:
            found = FOLDERS[name](Path(folder).resolve(), samples)
            found.version = version or found.version
            yield found
        else:
            yield foreign_tests(name, Path(folder).resolve(), version)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.suites", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME[=FOLDER[@VERSION]]",
                        help=", ".join((*PACKAGES, *FOLDERS, *SUITES)))  # fmt: skip
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
