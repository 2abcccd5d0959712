# SPDX-License-Identifier: Apache-2.0
"""What `gpucast.mixed` and ``cast_many(floating_only=True)`` do with leaves that are no arrays of theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast.mixed import StaticLossScale, get_policy

X = np.array([0.5, -3.0, 1e6], np.float32)


@dataclass
class State:
    w: Any


UNKNOWN: dict[str, Callable[[], Any]] = {
    "generator": lambda: (x for x in [X]),
    "map": lambda: map(np.abs, [X]),
    "dict_values": {"w": X}.values,
    "dict_items": {"w": X}.items,
    "set": lambda: {1.0, 2.0},
    "State": lambda: State(X),
    "SimpleNamespace": lambda: SimpleNamespace(w=X, state_dict=dict),
    "builtin_function_or_method": lambda: len,
}
TAKERS: dict[str, Callable[[Any], Any]] = {
    "unscale: grads": StaticLossScale(2.0).unscale,
    "scale: tree": StaticLossScale(2.0).scale,
    "cast_to_compute: tree": get_policy("p=f32,c=bf16").cast_to_compute,
    "cast_many: arrays": lambda tree: gpucast.cast_many(tree, "FLOAT16", floating_only=True),
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize(("caller", "take"), TAKERS.items(), ids=[name.split(":")[0] for name in TAKERS])
def test_other_containers_are_refused_by_their_path(
    caller: str, take: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    kind = type(make()).__name__
    for tree, path in ((make(), ""), ({"a": [X, make()]}, r"\['a'\]\[1\]")):
        with pytest.raises(TypeError, match=rf"^{caller}{path} is of type {kind}, into which gpucast does not look; "):
            take(tree)


@pytest.mark.parametrize(
    ("leaf", "what"),
    [
        (X.astype(np.complex64), "of dtype complex64"),
        (1j, "1j, and complex numbers are not scaled"),
        (X.astype(np.longdouble), "of dtype (float128|longdouble)"),
        (np.array([0.5, 1.0], object), "of dtype object"),
    ],
)
def test_numbers_that_no_scale_reaches_are_refused(leaf: Any, what: str) -> None:
    for caller, take in list(TAKERS.items())[:2]:
        with pytest.raises(TypeError, match=rf"^{caller}\['g'\] is {what}"):
            take({"g": leaf})


def test_what_is_known_to_be_no_floating_array_is_returned_as_it_is() -> None:
    others = [3, True, "text", b"bytes", np.int64(3), X.astype(np.int32), np.array(["a"], object), np.array("b"), None]
    others.append(np.array(["2026-01-01"], "M8[D]"))
    for take in TAKERS.values():
        result = take([X, others])
        found = result[0][1] if isinstance(result, tuple) else result[1]
        assert all(one is other for one, other in zip(found, others, strict=True))


def test_a_state_dict_keeps_what_counts() -> None:
    """As that of a batch normalization: `num_batches_tracked` is a number of batches, and stays exact."""
    state = {
        "weight": X,
        "running_mean": X.astype(np.float64),
        "num_batches_tracked": np.array(2**24 + 1),
        "name": "bn",
    }
    half = gpucast.cast_many(state, "FLOAT16", floating_only=True)
    assert half["num_batches_tracked"] is state["num_batches_tracked"] and half["name"] == "bn"
    for name in ("weight", "running_mean"):
        assert_same(half[name], gpucast.cast(state[name], "FLOAT16"))
    out = {
        "weight": np.empty(3, np.float16),
        "running_mean": np.empty(3, np.float16),
        "num_batches_tracked": 7,
        "name": 0,
    }
    assert gpucast.cast_many(state, "FLOAT16", floating_only=True, out=out) is out
    assert_same(out["weight"], half["weight"])
    assert out["num_batches_tracked"] == 7
    finite = np.ones(1, bool)
    gpucast.cast_many({"w": np.array([np.inf]), "n": 3}, "FLOAT16", floating_only=True, finite=finite)
    assert not finite[0]
    rounded = gpucast.cast_many(state["num_batches_tracked"], "FLOAT")
    assert int(rounded) != 2**24 + 1
    with pytest.raises(ValueError, match=r"^cast_many: arrays\['w'\]: rounding='truncate' does not apply to FLOAT16"):
        gpucast.cast_many({"n": 1, "w": X}, "FLOAT16", floating_only=True, rounding="truncate")
    with pytest.raises(TypeError, match="cast_many: floating_only=1 must be True or False"):
        gpucast.cast_many(state, "FLOAT16", floating_only=1)  # type: ignore[arg-type]
