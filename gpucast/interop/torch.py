# SPDX-License-Identifier: Apache-2.0
"""PyTorch, under its public name; it is `gpucast.libraries.torch`, and the layers as modules."""

from gpucast.core import packages
from gpucast.libraries.torch import LIBRARY, take
from gpucast.mixed.linear8 import Linear8
from gpucast.mixed.torch_modules import Cast, CastLike
from gpucast.quantization import hadamard_torch

# `hadamard_torch` registers the operator ``torch.ops.gpucast.hadamard``.
__all__ = ["LIBRARY", "Cast", "CastLike", "Linear8", "hadamard_torch", "take"]

packages.publish(globals())
