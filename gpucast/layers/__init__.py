# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike as layers of a network, with a forward and a backward pass.

Example::

    layer = gpucast.layers.Cast("FLOAT8E4M3FN", lda_coeff=0.5)
    y = layer.forward(x)
    dx = layer.backward(dy)
"""

from gpucast.core import packages
from gpucast.layers.cast_layer import Cast, CastLike

__all__ = ["Cast", "CastLike"]

packages.publish(globals())
