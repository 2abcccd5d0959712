# SPDX-License-Identifier: Apache-2.0
"""The leaves of a tree that are numbers with an exponent."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpucast.arrays import tree
from gpucast.core.dtypes import DType, dtype


def dtype_of(leaf: Any) -> DType | None:
    """The dtype row of a leaf; None for what is no array, or one of a type that Cast does not take."""
    try:
        return _dtype(leaf.dtype)
    except (AttributeError, TypeError):
        return None


@lru_cache(maxsize=256)
def _dtype(kind: Any) -> DType:
    # A tree has many leaves of few types, and NumPy takes long to give a dtype's name.
    return dtype(kind)


def is_floating(leaf: Any) -> bool:
    """Whether the leaf's dtype row has an exponent."""
    kind = dtype_of(leaf)
    return kind is not None and kind.is_float


def paths(structure: tree.Structure, places: list[int]) -> list[str]:
    """The paths of some of a structure's leaves."""
    found = tree.paths(structure)
    return [found[i] for i in places]
