# SPDX-License-Identifier: Apache-2.0
"""Which kernel: a small value that gives the CUDA text, so that it can be a key, a task, and sent to another process.

`KernelSpec` is the interface. Its subclasses lie beside the text that they stand for: `CastSpec` below, `BatchSpec` in
`gpucast.codegen.batch`, `QuantizeSpec` and `TileSpec` in `gpucast.quantization`, `AdjustSpec` and `SelectSpec` in
`gpucast.mixed`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpucast.codegen.cast import KernelSource, Shape, kernel_source
from gpucast.codegen.fused import PLAIN, FusedOps, fused_source
from gpucast.core.rule import Rule

#: A `gpucast.codegen.cast.KernelSource`, or a `gpucast.codegen.batch.BatchSource` of a kernel that takes many arrays.
Source_co = TypeVar("Source_co", covariant=True)


class KernelSpec(ABC, Generic[Source_co]):
    """Which kernel. Subclasses are frozen dataclasses of values: immutable, hashable, picklable.

    Two that are equal have the same text. Whatever changes the text, but for the architecture, is a field.
    """

    @abstractmethod
    def source(self) -> Source_co:
        """The kernel's text, its name, and what a launch needs to know. A pure function of the fields.

        ValueError where there is no such kernel.
        """


@dataclass(frozen=True)
class CastSpec(KernelSpec[KernelSource]):
    """The kernel of a cast of one array."""

    #: Of a fused cast a `gpucast.casting.fused.fused_rule`.
    rule: Rule
    shape: Shape = "contiguous"
    #: Whether a source below one byte comes one element per byte. Of no meaning for others.
    unpacked: bool = False
    #: What a fused cast does beside, None for a plain one. Rounding at random is fused, but part of the rule.
    ops: FusedOps | None = None

    @classmethod
    def of(cls, rule: Rule, shape: Shape = "contiguous", unpacked: bool = False, ops: FusedOps = PLAIN) -> CastSpec:
        """The kernel of a cast that may be plain: where the operations are none and nothing is rounded at random."""
        return cls(rule, shape, unpacked, ops if ops.fuses(rule) else None)

    def source(self) -> KernelSource:
        if self.ops is None:
            return kernel_source(self.rule, self.shape, unpacked=self.unpacked)
        return fused_source(self.rule, self.ops, self.shape, unpacked=self.unpacked)
