# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike as layers of a network, under their public name; they are `gpucast.mixed.layers`."""

from gpucast.core import packages
from gpucast.mixed.layers import Cast, CastLike

__all__ = ["Cast", "CastLike"]

packages.publish(globals())
