# SPDX-License-Identifier: Apache-2.0
"""Hold the expected bits against what others wrote: ``python -m cast_conformance.outside PROGRAM`` with
Berkeley TestFloat's ``testfloat_gen``.

gfloat, microxcaling and CUDA's headers are adapters: ``python -m cast_conformance gfloat``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cast_conformance.arrays import array_of, codes_of
from cast_conformance.numbers import codes_dtype, is_nan
from cast_conformance.reader import manifest
from gpucast import reference

NDArray = npt.NDArray[Any]

_FLOATS = {"f16": "FLOAT16", "f32": "FLOAT", "f64": "DOUBLE"}
_INTEGERS = {"ui32": "UINT32", "ui64": "UINT64", "i32": "INT32", "i64": "INT64"}
#: TestFloat's option, and our keyword for floats.
_ROUNDINGS = {"near_even": None, "minMag": "toward_zero", "max": "upward", "min": "downward", "odd": "odd"}
_INVALID = 0x10


def testfloat(program: str) -> Iterator[tuple[str, int, int]]:
    """Conversions between IEEE floats and integers, in each rounding: name, cases, and how many differ."""
    for src in (*_FLOATS, *_INTEGERS):
        for dst in (*_FLOATS, *_INTEGERS):
            if src != dst and (src in _FLOATS or dst in _FLOATS):
                yield from _conversion(program, src, dst)


def _conversion(program: str, src: str, dst: str) -> Iterator[tuple[str, int, int]]:
    names = _FLOATS | _INTEGERS
    source, target = names[src], names[dst]
    rows = manifest()["types"]
    for option, rounding in _ROUNDINGS.items():
        if dst in _INTEGERS and option not in ("near_even", "minMag"):
            continue
        command = [program, "-level", "2", f"-r{option}", "-exact", f"{src}_to_{dst}"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        x = _codes(lines[::3], rows[source])
        theirs = _codes(lines[1::3], rows[target])
        invalid = np.array([int(word, 16) & _INVALID for word in lines[2::3]]) != 0
        keywords: dict[str, Any] = {"rounding": rounding}
        if dst in _INTEGERS:
            keywords = {"rounding": "nearest_even" if option == "near_even" else None, "overflow": "saturate"}
        ours = codes_of(reference.cast(array_of(x, source), target, **keywords), target)
        wrong = ours != theirs
        if dst in _FLOATS:
            wrong &= ~(is_nan(ours, rows[target]) & is_nan(theirs, rows[target]))
        else:
            # Each processor has its own result of an invalid conversion.
            wrong &= ~invalid
        yield f"{src}_to_{dst} -r{option}", x.size, int(wrong.sum())


def _codes(words: list[str], row: dict[str, Any]) -> NDArray:
    return np.array([int(word, 16) for word in words], dtype=codes_dtype(row))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cast_conformance.outside", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("program", help="testfloat_gen")
    parser.add_argument("--version", default="", help="what --json says of it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="note the result")
    options = parser.parse_args(arguments)
    rows = [*testfloat(options.program)]
    for name, cases, wrong in rows:
        print(f"{name}: {wrong:,} of {cases:,} differ")
    cases, wrong = sum(row[1] for row in rows), sum(row[2] for row in rows)
    print(f"testfloat: {wrong:,} of {cases:,} differ")
    if options.json:
        known = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        known["testfloat"] = {"version": options.version, "cases": cases, "wrong": wrong}
        options.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
