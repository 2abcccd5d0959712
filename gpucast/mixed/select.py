# SPDX-License-Identifier: Apache-2.0
"""One of two trees, selected by a flag that may be on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays import libraries, tree
from gpucast.arrays.array import Array
from gpucast.arrays.overlap import Place, check_disjoint
from gpucast.arrays.packed import device_index
from gpucast.arrays.tree import dtype_of
from gpucast.casting import calls, engines
from gpucast.casting.cast import cast
from gpucast.core.rule import resolve
from gpucast.kernel import streams
from gpucast.mixed import cuda
from gpucast.mixed.flag import checked_flag

_CALLER = "select_tree"


def select_tree(finite: Any, new: Any, old: Any, *, out: Any = None) -> Any:
    """The tree `new` if `finite` is true, else the tree `old`, so that a step with an overflow changes nothing.

    Parameters
    ----------
    finite
        A bool, or an array of one BOOL or UINT8 element, as `unscale` returns.
    new, old
        Trees of equal structure. Their array leaves have equal shapes and dtypes. Leaves that are no arrays must be
        equal (``==``), unless the flag is on the host and there is no `out`.
    out
        A tree of the same structure. Its arrays are written, and it is returned. It may be `new` or `old` itself.

    Returns
    -------
    With a flag on the host, the selected tree itself. With a flag on a device, a new tree. All array leaves must then
    be CuPy arrays or PackedArrays on that device; they are selected in one launch, after a copy of each that is not
    contiguous, and nothing is read back.

    ValueError for structures or shapes that differ, for arrays that are not on the device of the flag (``bool(finite)``
    brings it to the host), and for `out` arrays that overlap others. TypeError for dtypes that differ, for a `finite`
    that is no flag, and for arrays of other libraries with a flag on a device. After an error nothing is written.
    """
    with streams.visit(None, finite):
        return _select(checked_flag(finite, _CALLER), new, old, out)


def _select(flag: Any, new: Any, old: Any, out: Any) -> Any:
    leaves, structure = tree.flatten(new, f"{_CALLER}: new")
    given = [leaves, tree.leaves_like(structure, old, f"{_CALLER}: old")]
    if out is not None:
        given.append(tree.leaves_like(structure, out, f"{_CALLER}: out"))
    triples, paths = list(zip(*given, strict=True)), tree.paths(structure)
    for path, triple in zip(paths, triples, strict=True):
        _check(f"{_CALLER}: the leaf {path}".rstrip(), flag, *triple)
    if out is not None:
        _check_disjoint(flag, given, paths)
    if out is None and isinstance(flag, np.ndarray):
        return new if flag else old
    arrays = [i for i, x in enumerate(leaves) if dtype_of(x) is not None]
    selected = [(triples[i][0], triples[i][1], None if out is None else triples[i][2]) for i in arrays]
    results = engines.of_array(flag).pick(_select_on_host, _select_on_device)(flag, selected)
    for i, result in zip(arrays, results, strict=True):
        leaves[i] = result
    return tree.unflatten(structure, leaves) if out is None else out


def _select_on_device(flag: Any, triples: list[tuple[Any, Any, Any]]) -> list[Any]:
    return cuda.kernels.select(flag, triples)


def _select_on_host(flag: Any, triples: list[tuple[Any, Any, Any]]) -> list[Any]:
    for x, y, out in triples:
        chosen = x if flag else y
        if chosen is not out:
            cast(chosen, chosen.dtype, out=out)
    return [out for *_, out in triples]


def _check(caller: str, flag: Any, x: Any, y: Any, target: Any = None) -> None:
    """TypeError or ValueError for leaves that cannot be selected from, or a `target` that cannot take them."""
    kind, other, device = dtype_of(x), dtype_of(y), device_index(flag)
    if kind is None or other is None:
        if kind is not other or ((device is not None or target is not None) and not _equal(x, y)):
            raise ValueError(f"{caller} is {x!r} in new and {y!r} in old; expected arrays, or what is equal")
        return
    if kind is not other:
        raise TypeError(f"{caller} is {kind} in new and {other} in old")
    if tuple(x.shape) != tuple(y.shape):
        raise ValueError(f"{caller} has shape {tuple(x.shape)} in new and {tuple(y.shape)} in old")
    if device is None and target is None:
        return
    for leaf in (x, y):
        if libraries.find(leaf) is not None:
            wanted = "with out=" if device is None else "with the flag on a device"
            raise TypeError(f"{caller} is of type {type(leaf).__name__}; {wanted} expected an array of NumPy or CuPy")
        if device is not None and device_index(leaf) != device:
            raise ValueError(f"{caller} is not on cuda:{device}, where finite is; bool(finite) reads the flag")
        if target is not None:
            calls.target_of(Array.of(leaf, kind), resolve(kind, kind), target, engines.of_array(leaf), caller)


def _equal(x: Any, y: Any) -> bool:
    """Whether two leaves that are no arrays are equal; False for objects that compare element by element."""
    same = x == y
    return x is y or (isinstance(same, (bool, np.bool_)) and bool(same))


def _check_disjoint(flag: Any, trees_of_leaves: list[list[Any]], paths: list[str]) -> None:
    """ValueError where an array of `out` shares memory with another, or with another leaf of `new` or `old`."""
    read: list[Place] = [Place("finite", flag)]
    written: list[Place] = []
    for name, leaves in zip(("new", "old", "out"), trees_of_leaves, strict=True):
        items = written if name == "out" else read
        items += [
            Place(name + path, leaf, i)
            for i, (leaf, path) in enumerate(zip(leaves, paths, strict=True))
            if dtype_of(leaf) is not None
        ]
    check_disjoint(written, read, _CALLER)
