# SPDX-License-Identifier: Apache-2.0
"""Arrays of every type, shape and layout, and the keywords of the casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from codes import random_codes, unaligned
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.rounding import ROUNDING_MODES

NDArray = np.ndarray[Any, Any]

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
FLOATS = tuple(dtype for dtype in DTYPES if dtype.family == "float")
QUANTIZED = tuple(dtype for dtype in DTYPES if dtype.name in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"))
NUMERIC = tuple(dtype for dtype in DTYPES if dtype.family != "string")
_TEXTS = ("0", "-0", "1.5", " 2 ", "+7", "-inf", "NaN", "1e400", "-1e-400", "255", "256", "1e3", "0x10", "", "a", "1_0")


def _reversed(x: NDArray) -> NDArray:
    return x[::-1] if x.ndim else x


def _stepped(x: NDArray) -> NDArray:
    """Every other element of a larger array."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype) if x.ndim else x
    if x.ndim:
        wide[..., ::2] = x
    return wide[..., ::2] if x.ndim else x


def _unaligned(x: NDArray) -> NDArray:
    return x if x.dtype == object else unaligned(x)


def _swapped(x: NDArray) -> NDArray:
    return x.astype(x.dtype.newbyteorder()) if x.dtype.isbuiltin == 1 and x.dtype != object else x


def _read_only(x: NDArray) -> NDArray:
    x = x.copy()
    x.flags.writeable = False
    return x


#: Ways in which the elements of an array may lie in memory.
LAYOUTS: tuple[Callable[[NDArray], NDArray], ...] = (
    np.ascontiguousarray,
    np.asfortranarray,
    np.transpose,
    _reversed,
    _stepped,
    _unaligned,
    _swapped,
    _read_only,
)


def codes(dtype: DType, shape: tuple[int, ...], seed: int) -> NDArray:
    """Codes at random, every third one of a special value; for STRING texts, most of them of numbers."""
    rng = np.random.default_rng(seed)
    if dtype.family == "string":
        made = np.empty(shape, object)
        made[...] = rng.choice(_TEXTS[: rng.choice((4, 8, 12, len(_TEXTS)))], shape)
        return made
    found = random_codes(dtype, shape, rng)
    top = 1 if dtype.family == "bool" else dtype.code_mask
    special = [0, 1, top, top >> 1, dtype.sign_code, dtype.nan_code if dtype.has_nan else 0]
    special += [dtype.inf_code if dtype.has_inf else 0, top // 3]
    chosen = rng.choice(np.array([code & top for code in special], dtype.code_numpy), shape)
    return np.where(rng.random(shape) < 0.35, chosen, found).astype(dtype.code_numpy).view(dtype.numpy).reshape(shape)


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[DType] = DTYPES, shapes: st.SearchStrategy[Any] = SHAPES) -> NDArray:
    """An array of one of the types."""
    x = codes(draw(st.sampled_from(dtypes)), draw(shapes), draw(SEEDS))
    layout = draw(st.sampled_from(LAYOUTS))
    return layout(x) if x.ndim or layout is not np.asfortranarray else x


ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "saturate": st.booleans(),
        "round_mode": st.sampled_from(["up", "down", "nearest"]),
        "opset": st.integers(1, 28),
        "rounding": st.sampled_from([None, *(mode.word for mode in ROUNDING_MODES)]),
        "overflow": st.sampled_from([None, "wrap", "saturate"]),
        "seed": st.none() | st.integers(0, 2**64 - 1),
        "offset": st.integers(0, 2**64 - 1),
    },
)
