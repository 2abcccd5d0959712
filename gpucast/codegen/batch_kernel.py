# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of kernels that cast many arrays in one launch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.codegen.cast_kernel import (
    THREADS,
    KernelSource,
    choose,
    entries,
    join,
    kernel_file,
    options,
    prelude,
    without_table,
)
from gpucast.codegen.fused_kernel import FusedArguments, fused_prelude, template_options
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.core.rule import resolve

#: Bytes of arguments that a kernel takes: before the CUDA version (of the driver, and of NVRTC) below, and from it on.
ARGUMENT_BYTES = (4096, 32764)
LARGE_ARGUMENTS = (12, 1)

#: The longest kernel name that is still readable; longer ones end in a hash.
_NAME = 160
#: The fewest tiles that a thread casts, so that finding its array is a small part of its work.
_TILES = 4

#: A field of the table: its name, its NumPy dtype, and whether it has one value per array.
Field = tuple[str, Any, bool]
_ARRAYS: tuple[Field, ...] = (
    ("src", np.uint64, True),
    ("dst", np.uint64, True),
    ("n", np.int64, True),
    ("first_block", np.uint32, True),
    ("kind", np.uint8, True),
)
#: Those of ``struct FusedArrays`` of kernels/batch_fused.cu after its first member.
FUSED: tuple[Field, ...] = (
    ("first", np.int64, True),
    ("given", f"V{len(FusedArguments().to_bytes())}", False),
    ("scale_step", np.uint32, False),
    ("amax_step", np.uint32, False),
)


@dataclass(frozen=True, eq=False)
class BatchSource:
    """The text of one kernel that casts many arrays. Its only argument is a record of `table`, passed by value."""

    name: str
    #: The casts that it can do. An array names its cast by the index in this tuple.
    kinds: tuple[CastSpec, ...]
    prelude: str
    structs: dict[str, str]
    kernel: str
    threads: int
    #: ``struct Arrays``, ``FusedArrays`` or ``Choices``, named `more`, of kernels/batch.cu, batch_fused.cu, select.cu.
    table: np.dtype[np.void]
    more: str
    #: The most arrays of a launch.
    capacity: int
    #: For each of `kinds`: elements per block of threads, and per tile.
    elements: npt.NDArray[np.int64]
    tiles: npt.NDArray[np.int64]

    @property
    def text(self) -> str:
        return join(self.prelude, self.structs, [self.kernel])


@dataclass(frozen=True)
class BatchSpec(KernelSpec[BatchSource]):
    """The kernel that casts contiguous arrays of any of the kinds, which are in the order of `sorted_kinds`.

    Each cast has only the fused operations that apply to its source: integers, for example, are never checked for
    being finite.
    """

    kinds: tuple[CastSpec, ...]
    #: Bytes of arguments that it takes at most, one of `ARGUMENT_BYTES`.
    argument_bytes: int

    def source(self) -> BatchSource:
        return _batch_source(self.kinds, self.argument_bytes)


def sorted_kinds(kinds: Iterable[CastSpec]) -> tuple[CastSpec, ...]:
    """The casts in a fixed order, so that equal sets of casts share one kernel."""
    return tuple(sorted(set(kinds), key=lambda kind: source_of(kind).name))


@lru_cache(maxsize=1024)
def source_of(kind: CastSpec) -> KernelSource:
    """The kernel of the same cast for a single array."""
    return kind.source()


def tiles_of(kind: CastSpec) -> int:
    """Tiles that a thread casts."""
    source = source_of(kind)
    return max(source.elements // source.tile, _TILES)


@lru_cache(maxsize=256)
def _batch_source(kinds: tuple[CastSpec, ...], argument_bytes: int) -> BatchSource:
    sources = [source_of(kind) for kind in kinds]
    fused = any(kind.ops is not None for kind in kinds)
    more_columns = FUSED if fused else ()
    capacity = capacity_of(argument_bytes, *more_columns)
    name = _name([source.name for source in sources], capacity)
    casts = [f"{name}_{number}" for number in range(len(kinds))]
    more = f"{'FusedArrays' if fused else 'Arrays'}<{capacity}>"
    listed = ", ".join(f"gpucast::{cast}" for cast in casts)
    files = (
        [fused_prelude(), *map(kernel_file, ("batch.cu", "batch_fused.cu"))]
        if fused
        else [prelude(), kernel_file("batch.cu")]
    )
    return BatchSource(
        name=name,
        kinds=kinds,
        prelude="\n".join(files),
        structs={name: text for source in sources for name, text in source.structs},
        kernel="".join(map(_cast, casts, kinds)) + f"GPUCAST_BATCH({name}, {more}, {THREADS}, {listed})\n",
        threads=THREADS,
        table=table_of(capacity, *more_columns),
        more=f"gpucast::{more}",
        capacity=capacity,
        elements=np.array([tiles_of(kind) * source_of(kind).tile * THREADS for kind in kinds]),
        tiles=np.array([source.tile for source in sources]),
    )


def _name(names: list[str], capacity: int) -> str:
    """`gpucast_many_float16_to_bfloat16_float32_to_bfloat16_1128`."""
    casts = "_".join(name.removeprefix("gpucast_") for name in names)
    if len(casts) > _NAME:
        casts = f"{len(names)}_casts_{hashlib.sha256(casts.encode()).hexdigest()[:16]}"
    return f"gpucast_many_{casts}_{capacity}"


def _cast(name: str, kind: CastSpec) -> str:
    """The lines that define one of a kernel's casts."""
    rule, source = kind.rule, source_of(kind)
    src, dst, bits = rule.src.name, rule.dst.name, source.src_bits
    sizes = f"{source.tile}, {tiles_of(kind)}, {THREADS}"
    lines = [f"typedef CastRule<{options(rule)}> {name}_rule;"]
    entry = entries(rule, bits) if kind.ops is None else None
    if kind.ops is not None:
        ops = f"Scaling::{template_options(kind.ops)}"
        lines.append(f"typedef BatchFused<{src}, {dst}, FLOAT, DOUBLE, {bits}, {name}_rule, {ops}, {sizes}> {name};")
    else:
        lines.append(f"typedef BatchArithmetic<{src}, {dst}, {bits}, {name}_rule, {sizes}> {name};")
    if entry is not None:
        table = f"{src}, {entry.name}, {bits}"
        entry_rule = rule if entry is rule.dst else resolve(rule.src, entry)
        look_up = [
            f"typedef CastRule<{options(entry_rule)}> {name}_entry_rule;",
            f"static __device__ const Table<TableShape<{table}>> {name}_entries =",
            f"    make_table<{table}, {name}_entry_rule>();",
            f"typedef BatchLookup<{src}, {dst}, {entry.name}, {bits}, {name}_rule, {sizes}, {name}_entries> {name};",
        ]
        lines = [lines[0], choose(without_table(rule, bits), f"{lines[1]}\n", "\n".join(look_up) + "\n").rstrip()]
    return "namespace gpucast {\n" + "".join(f"{line}\n" for line in lines) + "}\n"


def capacity_of(argument_bytes: int, *more: Field) -> int:
    """The most arrays that fit: a multiple of eight, so that every field is aligned without padding."""
    empty = table_of(0, *more).itemsize
    return (argument_bytes - empty) // (table_of(8, *more).itemsize - empty) * 8


@lru_cache
def table_of(capacity: int, *more: Field) -> np.dtype[np.void]:
    """The NumPy dtype of ``struct Arrays``, or of a struct whose first member is one."""
    fields = [(name, kind, capacity) if of_each else (name, kind) for name, kind, of_each in (*_ARRAYS, *more)]
    return np.dtype(fields, align=True)
