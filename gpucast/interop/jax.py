# SPDX-License-Identifier: Apache-2.0
"""JAX, under its public name; it is `gpucast.libraries.jax`."""

from gpucast.core import packages
from gpucast.libraries.jax import ADAPTER, take

__all__ = ["ADAPTER", "take"]

packages.publish(globals())
