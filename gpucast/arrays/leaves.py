# SPDX-License-Identifier: Apache-2.0
"""The leaves of a tree that are floating-point arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from gpucast.arrays import tree
from gpucast.core.dtypes import DType, dtype, is_foreign

_DTYPE_OF = attrgetter("dtype")
#: What is no array, and holds none.
_SCALARS = (bool, int, float, complex, str, bytes, np.generic)


def dtype_of(leaf: Any) -> DType | None:
    """The dtype of a leaf; None for anything but an array of a type that can be cast."""
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


def all_floating(leaves: Sequence[Any]) -> bool:
    """Tell whether all leaves are certainly arrays of floating types."""
    try:
        # Most trees have but few types.
        return all(_dtype(kind).is_float for kind in set(map(_DTYPE_OF, leaves)))
    except (AttributeError, TypeError):
        return False


def floating(
    leaves: Sequence[Any], names: Callable[[], Sequence[str]], caller: str, *, all_of_them: bool = False
) -> list[int]:
    """The places of the leaves that are arrays of floating types.

    TypeError for a leaf that may contain arrays, such as an iterator, a model, or a container that is no node of trees:
    it would be passed on unchanged. With `all_of_them` arrays of floating types that no cast takes count, too. `names`
    gives the leaves' names, which follow `caller` in the messages.
    """
    if all_floating(leaves):
        return list(range(len(leaves)))
    found = []
    for i, leaf in enumerate(leaves):
        kind = dtype_of(leaf)
        if kind is not None and kind.is_float:
            found.append(i)
        elif kind is None or kind.family == "string":
            problem = _problem(leaf, all_of_them)
            if problem is not None:
                raise TypeError(f"{caller}{names()[i]} is {problem}")
    return found


def _problem(leaf: Any, all_of_them: bool) -> str | None:
    """The problem with a leaf that is no array; None for a leaf that may be passed on."""
    kind = getattr(leaf, "dtype", None)
    if kind is not None:
        is_numpy = isinstance(kind, np.dtype)
        if not all_of_them or not (is_numpy or is_foreign(type(kind))):
            return None
        if is_numpy and kind.kind == "O":
            known = not leaf.size or isinstance(leaf.reshape(-1)[0], (str, bytes))
        else:
            known = is_numpy and kind.kind not in "fcV"
        return None if known else f"of dtype {kind}, and such numbers are not scaled; leave it out, or cast it first"
    if isinstance(leaf, _SCALARS):
        return f"{leaf!r}, and complex numbers are not scaled" if all_of_them and isinstance(leaf, complex) else None
    if callable(getattr(leaf, "state_dict", None)):
        instead = "its state_dict()"
    elif hasattr(leaf, "keys"):
        instead = "dict(...) of it"
    elif hasattr(leaf, "__iter__"):
        instead = "list(...) of it"
    else:
        instead = "a dict of its arrays"
    return (
        f"of type {type(leaf).__name__}, into which gpucast does not look; expected arrays and numbers in dicts, "
        f"lists, tuples and named tuples: pass {instead}"
    )


def paths(structure: tree.Structure, indices: list[int]) -> list[str]:
    """The paths of some of a structure's leaves."""
    all_paths = tree.paths(structure)
    return [all_paths[i] for i in indices]
