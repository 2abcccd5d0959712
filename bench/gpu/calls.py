# SPDX-License-Identifier: Apache-2.0
"""Times the calls of a case side by side: what users write, many tensors at once, formats of quantization."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.timing.machine import Machine
from bench.timing.times import Work, measure

Line = dict[str, Any]
#: The beginning of the names of our own calls, which must work and be right.
OURS = "gpucast"
IN_GRAPH = ", in a graph"
#: Calls whose cost on the host is measured one by one.
_CALLS = 20


@dataclass(frozen=True)
class Call:
    run: Callable[[], Any]
    #: Says how the result of the first run is wrong, or "".
    check: Callable[[Any], str] = lambda result: ""
    #: Waits for a result, where it is not computed on the machine's stream.
    wait: Callable[[Any], object] | None = None
    #: Whether it is captured and measured as a graph, too.
    graph: bool = False


def measure_calls(
    machine: Machine,
    case: str,
    calls: Mapping[str, Call | Callable[[], Call]],
    moved: int,
    yardstick: Sequence[str],
    *,
    samples: int = 50,
    limit: float = 1.0,
) -> list[Line]:
    """A line for every call: its times, bytes per second, and share of the speed of the quickest `yardstick`.

    A call that has to be prepared is given as a function, whose errors are those of the call. `problem`: what is wrong
    with ours; `differs`: results of a rival with other rules; `left_out`: why a rival was not measured.
    """
    lines: dict[str, Line] = {}
    works: list[Work] = []
    for name, given in calls.items():
        line = lines[name] = {"case": case, "name": name}
        try:
            call = given if isinstance(given, Call) else given()
            # The first call may compile.
            _finish(machine, call, call.run())
            line["host_us"] = 1e6 * _host_seconds(machine, call)
            graph = _graph(machine, call) if call.graph else None
            # Last, because it leaves no result that the next one could pass for its own.
            result = call.run()
            _finish(machine, call, result)
            wrong = call.check(result)
        except Exception as error:  # A rival may raise anything, and the others go on.
            line["problem" if name.startswith(OURS) else "left_out"] = f"{type(error).__name__}: {error}"[:300]
            continue
        if wrong:
            line["problem" if name.startswith(OURS) else "differs"] = wrong
        works.append(Work(name, lambda i, run=call.run: run(), 1, call.wait))  # type: ignore[misc]
        if graph is not None:
            lines[name + IN_GRAPH] = {"case": case, "name": name + IN_GRAPH}
            works.append(Work(name + IN_GRAPH, lambda i, launch=graph: launch(), 1))  # type: ignore[misc]
    times = measure(machine, works, samples=samples, limit=limit)
    found = {work.name: one for work, one in zip(works, times, strict=True)}
    best = min((found[name].median for name in yardstick if name in found), default=0.0)
    for name, one in found.items():
        lines[name] |= {**asdict(one), "bytes": moved, "gb_per_s": moved / one.median / 1e9, "share": best / one.median}
    machine.release()
    return list(lines.values())


def _graph(machine: Machine, call: Call) -> Callable[[], object] | None:
    try:
        return machine.capture(call.run)
    except Exception as error:
        print(f"bench: no graph: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _host_seconds(machine: Machine, call: Call) -> float:
    """The cost of one call on the host: the median of some calls, each with an empty queue."""
    found = []
    for _ in range(_CALLS):
        begin = machine.now()
        result = call.run()
        found.append(machine.now() - begin)
        _finish(machine, call, result)
    return float(np.median(found))


def _finish(machine: Machine, call: Call, result: Any) -> None:
    """Wait for a result."""
    if call.wait is None:
        machine.synchronize()
    else:
        call.wait(result)


def problems(lines: Sequence[Line]) -> str:
    return "; ".join(f"{line['name']}: {line['problem']}" for line in lines if line.get("problem"))


def report(lines: Sequence[Line]) -> str:
    """A table of the lines, a block for each case."""
    text: list[str] = []
    for case in dict.fromkeys(line["case"] for line in lines):
        text.append(f"\n{case}")
        for line in (line for line in lines if line["case"] == case):
            notes = [f"{key}: {line[key]}" for key in ("problem", "differs", "left_out") if line.get(key)]
            if "median" in line:
                host = f"{line['host_us']:9.1f} us on the host" if "host_us" in line else ""
                speed = f"{line['gb_per_s']:8.1f} GB/s {line['share']:7.1%}"
                notes.insert(0, f"{1e6 * line['median']:11.2f} us {speed}{host}")
            text.append(f"  {line['name']:42}{'  '.join(notes)}")
    return "\n".join(text)
