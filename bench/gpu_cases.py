# SPDX-License-Identifier: Apache-2.0
"""Measures a list of cases beside rivals on the GPU: what the parts `many` and `quantize` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpucast.benchmark.contenders import Contender, available
from gpucast.benchmark.gpu import Gpu

Lines = list[dict[str, Any]]


def run(
    cases: Iterable[Any],
    kinds: Sequence[type[Contender]],
    measure_case: Callable[..., Lines],
    report: Callable[[Lines], None],
) -> dict[str, Any]:
    """Measure all cases, and print them."""
    machine = Gpu()
    with machine.current():
        rivals = available(kinds, machine)
        lines = [line for case in cases for line in measure_case(machine, case, rivals)]
        state = machine.state()
    report(lines)
    failures = [f"{line['case']}, {line['name']}: {line['problem']}" for line in lines if line.get("problem")]
    return {"facts": machine.facts(), "state": state, "lines": lines, "failures": failures}
