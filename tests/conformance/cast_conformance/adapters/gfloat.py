# SPDX-License-Identifier: Apache-2.0
"""gfloat: OCP, IEEE and P3109 formats in float64; the FNUZ types are P3109's finite ones."""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import Any

import gfloat
import numpy as np
from gfloat import Domain, RoundMode, Signedness, formats

from cast_conformance.adapters import Refused
from cast_conformance.numbers import codes_dtype
from cast_conformance.reader import manifest

MODES = ("", "saturating", "ocp-saturating", "ocp-overflowing", "toward-zero", "upward", "downward")
FORMATS = {
    "FLOAT": formats.format_info_binary32,
    "DOUBLE": formats.format_info_binary64,
    "FLOAT16": formats.format_info_binary16,
    "BFLOAT16": formats.format_info_bfloat16,
    "FLOAT8E4M3FN": formats.format_info_ocp_e4m3,
    "FLOAT8E5M2": formats.format_info_ocp_e5m2,
    "FLOAT8E4M3FNUZ": formats.format_info_p3109(8, 4, Signedness.Signed, Domain.Finite),
    "FLOAT8E5M2FNUZ": formats.format_info_p3109(8, 3, Signedness.Signed, Domain.Finite),
    "FLOAT8E8M0": formats.format_info_ocp_e8m0,
    "FLOAT6E2M3": formats.format_info_ocp_e2m3,
    "FLOAT6E3M2": formats.format_info_ocp_e3m2,
    "FLOAT4E2M1": formats.format_info_ocp_e2m1,
}
BLOCKS = {
    "mxfp8e4m3": formats.format_info_mxfp8_e4m3,
    "mxfp8e5m2": formats.format_info_mxfp8_e5m2,
    "mxfp6e2m3": formats.format_info_mxfp6_e2m3,
    "mxfp6e3m2": formats.format_info_mxfp6_e3m2,
    "mxfp4": formats.format_info_mxfp4_e2m1,
}
_DIRECTIONS = {
    "toward-zero": RoundMode.TowardZero,
    "upward": RoundMode.TowardPositive,
    "downward": RoundMode.TowardNegative,
}


def version() -> str:
    return f"gfloat {installed('gfloat')}"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    if src not in FORMATS or dst not in FORMATS:
        raise Refused("no format")
    target, row = FORMATS[dst], manifest()["types"][dst]
    x = codes.view(np.float64) if src == "DOUBLE" else gfloat.decode_ndarray(FORMATS[src], codes.astype(np.int64))
    if row["specials"] == "none":
        x = np.where(np.isnan(x), 0, x)
    sat = "saturating" in mode or (mode in ("", *_DIRECTIONS) and row["bits"] <= 8 and dst != "FLOAT8E8M0")
    # A type's own infinity is no overflow.
    sat &= src != dst
    rounded = gfloat.round_ndarray(target, x, _DIRECTIONS.get(mode, RoundMode.TiesToEven), sat)
    return gfloat.encode_ndarray(target, rounded).astype(codes_dtype(row))


def quantize(x: Any, name: str) -> Any:
    """Numbers; of blocks that are not finite none."""
    found = np.full(x.shape, np.nan)
    for block, numbers in zip(x.reshape(-1, 32).astype(np.float64), found.reshape(-1, 32), strict=True):
        if np.isfinite(block).all():
            numbers[:] = gfloat.quantize_block(BLOCKS[name], block, gfloat.compute_scale_amax)
    return found
