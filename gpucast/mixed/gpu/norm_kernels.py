# SPDX-License-Identifier: Apache-2.0
"""The 2-norm of many arrays on a device, and the factor that unscales and clips them, without reading back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.operand import Operand
from gpucast.arrays.packed import device_index
from gpucast.casting import batch_plans
from gpucast.codegen.batch_kernel import BatchSource, Field, capacity_of, source_of, table_of
from gpucast.codegen.cast_kernel import KernelSource, kernel_file, kernel_source, structs
from gpucast.codegen.fused_kernel import fused_prelude
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule
from gpucast.gpu import driver
from gpucast.gpu.batch_on_gpu import Prepared
from gpucast.gpu.workspace import Workspace
from gpucast.mixed.sum_of_squares import TILE, in_one_piece

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
_THREADS = 256
#: Of each device and number of sums the most workspaces that no CUDA graph has, for the streams of the last calls.
_KEPT = 8
#: The field of ``struct NormArrays`` of kernels/squares.cu after its first member.
_SUMS: tuple[Field, ...] = (("sums", np.uint64, False),)


class Kept:
    """What the calls of one object keep: memory, and the launch for arrays like those of the last call."""

    def __init__(self, caller: str) -> None:
        self._caller = caller
        self._launch: _Launch | None = None
        #: By device, stream, and the number of sums: streams run at the same time. The last one used is the last.
        self._workspaces: dict[tuple[int, int, int], Workspace] = {}
        #: Those whose addresses are in a CUDA graph.
        self._captured: set[tuple[int, int, int]] = set()

    def factor(self, leaves: Sequence[Any], inverse: Any, clip: float, norm: Any, device: int) -> Any:
        """An array of one FLOAT: `inverse`, a number or a FLOAT on the device, times the factor that clips. `norm`: a
        FLOAT to write the 2-norm of the arrays to, or None."""
        with driver.driver().on(device):
            launch, described = self._launch, batch_plans.describe(leaves)
            if launch is not None and launch.described is not None and launch.described == described:
                src = batch_plans.addresses(leaves)[launch.used]
            else:
                sources = in_one_piece(leaves, self._caller)
                launch = self._launch = _Launch(sources, described, device)
                src = np.array([source.address for source in sources], np.uint64)[launch.used]
            workspace = self._workspace(launch.count)
            sums = workspace.array("sums", (max(launch.count, 1),), _DOUBLE)
            result = workspace.array("factor", (), _FLOAT)
            launch.run(src, sums.data.ptr)
            given = inverse if device_index(inverse) is None else 1.0
            at = 0 if device_index(inverse) is None else inverse.data.ptr
            arguments = NormArguments(launch.count, at, 0 if norm is None else norm.data.ptr, float(given), clip)
            driver.kernel(FinishSpec(), device)(sums.data.ptr, result.data.ptr, 1, arguments)
        return result

    def _workspace(self, count: int) -> Workspace:
        """The memory of the current stream for so many sums."""
        cuda = driver.driver()
        device, capturing = cuda.current(), cuda.capturing()
        key = (device, cuda.stream(), count)
        if capturing:
            if key not in self._workspaces:
                # PyTorch captures on a stream of its own, and nothing can be allocated then: the graph takes the memory
                # of the call before, and later calls on that one's stream get another.
                for other in reversed(list(self._workspaces)):
                    if other[0] == device and other[2] == count and other not in self._captured:
                        self._workspaces[key] = self._workspaces.pop(other)
                        break
            if key not in self._workspaces:
                # It refuses to allocate, and is no memory for later calls.
                return Workspace(self._caller, device)
            self._captured.add(key)
        workspace = self._workspaces.pop(key) if key in self._workspaces else Workspace(self._caller, device)
        self._workspaces[key] = workspace
        alike = [one for one in self._workspaces if one[::2] == key[::2] and one not in self._captured]
        for old in alike[:-_KEPT]:
            del self._workspaces[old]
        return workspace


class _Launch:
    """The launch that adds the squares of arrays."""

    def __init__(self, sources: Sequence[Operand], described: Any, device: int) -> None:
        n = np.array([source.size for source in sources], np.int64)
        #: None where arrays are not read where they are.
        self.described = described if all(source.contiguous for source in sources) else None
        #: The places of the arrays that have elements.
        self.used = np.flatnonzero(n)
        ends = (-(-n[self.used] // TILE)).cumsum()
        #: The number of sums, and of each array the first of its own.
        self.count = int(ends[-1]) if ends.size else 0
        self._begins = np.concatenate([[0], ends])
        kinds = [
            CastSpec(CastRule(one.dtype, _FLOAT), unpacked=one.dtype.packed and not one.packed)
            for one in sources
            if one.size
        ]
        places = tuple(sorted(set(kinds), key=_name_of))
        self._prepared = Prepared(
            partial(NormSpec, places), list(map(places.index, kinds)), n[self.used].tolist(), device, {}
        ) if kinds else None  # fmt: skip

    def run(self, src: npt.NDArray[np.uint64], sums: int) -> None:
        """Launch it for arrays at these addresses."""
        if self._prepared is not None:
            # There is no destination whose address could move the first tile.
            columns = {"src": src, "dst": np.zeros_like(src)}
            self._prepared.run(columns, lambda i: {"sums": sums + 8 * int(self._begins[i])})


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
