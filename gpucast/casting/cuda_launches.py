# SPDX-License-Identifier: Apache-2.0
"""The launches of checked casts on one device: of one array, and of many contiguous ones that share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.arrays.array import Array
from gpucast.casting.engine import Call
from gpucast.core.fuse import EMPTY, Fuse, fuse_of
from gpucast.kernel import driver
from gpucast.kernel.batch_kernel import ARRAYS, Batch, Kind, batch_kernel, sorted_kinds
from gpucast.kernel.cast_kernel import Shape, plain_kernel, square_sides
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import FUSED, RANDOM, FusedOps, cast_kernel
from gpucast.kernel.kernel import ALIGNED
from gpucast.kernel.recording import NUMBER, OFFSET, SEED, Step
from gpucast.kernel.strides import Dims, collapse, squares

_LAST = 2**64 - 1
#: Stands for the first block in unused places of a table; no block has this index.
_NONE = 2**32 - 1
#: The fields of `ARRAYS`.
_COLUMNS = frozenset(row[0] for row in ARRAYS.rows)


# ---- one array ----


def launch_of(call: Call) -> Callable[[], None]:
    """The launch of a call with elements and a target on the current device, whose kernel is loaded by now."""
    source, rule, target, fuse = call.source, call.rule, call.target, call.fuse
    assert source.device is not None and target is not None, "memory has been allocated"
    (shape, dims, n), unpacked = layout_of(source, target, fuse), rule.src.packed and not source.packed
    src, dst, given = source.address, target.address, b"" if dims is None else dims.packed
    if fuse is EMPTY:
        kernel = plain_kernel(rule, shape, unpacked)
    else:
        kernel, given = cast_kernel(rule, shape, unpacked, FusedOps.of(fuse)), FUSED.pack(*fused_values(fuse)) + given
    launch = driver.load(kernel, source.device)
    return partial(launch, kernel.blocks(n, dst), driver.array_arguments(src, 0, dst, n) + given)


class Layout(NamedTuple):
    """How a kernel walks over source and target."""

    shape: Shape
    #: None for the shape "contiguous".
    dims: Dims | None
    #: As kernels take it: elements, or those of all squares.
    n: int


def layout_of(source: Array, target: Array, fuse: Fuse) -> Layout:
    """The layout of a cast. It is contiguous where both sides are, in the same order of axes."""
    if source.contiguous and target.contiguous:
        return Layout("contiguous", None, source.size)
    in_order = fuse.random is not None
    transposes = fuse is EMPTY and not (source.packed or target.packed)
    sizes = source.itemsize, target.itemsize
    return strided_layout(source.shape, source.strides, target.strides, sizes, in_order, transposes)


@lru_cache(maxsize=1024)
def strided_layout(
    shape: tuple[int, ...],
    src_strides: tuple[int, ...] | None,
    dst_strides: tuple[int, ...] | None,
    itemsizes: tuple[int, int],
    in_order: bool,
    transposes: bool,
) -> Layout:
    """The layout where one side at least is not contiguous; it is "contiguous" all the same where both have their axes
    in the same order, without gaps.

    A packed side has no strides (None) and an itemsize of 1: as only the ratios of strides matter, it counts as bytes
    in row-major order. `in_order`: elements are to be visited in row-major order, because random words belong to their
    indices in it. `transposes`: there is a kernel of the shape "transposed".
    """
    axes = list(range(len(shape)))
    if src_strides is not None and dst_strides is not None and not in_order:
        # Any order will do, and the destination's makes long writes; a packed side is the row-major stream.
        axes.sort(key=lambda axis: -abs(dst_strides[axis]))
    row_major = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    src, dst = ([(strides or row_major)[axis] for axis in axes] for strides in (src_strides, dst_strides))
    dims = collapse([shape[axis] for axis in axes], src, dst)
    n = math.prod(shape)
    if not dims.lengths or (dims.src, dims.dst) == ((itemsizes[0],), (itemsizes[1],)):
        return Layout("contiguous", None, n)
    if transposes:
        src_size, dst_size = itemsizes
        transposed = squares(dims, src_size, dst_size, square_sides(8 * src_size, 8 * dst_size))
        if transposed is not None:
            return Layout("transposed", *transposed)
    return Layout("strided", dims, n)


def fused_values(fuse: Fuse) -> tuple[float, int, int, int, int, int, int]:
    """The values of `FUSED`."""
    number, scale_at = 1.0, 0
    if isinstance(fuse.scale, float):
        number = fuse.scale
    elif fuse.scale is not None:
        scale_at = fuse.scale.data.ptr
    amax, finite = (0 if array is None else array.data.ptr for array in (fuse.amax, fuse.finite))
    seed, offset = fuse.random or (0, 0)
    # In `cast_many` the random words of one array follow those of the one before: the offset may be beyond 64 bits.
    first = max(0, offset - _LAST)
    return number, scale_at, amax, finite, seed, offset - first, first


# ---- many arrays ----


def launches(calls: Sequence[Call], device: int) -> list[Callable[[], None]]:
    """The launches of calls with elements and targets, on the current stream of the current device `device`. All
    kernels are loaded by now, so nothing can fail later.
    """
    flat: list[Call] = []
    others: list[Call] = []
    for call in calls:
        (flat if is_flat(call) else others).append(call)
    if len(flat) < 2 or _steps(flat) is None:
        return list(map(launch_of, calls))
    return [*map(launch_of, others), CastBatch(flat, device).run]


def is_flat(call: Call) -> bool:
    """Whether both sides are contiguous in the same order."""
    return layout_of(call.source, call.written, call.fuse).shape == "contiguous"


def batch_fuse(calls: Sequence[Call]) -> Fuse:
    """The fuse of a batch. The offset of random words is the batch's; `scale` and `amax` are the first call's."""
    found = next((call.fuse for call in calls if call.fuse is not EMPTY), EMPTY)
    for call in calls:
        if call.fuse.random is not None:
            random = call.fuse.random
            return found._replace(random=random._replace(offset=random.offset - call.start))
    return found


def _steps(calls: Sequence[Call]) -> tuple[int, int] | None:
    """How many bytes lie between the scales, and between the `amax`, of a call and of the next: 0 where all have the
    same. None where the distances differ."""
    found = []
    fuses = [call.fuse for call in calls if call.fuse is not EMPTY]
    for name in ("scale", "amax"):
        arrays = [x for fuse in fuses if not ((x := getattr(fuse, name)) is None or isinstance(x, float))]
        steps = np.diff([array.data.ptr for array in arrays])
        if steps.any() and not (steps == arrays[0].itemsize).all():
            return None
        found.append(int(steps[0]) if steps.size else 0)
    return found[0], found[1]


class CastBatch:
    """Flat calls that have elements, which share launches. The kernel is loaded by now."""

    def __init__(self, calls: Sequence[Call], device: int) -> None:
        kinds = [_kind(call) for call in calls]
        places = sorted_kinds(kinds)
        number = {kind: i for i, kind in enumerate(places)}
        steps = _steps(calls)
        assert steps is not None, "calls with scattered scales are cast alone"
        self._calls, self._fuses = calls, any(kind.ops.fuses(kind.rule) for kind in places)
        #: How many bytes the addresses in `FUSED` move from array to array.
        self._steps = {"scale_at": steps[0], "amax": steps[1], "finite": 0}
        sizes = [call.source.size for call in calls]
        self._tables = Tables(partial(batch_kernel, places), [number[kind] for kind in kinds], sizes, device)

    def run(self) -> None:
        for _, blocks, table in self._launches():
            self._tables.launch(blocks, table)

    def steps(self, numbers: Mapping[str, Sequence[int]]) -> list[Step]:
        """The launches for a program. `numbers`: the numbers of its arrays, by the names of fields."""
        found = []
        for part, blocks, table in self._launches():
            columns = [(self._tables.offsets[name], numbers[name][part]) for name in ("src", "dst")]
            patches = [(at + 8 * place, one, 0) for at, column in columns for place, one in enumerate(column)]
            if self._fuses:
                given = self._tables.offsets["given"]
                words = given + FUSED.offsets["random"]
                patches += [(given + FUSED.offsets["scale"], NUMBER, 0)]
                patches += [(words + RANDOM.offsets["seed"], SEED, 0), (words + RANDOM.offsets["offset"], OFFSET, 0)]
                for name, step in self._steps.items():
                    patches += [(given + FUSED.offsets[name], one, step * part.start) for one in numbers[name]]
            found.append((self._tables.launch, blocks, table.tobytes(), tuple(patches)))
        return found

    def _launches(self) -> Iterator[tuple[slice, int, npt.NDArray[Any]]]:
        columns = {
            "src": np.array([call.source.address for call in self._calls], np.uint64),
            "dst": np.array([call.written.address for call in self._calls], np.uint64),
        }
        if not self._fuses:
            yield from self._tables.filled(columns, {})
            return
        number, *others = fused_values(batch_fuse(self._calls))
        steps = {"scale_step": self._steps["scale_at"], "amax_step": self._steps["amax"]}
        columns["first"] = np.array([call.start for call in self._calls])
        for part, blocks, table in self._tables.filled(columns, steps):
            moved = [one + step * part.start for one, step in zip(others, self._steps.values(), strict=False)]
            FUSED.layout.pack_into(table.data, self._tables.offsets["given"], number, *moved, *others[len(moved) :])
            yield part, blocks, table


def _kind(call: Call) -> Kind:
    fuse, src = call.fuse, call.rule.src
    if fuse.finite is not None and not src.has_nan:
        fuse = fuse_of(fuse.scale, fuse.amax, random=fuse.random)
    return Kind(call.rule, src.packed and not call.source.packed, FusedOps.of(fuse))


class Tables:
    """The launches of a kernel of many arrays: each has a table of contiguous arrays on one device."""

    def __init__(self, batch_of: Callable[[int], Batch], kind: Sequence[int], n: Sequence[int], device: int) -> None:
        """Array i has n[i] > 0 elements and is cast by kind kind[i] of ``batch_of(argument_bytes)``."""
        short, most = driver.driver().argument_bytes
        self._batch = batch_of(short)
        if len(n) > self._batch.capacity:
            self._batch = batch_of(most)
        self.launch = driver.ready(self._batch.kernel, device)
        self._kind, self._n = np.array(kind), np.array(n, np.int64)
        table = self._batch.kernel.arguments.places[0].type
        assert isinstance(table, Fields)
        self._dtype, self._begins = table.dtype, "arrays" in table.offsets
        #: Where the fields of a table lie; those of an `ARRAYS` with which it begins among them.
        self.offsets = {**ARRAYS.of(self._batch.capacity).offsets, **table.offsets}

    def run(self, columns: Mapping[str, npt.NDArray[Any]], others: Mapping[str, int]) -> None:
        """Launch on the current stream of the device, which is the current one. `columns`: the fields that have a value
        for every array."""
        for _, blocks, table in self.filled(columns, others):
            self.launch(blocks, table)

    def filled(
        self, columns: Mapping[str, npt.NDArray[Any]], others: Mapping[str, int]
    ) -> Iterator[tuple[slice, int, npt.NDArray[Any]]]:
        """The arrays, the blocks and the table of each launch."""
        # Elements that a tile may begin before its array.
        ahead = np.where(columns["dst"] % ALIGNED == 0, 0, self._batch.tiles[self._kind] - 1)
        blocks = -(-(self._n + ahead) // self._batch.elements[self._kind])
        for begin in range(0, self._n.size, self._batch.capacity):
            part = slice(begin, begin + self._batch.capacity)
            ends = blocks[part].cumsum()
            table = np.zeros((), self._dtype)
            arrays = table["arrays"] if self._begins else table
            for name, column in {"n": self._n, "kind": self._kind, **columns}.items():
                (arrays if name in _COLUMNS else table)[name][: ends.size] = column[part]
            arrays["first_block"][1 : ends.size], arrays["first_block"][ends.size :] = ends[:-1], _NONE
            for name, value in others.items():
                table[name] = value
            yield part, int(ends[-1]), table
