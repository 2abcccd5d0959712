# SPDX-License-Identifier: Apache-2.0
"""The 2-norm of many arrays on a device, and the factor that unscales and clips them, without reading back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.arrays.operand import Operand
from gpucast.arrays.packed import device_index
from gpucast.codegen.batch_kernel import BatchSource, Field, capacity_of, source_of, table_of
from gpucast.codegen.cast_kernel import KernelSource, kernel_file, kernel_source, structs
from gpucast.codegen.fused_kernel import fused_prelude
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule
from gpucast.gpu import driver
from gpucast.gpu.batch_on_gpu import Prepared
from gpucast.gpu.workspace import Workspace
from gpucast.mixed.norm import TILE

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
_THREADS = 256
#: The field of ``struct NormArrays`` of kernels/squares.cu after its first member.
_SUMS: tuple[Field, ...] = (("sums", np.uint64, False),)


def factor(sources: Sequence[Operand], inverse: Any, clip: float, norm: Any, device: int, workspace: Workspace) -> Any:
    """The 2-norm of arrays times `inverse`, a number or a FLOAT on the device, and what clips them.

    The arrays are in one piece. `norm`: a FLOAT to write the norm to, or None. Returns an array of one FLOAT: `inverse`
    times the factor that clips. Memory is that of the workspace.
    """
    with driver.driver().on(device):
        sources = [source for source in sources if source.size]
        n = np.array([source.size for source in sources], np.int64)
        ends = (-(-n // TILE)).cumsum()
        count = int(ends[-1]) if ends.size else 0
        sums = workspace.array("sums", (max(count, 1),), _DOUBLE)
        result = workspace.array("factor", (), _FLOAT)
        if sources:
            kinds = [
                CastSpec(CastRule(one.dtype, _FLOAT), unpacked=one.dtype.packed and not one.packed) for one in sources
            ]
            places = tuple(sorted(set(kinds), key=_name_of))
            prepared = Prepared(
                lambda argument_bytes: NormSpec(places, argument_bytes),
                [places.index(kind) for kind in kinds],
                n.tolist(),
                device,
                {},
            )
            src = np.array([source.address for source in sources], np.uint64)
            begins = np.concatenate([[0], ends[:-1]])
            # There is no destination whose address could move the first tile.
            prepared.run(
                {"src": src, "dst": np.zeros_like(src)}, lambda i: {"sums": sums.data.ptr + 8 * int(begins[i])}
            )
        given = inverse if device_index(inverse) is None else 1.0
        at = 0 if device_index(inverse) is None else inverse.data.ptr
        arguments = NormArguments(count, at, 0 if norm is None else norm.data.ptr, float(given), clip)
        driver.kernel(FinishSpec(), device)(sums.data.ptr, result.data.ptr, 1, arguments)
    return result


@dataclass(frozen=True)
class NormArguments:
    """``struct NormArguments`` of kernels/norm.cu."""

    count: int
    inverse_at: int
    norm: int
    inverse: float
    clip: float

    def to_bytes(self) -> bytes:
        return struct.pack("<qQQff", self.count, self.inverse_at, self.norm, self.inverse, self.clip)


@dataclass(frozen=True)
class NormSpec(KernelSpec[BatchSource]):
    """The kernel that adds squares of arrays of some types."""

    kinds: tuple[CastSpec, ...]
    #: As in a `gpucast.codegen.batch_kernel.BatchSpec`.
    argument_bytes: int

    def source(self) -> BatchSource:
        return _norm_source(self.kinds, self.argument_bytes)


@dataclass(frozen=True)
class FinishSpec(KernelSpec[KernelSource]):
    """The kernel that adds the sums, and finds norm and factor."""

    def source(self) -> KernelSource:
        return replace(
            kernel_source(CastRule(_DOUBLE, _FLOAT)),
            name="gpucast_norm",
            prelude=_prelude(),
            kernel=kernel_file("norm.cu"),
            tile=1,
            elements=1,
            threads=_THREADS,
            more="gpucast::NormArguments",
        )


def _prelude() -> str:
    return "\n".join([fused_prelude(), *map(kernel_file, ("batch.cu", "squares.cu"))])


def _name_of(kind: CastSpec) -> str:
    return kind.rule.src.numpy_name + "_bytes" * kind.unpacked


@lru_cache
def _norm_source(kinds: tuple[CastSpec, ...], argument_bytes: int) -> BatchSource:
    capacity = capacity_of(argument_bytes, *_SUMS)
    name, arrays = f"gpucast_squares_{'_'.join(map(_name_of, kinds))}_{capacity}", f"NormArrays<{capacity}>"
    types = [
        f"typedef SumOfSquares<{kind.rule.src.name}, FLOAT, DOUBLE, {source_of(kind).src_bits}> {name}_{i};\n"
        for i, kind in enumerate(kinds)
    ]
    listed = ", ".join(f"gpucast::{name}_{i}" for i in range(len(kinds)))
    return BatchSource(
        name=name,
        kinds=kinds,
        prelude=_prelude(),
        structs=dict(structs(*(kind.rule.src for kind in kinds), _FLOAT, _DOUBLE)),
        kernel=f"namespace gpucast {{\n{''.join(types)}}}\nGPUCAST_BATCH({name}, {arrays}, {_THREADS}, {listed})\n",
        threads=_THREADS,
        table=table_of(capacity, *_SUMS),
        more=f"gpucast::{arrays}",
        capacity=capacity,
        elements=np.full(len(kinds), TILE),
        tiles=np.ones(len(kinds), np.int64),
    )
