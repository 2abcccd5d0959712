# SPDX-License-Identifier: Apache-2.0
"""Hold the expected bits against what others wrote: ``python -m cast_conformance.outside testfloat PROGRAM`` with
Berkeley TestFloat's ``testfloat_gen``, ``... microxcaling FOLDER`` with the checkout of microsoft/microxcaling.

gfloat and CUDA's headers are adapters: ``python -m cast_conformance gfloat``.
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
from cast_conformance.reader import TABLES, manifest, read
from gpucast import reference

Array = npt.NDArray[Any]

_FLOATS = {"f16": "FLOAT16", "f32": "FLOAT", "f64": "DOUBLE"}
_INTEGERS = {"ui32": "UINT32", "ui64": "UINT64", "i32": "INT32", "i64": "INT64"}
#: TestFloat's option, and our keyword for floats.
_ROUNDINGS = {"near_even": None, "minMag": "toward_zero", "max": "upward", "min": "downward", "odd": "odd"}
_INVALID = 0x10
#: Its format and name there.
_MX = {
    "mxfp8e4m3": "fp8_e4m3",
    "mxfp8e5m2": "fp8_e5m2",
    "mxfp6e2m3": "fp6_e2m3",
    "mxfp6e3m2": "fp6_e3m2",
    "mxfp4": "fp4_e2m1",
}


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


def _codes(words: list[str], row: dict[str, Any]) -> Array:
    return np.array([int(word, 16) for word in words], dtype=codes_dtype(row))


def microxcaling(folder: str) -> Iterator[tuple[str, int, int]]:
    """MX formats, to nearest even: the numbers that come back, and how many differ."""
    sys.path.insert(0, folder)
    import torch
    from mx.formats import ElemFormat
    from mx.mx_ops import _quantize_mx

    for name, theirs in _MX.items():
        table = read(TABLES / f"block-{name}.cct")
        facts = manifest()["formats"][name]
        x = np.asarray(table["input"]).view(np.float32).reshape(facts["shape"])
        codes = np.asarray(table["codes"]).reshape(facts["shape"])
        scales = np.asarray(table["scales"]).reshape(facts["scales_shape"])
        back = reference.cast(array_of(codes, facts["element"]), "DOUBLE") * np.repeat(
            reference.cast(array_of(scales, facts["scale"]), "DOUBLE"), 32, axis=1
        )
        arguments: dict[str, Any] = {"axes": [-1], "block_size": 32, "round": "even"}
        got = _quantize_mx(torch.from_numpy(x.astype(np.float64)), 8, ElemFormat.from_str(theirs), **arguments).numpy()
        # Blocks with infinity or NaN have NaN for a scale here; there it depends on the place.
        finite = np.isfinite(x).reshape(x.shape[0], -1, 32).all(axis=2).repeat(32, axis=1)
        yield name, int(finite.sum()), int((finite & (got != back)).sum())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cast_conformance.outside", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("what", choices=("testfloat", "microxcaling"))
    parser.add_argument("place", help="the program, or the folder of the checkout")
    parser.add_argument("--version", default="", help="what --json says of it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="note the result")
    options = parser.parse_args(arguments)
    rows = [*(testfloat if options.what == "testfloat" else microxcaling)(options.place)]
    for name, cases, wrong in rows:
        print(f"{name}: {wrong:,} of {cases:,} differ")
    cases, wrong = sum(row[1] for row in rows), sum(row[2] for row in rows)
    print(f"{options.what}: {wrong:,} of {cases:,} differ")
    if options.json:
        known = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        known[options.what] = {"version": options.version, "cases": cases, "wrong": wrong}
        options.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
