# SPDX-License-Identifier: Apache-2.0
"""t27's catalogue of formats, packs of vectors, and codecs of GF16 and MXFP4, beside the types and formats here."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from bench.peers.outcomes import NDArray, Outcome
from gpucast.core.dtypes import DType, dtype

#: Packs by the name of their file: the type, and the keywords of the cast.
_PACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("BFLOAT16", {}),
    "fp8_e4m3": ("FLOAT8E4M3FN", {}),
    "fp8_e5m2": ("FLOAT8E5M2", {"saturate": False}),
    "e8m0_block": ("FLOAT8E8M0", {"round_mode": "nearest", "saturate": False}),
    "gf16": ("GF16", {}),
}
#: Formats of the catalogue that are types here, or whose elements are.
HERE = {
    "binary16": "FLOAT16", "binary32": "FLOAT", "binary64": "DOUBLE", "bfloat16": "BFLOAT16",
    "fp8_e4m3": "FLOAT8E4M3FN", "fp8_e5m2": "FLOAT8E5M2", "fp6_e3m2": "FLOAT6E3M2", "fp6_e2m3": "FLOAT6E2M3",
    "fp4_e2m1": "FLOAT4E2M1", "mxfp8": "FLOAT8E4M3FN", "mxfp6": "FLOAT6E3M2", "mxfp4": "FLOAT4E2M1",
    "nvfp4": "FLOAT4E2M1", "int4": "INT4", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "per_channel_scale": "INT8",
}  # fmt: skip
#: Why the others are not.
ELSEWHERE = {
    "more than 64 bits": "binary128 binary256 x87_fp80 double_double quad_double int128",
    "decimal": "decimal32 decimal64 decimal128 bcd",
    "a fixed point is the user's: an integer and a scale": "q_format",
    "19 bits inside of matrix products; nothing is stored so": "tf32",
    "the codes are the places of a table, or a range is chosen for each tensor": "nf4 afp",
    "the length of the exponent depends on the number": "posit8 posit16 posit32 posit64 takum8 takum16 takum32 takum64"
    " unum_i unum_ii tapered_fp",
    "logarithmic": "lns8 lns16 lns32 lns64 gf_lns_hybrid",
    "t27's own; a row of the table of types would do for those of 4, 6, 8 and 16 bits, as it does for GF16": "gfternary"
    " gf4 gf6 gf8 gf10 gf12 gf14 gf16 gf20 gf24 gf32 gf48 gf64 gf96 gf128 gf256 gf512 gf1024 gf8_bfp mxgf6 mxgf4",
    "of the machines of IBM, DEC and Cray, and of Microsoft's BASIC": "ibm_hfp32 ibm_hfp64 ibm_hfp128 ms_mbf32 ms_mbf64"
    " vax_f vax_d vax_g vax_h cray_float",
    "families and techniques, not formats": "minifloat block_fp shared_exp stochastic_rounding",
}
#: Where both differ, and why.
DISAGREEMENTS = (
    "any NaN of FLOAT8E5M2 and GF16 is one",
    "its encoder of GF16 gives 0 for a number that rounds up to the smallest normal one",
    "a block of MXFP4 with infinity or NaN is zeros there, NaN here",
)
_GF16 = DType("GF16", None, "float", 16, 1, 6, 9, 31, "ieee", None, "gf16", None)


def t27(folder: Path, samples: int) -> Outcome:
    """t27's packs by our reader, its catalogue beside our table, and both ways between its codecs and ours."""
    packs = {path.name.removesuffix("_conformance_v0.json"): json.loads(path.read_text(encoding="utf-8"))["vectors"]
             for path in sorted((folder / "vectors").glob("*_conformance_v0.json"))}  # fmt: skip
    version = re.search(r'^version = "(.*)"', (folder / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    found = Outcome("t27 (tt-lang-t27)", version[1] if version else "", "types", licence="Apache-2.0")
    formats = json.loads((folder / "vectors" / "all_formats_v0.json").read_text(encoding="utf-8"))["formats"]
    named = [*HERE, *" ".join(ELSEWHERE.values()).split()]
    if sorted(named) != sorted(one["id"] for one in formats):
        raise RuntimeError("t27: its catalogue has other formats than HERE and ELSEWHERE name")
    sys.path.insert(0, str(folder / "src"))
    from tt_lang_t27 import gf16, mxfp4

    sys.path.pop(0)
    with dtype.registered(_GF16):
        for name, (kind, keywords) in _PACKS.items():
            _pack(found, packs[name], dtype(kind), keywords)
        known = [(one, _GF16 if one["id"] == "gf16" else dtype(HERE[one["id"]]))
                 for one in formats if one["id"] in (*HERE, "gf16")]  # fmt: skip
        theirs = [tuple(int(one[name]) for name in ("bits", "s", "e", "m", "bias")) for one, _ in known]
        ours = [
            (row.bits, int(row.signed), row.exponent_bits, row.mantissa_bits or row.bits - 1, row.bias)
            for _, row in known
        ]
        found.compare(theirs, ours, [one["id"] for one, _ in known], "t27")
        _gf16(found, gf16)
    blocks = [one for one in packs["mxfp4"] if one["kind"] == "block"]
    x = np.array([one["input_f32"] for one in blocks], np.float32)
    wanted = [bytes.fromhex(one["expected_bytes_hex"]) for one in blocks]
    more = np.concatenate([_hard_blocks(), _random_blocks(samples // 1000)])
    wanted += [mxfp4.pack_block_to_bytes(mxfp4.encode_block(block)) for block in more.tolist()]
    x = np.concatenate([x, more])
    q = gpucast.quantize(x, "mxfp4_up")
    given = np.concatenate([q.scales.view(np.uint8).reshape(-1, 1), q.data.data.reshape(-1, 16)], 1)
    legal = np.asarray(~np.isfinite(x).all(1))
    found.compare(wanted, map(bytes, given), [f"MXFP4 block {row[0]}, ..." for row in x], "t27", legal)
    back = [mxfp4.decode_block(mxfp4.unpack_bytes_to_block(row.tobytes())) for row in given[~legal]]
    found.compare(np.ravel(back), np.ravel(gpucast.dequantize(q)[~legal]), np.ravel(x[~legal]), "t27")
    found.why = "; ".join([*DISAGREEMENTS, f"{len(HERE)} of its {len(formats)} formats are types or elements here"])
    return found


def _gf16(found: Outcome, codec: Any) -> None:
    """Codes of GF16 to numbers, and numbers, each with its neighbours, to codes."""
    values = np.array([_GF16.value(code) for code in range(1 << 16)])
    found.compare(map(codec.gf16_decode, range(1 << 16)), values, range(1 << 16), "t27")
    finite = np.sort(values[np.isfinite(values)])
    x = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2])
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), [np.inf, -np.inf, np.nan]])
    codes = gpucast.reference.cast(x, _GF16).view(np.uint16)
    least = 2.0**-30
    legal = np.isnan(x) | ((np.abs(x) < least) & (np.abs(values[codes]) == least))
    found.compare(map(codec.gf16_encode, x.tolist()), codes.tolist(), x, "t27", legal)


def _hard_blocks() -> NDArray:
    """Blocks whose largest magnitude is 6 times a power of two or next to it, and of numbers that are not finite."""
    tops = np.ldexp(np.float32(6), np.arange(-149, 126)).astype(np.float32)
    tops = np.concatenate([tops, np.nextafter(tops, np.float32(np.inf)), np.nextafter(tops, np.float32(0))])
    tops = tops[tops > 0]
    rows = tops[:, None] * np.random.default_rng(13).choice([0, 0.25, -0.5, 0.75, 1], (tops.size, 32))
    rows[:, 0] = tops
    special = np.tile([[np.inf], [-np.inf], [np.nan]], 32)
    return np.concatenate([rows, special]).astype(np.float32)


def _random_blocks(count: int) -> NDArray:
    blocks = np.random.default_rng(11).standard_normal((count, 32)).astype(np.float32)
    return blocks * np.exp2(np.random.default_rng(12).integers(-60, 60, (count, 1))).astype(np.float32)


def _pack(found: Outcome, vectors: list[dict[str, Any]], row: DType, keywords: dict[str, Any]) -> None:
    """Inputs to codes, and codes to numbers."""

    def column(pattern: str) -> list[Any]:
        return [next(value for key, value in one.items() if re.fullmatch(pattern, key)) for one in vectors]

    x, decoded = (np.array([float(value) for value in column(rf"{what}_f\d+")]) for what in ("input", "decoded"))
    codes = np.array(column(r"\w+_int"), row.code_numpy)
    ours = gpucast.reference.cast(x, row, **keywords).view(row.code_numpy)
    names = [f"{row.name} {one['name']}" for one in vectors]
    found.count(ours != codes, names, "to a code", np.isnan(x) & np.isnan([row.value(int(code)) for code in codes]))
    found.compare(decoded, [row.value(int(code)) for code in codes], names, "t27")
