# SPDX-License-Identifier: Apache-2.0
"""Hard values of sources too wide to try in full: the points where rounding changes, and their neighbours.

For the parity harness and the tests.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType

NDArray = npt.NDArray[Any]


def codes(src: DType, dst: DType, seed: int, share: float, random: int) -> NDArray:
    """Unique codes of a 32- or 64-bit source: specials, powers of two, the midpoints of `dst` (a seeded share of them
    where it has thousands), each with the next code below and above, and `random` random codes."""
    rng = np.random.default_rng([seed, src.number or 0, dst.number or 0])
    points = _float_points(dst, rng, share)
    found = _codes_of_floats(points, src) if src.is_float else _codes_of_integers(points, src)
    special = np.array([0, 1, 2, *_specials(src)], dtype=src.code_numpy)
    noise = rng.integers(0, 1 << src.bits, random, dtype=src.code_numpy)
    # Random codes with a wide exponent are nearly all out of range, so half get a small exponent.
    if src.is_float:
        values = rng.standard_normal(random) * 2.0 ** rng.integers(-30, 30, random)
        noise = np.concatenate([noise, values.astype(src.numpy).view(src.code_numpy)])
    else:
        noise = np.concatenate([noise, noise >> rng.integers(0, src.bits, random).astype(src.code_numpy)])
    one = src.code_numpy.type(1)
    near = np.concatenate([found, special])
    if src.sign_bits:
        near = np.concatenate([near, near ^ src.code_numpy.type(src.sign_code), ~near + one])
    # np.unique hashes the codes first, which takes ten times as long.
    found = np.sort(np.concatenate([near - one, near, near + one, noise]))
    return np.asarray(found[np.append(True, found[1:] != found[:-1])])


def _specials(src: DType) -> list[int]:
    if not src.is_float:
        return [src.max_code, src.code_mask]
    first_normal = 1 << src.mantissa_bits
    return [first_normal, src.max_code, src.inf_code, src.inf_code + 2, src.nan_code, src.nan_code + 5]


def _float_points(dst: DType, rng: np.random.Generator, share: float) -> NDArray:
    """The points at which rounding to `dst` changes, as exact float64."""
    powers = 2.0 ** np.arange(-160, 130)
    points = [powers, 1.5 * powers, 2.0 ** np.array([-1074, -1022, 1023.0])]
    if dst.family == "float" and dst.bits <= 16:
        values = np.array(_values(dst))
        middle = (values[:-1] + values[1:]) / 2
        if middle.size > 1000:
            chosen = rng.random(middle.size) < share
            chosen[:16] = chosen[-16:] = True
            middle = middle[chosen]
        # Very close to a tie, where rounding through float32 would round twice.
        points += [values, middle, middle * (1 + 2.0**-40), middle * (1 - 2.0**-40)]
    elif dst.is_float and dst.bits > 16:
        some = rng.integers(0, dst.max_code, 2000, dtype=np.uint64).astype(dst.code_numpy)
        below, above = (codes.view(dst.numpy).astype(np.float64) for codes in (some, some + dst.code_numpy.type(1)))
        points += [below, below / 2 + above / 2]
    else:
        halves = np.arange(-40, 41) / 2
        edges = np.concatenate([2.0 ** np.arange(0, 66), [float(dst.max)]])
        points += [halves, edges, edges - 0.5, edges + 0.5, edges - 1, 3 * edges, rng.uniform(-600, 600, 300)]
    return np.concatenate(points)


@lru_cache
def _values(dst: DType) -> tuple[float, ...]:
    """The magnitudes of a floating type, and the one that would come next."""
    values = [float(dst.value(code)) for code in range(dst.max_code + 1)]
    return (*values, 2 * values[-1] - values[-2])


def _codes_of_floats(points: NDArray, src: DType) -> NDArray:
    with np.errstate(over="ignore", under="ignore"):
        return points.astype(src.numpy).view(src.code_numpy)


def _codes_of_integers(points: NDArray, src: DType) -> NDArray:
    whole = np.floor(points[np.abs(points) < 2.0**src.bits])
    magnitude = np.abs(whole).astype(np.uint64)
    # Between neighbours of FLOAT and of DOUBLE: odd numbers with one bit too many.
    wide = np.array([(1 << 24) + 1, (1 << 25) + 3, (1 << 53) + 1, (1 << 54) + 3], dtype=np.uint64)
    shifted = [wide << np.uint64(k) for k in range(10)]
    return np.concatenate([magnitude, *shifted]).astype(src.code_numpy)
