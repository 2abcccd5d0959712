# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: policies for a network's types, and loss scales that keep gradients in a narrow type's range."""

from __future__ import annotations

from gpucast.core import packages
from gpucast.mixed.loss_scale import DynamicLossScale, LossScale, NoOpLossScale, StaticLossScale
from gpucast.mixed.policy import Policy, get_policy
from gpucast.mixed.select import select_tree

__all__ = [
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "Policy",
    "StaticLossScale",
    "get_policy",
    "select_tree",
]

packages.publish(globals())
