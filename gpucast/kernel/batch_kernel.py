# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of kernels that cast many arrays in one launch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.core.rule import CastRule, resolve
from gpucast.kernel.cast_kernel import PARTS, THREADS, choose, entries, options, without_table
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import FUSED, FUSED_PARTS, PLAIN, FusedOps, cast_kernel, template_options
from gpucast.kernel.kernel import Kernel

#: Bytes of arguments that a kernel takes: before the CUDA version (of the driver, and of NVRTC) below, and from it on.
ARGUMENT_BYTES = (4096, 32764)
LARGE_ARGUMENTS = (12, 1)

#: The longest kernel name that is still readable; longer ones end in a hash.
_NAME = 160
#: The fewest tiles that a thread casts, so that finding its array is a small part of its work.
_TILES = 4

#: The arrays of a launch; arrays without elements are left out. In unused places first_block is 2^32 - 1.
ARRAYS = Fields(
    "Arrays",
    (
        ("src", "const u8*", "Capacity"),
        ("dst", "u8*", "Capacity"),
        ("n", "i64", "Capacity"),
        ("first_block", "u32", "Capacity"),
        # The number of the array's cast among those of the kernel.
        ("kind", "u8", "Capacity"),
    ),
    "Capacity",
)
FUSED_ARRAYS = Fields(
    "FusedArrays",
    (
        ("arrays", ARRAYS),
        # Of each array, in place of `given.first`.
        ("first", "i64", "Capacity"),
        ("given", FUSED),
        # How many bytes `given.scale_at` and `given.amax` move from array to array: 0 where all share one.
        ("scale_step", "u32"),
        ("amax_step", "u32"),
    ),
    "Capacity",
)


class Kind(NamedTuple):
    """A cast that a batch kernel can do, of contiguous arrays."""

    rule: CastRule
    #: Whether a source below one byte has one element per byte.
    unpacked: bool = False
    ops: FusedOps = PLAIN

    @property
    def alone(self) -> Kernel:
        """The kernel of the same cast for a single array."""
        return cast_kernel(self.rule, "contiguous", self.unpacked, self.ops)

    @property
    def src_bits(self) -> int:
        """Bits of a source element in memory."""
        return 8 if self.unpacked and self.rule.src.packed else self.rule.src.bits

    @property
    def tiles(self) -> int:
        """Tiles that a thread casts."""
        return max(self.alone.elements // self.alone.tile, _TILES)


class Batch(NamedTuple):
    """A kernel that casts many arrays, and the numbers that fill its table. `Kernel.arguments` has that table alone."""

    kernel: Kernel
    #: The most arrays of a launch.
    capacity: int
    #: For each kind of cast: elements per block of threads, and per tile.
    elements: npt.NDArray[np.int64]
    tiles: npt.NDArray[np.int64]

    @classmethod
    def of(cls, kernel: Kernel, capacity: int, kinds: Iterable[Kind]) -> Batch:
        kinds = list(kinds)
        elements = np.array([kind.tiles * kind.alone.tile * kernel.threads for kind in kinds])
        return cls(kernel, capacity, elements, np.array([kind.alone.tile for kind in kinds]))


def sorted_kinds(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """The casts in a fixed order, so that equal sets of casts share one kernel."""
    return tuple(sorted(set(kinds), key=lambda kind: kind.alone.name))


@lru_cache(maxsize=256)
def batch_kernel(kinds: tuple[Kind, ...], argument_bytes: int) -> Batch:
    """The kernel that casts contiguous arrays of any of the kinds, which are in the order of `sorted_kinds`. An array
    names its cast by the index among them. `argument_bytes`: one of `ARGUMENT_BYTES`.

    Each cast has only the fused operations that apply to its source: integers, for example, are never checked for
    being finite.
    """
    fused = any(kind.ops.fuses(kind.rule) for kind in kinds)
    table = FUSED_ARRAYS if fused else ARRAYS
    capacity = capacity_of(argument_bytes, table)
    name = _name([kind.alone.name for kind in kinds], capacity)
    casts = [f"{name}_{number}" for number in range(len(kinds))]
    listed = ", ".join(f"gpucast::{cast}" for cast in casts)
    parts = (
        *(FUSED_PARTS if fused else PARTS),
        ARRAYS,
        "batch.cu",
        *((FUSED_ARRAYS, "batch_fused.cu") if fused else ()),
    )
    line = f"GPUCAST_BATCH({name}, {table.of(capacity).type}, {THREADS}, {listed})\n"
    dtypes = tuple(dict.fromkeys(kind for one in kinds for kind in one.alone.dtypes))
    kernel = Kernel(name, parts, dtypes, "".join(map(_cast, casts, kinds)) + line, THREADS, one_table(table, capacity))
    return Batch.of(kernel, capacity, kinds)


@lru_cache
def one_table(table: Fields, capacity: int) -> Fields:
    """The only parameter of a kernel that casts many arrays."""
    return Fields("Table", (("table", table.of(capacity)),))


def _name(names: list[str], capacity: int) -> str:
    """`gpucast_many_float16_to_bfloat16_float32_to_bfloat16_1128`."""
    casts = "_".join(name.removeprefix("gpucast_") for name in names)
    if len(casts) > _NAME:
        import hashlib

        casts = f"{len(names)}_casts_{hashlib.sha256(casts.encode()).hexdigest()[:16]}"
    return f"gpucast_many_{casts}_{capacity}"


def _cast(name: str, kind: Kind) -> str:
    """The lines that define one of a kernel's casts."""
    rule, bits, fused = kind.rule, kind.src_bits, kind.ops.fuses(kind.rule)
    src, dst = rule.src.name, rule.dst.name
    sizes = f"{kind.alone.tile}, {kind.tiles}, {THREADS}"
    lines = [f"typedef CastRule<{options(rule)}> {name}_rule;"]
    entry = None if fused else entries(rule, bits)
    if fused:
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


def capacity_of(argument_bytes: int, table: Fields) -> int:
    """The most arrays that fit: a multiple of eight, so that every field is aligned without padding."""
    empty = table.of(0).nbytes
    return (argument_bytes - empty) // (table.of(8).nbytes - empty) * 8
