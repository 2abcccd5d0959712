# SPDX-License-Identifier: Apache-2.0
"""gpucast.mixed: policies, their string forms and their casts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.mixed import Policy, StaticLossScale, get_policy

FLOATS = [row for row in DTYPES if row.family == "float"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("params=float32,compute=bfloat16,output=float32", ("FLOAT", "BFLOAT16", "FLOAT")),
        ("p=f32,c=bf16,o=f32", ("FLOAT", "BFLOAT16", "FLOAT")),
        ("p=full, c=half", ("FLOAT", "FLOAT16", "FLOAT16")),
        ("c=f16", ("FLOAT", "FLOAT16", "FLOAT16")),
        ("p=f64", ("DOUBLE", "DOUBLE", "DOUBLE")),
        ("o=bf16,p=f16", ("FLOAT16", "FLOAT16", "BFLOAT16")),
        ("half", ("FLOAT16", "FLOAT16", "FLOAT16")),
        ("bfloat16", ("BFLOAT16", "BFLOAT16", "BFLOAT16")),
        ("c=FLOAT8E4M3FN,o=FLOAT", ("FLOAT", "FLOAT8E4M3FN", "FLOAT")),
    ],
)
def test_policies_as_jmp_writes_them(text: str, rows: tuple[str, str, str]) -> None:
    policy = get_policy(text)
    assert policy == Policy(*rows)
    assert (policy.param_dtype, policy.compute_dtype, policy.output_dtype) == tuple(map(dtype, rows))
    assert get_policy(str(policy)) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("q=f32", ValueError, "'q=f32' in 'q=f32' has no known key; expected p=, c= or o="),
        ("p=f32,p=f16", ValueError, "gives param twice"),
        ("p=f32,", ValueError, "has no known key"),
        ("p=f4", TypeError, "get_policy: 'f4' is ambiguous"),
        ("p=float7", TypeError, "get_policy: 'float7' is not a dtype"),
        ("", TypeError, "get_policy: '' is not a dtype"),
        ("INT8", TypeError, "get_policy: 'INT8' is no floating type"),
        (np.float32, TypeError, "is no text"),
    ],
)
def test_bad_policy_strings(text: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        get_policy(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("row", [row for row in DTYPES if row not in FLOATS], ids=str)
def test_a_policy_takes_signed_floats_only(row: gpucast.DType) -> None:
    for place, name in enumerate(("param_dtype", "compute_dtype", "output_dtype")):
        rows = [dtype("FLOAT")] * 3
        rows[place] = row
        with pytest.raises(TypeError, match=f"^Policy: {name}='{row.name}' "):
            Policy(*rows)


class Layer(NamedTuple):
    weight: Any
    bias: Any


def test_a_policy_casts_floating_leaves_and_leaves_all_others_alone() -> None:
    values = np.array([0.1, -3.0, 5.0], np.float32)
    others = [values.astype(np.int32), values > 0, np.array(["a"], object), values.astype(np.complex64), "text", 1.5, 3]
    others.append(values.astype(ml_dtypes.int4))
    tree = {
        "layer": Layer(values, values.astype(np.float64)),
        "same": values.astype(ml_dtypes.bfloat16),
        "e8m0": np.abs(values).astype(ml_dtypes.float8_e8m0fnu),
        "others": others,
        "none": None,
    }
    result = get_policy("p=f32,c=bf16,o=f16").cast_to_compute(tree)
    assert list(result) == list(tree)
    assert isinstance(result["layer"], Layer)
    for leaf, source in zip((*result["layer"], result["e8m0"]), (*tree["layer"], tree["e8m0"]), strict=True):
        expected = gpucast.cast(source, "BFLOAT16")
        assert (leaf.dtype, leaf.tobytes()) == (expected.dtype, expected.tobytes())
    assert result["same"] is tree["same"]
    assert all(x is y for x, y in zip(result["others"], others, strict=True))
    assert result["none"] is None


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_the_three_casts(row: gpucast.DType) -> None:
    x = np.array([0.5, -3.0, 1.0])
    for cast, policy in (
        ("cast_to_param", Policy(row, "FLOAT", "FLOAT")),
        ("cast_to_compute", Policy("FLOAT", row, "FLOAT")),
        ("cast_to_output", Policy("FLOAT", "FLOAT", row)),
    ):
        result = getattr(policy, cast)([x])
        assert (result[0].dtype, result[0].tobytes()) == (row.numpy, gpucast.cast(x, row).tobytes())


def test_another_output_dtype() -> None:
    policy = get_policy("p=f32,c=bf16,o=bf16")
    assert policy.with_output_dtype("FLOAT") == get_policy("p=f32,c=bf16,o=f32")
    assert policy == get_policy("p=f32,c=bf16,o=bf16")


# ---- leaves that are no arrays of theirs, also of cast_many(floating_only=True) ----

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
