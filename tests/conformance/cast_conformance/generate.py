# SPDX-License-Identifier: Apache-2.0
"""Make the tables from gpucast's reference: ``python -m cast_conformance.generate`` writes all of them.

``--pairs FLOAT:FLOAT16 ...`` and ``--formats nvfp4 ...`` write some. Where the manifest has a checksum of a table that
comes out otherwise, nothing is written and the command fails; ``--manifest`` writes the checksums anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cast_conformance.blocks import FORMATS, block_table
from cast_conformance.conventions import CLASSES, FAULTS, listed
from cast_conformance.reader import ENTRY, HEAD, MAGIC, TABLES, as_text, manifest
from gpucast import DTYPES, reference
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import Options, holds, resolve
from gpucast.parity.hard_values import codes as hard_values

NDArray = npt.NDArray[Any]
Columns = dict[str, NDArray]

#: The types of the tables: those of ONNX, and the one that CUDA's headers have besides.
NUMERIC = tuple(
    row for row in DTYPES if row.family != "string" and (row.number is not None or row.name == "FLOAT8UE5M3")
)
FLOAT, DOUBLE, FLOAT16 = map(dtype, ("FLOAT", "DOUBLE", "FLOAT16"))
#: The roundings besides the default of which there are columns.
_DIRECTED = ("toward_zero", "upward", "downward", "odd")
MANIFEST = Path(__file__).with_name("manifest.json")
#: What proves the rules of the columns: of every kernel's machine code, for every input.
CERTIFICATE = Path(__file__).parents[3] / "bench" / "results" / "proof-sm_90.json"
#: Of wide sources: random codes beside the hard ones; and of what lies around the values of 16-bit types, this share.
_RANDOM, _SHARE = 1200, 0.05


# ---- inputs ----


def inputs(src: DType, dst: DType) -> NDArray:
    """Every code of a source of 16 bits or fewer, else the hard ones for the destination: the points where rounding
    changes, their neighbours, edges, specials, and random codes."""
    if src.bits <= 16:
        return np.arange(2 if src.family == "bool" else 1 << src.bits, dtype=src.code_numpy)
    found = hard_values(src, dst, seed=0, share=_SHARE, random=_RANDOM)
    if not src.is_float or dst.family != "float" or dst.bits > 16:
        return found
    return np.unique(np.concatenate([found, _around(dst, src)]))


def _around(dst: DType, src: DType) -> NDArray:
    """Every midpoint of a type of 16 bits or fewer, both neighbours, and numbers so near that a float between the two
    types takes them for the midpoint; of either sign."""
    values = np.array([float(dst.value(code)) for code in range(dst.max_code + 1)])
    middle = (values[:-1] + values[1:]) / 2
    near = [middle * (1 + sign * 2.0**-bits) for bits in (9, 12, 25) for sign in (1, -1)] if dst.bits <= 8 else []
    codes = middle.astype(src.numpy).view(src.code_numpy)
    one = src.code_numpy.type(1)
    found = np.concatenate([codes - one, codes, codes + one, *(x.astype(src.numpy).view(src.code_numpy) for x in near)])
    return np.concatenate([found, found | src.code_numpy.type(src.sign_code)])


# ---- what a case is ----


def classes(x: NDArray, src: DType, dst: DType) -> NDArray:
    """A uint8 for each case: the bits of `CLASSES`."""
    value = reference.cast(x, DOUBLE)
    magnitude = np.abs(value)
    finite = np.isfinite(value)
    found = {
        "nan": np.isnan(value),
        "infinite": np.isinf(value),
        "overflow": finite & _outside(x, value, src, dst),
        "subnormal": _subnormal(magnitude, src, dst),
        "zero": value == 0,
        "negative": value < 0,
    }
    return np.asarray(sum(CLASSES[name] * mask.astype(np.uint8) for name, mask in found.items()), dtype=np.uint8)


def _outside(x: NDArray, value: NDArray, src: DType, dst: DType) -> NDArray:
    # An integer's low bits are an integer: nothing is undefined.
    if dst.family == "bool" or (dst.family == "int" and not src.is_float):
        return np.zeros(x.shape, bool)
    if dst.family == "int":
        whole = np.trunc(value)
        return np.asarray((whole < float(dst.min)) | (whole >= float(dst.max) + 1))
    if dst.family == "e8m0":
        return np.asarray((value != 0) & ((np.abs(value) < dst.min) | (np.abs(value) > dst.max)))
    # To nearest: half of the last step beyond the largest number is out of range if the largest number is odd.
    step = float(dst.max) - float(dst.value(dst.max_code - 1))
    edge = float(dst.max) + step / 2 if dst is not DOUBLE else np.inf
    return np.asarray(np.abs(value) >= edge if dst.max_code % 2 else np.abs(value) > edge)


def _subnormal(magnitude: NDArray, src: DType, dst: DType) -> NDArray:
    found = np.zeros(magnitude.shape, bool)
    for row in (src, dst):
        if row.family == "float":
            least = float(row.value(1 << row.mantissa_bits))
            found |= (magnitude > 0) & (magnitude < least)
    return found


# ---- expected codes ----


def columns(x: NDArray, src: DType, dst: DType) -> Iterator[tuple[str, NDArray]]:
    """The results by each rule of a destination."""
    for name, keywords in rules(src, dst).items():
        yield name, reference.cast(x, dst, **keywords)


def rules(src: DType, dst: DType) -> dict[str, dict[str, Any]]:
    """The keywords of `gpucast.cast` for the columns that one rule gives."""
    found: dict[str, dict[str, Any]] = {"onnx": {}}
    if src is dst or dst.family == "bool":
        return found
    if dst.family == "int":
        found["saturating"] = {"overflow": "saturate"}
        found["nearest-saturating"] = {"rounding": "nearest_even", "overflow": "saturate"}
        return found
    if dst.family == "e8m0":
        modes: tuple[dict[str, Any], ...] = ({}, {"round_mode": "down"}, {"round_mode": "nearest"})
        names = ("up", "down", "nearest")
        found |= dict(zip(names[1:], modes[1:], strict=True))
        return found | {f"{n}-overflowing": {"saturate": False} | m for n, m in zip(names, modes, strict=True)}
    if dst.saturate_applies:
        found["overflowing"] = {"saturate": False}
    elif dst.has_nan:
        found["saturating"] = {"overflow": "saturate"}
    if not holds(dst, src):
        found |= {rounding.replace("_", "-"): {"rounding": rounding} for rounding in _DIRECTED}
    return found


def derived(x: NDArray, kinds: NDArray, src: DType, dst: DType, known: Columns) -> Iterator[tuple[str, NDArray]]:
    """The columns that follow from others: other treatments of NaN and infinity, and faults."""
    nan, infinite = kinds & CLASSES["nan"] != 0, kinds & CLASSES["infinite"] != 0
    onnx = known["onnx"]
    if src is dst:
        return
    if dst.family == "float" and dst.bits <= 8:
        if dst.saturate_applies:
            yield "propagating", np.where(infinite, known["overflowing"], onnx)
        if dst.specials != "fnuz":
            yield "cuda-satfinite", np.where(nan, dst.code_numpy.type(dst.code_mask & ~dst.sign_code), onnx)
    if dst.family == "e8m0" and src.is_float:
        sign = np.where(nan, 0, src.sign_code).astype(src.code_numpy)
        magnitude = (x.view(src.code_numpy) & ~sign).view(src.numpy)
        yield "cuda-up", _codes(reference.cast(magnitude, dst), dst)
        yield "cuda-down", _codes(reference.cast(magnitude, dst, round_mode="down"), dst)
    if dst.family == "e8m0":
        yield "nearest-even", _ties_to_even(x, src, dst, known["nearest"])
    for name, middle in (("via-float", FLOAT), ("via-double", DOUBLE), ("via-float16", FLOAT16)):
        if dst.is_float and dst.bits < middle.bits and src is not middle:
            yield name, _codes(reference.cast(reference.cast(x, middle), dst), dst)
            if name == "via-float" and "overflowing" in known:
                # The first rounding may reach a number that is out of range.
                twice = _codes(reference.cast(reference.cast(x, middle), dst, saturate=False), dst)
                yield "via-float-over", np.where(twice == known["overflowing"], onnx, twice)
    if dst.family == "int" and src.is_float:
        # Exact: half of an integer that DOUBLE has.
        value = reference.cast(x, DOUBLE)
        away = np.trunc(value) + np.trunc(2 * (value - np.trunc(value)))
        yield "ties-away", _codes(reference.cast(away, dst), dst)
    subnormal = kinds & CLASSES["subnormal"] != 0
    if dst.family == "float":
        zero = onnx & dst.code_numpy.type(dst.sign_code) if dst.has_negative_zero else dst.code_numpy.type(0)
        yield "flushed", np.where(subnormal, zero, onnx)
    elif dst.family == "bool":
        yield "flushed", np.where(subnormal, dst.code_numpy.type(0), onnx)


def _ties_to_even(x: NDArray, src: DType, dst: DType, nearest: NDArray) -> NDArray:
    """From powers of two with ties rounded up to those with ties to the even exponent code."""
    value = reference.cast(x, DOUBLE)
    below = 0.75 * reference.cast(nearest.view(dst.numpy), DOUBLE)
    # Of an integer with more bits than DOUBLE the value is not exact.
    tie = (value == below) & (_codes(reference.cast(value, src), src) == x.view(src.code_numpy))
    return np.where(tie & (nearest % 2 == 1), nearest - dst.code_numpy.type(1), nearest)


def _codes(result: NDArray, row: DType) -> NDArray:
    return result.view(row.code_numpy)


@exact()
def cast_table(src: DType, dst: DType) -> Columns:
    """The arrays of a pair: ``input`` where it is not every code, ``class``, expected codes, results of faults."""
    codes = inputs(src, dst)
    x = codes.view(src.numpy)
    kinds = classes(x, src, dst)
    table = {"class": kinds} if src.bits <= 16 else {"input": codes, "class": kinds}
    expected = {name: _codes(result, dst) for name, result in columns(x, src, dst)}
    expected |= derived(x, kinds, src, dst, expected)
    # A column that is missing is equal to `onnx`.
    same = [name for name in expected if name != "onnx" and np.array_equal(expected[name], expected["onnx"])]
    for name in same:
        del expected[name]
    return table | expected


# ---- files ----


def packed(table: Columns) -> bytes:
    """The bytes of a table, as `cast_conformance.reader` describes them."""
    place = HEAD.size + ENTRY.size * len(table)
    entries, bodies = [], []
    for name, array in table.items():
        if len(name) > 20:
            raise ValueError(f"the name {name!r} is longer than the file has room for")
        body = np.ascontiguousarray(array).tobytes()
        entries.append(ENTRY.pack(name.encode(), array.dtype.itemsize, array.size, place))
        # Every array begins at a multiple of eight bytes.
        body += bytes(-len(body) % 8)
        bodies.append(body)
        place += len(body)
    return b"".join([HEAD.pack(MAGIC, len(table)), *entries, *bodies])


def entry(data: bytes, table: Columns) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "cases": next(iter(table.values())).size}


def proofs() -> dict[str, list[str]]:
    """By pair the columns whose rule the certificate has as proved."""
    certificate = json.loads(CERTIFICATE.read_text(encoding="utf-8"))
    proved = {
        resolve(dtype(proof["src"]), dtype(proof["dst"]), Options(**proof["attributes"]))
        for proof in certificate["proofs"]
        if proof["verdict"] == "proved" and "seed" not in proof["attributes"]
    }
    found: dict[str, list[str]] = {}
    for src in NUMERIC:
        for dst in NUMERIC:
            rows = rules(src, dst)
            found[f"{src}-{dst}"] = [n for n in rows if resolve(src, dst, Options(**rows[n])) in proved]
    return found


def facts() -> dict[str, dict[str, Any]]:
    """The types, for readers without gpucast."""
    fields = ("bits", "family", "sign_bits", "exponent_bits", "mantissa_bits", "bias", "specials")
    return {row.name: {field: getattr(row, field) for field in fields} for row in NUMERIC}


def tables(pairs: list[tuple[DType, DType]], formats: list[str]) -> Iterator[tuple[str, Columns]]:
    for src, dst in pairs:
        yield f"{src}-{dst}", cast_table(src, dst)
    for name in formats:
        yield f"block-{name}", block_table(name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the tables, and compare them with the manifest's checksums.")
    parser.add_argument("--pairs", nargs="+", metavar="SRC:DST", help="only these (default: all)")
    parser.add_argument("--formats", nargs="*", choices=FORMATS, metavar="NAME", help="only these block formats")
    parser.add_argument("--out", type=Path, default=TABLES, help="the folder of the tables (default: %(default)s)")
    parser.add_argument("--manifest", action="store_true", help="write the manifest anew, from all tables")
    options = parser.parse_args(arguments)
    some = options.pairs is not None or options.formats is not None
    if some and options.manifest:
        parser.error("--manifest is made of all tables")
    pairs = [(src, dst) for src in NUMERIC for dst in NUMERIC]
    if some:
        asked = [pair.split(":") for pair in options.pairs or ()]
        pairs = [(dtype(src), dtype(dst)) for src, dst in asked]
    options.out.mkdir(parents=True, exist_ok=True)
    made: dict[str, Any] = {}
    wrong = []
    for name, table in tables(pairs, (options.formats or []) if some else list(FORMATS)):
        data = packed(table)
        made[name] = entry(data, table)
        if not options.manifest and manifest()["tables"][name] != made[name]:
            wrong.append(name)
            continue
        (options.out / f"{name}.cct").write_bytes(data)
    if options.manifest:
        write_manifest(made)
    print(
        f"{len(made) - len(wrong)} tables in {options.out}" + "".join(f"\n{n} is not as in the manifest" for n in wrong)
    )
    return int(bool(wrong))


def write_manifest(made: dict[str, Any]) -> None:
    rows = facts()
    content = {
        "version": "1.0",
        "license": "CC0-1.0",
        "types": rows,
        "classes": CLASSES,
        "faults": FAULTS,
        "conventions": listed(rows),
        "certificate": f"bench/results/{CERTIFICATE.name}",
        "proved": proofs(),
        "formats": FORMATS,
        "tables": made,
    }
    MANIFEST.write_text(as_text(content, 2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
