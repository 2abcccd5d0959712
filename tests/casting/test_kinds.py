# SPDX-License-Identifier: Apache-2.0
"""What people pass that is no array of numbers: objects, lists with holes, large integers, models, devices."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same


@pytest.mark.parametrize(
    ("numbers", "as_numpy_has_them"),
    [
        ([1, -2, 300], np.int64),
        ([1, 2.5, -0.0], np.float64),
        ([math.nan, math.inf, True], np.float64),
        ([True, False], np.bool_),
        ([2**63, 2**64 - 1], np.uint64),
        ([-(2**63), 2**63 - 1], np.int64),
        ([np.float32(0.1), 1], np.float64),
    ],
)
def test_objects_that_are_numbers_are_cast_as_numbers(numbers: list[Any], as_numpy_has_them: Any) -> None:
    array = np.array(numbers, as_numpy_has_them)
    for to in ("FLOAT", "INT8", "FLOAT8E4M3FN", "BFLOAT16", "STRING", "BOOL", "UINT4"):
        for x in (np.array(numbers, object), np.array(numbers, object).reshape(-1, 1)[::1]):
            assert_same(gpucast.cast(x, to), gpucast.cast(array, to).reshape(x.shape))
        assert_same(gpucast.cast(numbers, to), gpucast.cast(array, to))
        report = gpucast.cast_report(np.array(numbers, object), to)
        assert report == gpucast.cast_report(array, to) or math.isnan(report.max_relative_error)
    assert_same(gpucast.cast_many({"w": np.array(numbers, object)}, "FLOAT")["w"], gpucast.cast(array, "FLOAT"))


def test_objects_of_ml_dtypes_are_numbers() -> None:
    x = np.array([ml_dtypes.bfloat16(1.5), ml_dtypes.bfloat16(-2)], object)
    assert gpucast.cast(x, "FLOAT").tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1, None], "cast: element 1 of x is None; expected a number"),
        ([[1.0, 2.0], [None, 3.0]], "cast: element 2 of x is None; expected a number"),
        (np.array([None, 1.0], object), "cast: element 0 of x is None; expected a number"),
        (np.array([1, "2"], object), "cast: element 1 of x is of type str; expected a number"),
        (np.array([1, np.str_("2")], object), "cast: element 1 of x is of type str_; expected a number"),
        (np.array([1, [2]], object), "cast: element 1 of x is of type list; expected a number"),
        (["1", None], "element 1 is None"),
        (None, "cast: x is None; expected an array, a number or a text"),
        (2**64, "cast: x is an integer of 65 bits, which no type of Cast holds; pass it as a float, or as text"),
        (-(2**63) - 1, "cast: x is an integer of 64 bits, which no type of Cast holds"),
        ([1, 2**64], "cast: element 1 of x is an integer of 65 bits"),
        ([1, 2j], "is complex; Cast takes no complex type"),
        (math, "cast: x is the module math; expected an array"),
        ({"w": [1.0]}, "cast: x is of type dict; expected an array, .*; gpucast.cast_many takes dicts of arrays"),
        ({1, 2}, "cast: x is of type set; expected an array"),
        (SimpleNamespace(state_dict=dict), r"cast: x is of type SimpleNamespace, a model; .*cast_many\(x.state_dict"),
        (SimpleNamespace(graph=1, SerializeToString=2), "x is of type SimpleNamespace, a model; .*`gpucast convert`"),
    ],
)
def test_other_objects_are_refused_by_name(x: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        gpucast.cast(x, "FLOAT")


@pytest.mark.parametrize(("kind", "index"), [("cpu", None), ("cpu", 0)])
def test_the_device_of_another_library_is_one(kind: str, index: int | None) -> None:
    device = SimpleNamespace(type=kind, index=index)  # As torch.device; the real one is tested where torch is.
    assert_same(gpucast.cast([1.5], "INT8", device=device), gpucast.cast([1.5], "INT8"))
    assert gpucast.empty(3, "FLOAT", device=device).shape == (3,)
    assert gpucast.quantize(np.ones(32, np.float32), "mxfp4", device=device).device == "cpu"


def test_other_devices_of_other_libraries_are_no_devices() -> None:
    for device in (SimpleNamespace(type="mps", index=None), SimpleNamespace(type=3), object()):
        with pytest.raises(TypeError, match="is not a device; expected None, 'cpu', 'cuda' or 'cuda:N'"):
            gpucast.cast([1.5], "INT8", device=device)
