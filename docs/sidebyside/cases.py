# SPDX-License-Identifier: Apache-2.0
"""Single casts that no sweep holds: text, odd nodes, ONNX's technical pages, what the operator text leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import gpucast
from gpucast.core.dtypes import DType
from sidebyside.systems import Array, System, cast_model

ROWS = {row.name: row for row in gpucast.DTYPES}

#: Type or STRING, value, destination.
TEXTS: tuple[tuple[str, Any, str], ...] = (
    ("FLOAT", 1.0, "STRING"),
    ("FLOAT", -0.0, "STRING"),
    ("FLOAT", 3.14, "STRING"),
    ("FLOAT", 0.0001, "STRING"),
    ("FLOAT", 1234567.0, "STRING"),
    ("FLOAT", 1e20, "STRING"),
    ("FLOAT", np.nan, "STRING"),
    ("FLOAT", np.inf, "STRING"),
    ("FLOAT", -np.inf, "STRING"),
    ("DOUBLE", 2 / 3, "STRING"),
    ("DOUBLE", 123456789.0, "STRING"),
    ("FLOAT16", 0.1, "STRING"),
    ("FLOAT16", 65504.0, "STRING"),
    ("BFLOAT16", 3.14, "STRING"),
    ("FLOAT8E4M3FN", 448.0, "STRING"),
    ("FLOAT8E8M0", 2.0**-127, "STRING"),
    ("FLOAT4E2M1", 0.5, "STRING"),
    ("INT4", -8, "STRING"),
    ("UINT8", 65, "STRING"),
    ("BOOL", True, "STRING"),
    ("STRING", "+INF", "FLOAT"),
    ("STRING", "-nan", "FLOAT"),
    ("STRING", " 1.5\n", "FLOAT"),
    ("STRING", "1.5abc", "FLOAT"),
    ("STRING", "0x10", "FLOAT"),
    ("STRING", "1_000", "FLOAT"),
    ("STRING", "\uff11\uff12", "FLOAT"),
    ("STRING", "1e400", "FLOAT"),
    ("STRING", "1e-310", "DOUBLE"),
    ("STRING", "1.00048828125000000000001", "FLOAT16"),
    ("STRING", "1.5", "BFLOAT16"),
    ("STRING", "NaN", "BFLOAT16"),
    ("STRING", "1e3", "FLOAT8E4M3FN"),
    ("STRING", "1.5", "FLOAT8E8M0"),
    ("STRING", "100.5", "INT32"),
    ("STRING", "1e3", "INT32"),
    ("STRING", "42abc", "INT32"),
    ("STRING", "NaN", "INT32"),
    ("STRING", "128", "INT8"),
    ("STRING", "-1", "UINT8"),
    ("STRING", "2.718", "INT4"),
    ("STRING", "9", "INT4"),
    ("STRING", "0", "BOOL"),
    ("STRING", "0.0", "BOOL"),
    ("STRING", "256", "BOOL"),
    ("STRING", "true", "BOOL"),
    ("STRING", "", "BOOL"),
)


@dataclass(frozen=True)
class Node:
    """A model of one node with attributes of its own, on FLOAT."""

    what: str
    value: float
    dst: str
    attributes: dict[str, Any]
    opset: int = 25
    operator: str = "Cast"
    shape: tuple[int, ...] = (1,)


NODES = (
    Node("saturate=2 (any integer but 0 is true)", 1e6, "FLOAT8E4M3FN", {"saturate": 2}),
    Node("saturate=0 where it has no meaning", 1.0, "FLOAT16", {"saturate": 0}),
    Node("round_mode=down where it has no meaning", 1.0, "FLOAT16", {"round_mode": "down"}),
    Node("round_mode=UP, an illegal value", 1.0, "FLOAT16", {"round_mode": "UP"}),
    Node("saturate=1, which opset 13 does not have", 1.0, "FLOAT16", {"saturate": 1}, opset=13),
    Node("a type newer than opset 13", 1.0, "FLOAT8E4M3FN", {}, opset=13),
    Node("to=FLOAT16 as a string, as version 1 has it", 1.0, "FLOAT16", {"to": "FLOAT16"}, opset=5),
    Node("to=14 (COMPLEX64)", 1.0, "FLOAT16", {"to": 14}),
    Node("rank 0", 1.5, "FLOAT8E8M0", {}, shape=()),
    Node("CastLike, round_mode=down", 1.5, "FLOAT8E8M0", {"round_mode": "down"}, operator="CastLike"),
    Node("CastLike, saturate=0", 1e6, "FLOAT8E4M3FN", {"saturate": 0}, operator="CastLike"),
)

#: Page, FLOAT value, destination, what the page says, why gpucast does otherwise.
PAGES: tuple[tuple[str, float, str, str, str], ...] = (
    ("float4", np.nan, "FLOAT4E2M1", "6", "the shipped node tests expect a zero"),
    ("float4", -np.nan, "FLOAT4E2M1", "6", "the same, with the sign turned"),
    (
        "float6",
        -np.nan,
        "FLOAT6E2M3",
        "-0.0, called unspecified",
        "as FLOAT4E2M1; NaN without sign gives -0.0 here too",
    ),
    ("int4", 1.5, "INT4", "2, ties to even", 'truncated, as to every integer; rounding="nearest_even" gives 2'),
    ("int4", 2.75, "INT4", "3", "the same"),
    ("int2", 0.75, "UINT2", "1", "the same"),
    ("float8", np.inf, "FLOAT8E4M3FNUZ", "NaN", "the maximum from opset 24 on; NaN with opset 19 to 23"),
    ("float8", np.inf, "FLOAT8E5M2FNUZ", "NaN", "the same"),
)

#: What the operator text leaves undefined or does not mention, what gpucast does, and an example of it.
OPEN: tuple[tuple[str, str, str, Any, str, dict[str, Any]], ...] = (
    ("rounding between floating types", "to nearest, ties to even", "FLOAT", 2049.0, "FLOAT16", {}),
    ("wide types to narrow ones", "rounded once", "DOUBLE", 4.250000000000001, "FLOAT8E4M3FN", {}),
    ("fraction to integer", "truncated", "FLOAT", -1.75, "INT32", {}),
    ("out of range to integer", "low bits of the truncated number", "FLOAT", 300.0, "UINT8", {}),
    ("NaN and infinity to integer", "0", "FLOAT", np.inf, "INT32", {}),
    ("out of range to float4, float6", "signed maximum", "FLOAT", -np.inf, "FLOAT6E3M2", {}),
    ("NaN to float4, float6", "zero with the sign turned", "FLOAT", np.nan, "FLOAT6E3M2", {}),
    ("0 and -0 to FLOAT8E8M0, which has no zero", "the least value", "FLOAT", -0.0, "FLOAT8E8M0", {}),
    ("negative to FLOAT8E8M0", "the least value", "FLOAT", -1.0, "FLOAT8E8M0", {}),
    ("the same with saturate=0", "NaN", "FLOAT", -1.0, "FLOAT8E8M0", {"saturate": False}),
    (
        "saturate=0 with up or down",
        "NaN outside 2^-127 to 2^127",
        "FLOAT",
        2.0**-128,
        "FLOAT8E8M0",
        {"saturate": False},
    ),
    ("bits of NaN", "quiet, the source's sign, no payload", "FLOAT", -np.nan, "FLOAT16", {}),
    ("NaN and infinity to text", "NaN, INF, -INF", "FLOAT", -np.inf, "STRING", {}),
    ("layout of text", "shortest digits; exponent from 1e16 and below 1e-4", "FLOAT", 1e20, "STRING", {}),
    ("text of a fraction to integer", "truncated", "STRING", "2.718", "INT32", {}),
    ("text to BOOL", "true, false, or a number other than 0", "STRING", "0.0", "BOOL", {}),
    ("other text", "refused", "STRING", "0x10", "FLOAT", {}),
)


def array(src: DType, value: Any, shape: tuple[int, ...] = (1,)) -> Array:
    kind = object if src.family in ("string", "int", "bool") else np.float64
    return np.full(shape, value, kind).astype(src.numpy)


def cast_result(src: DType, value: Any, dst: DType, keywords: dict[str, Any]) -> str:
    """What gpucast makes of a value, as text for a table."""
    try:
        return show(gpucast.cast(array(src, value), dst, **keywords), dst)
    except (ValueError, OverflowError):
        return "refused"


def system_result(system: System, src: DType, value: Any, dst: DType) -> str:
    model = cast_model(src, dst, system.opset, system.ir_version)
    return _run(system, model, {"x": array(src, value)}, dst)


def node_result(system: System, node: Node) -> str:
    src, dst = ROWS["FLOAT"], ROWS[node.dst]
    model = cast_model(src, dst, node.opset, system.ir_version, node.operator, **node.attributes)
    feeds = {"x": array(src, node.value, node.shape)}
    if node.operator == "CastLike":
        feeds["like"] = np.zeros(1, dst.numpy)
    return _run(system, model, feeds, dst)


def _run(system: System, model: Any, feeds: dict[str, Array], dst: DType) -> str:
    try:
        return show(system.run(model, feeds), dst)
    except Exception:  # each system has kinds of its own
        return "refused"


def show(x: Array, row: DType) -> str:
    """One element as text: the value, and the code where the type is a narrow float."""
    if x.dtype.kind in "OUT":
        return f"`{x.reshape(-1)[0]}`"
    if x.dtype != row.numpy:
        return f"a {x.dtype}"
    text = gpucast.cast(x, "STRING").reshape(-1)[0]
    code = int(np.ascontiguousarray(x).reshape(-1).view(row.code_numpy)[0]) & row.code_mask
    if row.is_float and (row.bits <= 8 or text == "NaN"):
        return f"`{code:#0{2 + -(-row.bits // 4)}x}` {text}"
    return f"`{text}`"
