# SPDX-License-Identifier: Apache-2.0
"""What is known of a family of checkpoints: the names of codes and scales, and how they store a weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpucast.checkpoints.scales.stored import Stored
from gpucast.files import Tensor


@dataclass(frozen=True)
class Family:
    """How a family of checkpoints stores codes with scales."""

    style: str
    #: From the name of scales to the names of the weight and of its codes; empty names where it is not such a name.
    names: Callable[[str], tuple[str, str]]
    #: Whether these tensors can be the scales of such codes, by their types; otherwise they are something else.
    fits: Callable[[Tensor, Tensor], bool]
    #: How a weight is stored, from its name, codes and scales; ValueError for a form that is not known. None for a form
    #: that `gpucast.checkpoints.scales.forms` tells from types and shapes.
    stored: Callable[[str, Tensor, Tensor], Stored] | None = None
    #: Whether a tensor can be nothing but codes or scales of this family, so that its other half must be there.
    is_half: Callable[[Tensor], bool] = lambda tensor: False
