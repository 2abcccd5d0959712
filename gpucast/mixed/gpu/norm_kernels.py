# SPDX-License-Identifier: Apache-2.0
"""The 2-norm of many arrays on a device, and the factor that unscales and clips them, without reading back."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.arrays.operand import Operand, operand
from gpucast.arrays.packed import as_array, device_index
from gpucast.casting import batch_plans
from gpucast.casting.fused_options import fused_rule
from gpucast.codegen.batch_kernel import FUSED, BatchSource, Field, capacity_of, source_of, table_of
from gpucast.codegen.cast_kernel import KernelSource, kernel_file, kernel_source, options, structs
from gpucast.codegen.fused_kernel import FusedOps, fused_prelude, template_options
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule
from gpucast.gpu import driver
from gpucast.gpu.batch_on_gpu import Prepared
from gpucast.gpu.cast_on_gpu import fused_kernel
from gpucast.gpu.workspace import Workspace
from gpucast.mixed.sum_of_squares import TILE, in_one_piece

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
_THREADS = 256
#: Of each device and number of sums the most workspaces that no CUDA graph has, for the streams of the last calls.
_KEPT = 8
#: The field of ``struct NormArrays`` of kernels/squares.cu after its first member.
_SUMS: tuple[Field, ...] = (("sums", np.uint64, False),)


class Casts(NamedTuple):
    """Casts of all arrays to checked outs of a type of whole bytes, and a flag."""

    outs: Sequence[Any]
    to: DType
    finite: Any


class Kept:
    """What the calls of one object keep: memory, and the launch for arrays like those of the last call."""

    def __init__(self, caller: str) -> None:
        self._caller = caller
        self._launch: _Launch | None = None
        #: By device, stream, and the number of sums: streams run at the same time. The last one used is the last.
        self._workspaces: dict[tuple[int, int, int], Workspace] = {}
        #: Those whose addresses are in a CUDA graph.
        self._captured: set[tuple[int, int, int]] = set()

    def factor(
        self, leaves: Sequence[Any], inverse: Any, clip: float, norm: Any, device: int, casts: Casts | None
    ) -> tuple[Any, bool]:
        """An array of one FLOAT: `inverse`, a number or a FLOAT on the device, times the factor that clips. `norm`: a
        FLOAT to write the 2-norm of the arrays to, or None. And whether `casts` times `inverse` are done, too: where
        all arrays are in C order."""
        with driver.driver().on(device):
            given = [leaves] if casts is None else [leaves, casts.outs]
            launch, described = self._launch, _described(given, casts)
            if launch is not None and launch.described is not None and launch.described == described:
                lists = [batch_plans.addresses(some) for some in given]
            else:
                operands = [[operand(as_array(x, self._caller)) for x in some] for some in given]
                if not all(one.contiguous for some in operands for one in some):
                    # Casts of these are another launch's, and the squares those of copies.
                    casts, described = None, None
                if casts is None:
                    operands = [in_one_piece(leaves, self._caller)]
                launch = self._launch = _Launch(operands[0], described, device, casts)
                lists = [np.array([one.address for one in some], np.uint64) for some in operands]
            workspace = self._workspace(launch.count)
            sums = workspace.array("sums", (max(launch.count, 1),), _DOUBLE)
            result = workspace.array("factor", (), _FLOAT)
            fused = None if casts is None else fused_kernel(FusedInputs(scale=inverse, finite=casts.finite), None)[1]
            launch.run(lists, sums.data.ptr, {} if fused is None else {"given": fused.to_bytes()})
            number = inverse if device_index(inverse) is None else 1.0
            at = 0 if device_index(inverse) is None else inverse.data.ptr
            arguments = NormArguments(launch.count, at, 0 if norm is None else norm.data.ptr, float(number), clip)
            driver.kernel(FinishSpec(), device)(sums.data.ptr, result.data.ptr, 1, arguments)
        return result, casts is not None

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


def _described(given: Sequence[Sequence[Any]], casts: Casts | None) -> Any:
    """What calls compare that a launch serves; None for arrays that no plan is for."""
    found = [batch_plans.describe(some) for some in given]
    return None if any(one is None for one in found) else (None if casts is None else casts.to, *found)


class _Launch:
    """The launch that adds the squares of arrays."""

    def __init__(self, sources: Sequence[Operand], described: Any, device: int, casts: Casts | None) -> None:
        n = np.array([source.size for source in sources], np.int64)
        #: None where arrays are not read where they are.
        self.described = described if all(source.contiguous for source in sources) else None
        #: The places of the arrays that have elements.
        self.used = np.flatnonzero(n)
        ends = (-(-n[self.used] // TILE)).cumsum()
        #: The number of sums, and of each array the first of its own.
        self.count = int(ends[-1]) if ends.size else 0
        self._begins = np.concatenate([[0], ends])
        kinds = [_kind(one, None if casts is None else casts.to) for one in sources if one.size]
        places = tuple(sorted(set(kinds), key=_name_of))
        self._prepared = Prepared(
            partial(NormSpec, places), list(map(places.index, kinds)), n[self.used].tolist(), device, {}
        ) if kinds else None  # fmt: skip

    def run(self, lists: Sequence[npt.NDArray[np.uint64]], sums: int, given: Mapping[str, Any]) -> None:
        """Launch it for arrays at these addresses, and for casts results at these. `given`: what casts need."""
        if self._prepared is not None:
            src, *dst = (addresses[self.used] for addresses in lists)
            # Without a destination there is none whose address could move the first tile.
            columns = {"src": src, "dst": dst[0] if dst else np.zeros_like(src)}
            self._prepared.run(columns, lambda i: {"sums": sums + 8 * int(self._begins[i]), **given})


def _kind(source: Operand, to: DType | None) -> CastSpec:
    unpacked = source.dtype.packed and not source.packed
    if to is None:
        return CastSpec(CastRule(source.dtype, _FLOAT), unpacked=unpacked)
    ops = FusedOps("narrow", finite=source.dtype.has_nan)
    return CastSpec(fused_rule(source.dtype, to, scaled=True), unpacked=unpacked, ops=ops)


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
    """The kernel that adds squares of arrays of some types, and makes casts where the kinds have fused operations."""

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
    return "\n".join([fused_prelude(), *map(kernel_file, ("batch.cu", "batch_fused.cu", "squares.cu"))])


def _name_of(kind: CastSpec) -> str:
    if kind.ops is not None:
        return source_of(kind).name.removeprefix("gpucast_")
    return kind.rule.src.numpy_name + "_bytes" * kind.unpacked


@lru_cache
def _norm_source(kinds: tuple[CastSpec, ...], argument_bytes: int) -> BatchSource:
    sources, casts = [source_of(kind) for kind in kinds], kinds[0].ops is not None
    fields = (*FUSED, *_SUMS) if casts else _SUMS
    capacity = capacity_of(argument_bytes, *fields)
    name = f"gpucast_squares_{'_'.join(map(_name_of, kinds))}_{capacity}"
    arrays = f"{'NormCasts' if casts else 'NormArrays'}<{capacity}>"
    types = []
    for i, (kind, source) in enumerate(zip(kinds, sources, strict=True)):
        src, dst = kind.rule.src.name, kind.rule.dst.name
        if kind.ops is None:
            types.append(f"typedef SumOfSquares<{src}, FLOAT, DOUBLE, {source.src_bits}> {name}_{i};\n")
        else:
            ops = f"{name}_rule_{i}, Scaling::{template_options(kind.ops)}"
            types.append(f"typedef CastRule<{options(kind.rule)}> {name}_rule_{i};\n")
            types.append(f"typedef CastSquares<{src}, {dst}, FLOAT, DOUBLE, {source.src_bits}, {ops}> {name}_{i};\n")
    listed = ", ".join(f"gpucast::{name}_{i}" for i in range(len(kinds)))
    return BatchSource(
        name=name,
        kinds=kinds,
        prelude=_prelude(),
        structs={
            **dict(structs(_FLOAT, _DOUBLE)),
            **{name: text for source in sources for name, text in source.structs},
        },
        kernel=f"namespace gpucast {{\n{''.join(types)}}}\nGPUCAST_BATCH({name}, {arrays}, {_THREADS}, {listed})\n",
        threads=_THREADS,
        table=table_of(capacity, *fields),
        more=f"gpucast::{arrays}",
        capacity=capacity,
        elements=np.full(len(kinds), TILE),
        tiles=np.ones(len(kinds), np.int64),
    )
