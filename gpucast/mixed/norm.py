# SPDX-License-Identifier: Apache-2.0
"""The 2-norm of gradients and the factor that clips them, with the same bits on the host and on every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gpucast import gpu
from gpucast.core.arithmetic import exact
from gpucast.core.checks import is_real, rounded
from gpucast.mixed import gpu as on_device
from gpucast.mixed.sum_of_squares import in_one_piece, sum_of_squares

#: What PyTorch adds to a norm before it divides by it.
_EPSILON = 1e-6
#: What an object keeps for devices between calls.
_KEPT: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
# It holds kernels of the driver with which it was made.
gpu.ON_NEW_DRIVER.append(_KEPT.clear)


def checked_clip(clip: Any, caller: str) -> float:
    """The largest norm that is let through, rounded to FLOAT; infinity for None. TypeError or ValueError otherwise."""
    if clip is None:
        return float("inf")
    if not is_real(clip):
        raise TypeError(f"{caller}: clip={clip!r} must be a number")
    with exact():
        number = rounded(clip, np.float32)
        if not number > 0:
            raise ValueError(f"{caller}: clip={clip!r} must be above 0, as a FLOAT")
    return number


@exact()
def factor(
    owner: Any,
    leaves: Sequence[Any],
    inverse: Any,
    clip: float,
    norm: Any,
    device: int | None,
    caller: str,
    casts: on_device.norm_kernels.Casts | None,
) -> tuple[Any, bool]:
    """An array of one FLOAT on the device of the arrays `leaves`: `inverse` (None: 1), times clip / (norm + 1e-6) where
    that is below 1 and where the sum of squares is finite. And whether the same read did `casts`, which are for
    devices, and for calls without a clip: where all arrays are in C order.

    `norm`: a NumPy or CuPy array of one FLOAT on that device, which takes the 2-norm of the leaves times `inverse`.
    `owner` keeps the memory of repeated calls. All arrays are checked. Nothing waits.
    """
    inverse = 1.0 if inverse is None else inverse
    if device is not None:
        kept = _KEPT.get(owner)
        if kept is None:
            kept = _KEPT[owner] = on_device.norm_kernels.Kept(caller)
        return kept.factor(leaves, inverse, clip, norm, device, casts)
    one, found = np.float32(inverse), np.sqrt(sum_of_squares(in_one_piece(leaves, caller)))
    with np.errstate(over="ignore", invalid="ignore"):
        found = found * np.float64(one)
        share = np.float64(np.float32(clip)) / (found + _EPSILON)
        if norm is not None:
            # A NaN keeps neither sign nor payload, which processors would give it differently.
            norm[...] = np.uint32(0x7FC00000).view(np.float32) if np.isnan(found) else found.astype(np.float32)
        clips = share < 1 and found < np.inf
        return np.asarray(np.float32(np.float64(one) * share) if clips else one), False
