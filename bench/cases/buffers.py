# SPDX-License-Identifier: Apache-2.0
"""The arrays for measuring a cast: several sets of source and destination, so many that none stays in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from bench.timing.machine import ALIGNMENT, Machine, NDArray
from gpucast.arrays.bitpacking import pack_codes
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType
from gpucast.parity.cases import NUMERIC

#: Elements that are generated once per source type and repeated to the required length.
BLOCK = 1 << 20
#: The share of the free memory that the arrays of one cast may take.
MEMORY_SHARE = 0.4
#: Sets of arrays together have so many times the size of the cache, but there are no more than MOST_SETS: enough for
#: 2^14 elements of 6 bytes beside a cache of 100 MB.
CACHES, MOST_SETS = 4, 1 << 12


@dataclass(frozen=True)
class Layout:
    """The layout of the elements in memory. The destination is contiguous and has the shape of the source's view."""

    name: str
    kind: Literal["flat", "strided", "transposed"] = "flat"
    #: The offset of a side from an aligned address, in elements (for types below one byte in bytes).
    src_shift: int = 0
    dst_shift: int = 0

    def applies(self, src: DType, n: int) -> bool:
        """Whether n elements of a type can have this layout. Packed arrays have no strides."""
        if self.kind == "flat":
            return True
        return not src.packed and (self.kind == "strided" or (n >= 4 and n & (n - 1) == 0))

    def held(self, n: int) -> int:
        """The source elements in memory, n of which are cast."""
        return 2 * n if self.kind == "strided" else n

    def shape(self, n: int) -> tuple[int, ...]:
        rows = 1 << (n.bit_length() - 1) // 2
        return (n // rows, rows) if self.kind == "transposed" else (n,)

    def view(self, flat: Any) -> Any:
        """A view of the elements of a flat array (of any library) that are cast, in their order."""
        if self.kind == "strided":
            return flat[::2]
        if self.kind == "transposed":
            return flat.reshape(*reversed(self.shape(flat.shape[0]))).T
        return flat

    def places(self, elements: NDArray, n: int) -> NDArray:
        """The indices in the flat array of elements given by their row-major indices in the view."""
        if self.kind == "strided":
            return 2 * elements
        if self.kind == "transposed":
            columns, rows = self.shape(n)
            return np.asarray(elements % rows * columns + elements // rows)
        return elements


CONTIGUOUS = Layout("contiguous")
LAYOUTS = {
    layout.name: layout
    for layout in (
        CONTIGUOUS,
        Layout("source off by one", src_shift=1),
        Layout("destination off by one", dst_shift=1),
        Layout("both off by one", src_shift=1, dst_shift=1),
        Layout("strided", "strided"),
        Layout("transposed", "transposed"),
    )
}


@lru_cache(maxsize=len(NUMERIC))
def source_codes(dtype: DType) -> NDArray:
    """BLOCK codes of a type, one element each: floats distributed like weights, 1 % random codes; random integers."""
    rng = np.random.default_rng([19, dtype.number or 0])
    if dtype.family == "bool":
        return np.asarray(rng.integers(0, 2, BLOCK, dtype=dtype.code_numpy))
    codes = np.asarray(rng.integers(0, 1 << dtype.bits, BLOCK, dtype=dtype.code_numpy))
    if dtype.family == "float" and dtype.bits > 8:
        usual = (50 * rng.standard_normal(BLOCK)).astype(dtype.numpy).view(dtype.code_numpy)
        codes = np.asarray(np.where(rng.random(BLOCK) < 0.01, codes, usual))
    return codes


def raw(codes: NDArray, dtype: DType) -> NDArray:
    """Codes as the bytes of ONNX raw_data."""
    return np.asarray(pack_codes(codes, dtype.bits)) if dtype.packed else codes.view(np.uint8)


def as_array(data: Any, dtype: DType, n: int) -> Any:
    """Bytes as the array that `gpucast.cast` takes."""
    return PackedArray(data, dtype, (n,)) if dtype.packed else data.view(dtype.numpy)


@dataclass(frozen=True)
class Sets:
    """Sets of one source and one destination each, as bytes; all sources repeat the same codes."""

    src: DType
    dst: DType
    n: int
    layout: Layout
    sources: tuple[Any, ...]
    outs: tuple[Any, ...]
    #: The codes that every source repeats.
    codes: NDArray

    @property
    def moved(self) -> float:
        """Bytes that a cast reads and writes: those of its elements, at bits / 8 each."""
        return self.n * (self.src.bits + self.dst.bits) / 8

    def source_arrays(self) -> list[Any]:
        """For `gpucast.cast`: the views of the layout."""
        held = self.layout.held(self.n)
        return [self.layout.view(as_array(data, self.src, held)) for data in self.sources]

    def out_arrays(self) -> list[Any]:
        shape = self.layout.shape(self.n)
        return [as_array(data, self.dst, self.n).reshape(shape) for data in self.outs]

    def taken(self, elements: NDArray) -> NDArray:
        """The source codes of the elements with these indices."""
        return np.asarray(self.codes[self.layout.places(elements, self.n) % self.codes.size])


def rotation(machine: Machine, each: int) -> int:
    """How many sets of `each` bytes to rotate through, so that none is in the cache when its turn comes again."""
    return min(max(2, -(-CACHES * machine.cache_bytes // each)), MOST_SETS)


def make_sets(machine: Machine, src: DType, dst: DType, n: int, layout: Layout = CONTIGUOUS) -> Sets:
    """Sets with CACHES times the size of the cache, at most MOST_SETS. MemoryError where they do not fit."""
    each = src.nbytes(layout.held(n)) + dst.nbytes(n)
    free = int(MEMORY_SHARE * machine.free_bytes())
    wanted = rotation(machine, each)
    if wanted * each > free:
        # Fewer sets will do if they are larger than the cache.
        wanted = free // each
        if wanted * each < CACHES * machine.cache_bytes:
            raise MemoryError(f"{each:,} bytes for each of {max(wanted, 1)} sets, but {free:,} may be used")
    return sets_of(machine, src, dst, n, layout, source_codes(src), wanted)


def sets_of(machine: Machine, src: DType, dst: DType, n: int, layout: Layout, codes: NDArray, count: int) -> Sets:
    """`count` sets whose sources repeat `codes`, a whole number of bytes of them."""
    sources = tuple(_arena(machine, src, layout.held(n), layout.src_shift, count))
    outs = tuple(_arena(machine, dst, n, layout.dst_shift, count))
    repeat(machine, sources[0], raw(codes[: -(-layout.held(n) // 8) * 8], src))
    for other in sources[1:]:
        machine.copy(other, sources[0])
    for out in outs:
        # So that no element of the result is right by chance.
        machine.fill(out, 0xA5)
    return Sets(src, dst, n, layout, sources, outs, codes)


def _arena(machine: Machine, dtype: DType, n: int, shift: int, count: int) -> Iterator[Any]:
    nbytes, offset = dtype.nbytes(n), shift * dtype.code_numpy.itemsize
    step = -(-(nbytes + offset) // ALIGNMENT) * ALIGNMENT
    arena = machine.empty(step * count)
    for i in range(count):
        yield arena[i * step + offset : i * step + offset + nbytes]


def repeat(machine: Machine, into: Any, data: NDArray) -> None:
    """Fill an array with bytes, again and again."""
    filled = min(data.size, into.nbytes)
    machine.upload(into[:filled], data[:filled])
    while filled < into.nbytes:
        more = min(filled, into.nbytes - filled)
        machine.copy(into[filled : filled + more], into[:more])
        filled += more
