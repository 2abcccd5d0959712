# SPDX-License-Identifier: Apache-2.0
"""One array of a call of `gpucast.cast_many`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpucast.arrays.array import Array
from gpucast.arrays.libraries import BatchLibrary, Library
from gpucast.arrays.overlap import Table
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule

#: ``launch(src, dst, fused)`` casts arrays at these addresses.
Launch = Callable[[Table, Table, FusedInputs], None]


class Names(NamedTuple):
    """The names of a call's arrays in error messages."""

    #: The caller's parameter: "arrays".
    parameter: str
    #: Where in it the arrays are, such as "['encoder'][3]".
    paths: Callable[[], Sequence[str]]


@dataclass(slots=True)
class BatchItem:
    """One array of a call of `gpucast.cast_many`."""

    #: What errors call it: "cast_many: arrays['encoder'][3]".
    caller: str
    #: The array as given, its adapter (None: it is native), and the native array over its memory.
    given: Any
    adapter: Library | None
    source: Array
    #: The result for the caller, and the native array over its memory; None until there is one.
    result: Any
    target: Array | None = None
    rule: CastRule = field(init=False)
    #: The fused operations; None for a plain cast.
    fused: FusedInputs | None = None
    #: Elements of the items before it.
    start: int = 0

    @property
    def is_alone(self) -> bool:
        """Whether it is of a library whose arrays share no launches with ours."""
        return self.adapter is not None and not isinstance(self.adapter, BatchLibrary)
