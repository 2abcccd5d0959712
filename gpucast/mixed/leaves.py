# SPDX-License-Identifier: Apache-2.0
"""The leaves of a tree that are numbers with an exponent, and the trees that are made of them anew."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gpucast import tree as trees
from gpucast.dtypes import DType, dtype


def row_of(leaf: Any) -> DType | None:
    """The dtype row of a leaf; None for what is no array, or one of a type that Cast does not take."""
    try:
        return _row(leaf.dtype)
    except (AttributeError, TypeError):
        return None


@lru_cache(maxsize=256)
def _row(kind: Any) -> DType:
    # A tree has many leaves of few types, and NumPy takes long to give a dtype's name.
    return dtype(kind)


def is_floating(leaf: Any) -> bool:
    """Whether the leaf's dtype row has an exponent."""
    row = row_of(leaf)
    return row is not None and row.is_float


def paths(structure: trees.Structure, places: list[int]) -> list[str]:
    """The paths of some of a structure's leaves."""
    found = trees.paths(structure)
    return [found[i] for i in places]


def map_floating(
    f: Callable[[list[Any], Callable[[], list[str]]], list[Any]], tree: Any, unless: DType | None = None
) -> Any:
    """The tree with its floating leaves, but those of the type `unless`, replaced by what `f` makes of their list; it
    is also given what tells their paths."""
    leaves, structure = trees.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if is_floating(leaf) and row_of(leaf) is not unless]
    made = f([leaves[i] for i in places], lambda: paths(structure, places)) if places else []
    for i, leaf in zip(places, made, strict=True):
        leaves[i] = leaf
    return trees.unflatten(structure, leaves)
