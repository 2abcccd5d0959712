# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: which types a network has where, and scales that keep its gradients in a narrow type's range."""

from __future__ import annotations

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
