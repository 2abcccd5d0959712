# SPDX-License-Identifier: Apache-2.0
"""Whether casts can run on a GPU, under its public name; it is `gpucast.kernel.devices`."""

from gpucast.core import packages
from gpucast.kernel.devices import require, unavailable

__all__ = ["require", "unavailable"]

packages.publish(globals())
