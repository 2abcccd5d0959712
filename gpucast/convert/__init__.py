# SPDX-License-Identifier: Apache-2.0
"""Conversion of files and checkpoints: planned, run with bounded memory, resumed, verified and reported."""

from gpucast.convert.planning.plan import ConversionPlan
from gpucast.convert.planning.planner import make_plan
from gpucast.convert.running.outcome import Options, Outcome
from gpucast.convert.running.stream import run
from gpucast.convert.scales.request import Choice, Detail, Request, SelectionRule
from gpucast.convert.streaming.pieces import tensor_seed

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
