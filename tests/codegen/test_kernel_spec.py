# SPDX-License-Identifier: Apache-2.0
"""Kernel specifications of every kind: values that can be keys and go to other processes."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from gpucast.codegen.spec import KernelSpec
from gpucast.warmup.compile_ahead import WarmupRequest, tasks

REQUEST = WarmupRequest(
    [("FLOAT", "FLOAT16"), ("INT4", "FLOAT")],
    transposed=True,
    fused=True,
    many=True,
    mixed=True,
    grouped=True,
    hadamard=16,
    quantize=("mxfp8e4m3", "nvfp4", "float8e4m3fn_1x128", "int8_32"),
)


def specs(request: WarmupRequest = REQUEST) -> list[KernelSpec[Any]]:
    return [task.spec for task in tasks(request, "sm_90")]


def test_every_kind_is_a_value() -> None:
    kinds = set()
    for spec in specs():
        kinds.add(type(spec).__name__)
        copy = pickle.loads(pickle.dumps(spec))
        assert copy == spec and hash(copy) == hash(spec) and copy is not spec
        assert (copy.source().name, copy.source().text) == (spec.source().name, spec.source().text)
        with pytest.raises(dataclasses.FrozenInstanceError):
            spec.rule = None  # type: ignore[attr-defined]
    of_mixed = {"AdjustSpec", "RescaleSpec", "SelectSpec"}
    assert kinds == {"CastSpec", "BatchSpec", "QuantizeSpec", "TileSpec", "HadamardSpec", "GroupedSpec"} | of_mixed
