# SPDX-License-Identifier: Apache-2.0
"""Whether casts can run on a GPU, under its public name; it is `gpucast.gpu.devices`."""

from gpucast.core import pickles
from gpucast.gpu.devices import require, unavailable

__all__ = ["require", "unavailable"]

pickles.publish(globals())
