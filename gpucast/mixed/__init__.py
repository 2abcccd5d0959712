# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: policies for a network's types, loss scales for gradients, delayed scales for float8 tensors, and
fake casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucast.arrays import libraries
from gpucast.core import packages
from gpucast.mixed.delayed_scaling import DelayedScaling
from gpucast.mixed.fake_casts import fake_cast
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
    "fake_cast",
    "get_policy",
    "select_tree",
]

packages.publish(globals())


def _fake_cast_of_tensors() -> Callable[..., Any]:
    from gpucast.mixed.fake_torch import fake_cast

    return fake_cast


def _fake_cast_of_jax() -> Callable[..., Any]:
    from gpucast.mixed.fake_jax import fake_cast

    return fake_cast


libraries.extend("torch", "fake_cast", _fake_cast_of_tensors)
libraries.extend("jax", "fake_cast", _fake_cast_of_jax)
