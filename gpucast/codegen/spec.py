# SPDX-License-Identifier: Apache-2.0
"""Kernel specifications: small values that name a kernel and generate its CUDA text on demand.

Being immutable values, they serve as cache keys and compile tasks, and can be sent to other processes. `KernelSpec` is
the interface. Each subclass stands in the module that writes its text: `CastSpec` below, `BatchSpec` in
`gpucast.codegen.batch_kernel`, `QuantizeSpec` in `gpucast.quantization.gpu.source`, `TileSpec` in `tile_source` beside
it, `AdjustSpec` and `SelectSpec` in `gpucast.mixed.gpu.kernels`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpucast.codegen.cast_kernel import KernelSource, Shape, kernel_source
from gpucast.codegen.fused_kernel import PLAIN, FusedOps, fused_source
from gpucast.core.rule import CastRule

#: A `gpucast.codegen.cast_kernel.KernelSource`, or, for a kernel that casts many arrays, a
#: `gpucast.codegen.batch_kernel.BatchSource`.
Source_co = TypeVar("Source_co", covariant=True)


class KernelSpec(ABC, Generic[Source_co]):
    """Names one kernel. Subclasses are frozen dataclasses of values: immutable, hashable, picklable.

    Equal specifications have the same text: everything that the text depends on is a field, except the architecture.
    """

    @abstractmethod
    def source(self) -> Source_co:
        """The kernel's text, its name, and the data for a launch. A pure function of the fields.

        ValueError if there is no such kernel.
        """


@dataclass(frozen=True)
class CastSpec(KernelSpec[KernelSource]):
    """The kernel of a cast of one array."""

    #: For a fused cast the rule that `gpucast.casting.fused_options.fused_rule` returns.
    rule: CastRule
    shape: Shape = "contiguous"
    #: Whether a source below one byte has one element per byte. Ignored for other sources.
    unpacked: bool = False
    #: The fused operations; None for a plain cast. Stochastic rounding makes a cast fused, but is part of the rule.
    ops: FusedOps | None = None

    @classmethod
    def of(cls, rule: CastRule, shape: Shape = "contiguous", unpacked: bool = False, ops: FusedOps = PLAIN) -> CastSpec:
        """The kernel of a cast with `ops`: the plain one where there are no operations and no stochastic rounding."""
        return cls(rule, shape, unpacked, ops if ops.fuses(rule) else None)

    def source(self) -> KernelSource:
        if self.ops is None:
            return kernel_source(self.rule, self.shape, unpacked=self.unpacked)
        return fused_source(self.rule, self.ops, self.shape, unpacked=self.unpacked)
