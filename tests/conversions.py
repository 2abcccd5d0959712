# SPDX-License-Identifier: Apache-2.0
"""Conversions of checkpoints, for the tests: planned, run, run by other programs, and the files that are left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpucast import checkpoints
from gpucast.checkpoints.running.staging import Staging
from gpucast.core.dtypes import dtype

ATTRIBUTES = {"saturate": True, "round_mode": "up", "opset": 28, "rounding": None, "overflow": None}


def planned(source: str, target: str, **request: Any) -> checkpoints.ConversionPlan:
    choice = checkpoints.Choice(dtype("FLOAT16"))
    return checkpoints.make_plan(source, target, checkpoints.Request(choice, ATTRIBUTES, **request))


def run(plan: checkpoints.ConversionPlan, advance: Any = lambda done: None, **options: Any) -> checkpoints.Outcome:
    outcome = checkpoints.Outcome(plan)
    checkpoints.run(plan, checkpoints.Options(**options), outcome, advance)
    return outcome


@contextlib.contextmanager
def begun(plan: checkpoints.ConversionPlan, **how: bool) -> Iterator[Staging]:
    """The work of a process that has begun it, and is killed when the block ends."""
    work = Staging(plan)
    work.begin(**how)
    try:
        yield work
    finally:
        work.partial.release()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
