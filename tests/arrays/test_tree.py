# SPDX-License-Identifier: Apache-2.0
"""Trees of arrays: taken apart, put together, compared."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest

from gpucast.arrays import tree


class Layer(NamedTuple):
    weight: Any
    bias: Any


TREES = (
    3.5,
    None,
    [],
    {},
    (),
    [1, [2], (3,)],
    {"b": 1, "a": (2, {0: 3, "x": None}), 7: []},
    OrderedDict(second=1, first=[2]),
    Layer(1, Layer([2, 3], None)),
    (Layer(1, 2), [Layer(3, 4)]),
)


@pytest.mark.parametrize("given", TREES, ids=repr)
def test_apart_and_together(given: Any) -> None:
    leaves, structure = tree.flatten(given)
    again = tree.unflatten(structure, leaves)
    assert again == given
    assert type(again) is type(given)
    assert tree.leaves_like(structure, given, "out") == leaves
    doubled = tree.unflatten(structure, [2 * leaf for leaf in leaves])
    assert tree.flatten(doubled) == ([2 * leaf for leaf in leaves], structure)
    assert hash(structure) == hash(tree.flatten(again)[1])


def test_leaves_come_in_order_and_paths_lead_to_them() -> None:
    given = {"b": [10, (11,)], 4: Layer(12, {"k": 13}), "n": None, "a": 14}
    leaves, structure = tree.flatten(given)
    assert leaves == [10, 11, 12, 13, 14]
    paths = tree.paths(structure)
    assert paths == ["['b'][0]", "['b'][1][0]", "[4].weight", "[4].bias['k']", "['a']"]
    assert [eval(f"given{path}", {"given": given}) for path in paths] == leaves
    assert tree.paths(tree.flatten(0)[1]) == [""]


def test_dicts_match_in_any_order_and_kind() -> None:
    _, structure = tree.flatten({"a": 1, "b": {"c": 2, "d": 3}})
    other = OrderedDict(b=defaultdict(int, d=30, c=20), a=10)
    assert tree.leaves_like(structure, other, "out") == [10, 20, 30]


def test_subclasses_become_what_they_are_made_of() -> None:
    class Own(list):  # type: ignore[type-arg]
        pass

    given = (Own([1, 2]), defaultdict(int, a=3))
    leaves, structure = tree.flatten(given)
    again = tree.unflatten(structure, leaves)
    assert again == ([1, 2], {"a": 3})
    assert (type(again[0]), type(again[1])) == (list, dict)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (5, r"^out is of type int; expected a dict with the keys \['a', 'b'\]$"),
        (None, r"^out is None; expected a dict"),
        ({"a": 1}, r"^out lacks 'b'; expected the keys \['a', 'b'\]$"),
        ({"a": 1, "b": 2, "z": 3}, r"^out has 'z' too many"),
        ({"a": [1], "b": [2, Layer(3, 4)]}, r"^out\['a'\] is a list of 1; expected an array$"),
        ({"a": None, "b": [2, Layer(3, 4)]}, r"^out\['a'\] is None; expected an array$"),
        ({"a": 1, "b": (2, Layer(3, 4))}, r"^out\['b'\] is a tuple of 2; expected a list of 2$"),
        ({"a": 1, "b": [2]}, r"^out\['b'\] is a list of 1; expected a list of 2$"),
        ({"a": 1, "b": [2, (3, 4)]}, r"^out\['b'\]\[1\] is a tuple of 2; expected a Layer of 2$"),
        ({"a": 1, "b": [2, Layer(3, {})]}, r"^out\['b'\]\[1\].bias is a dict of 0; expected an array$"),
    ],
)
def test_another_structure_is_refused_with_its_place(other: Any, message: str) -> None:
    _, structure = tree.flatten({"a": 1, "b": [2, Layer(3, 4)]})
    with pytest.raises(ValueError, match=message):
        tree.leaves_like(structure, other, "out")


def test_what_stands_where_nothing_is_is_refused() -> None:
    _, structure = tree.flatten([None])
    with pytest.raises(ValueError, match=r"^out\[0\] is of type int; expected None$"):
        tree.leaves_like(structure, [1], "out")


def test_a_tree_that_contains_itself_is_refused() -> None:
    given: list[Any] = [1]
    given.append(given)
    with pytest.raises(ValueError, match="^cast_many: arrays contains itself, or is nested too deeply$"):
        tree.flatten(given, "cast_many: arrays")
