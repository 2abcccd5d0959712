# SPDX-License-Identifier: Apache-2.0
"""JAX, under its public name; it is `gpucast.libraries.jax`."""

from gpucast.core import packages
from gpucast.libraries.jax import LIBRARY, take

__all__ = ["LIBRARY", "take"]

packages.publish(globals())
