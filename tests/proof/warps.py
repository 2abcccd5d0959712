# SPDX-License-Identifier: Apache-2.0
"""What the lanes of a warp do together, and what threads do to one number in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.proof.machine import Fault

NDArray = npt.NDArray[Any]

LANES = 32


def source_lanes(mode: str, lane: NDArray, by: NDArray, last: NDArray, mask: NDArray) -> tuple[NDArray, NDArray]:
    """The lane whose number each lane takes by ``shfl.sync``, and whether it is another's; operands as in the manual of
    PTX. Fault for one outside of the mask."""
    b, c = by.astype(np.int64) & 31, last.astype(np.int64)
    clamp, segment = c & 31, c >> 8 & 31
    least = lane & segment
    most = least | (clamp & ~segment)
    source = {"bfly": lane ^ b, "up": lane - b, "down": lane + b, "idx": least | (b & ~segment)}[mode]
    holds = source >= most if mode == "up" else source <= most
    source = np.where(holds, source, lane)
    if not (mask.astype(np.int64) >> source & 1).all():
        raise Fault("a shuffle reads a lane outside of its mask")
    return source, holds


def _chosen(better: Callable[[Any, Any], Any], code: str, a: Any, b: Any) -> Any:
    return better(a, b, key=lambda one: int(np.array(one).astype(f"u{code[1:]}").view(code)))  # type: ignore[call-arg]


#: What becomes of two numbers of a type such as "i4".
REDUCTIONS: dict[str, Callable[[str, Any, Any], Any]] = {
    "max": partial(_chosen, max),
    "min": partial(_chosen, min),
    "add": lambda code, a, b: np.uint64((int(a) + int(b)) & ((1 << 8 * int(code[1:])) - 1)),
    "or": lambda code, a, b: np.uint64(int(a) | int(b)),
    "and": lambda code, a, b: np.uint64(int(a) & int(b)),
    "exch": lambda code, a, b: b,
    "inc": lambda code, a, b: np.uint64(0 if int(a) >= int(b) else int(a) + 1),
}
