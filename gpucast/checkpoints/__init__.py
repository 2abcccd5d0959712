# SPDX-License-Identifier: Apache-2.0
"""Conversion of files and checkpoints: planned, run with bounded memory, resumed, verified and reported."""

from gpucast.checkpoints.choice import Choice, Rule
from gpucast.checkpoints.opened import Detail, Request
from gpucast.checkpoints.outcome import Options, Outcome
from gpucast.checkpoints.plan import Plan, make_plan
from gpucast.checkpoints.randomness import tensor_seed
from gpucast.checkpoints.run import run

__all__ = ["Choice", "Detail", "Options", "Outcome", "Plan", "Request", "Rule", "make_plan", "run", "tensor_seed"]
