# SPDX-License-Identifier: Apache-2.0
"""The benchmark of many tensors, on a GPU that is none: its arrays, checks and lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench.gpu import calls
from bench.gpu import many as gpu_many
from bench.gpu.many import CASES, ONE, Arrays, BatchCase, measure_case, shapes
from fake_machine import LAUNCH, MANY_LAUNCH, NODE, FakeMachine, IdleRival, TimedDriver
from gpucast import dtype
from host_driver import installed

MANY = "gpucast.cast_many"


def quickly(*arguments: Any, **keywords: Any) -> list[calls.Line]:
    return calls.measure_calls(*arguments, **keywords | {"samples": 5})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    # The fake's clock is exact, and its kernels run on the host.
    monkeypatch.setattr(gpu_many, "measure_calls", quickly)
    monkeypatch.setattr(calls, "_CALLS", 2)
    fake = FakeMachine()
    with installed(TimedDriver(fake)):
        yield fake


def test_a_transformer_has_300_tensors_of_315_million_elements() -> None:
    of = shapes(gpu_many.LAYERS, gpu_many.WIDTH)
    assert len(of) == 300
    assert sum(int(np.prod(shape)) for shape in of) == 25 * (12 * 1024**2 + 13 * 1024)


def test_arrays_lie_one_behind_the_other(machine: FakeMachine) -> None:
    arrays = Arrays(machine, dtype("FLOAT16"), [(3,), (2, 5), (7,)])
    arrays.fill(machine)
    assert arrays.data.nbytes == 40
    base = arrays.flat.data.ptr
    assert [(x.data.ptr - base, x.shape) for x in arrays.arrays] == [(0, (3,)), (6, (2, 5)), (26, (7,))]
    assert np.isfinite(machine.download(arrays.flat)).all()


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_every_way_is_checked_and_timed(case: BatchCase, machine: FakeMachine) -> None:
    rivals = [IdleRival(machine, "idle"), IdleRival(machine, "none", "no such pair")]
    lines = {line["name"]: line for line in measure_case(machine, case, rivals, layers=2, width=8)}
    json.dumps(list(lines.values()))
    assert lines["none"]["left_out"] == "NotImplementedError: no such pair"
    assert "bytes differ, the first at 0" in lines["idle"]["differs"]
    assert not any("problem" in line for line in lines.values())
    many, one = lines[MANY], lines[ONE]
    assert many["median"] == pytest.approx(MANY_LAUNCH + LAUNCH)
    assert lines[MANY + ", in a graph"]["median"] == pytest.approx(MANY_LAUNCH + NODE)
    assert many["share"] == pytest.approx(one["median"] / many["median"])
    assert one["share"] == 1
    # Each cast of the loop is a launch.
    assert lines["gpucast.cast, a loop"]["median"] > 24 * LAUNCH
    size = sum(int(np.prod(shape)) for shape in shapes(2, 8))
    assert many["bytes"] == size * (dtype(case.src).bits + dtype(case.dst).bits) // 8
    assert MANY in calls.report(list(lines.values()))


def test_wrong_results_of_ours_are_a_problem(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_many.gpucast, "cast_many", lambda *arguments, **keywords: machine.spend(1e-3))
    lines = {line["name"]: line for line in measure_case(machine, CASES[0], [], layers=1, width=8)}
    assert "bytes differ" in lines[MANY]["problem"]
    assert "problem" not in lines[ONE]
