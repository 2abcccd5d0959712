# SPDX-License-Identifier: Apache-2.0
"""Conversion of files and checkpoints: planned, run with bounded memory, resumed, verified and reported."""

from gpucast.checkpoints.planning.plan import ConversionPlan
from gpucast.checkpoints.planning.planner import make_plan
from gpucast.checkpoints.planning.tensor_plan import Choice, Detail, Request, SelectionRule
from gpucast.checkpoints.running.outcome import Options, Outcome
from gpucast.checkpoints.running.stream import run
from gpucast.checkpoints.streaming.pieces import tensor_seed

__all__ = [
    "Choice",
    "ConversionPlan",
    "Detail",
    "Options",
    "Outcome",
    "Request",
    "SelectionRule",
    "make_plan",
    "run",
    "tensor_seed",
]
