# SPDX-License-Identifier: Apache-2.0
"""gpucast on the host, by its public call."""

from __future__ import annotations

from typing import Any

import gpucast
from cast_conformance.arrays import array_of, codes_of

#: The keywords that ask for a convention.
KEYWORDS: dict[str, dict[str, Any]] = {
    "onnx": {},
    "onnx-overflowing": {"saturate": False},
    "saturating": {"overflow": "saturate"},
    "nearest-saturating": {"rounding": "nearest_even", "overflow": "saturate"},
    "onnx-down": {"round_mode": "down"},
    "onnx-nearest": {"round_mode": "nearest"},
    "onnx-up-overflowing": {"saturate": False},
    "onnx-down-overflowing": {"saturate": False, "round_mode": "down"},
    "onnx-nearest-overflowing": {"saturate": False, "round_mode": "nearest"},
    "toward-zero": {"rounding": "toward_zero"},
    "upward": {"rounding": "upward"},
    "downward": {"rounding": "downward"},
    "odd": {"rounding": "odd"},
}
MODES = tuple(KEYWORDS)


def version() -> str:
    return f"gpucast {gpucast.__version__}"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    return codes_of(gpucast.cast(array_of(codes, src), dst, **KEYWORDS[mode]), dst)
