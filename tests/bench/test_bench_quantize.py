# SPDX-License-Identifier: Apache-2.0
"""The benchmark of quantization, on a GPU that is none: its arrays, checks and lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from bench.gpu import calls
from bench.gpu.quantize import OURS, QuantizeCase, difference, filled, measure_case
from fake_machine import FakeMachine, IdleRival, TimedDriver
from gpucast import quantize
from host_driver import installed


@pytest.fixture
def machine() -> Iterator[FakeMachine]:
    fake = FakeMachine()
    with installed(TimedDriver(fake)):
        yield fake


def test_every_way_is_checked_and_timed(machine: FakeMachine) -> None:
    rivals = [IdleRival(machine, "idle"), IdleRival(machine, "none", "no such format")]
    found = measure_case(machine, QuantizeCase("BFLOAT16", "mxfp4"), rivals, rows=4, columns=256)
    lines = {line["name"]: line for line in found}
    json.dumps(found)
    assert lines["idle"]["median"] == pytest.approx(1e-3, rel=0.01)
    assert lines["none"]["left_out"] == "NotImplementedError: no such format" and "median" not in lines["none"]
    size = 4 * 256
    assert lines[OURS]["bytes"] == 2 * size + size // 2 + size // 32 and "problem" not in lines[OURS]
    copies = [line for name, line in lines.items() if "copy kernel" in name]
    assert max(line["share"] for line in copies) == 1
    text = calls.report(found)
    assert OURS in text and "left_out: NotImplementedError" in text


@pytest.mark.parametrize(
    "case", [QuantizeCase("FLOAT", "mxfp8e4m3", transpose="both"), QuantizeCase("FLOAT", "mxfp8e4m3", 0)], ids=str
)
def test_other_ways(machine: FakeMachine, case: QuantizeCase) -> None:
    """Bytes of all results, beside what two calls take."""
    found = {line["name"]: line for line in measure_case(machine, case, [IdleRival(machine, "idle")], 64, 64)}
    results = 1 + (case.transpose == "both")
    assert found[OURS]["bytes"] == 64 * 64 * 4 + results * (64 * 64 + 64 * 64 // 32) and "problem" not in found[OURS]
    assert ("gpucast, two calls" in found) == (results == 2)
    assert "idle" not in found, "rivals are measured along rows"


def test_the_memory_holds_what_was_drawn_again_and_again(machine: FakeMachine) -> None:
    data, drawn = filled(machine, QuantizeCase("FLOAT", "mxfp4"), 300, 32)
    assert drawn.shape == (128, 32)
    assert machine.download(data).tobytes() == np.concatenate([drawn, drawn, drawn[:44]]).tobytes()


def test_a_wrong_result_is_told(machine: FakeMachine) -> None:
    x = np.ones((4, 64), np.float32)
    assert difference(quantize(x, "mxfp4"), quantize(x, "mxfp4")) == ""
    assert difference(quantize(2 * x, "mxfp4"), quantize(x, "mxfp4")) == "scales are not the host's"
    assert difference(quantize(-x, "mxfp4"), quantize(x, "mxfp4")) == "data are not the host's"
