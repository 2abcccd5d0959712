# SPDX-License-Identifier: Apache-2.0
"""Launches of one kernel on unknown input, and the elements that each launch writes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule
from gpucast.kernel.batch_kernel import Batch, Kind, batch_kernel
from gpucast.kernel.cast_kernel import Shape, square_sides
from gpucast.kernel.fused_kernel import FUSED, PLAIN, FusedOps, cast_kernel
from gpucast.kernel.kernel import Kernel as Compiled
from gpucast.kernel.strides import Dims, squares
from gpucast.parity.cases import RANDOM
from tests.proof import terms as t
from tests.proof.machine import Fault, Machine, Memory, Unknown
from tests.proof.ptx import Kernel
from tests.proof.terms import Term, const, var

#: Where the arrays begin, before a launch's offsets: multiples of every alignment that a kernel may use.
_SOURCE, _RESULT = 0x7000_0000_0000, 0x7100_0000_0000
#: A thread of the second half of its block's first warp.
_THREAD = 21
#: The widest access before sm_100: every alignment is one in so many bytes.
_VECTOR = 16
#: From an array of a launch of many to the next one.
_SLOT = 1 << 24
#: Where the single numbers of a fused kernel are, and what is there: a FLOAT or a DOUBLE to multiply with, the largest
#: magnitude so far, a byte that says whether all was finite.
NARROW, WIDE, AMAX, FINITE = range(0x7200_0000_0000, 0x7200_0000_0400, 0x100)
_CELLS = {NARROW: 32, WIDE: 64, AMAX: 32, FINITE: 8}
#: Where the seed of random rounding lies in `FUSED`.
_SEED = FUSED.offsets["random"]


class Subject(NamedTuple):
    """A kernel to prove, and the cast of one array that it should do."""

    kernel: Compiled
    rule: CastRule
    shape: Shape = "contiguous"
    unpacked: bool = False

    @classmethod
    def of(cls, rule: CastRule, shape: Shape = "contiguous", unpacked: bool = False, ops: FusedOps = PLAIN) -> Subject:
        return cls(cast_kernel(rule, shape, unpacked, ops), rule, shape, unpacked and rule.src.packed)

    @property
    def src_bits(self) -> int:
        """Bits of a source element in memory."""
        return 8 if self.unpacked else self.rule.src.bits


class BatchSubject(NamedTuple):
    """A kernel of many arrays to prove, and its casts."""

    batch: Batch
    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, kinds: tuple[Kind, ...], argument_bytes: int) -> BatchSubject:
        return cls(batch_kernel(kinds, argument_bytes), kinds)

    @property
    def kernel(self) -> Compiled:
        return self.batch.kernel


class Given(NamedTuple):
    """What a fused kernel is given; zeros for operations that are not wanted."""

    scale_at: int = 0
    amax: int = 0
    finite: int = 0
    offset: int = 0

    def packed(self) -> bytes:
        at, amax, finite, offset = self
        return FUSED.fill(scale=1.0, scale_at=at, amax=amax, finite=finite, random=(0, offset))


@dataclass(frozen=True)
class Launch:
    """A launch over `n` elements.

    The offsets say how many bytes its arrays begin after an aligned address, and at which bit of its first byte a
    packed source begins. `threads` lists the threads to run as (block, number). None runs all that have elements, and
    in a short launch their neighbours too.
    """

    n: int
    src: int = 0
    src_bit: int = 0
    dst: int = 0
    threads: tuple[tuple[int, int], ...] | None = None
    #: The dimensions, for a kernel that is not contiguous, and the elements that its grid is made for.
    dims: Dims | None = None
    grid: int | None = None
    #: The last argument of a fused kernel. Its seed is unknown, and so is what is at its addresses: `NARROW` or `WIDE`
    #: for the scale, `AMAX` and `FINITE`.
    given: Given | None = None
    #: The last argument of a kernel that is no cast.
    more: bytes = b""
    #: The number of the first element among those of all arrays.
    first: int = 0

    def __str__(self) -> str:
        some = "" if self.threads is None else f", threads {', '.join(map(str, self.threads[:9]))}"
        some += "" if self.dims is None else f", {self.dims}"
        return f"n={self.n}, src+{self.src}.{self.src_bit}, dst+{self.dst}{some}"


@dataclass
class Part:
    """What one thread did to one array of a launch, by the kernel of that array's cast. `elements` holds the codes that
    it wrote, by index. `pads` holds the bits above the last element of a packed array. `observed` is its contribution
    to the maximum of its warp; `cells` is what it leaves at `AMAX` and `FINITE`.
    """

    source: Subject
    launch: Launch
    elements: dict[int, Term] = field(default_factory=dict)
    pads: list[Term] = field(default_factory=list)
    lane: int = 0
    observed: Term | None = None
    cells: dict[int, Term] = field(default_factory=dict)


@dataclass
class Outcome:
    """The result of a launch. `table` is the shared memory; `executed` has the numbers of the instructions that ran."""

    parts: list[Part]
    table: dict[int, Term]
    executed: set[int]


def _bytes(term: Term) -> list[Term]:
    return [t.part(term, low, 8) for low in range(0, term.width, 8)]


def seed() -> Term:
    """The unknown seed of random rounding."""
    return var("seed", 64)


def element(index: int, width: int) -> Term:
    """The unknown source element at an index."""
    return var(f"x{index}", width)


def cell(at: int) -> Term:
    """The unknown value at `NARROW`, `WIDE`, `AMAX` or `FINITE` before the launch."""
    return var(f"cell{at - NARROW:x}", _CELLS[at])


def is_cell(unknown: Term) -> bool:
    return any(unknown is cell(at) for at in _CELLS)


def full_tile(source: Subject, threads: Iterable[int] = (_THREAD,)) -> Launch:
    """Some threads of the second of three blocks, so that all their elements lie within the arrays."""
    n = 3 * source.kernel.elements * source.kernel.threads
    return _with_random(source, Launch(n, threads=tuple((1, number) for number in threads)))


def edges(source: Subject, widest: int = _VECTOR) -> Iterator[Launch]:
    """Launches of a contiguous kernel that begin and end inside a tile. `widest` is how many bytes an access may have
    where a tile has whole ones of them: every alignment is one in so many bytes, else one in 16.

    They cover a source at every alignment (for a packed source, at every bit), a result at every alignment, and every
    count of elements in the last tile. Some have so few elements that both ends lie in one tile. Each alignment of one
    side meets a different alignment and a different end on the other side.
    """
    tile, src_bits = source.kernel.tile, source.src_bits
    if tile * max(src_bits, source.rule.dst.bits) % (8 * widest):
        widest = _VECTOR
    bits = range(0, 8, 2 if src_bits < 8 else 8)
    # Loads that are not aligned keep this far from the ends of the array.
    margin = 2 * widest * 8 // src_bits + 2
    for number in range(max(widest, tile)):
        # All bits at each place in a word.
        src, bit, dst = number % widest, bits[number // 4 % len(bits)], (5 * number + number // widest) % widest
        yield _with_random(source, Launch(margin + 2 * tile + 3 * number % tile, src, bit, dst))
    for number in range(1, tile + 2):
        yield _with_random(source, Launch(number, 7 * number % widest, bits[number % len(bits)], 3 * number % widest))
    # Every tile of a thread, and several blocks; the last one ends early.
    block = source.kernel.elements * source.kernel.threads
    for src, dst in ((0, 0), (0, 3), (1, 0)):
        ends = tuple((number, thread) for number in range(3) for thread in (0, 1, source.kernel.threads - 1))
        yield _with_random(source, Launch(2 * block + block // 2 - 1, src, bits[-1], dst, ends))


def strided(source: Subject) -> Iterator[Launch]:
    """Launches of a strided or a transposed kernel for a list of shapes.

    The shapes have short and long rows with gaps, a permutation, reversed sides, misaligned elements, a dimension
    longer than a block, and partly filled squares. A packed side is a stream that begins at every bit.
    """
    src, dst = (max(bits // 8, 1) for bits in (source.src_bits, source.rule.dst.bits))
    if source.shape == "transposed":
        down, across = square_sides(source.src_bits, source.rule.dst.bits)
        # The second of two matrices, and one with squares that are not full.
        second = tuple((1, number) for number in range(source.kernel.threads))
        for many, rows, columns, some in ((2, down, across, second), (1, down // 4 + 1, across + across // 4, None)):
            count = rows * columns
            dims = Dims((many, rows, columns), (src * count, src, src * rows), (dst * count, dst * columns, dst))
            found = squares(dims, src, dst, (down, across))
            assert found is not None
            yield Launch(many * count, threads=some, dims=found[0], grid=found[1])
        return
    shapes = [
        Dims((5, 7), (9 * src, src), (8 * dst, dst)),
        Dims((3, 4, 5), (src, 3 * src, 12 * src), (20 * dst, 5 * dst, dst)),
        Dims((4, 9), (-10 * src, -src), (-9 * dst, dst)),
        Dims((3, 21), (24 * src, src), (21 * dst, dst)),
        Dims((11,), (src + 1,), (dst + 1,)),
        Dims((1,), (src,), (dst,)),
    ]
    for number, dims in enumerate(shapes):
        bit = 2 * number % 8 if source.src_bits < 8 else 0
        yield _with_random(source, Launch(math.prod(dims.lengths), number, bit, 3 * number % _VECTOR, dims=dims))
    n = source.kernel.elements * source.kernel.threads + 3
    some = ((0, 0), (0, _THREAD), (1, 0))
    yield _with_random(source, Launch(n, threads=some, dims=Dims((n,), (2 * src,), (3 * dst,))))


def fused(source: Subject, ops: FusedOps) -> Iterator[Launch]:
    """Launches of a contiguous kernel with fused operations: two threads in the middle, and both ends in one tile."""
    at = {"none": 0, "narrow": NARROW, "wide": WIDE}[ops.scaling]
    given = Given(scale_at=at, amax=AMAX * ops.amax, finite=FINITE * ops.finite)
    yield _with_random(source, replace(full_tile(source, [_THREAD, 31]), given=given))
    for n, src, dst in ((source.kernel.tile + 1, 0, 0), (source.kernel.tile, 1, 3), (1, 5, 1)):
        yield _with_random(source, Launch(n, src, 0, dst, given=given))


def tables(of: BatchSubject) -> Iterator[list[Launch]]:
    """Arrays, each for one block, for launches of many: one or two of each kind of the batch, and a full table."""
    kinds, tiles = len(of.kinds), of.batch.tiles
    for count in (kinds, 2 * kinds, of.batch.capacity):
        arrays: list[Launch] = []
        for number in range(count):
            n = 1 + 5 * number % (2 * int(tiles[number % kinds]))
            first = sum(array.n for array in arrays[-1:]) + (arrays[-1].first if arrays else 0)
            arrays.append(Launch(n, 3 * number % _VECTOR, 0, 7 * number % _VECTOR, first=first))
        yield arrays


def _with_random(source: Subject, launch: Launch) -> Launch:
    if source.rule.rounding != STOCHASTIC:
        return launch
    return replace(launch, given=(launch.given or Given())._replace(offset=RANDOM.offset))


class _Placed:
    """An array of a launch at its addresses."""

    def __init__(self, source: Subject, launch: Launch, slot: int = 0) -> None:
        self.source, self.launch = source, launch
        self.bits, self.dst, dims = source.src_bits, source.rule.dst, launch.dims
        self.at, self.to = _SOURCE + slot * _SLOT + launch.src, _RESULT + slot * _SLOT + launch.dst
        self.readable = range(self.at, self.at + (launch.src_bit + launch.n * self.bits + 7) // 8)
        self.writable: Collection[int] = range(self.to, self.to + self.dst.nbytes(launch.n))
        self.known: dict[int, Term] = {}
        self.places: list[int] | None = None
        if dims is not None and self.bits >= 8:
            self.readable = range(0)
            for index, at in enumerate(_offsets(dims.lengths, dims.src)):
                self.known.update(enumerate(_bytes(element(index, self.bits)), self.at + at))
        if dims is not None and self.dst.bits >= 8:
            self.places = [self.to + at for at in _offsets(dims.lengths, dims.dst)]
            self.writable = frozenset(at + byte for at in self.places for byte in range(self.dst.bits // 8))

    def byte(self, address: int) -> Term:
        """A byte of the source."""
        launch, bits, at = self.launch, self.bits, 8 * (address - self.at)
        parts, end = [], at + 8
        while at < end:
            index, low = divmod(at - launch.src_bit, bits)
            if 0 <= index < launch.n:
                size = min(bits - low, end - at)
                parts.append(t.part(element(launch.first + index, bits), low, size))
            else:  # Bits of no element of the array.
                limit = launch.src_bit if at < launch.src_bit else end
                size = min(limit, end) - at
                parts.append(var(f"other{launch.first}_{at}", size))
            at += size
        return t.join(parts)

    def part(self, written: Mapping[int, Term]) -> Part:
        """The part of the thread that wrote these bytes."""
        found, bits, first = Part(self.source, self.launch), self.dst.bits, self.launch.first
        if self.places is not None:
            for index, at in enumerate(self.places):
                if at in written:
                    found.elements[first + index] = t.join(written[at + byte] for byte in range(bits // 8))
            return found
        unit = max(bits, 8) if bits in (2, 4) or bits >= 8 else 24
        for begin in sorted({(byte - self.to) * 8 // unit for byte in written if byte in self.writable}):
            data = [written.get(self.to + begin * unit // 8 + i) for i in range(unit // 8)]
            word = t.join(const(0, 8) if byte is None else byte for byte in data)
            for place in range(unit // bits):
                index = begin * unit // bits + place
                touched = data[place * bits // 8 : (place * bits + bits + 7) // 8]
                if index < self.launch.n:
                    if None not in touched:
                        found.elements[first + index] = t.part(word, place * bits, bits)
                elif touched[0] is not None:
                    found.pads.append(t.part(word, place * bits, bits))
        return found


def run(source: Subject, kernel: Kernel, launch: Launch, table: Mapping[int, Term] | None = None) -> Outcome:
    """Execute a launch.

    `table` is the memory that another launch has filled; then only threads with elements run. Fault if the
    launch leaves its arrays or writes a byte twice, or if all threads together leave a byte unwritten.
    """
    placed = _Placed(source, launch)
    numbers = ((placed.at, 64), (launch.src_bit, 32), (placed.to, 64), (launch.n, 64))
    params = [_bytes(const(*number)) for number in numbers]
    if launch.given is not None:
        params.append(_constants(launch.given.packed() + (b"" if launch.dims is None else launch.dims.packed)))
        params[-1][_SEED : _SEED + 8] = _bytes(seed())
    elif launch.dims is not None or launch.more:
        params.append(_constants(launch.more if launch.dims is None else launch.dims.packed))
    asked, threads = launch.threads, source.kernel.threads
    if asked is None and launch.grid is not None:
        blocks = range(source.kernel.blocks(launch.grid))
        asked = tuple((block, number) for block in blocks for number in range(threads))
    found = _run(kernel, [placed], params, asked or _busy(0, source, launch, threads), threads, table)
    if launch.threads is not None and launch.dst == 0 and launch.dims is None and not launch.more:
        block, width = source.kernel.elements * threads, source.kernel.tile * threads
        begins = (number * block + thread * source.kernel.tile for number, thread in launch.threads)
        tiles = (begin + place for begin in begins for place in range(0, block, width))
        wanted = {i for tile in tiles for i in range(tile, min(tile + source.kernel.tile, launch.n))}
        if {index for part in found.parts for index in part.elements} != wanted:
            raise Fault("threads do not write their own elements")
    return found


def run_many(of: BatchSubject, kernel: Kernel, arrays: Sequence[Launch]) -> Outcome:
    """Execute a launch over many arrays, of a long table the first and the last. Unknown for fused casts."""
    if any(kind.ops.fuses(kind.rule) for kind in of.kinds):
        raise Unknown("proof: casts of many arrays with fused operations are unknown to the prover")
    kinds = [number % len(of.kinds) for number in range(len(arrays))]
    sources = [Subject.of(of.kinds[kind].rule, unpacked=of.kinds[kind].unpacked) for kind in kinds]
    placed = [_Placed(source, array, slot) for slot, (source, array) in enumerate(zip(sources, arrays, strict=True))]
    record, threads = np.zeros((), of.kernel.arguments.dtype), of.kernel.threads
    table = record["table"]
    table["first_block"] = (1 << 32) - 1
    columns = {"src": [one.at for one in placed], "dst": [one.to for one in placed], "kind": kinds}
    columns |= {"n": [array.n for array in arrays], "first_block": list(range(len(arrays)))}
    for name, values in columns.items():
        table[name][: len(arrays)] = values
    cast = sorted({*range(len(arrays))[:3], *range(len(arrays))[-2:]})
    asked = [thread for number in cast for thread in _busy(number, sources[number], arrays[number], threads)]
    found = _run(kernel, [placed[number] for number in cast], [_constants(record.tobytes())], asked, threads)
    return found


def _constants(data: bytes) -> list[Term]:
    return [const(byte, 8) for byte in data]


def _busy(block: int, source: Subject, launch: Launch, threads: int) -> list[tuple[int, int]]:
    """The threads of a short launch to run: those with elements, their neighbours, and the last one of the block."""
    busy = min(launch.n // source.kernel.tile + 3, threads)
    return [(block, number) for number in (*range(busy), *range(busy, threads)[-1:])]


def _run(
    kernel: Kernel,
    placed: Sequence[_Placed],
    params: Sequence[Sequence[Term]],
    asked: Sequence[tuple[int, int]],
    threads: int,
    table: Mapping[int, Term] | None = None,
) -> Outcome:
    memory = Memory([(one.readable, one.byte) for one in placed], [one.writable for one in placed])
    machine = Machine(kernel, memory, params)
    memory.cells = {at: cell(at) for at in _CELLS}
    for one in placed:
        memory.known.update(one.known)
    memory.known.update(table or {})
    found: list[Part] = []
    for block in sorted({block for block, _ in asked}):
        chosen = {number for where, number in asked if where == block}
        if not table:
            memory.empty()
        for number in _run_block(machine, block, chosen, chosen if table else set(range(threads))):
            for one in placed:
                found.append(one.part(memory.written))
                found[-1].lane, found[-1].observed, found[-1].cells = number % 32, machine.observed, memory.cells
    if all(one.launch.threads is None for one in placed):
        for one in placed:
            missing = next((byte for byte in one.writable if byte not in memory.done), None)
            if missing is not None:
                raise Fault(f"the byte {missing - one.to} of the result is not written")
    shared = {byte: memory.known[byte] for byte in memory.shared if byte in memory.known}
    return Outcome(found, shared, machine.executed)


def _offsets(lengths: Sequence[int], strides: Sequence[int]) -> Iterator[int]:
    """The offsets of the elements in row-major order."""
    for index in itertools.product(*map(range, lengths)):
        yield sum(place * stride for place, stride in zip(index, strides, strict=True))


def _run_block(machine: Machine, block: int, chosen: set[int], every: set[int]) -> Iterator[int]:
    """Run all threads to each barrier and the chosen ones to their end. Yields after each that has ended."""
    threads = {number: machine.thread(block, number) for number in sorted(every if machine.kernel.shared else chosen)}
    ended = set()
    for number, thread in threads.items():
        machine.begin()
        if next(thread, thread) is thread:
            ended.add(number)
            yield number
    if ended and len(ended) < len(threads):
        raise Fault("a barrier that not all threads reach")
    # Before the barrier the table is filled; behind it only the chosen ones are needed, for there is no second one.
    for number in sorted(chosen - ended):
        machine.begin()
        if next(threads[number], threads[number]) is not threads[number]:
            raise Fault("a second barrier")
        yield number
