# SPDX-License-Identifier: Apache-2.0
"""Which leaves of a tree are floating-point arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpucast.arrays import tree
from gpucast.core.dtypes import DType, dtype


def dtype_of(leaf: Any) -> DType | None:
    """The dtype of a leaf; None if it is no array, or an array of a type that cannot be cast."""
    try:
        return _dtype(leaf.dtype)
    except (AttributeError, TypeError):
        return None


@lru_cache(maxsize=256)
def _dtype(kind: Any) -> DType:
    # Cached, because a tree has many leaves of few types, and NumPy is slow to return a dtype's name.
    return dtype(kind)


def is_floating(leaf: Any) -> bool:
    """Whether the leaf is an array of a type with an exponent."""
    kind = dtype_of(leaf)
    return kind is not None and kind.is_float


def paths(structure: tree.Structure, indices: list[int]) -> list[str]:
    """The paths of some of a structure's leaves."""
    all_paths = tree.paths(structure)
    return [all_paths[i] for i in indices]
