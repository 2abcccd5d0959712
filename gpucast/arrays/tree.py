# SPDX-License-Identifier: Apache-2.0
"""Trees of arrays: dicts, lists, tuples, named tuples and None, nested in any way. Anything else is a leaf.

Leaves have an order: the order of insertion in a dict, the order of position elsewhere. None is a node without leaves.
A list is always a node, so a list of numbers has one leaf per number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np

from gpucast.core.dtypes import DType, dtype, is_foreign

_CONTAINERS = (dict, list, tuple, type(None))


@dataclass(frozen=True, slots=True)
class Node:
    """A container: its kind and its contents."""

    #: dict, OrderedDict, list, tuple, NoneType, or a class of named tuples.
    kind: type
    #: Of a dict alone.
    keys: tuple[Any, ...]
    children: tuple[Structure, ...]


#: A tree whose leaves are None.
Structure = Node | None


def flatten(tree: Any, caller: str = "tree") -> tuple[list[Any], Structure]:
    """The leaves of a tree in their order, and its structure. ValueError for a tree that contains itself."""
    leaves: list[Any] = []
    try:
        return leaves, _structure(tree, leaves)
    except RecursionError:
        raise ValueError(f"{caller} contains itself, or is nested too deeply") from None


def _structure(tree: Any, leaves: list[Any]) -> Structure:
    if not isinstance(tree, _CONTAINERS):
        leaves.append(tree)
        return None
    if tree is None:
        return Node(type(None), (), ())
    keys: tuple[Any, ...] = ()
    values: Collection[Any] = tree
    if isinstance(tree, dict):
        keys, values = tuple(tree), tree.values()
    kind = _kind(tree)
    if _only_leaves(values):
        leaves += values
        return Node(kind, keys, (None,) * len(values))
    return Node(kind, keys, tuple([_structure(child, leaves) for child in values]))


def _only_leaves(values: Iterable[Any]) -> bool:
    """Whether `values` has no container. Most often all values share one class, so classes are checked once each."""
    return not any(issubclass(kind, _CONTAINERS) for kind in set(map(type, values)))


def _kind(tree: Any) -> type:
    if isinstance(tree, dict):
        return OrderedDict if isinstance(tree, OrderedDict) else dict
    if isinstance(tree, list):
        return list
    return type(tree) if hasattr(tree, "_fields") else tuple


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of a structure with other leaves, as many as it has.

    Dicts are dict or OrderedDict, lists list, and tuples tuple or their own class of named tuples, whatever subclasses
    of these `flatten` was given.
    """
    return _tree(structure, iter(leaves))


def _tree(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind = structure.kind
    if kind is type(None):
        return None
    if any(structure.children):
        children = [_tree(child, leaves) for child in structure.children]
    else:
        children = list(islice(leaves, len(structure.children)))
    if kind is list:
        return children
    if kind is tuple:
        return tuple(children)
    return kind(zip(structure.keys, children, strict=True)) if issubclass(kind, dict) else kind(*children)


def paths(structure: Structure, indices: Sequence[int] | None = None) -> list[str]:
    """Where each leaf is, or each of some, as Python would be asked for it: "['encoder'][3]", ".bias"; "" for a tree
    that is a leaf."""
    found: list[str] = []
    _collect(structure, "", found)
    return found if indices is None else [found[i] for i in indices]


def _collect(structure: Structure, path: str, found: list[str]) -> None:
    if structure is None:
        found.append(path)
    else:
        for step, child in zip(_steps(structure), structure.children, strict=True):
            _collect(child, path + step, found)


def _steps(node: Node) -> list[str]:
    if issubclass(node.kind, dict):
        return [f"[{key!r}]" for key in node.keys]
    fields = getattr(node.kind, "_fields", None)
    return [f"[{i}]" for i in range(len(node.children))] if fields is None else [f".{field}" for field in fields]


def leaves_like(structure: Structure, tree: Any, caller: str) -> list[Any]:
    """The leaves of a tree that has to have this structure, in the structure's order; dicts may have other orders.

    `caller` names the tree: ValueError with the path of the first place where it differs.
    """
    leaves: list[Any] = []
    _match(structure, tree, caller, leaves)
    return leaves


def _match(structure: Structure, tree: Any, place: str, leaves: list[Any]) -> None:
    if structure is None:
        if isinstance(tree, _CONTAINERS):
            raise ValueError(f"{place} is {_described(tree)}; expected an array")
        leaves.append(tree)
        return
    children = _children(structure, tree, place)
    if not any(structure.children) and _only_leaves(children):
        leaves += children
        return
    for step, child, value in zip(_steps(structure), structure.children, children, strict=True):
        _match(child, value, place + step, leaves)


def _children(node: Node, tree: Any, place: str) -> list[Any]:
    """The children of a container that must be a node of trees."""
    kind = node.kind
    if issubclass(kind, dict):
        if not isinstance(tree, dict):
            raise ValueError(f"{place} is {_described(tree)}; expected a dict with the keys {list(node.keys)}")
        if tree.keys() != set(node.keys):
            missing, more = [key for key in node.keys if key not in tree], [key for key in tree if key not in node.keys]
            what = f"lacks {', '.join(map(repr, missing))}" if missing else f"has {', '.join(map(repr, more))} too many"
            raise ValueError(f"{place} {what}; expected the keys {list(node.keys)}")
        return [tree[key] for key in node.keys]
    same = tree is None if kind is type(None) else isinstance(tree, (list, tuple)) and _kind(tree) is kind
    if not same or len(tree or ()) != len(node.children):
        wanted = "None" if kind is type(None) else f"a {kind.__name__} of {len(node.children)}"
        raise ValueError(f"{place} is {_described(tree)}; expected {wanted}")
    return list(tree or ())


def _described(tree: Any) -> str:
    if tree is None:
        return "None"
    name = type(tree).__name__
    return f"a {name} of {len(tree)}" if isinstance(tree, (dict, list, tuple)) else f"of type {name}"


_DTYPE_OF = attrgetter("dtype")
#: Types that are no arrays and hold none.
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
    """The problem with a leaf that is not an array; None if it may be passed on."""
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
