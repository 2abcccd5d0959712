# SPDX-License-Identifier: Apache-2.0
"""microsoft/microxcaling in PyTorch, to nearest even: numbers of MX formats. Its checkout is on PYTHONPATH."""

from __future__ import annotations

import os
from typing import Any

import torch
from mx.formats import ElemFormat
from mx.mx_ops import _quantize_mx

#: Its names of the formats.
BLOCKS = {
    "mxfp8e4m3": "fp8_e4m3",
    "mxfp8e5m2": "fp8_e5m2",
    "mxfp6e2m3": "fp6_e2m3",
    "mxfp6e3m2": "fp6_e3m2",
    "mxfp4": "fp4_e2m1",
}


def version() -> str:
    """The checkout does not know its own: ``MICROXCALING_VERSION`` names it."""
    return f"microxcaling {os.environ.get('MICROXCALING_VERSION', '')}".strip()


def quantize(x: Any, name: str) -> Any:
    arguments: dict[str, Any] = {"axes": [-1], "block_size": 32, "round": "even"}
    return _quantize_mx(torch.from_numpy(x).double(), 8, ElemFormat.from_str(BLOCKS[name]), **arguments).numpy()
