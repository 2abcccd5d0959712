# SPDX-License-Identifier: Apache-2.0
"""What may legally differ: the conventions of a destination, and wrong results that have a name.

A convention names the column with its results. `free` are the classes of cases where any result is right; with
`any_nan` one NaN is as good as another. A convention that is a rounding direction is only compared when asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

#: Bits of the column ``class``: what a case is. `overflow` is a finite number that the destination cannot hold.
CLASSES = {"nan": 1, "infinite": 2, "overflow": 4, "subnormal": 8, "zero": 16, "negative": 32}
#: Columns of wrong results, with what a library did to get them.
FAULTS = {
    "via-float": "rounded twice, by way of float32",
    "via-float-over": "rounded twice, by way of float32",
    "via-double": "rounded twice, by way of float64",
    "via-float16": "rounded twice, by way of float16",
    "flushed": "subnormal numbers flushed to zero",
    "ties-away": "rounded to nearest, ties away from zero, not truncated",
}
#: Classes of differing results that no column names; the first that applies.
OTHER = {
    "nan": "NaN is treated differently",
    "infinite": "infinity is treated differently",
    "overflow": "out of range is treated differently",
    "subnormal": "wrong for subnormal numbers",
}


@dataclass(frozen=True)
class Convention:
    name: str
    column: str
    text: str
    free: tuple[str, ...] = ()
    any_nan: bool = False
    #: Compared only with a library that was asked for it by this name.
    asked: bool = False
    #: Other conventions that this one is an answer to: it differs in what their text leaves open.
    answers: tuple[str, ...] = ()

    @property
    def mask(self) -> int:
        return sum(CLASSES[name] for name in self.free)


_BITS = "as ONNX Cast, version 28, with gpucast's choices where ONNX leaves one: rounded once, canonical NaN"
_ONNX = Convention("onnx", "onnx", _BITS)
_DIRECTIONS = {"toward-zero": "toward zero", "upward": "up", "downward": "down", "odd": "to odd"}
_DIRECTED = tuple(
    Convention(name, name, f"rounded {text}, overflow as IEEE 754 has it", any_nan=True, asked=True)
    for name, text in _DIRECTIONS.items()
)
_CUDA = Convention("cuda-satfinite", "cuda-satfinite", "as cvt.satfinite of PTX: clamped, NaN with all bits set")

_WIDE = (
    _ONNX,
    Convention("ieee", "onnx", "IEEE 754: to nearest, overflow to infinity, any NaN", any_nan=True, answers=("onnx",)),
    Convention("saturating", "saturating", "overflow and infinity to the largest number", any_nan=True),
    *_DIRECTED,
)
_FLOAT8 = (
    _ONNX,
    Convention("onnx-overflowing", "overflowing", "ONNX with saturate=0: infinity, or NaN where there is none"),
    _CUDA,
    Convention("ocp-saturating", "onnx", "OCP FP8: infinity clamps too, any NaN", any_nan=True, answers=("onnx",)),
    Convention(
        "ocp-overflowing",
        "overflowing",
        "OCP FP8, not saturating, any NaN",
        any_nan=True,
        answers=("onnx-overflowing",),
    ),
    Convention(
        "propagating",
        "propagating",
        "numbers clamp, infinity stays or is NaN (ONNX 19 to 23 to FNUZ; P3109 SatPropagate)",
        any_nan=True,
    ),
    *_DIRECTED,
)
_SMALL = (
    _ONNX,
    _CUDA,
    Convention("ocp", "onnx", "OCP MX: clamped; NaN is undefined", free=("nan",), answers=("onnx",)),
    *(replace(each, free=("nan",)) for each in _DIRECTED),
)
_WITHOUT_SIGN = ("zero", "negative", "overflow", "infinite")
_E8M0 = (
    _ONNX,
    *(
        Convention(
            f"onnx-{mode}{ending}",
            f"{mode}{ending}",
            f"ONNX with round_mode={mode}{', saturate=0' if ending else ''}",
        )
        for ending in ("", "-overflowing")
        for mode in ("up", "down", "nearest")
        if (mode, ending) != ("up", "")
    ),
    Convention("cuda-up", "cuda-up", "as cvt.rp.satfinite.ue8m0: the magnitude"),
    Convention("cuda-down", "cuda-down", "as cvt.rz.satfinite.ue8m0: the magnitude"),
    *(
        Convention(
            f"ocp-{mode}",
            "onnx" if mode == "up" else mode,
            f"{text}; what has no power of two is undefined",
            _WITHOUT_SIGN,
            answers=("onnx" if mode == "up" else f"onnx-{mode}", f"onnx-{mode}-overflowing"),
        )
        for mode, text in (("up", "up"), ("down", "down, as OCP MX takes scales"), ("nearest", "to nearest, 1.5 up"))
    ),
    Convention("ocp-nearest-even", "nearest-even", "to nearest, ties to even; the rest is undefined", _WITHOUT_SIGN),
)
_OUTSIDE = ("nan", "infinite", "overflow")
_INT = (
    _ONNX,
    Convention("saturating", "saturating", "truncated and clamped, NaN is 0"),
    Convention("nearest-saturating", "nearest-saturating", "to nearest, ties to even, and clamped, NaN is 0"),
    Convention("c-cast", "onnx", "truncated; from floats undefined outside the range", _OUTSIDE, answers=("onnx",)),
    Convention("nearest", "nearest-saturating", "to nearest, ties to even; undefined outside the range", _OUTSIDE),
)


def conventions(row: dict[str, Any]) -> tuple[Convention, ...]:
    """Those of a destination, given as a row of the manifest's types; the strictest first."""
    if row["family"] in ("bool", "int", "e8m0"):
        return {"bool": (_ONNX,), "int": _INT, "e8m0": _E8M0}[row["family"]]
    if row["bits"] > 8:
        return _WIDE
    if row["specials"] == "none":
        return _SMALL
    return tuple(each for each in _FLOAT8 if each is not _CUDA or row["specials"] != "fnuz")


def listed(rows: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """All conventions by destination, for the manifest."""
    return {name: [asdict(convention) for convention in conventions(row)] for name, row in rows.items()}
