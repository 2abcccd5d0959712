# SPDX-License-Identifier: Apache-2.0
"""The attributes of a cast as options of a command."""

from __future__ import annotations

import argparse
from typing import Any

from gpucast.core import dtypes
from gpucast.core.dtypes import DType
from gpucast.core.options import ATTRIBUTES, DEFAULT_OPSET
from gpucast.core.rule import DIRECTED, ROUND_MODES, ROUNDINGS, STOCHASTIC


def add(parser: argparse.ArgumentParser, *, stochastic: bool = False) -> None:
    """Add an option for each attribute; with `stochastic`, also stochastic rounding."""
    parser.add_argument(
        "--saturate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="to 8-bit floats: clamp, or give infinity or NaN (default: clamp)",
    )
    parser.add_argument("--round-mode", choices=ROUND_MODES, default="up", help="to FLOAT8E8M0 (default: %(default)s)")
    parser.add_argument(
        "--opset", type=int, default=DEFAULT_OPSET, help="follow the Cast of this opset (default: %(default)s)"
    )
    parser.add_argument(
        "--rounding",
        choices=(*ROUNDINGS, *DIRECTED, *[STOCHASTIC] * stochastic),
        help="to integers: truncate (default) or nearest_even; to floats: toward_zero, upward, downward or odd"
        + "; to floats of 16 bits or fewer: stochastic" * stochastic,
    )
    parser.add_argument(
        "--overflow", choices=("saturate", "wrap"), help="to integers (default: wrap) and to wide floats"
    )


def of(args: argparse.Namespace) -> dict[str, Any]:
    """The given attributes, as keywords of `gpucast.cast`."""
    return {name: getattr(args, name) for name in ATTRIBUTES}


def dtype(text: str) -> DType:
    """The type that an option names."""
    try:
        return dtypes.dtype(int(text) if text.isdecimal() else text, caller="")
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
