# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: policies for a network's types, loss scales for gradients, and delayed scales for float8 tensors."""

from __future__ import annotations

from gpucast.core import packages
from gpucast.mixed.delayed_scaling import DelayedScaling
from gpucast.mixed.loss_scale import DynamicLossScale, LossScale, NoOpLossScale, StaticLossScale
from gpucast.mixed.policy import Policy, get_policy
from gpucast.mixed.select import select_tree

__all__ = [
    "DelayedScaling",
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "Policy",
    "StaticLossScale",
    "get_policy",
    "select_tree",
]

packages.publish(globals())
