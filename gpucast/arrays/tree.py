# SPDX-License-Identifier: Apache-2.0
"""Trees of arrays: dicts, lists, tuples, named tuples and None, nested in any way; all else is a leaf.

The leaves have an order: of a dict that of its keys as they were inserted, of the others that of their places. None is
a node without leaves. A list is a node too, so that a list of numbers is as many leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """A container: what it is, and what lies in it."""

    #: dict, OrderedDict, list, tuple, NoneType, or a class of named tuples.
    kind: type
    #: Of a dict alone.
    keys: tuple[Any, ...]
    children: tuple[Structure, ...]


#: A tree without its leaves, each of which is None.
Structure = Node | None
_CONTAINERS = (dict, list, tuple, type(None))


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
    """Whether there is no container among values. Most often all are of one class; a call for each would take long."""
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


def paths(structure: Structure) -> list[str]:
    """Where each leaf is, as Python would be asked for it: "['encoder'][3]", ".bias"; "" for a tree that is a leaf."""
    found: list[str] = []
    _collect(structure, "", found)
    return found


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
    """What lies in a tree that has to be such a container."""
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
