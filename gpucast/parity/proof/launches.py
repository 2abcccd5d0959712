# SPDX-License-Identifier: Apache-2.0
"""Launches of one kernel on unknown input, and the element that each of them writes where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucast.codegen.cast import KernelSource, square_side
from gpucast.codegen.fused import FusedArguments
from gpucast.codegen.strides import Dims, squares
from gpucast.core.rule import STOCHASTIC
from gpucast.parity.cases import RANDOM
from gpucast.parity.proof import terms as t
from gpucast.parity.proof.machine import Fault, Machine, Memory
from gpucast.parity.proof.ptx import Kernel
from gpucast.parity.proof.terms import Term, const, var

#: Where the arrays begin, before a launch's offsets: multiples of all that a kernel may align to.
_SOURCE, _RESULT = 0x7000_0000_0000, 0x7100_0000_0000
#: The widest access: every alignment is one in so many bytes.
_VECTOR = 16
#: Where the seed of random rounding lies in a `gpucast.codegen.fused.FusedArguments`.
_SEED = 32


@dataclass(frozen=True)
class Launch:
    """A launch of `n` elements: how far behind an aligned address its arrays begin, in bytes, and a packed source in
    its first byte, in bits. `threads` are those to run, as (block, number); None: all that have elements in a launch of
    few elements, and those next to them."""

    n: int
    src: int = 0
    src_bit: int = 0
    dst: int = 0
    threads: tuple[tuple[int, int], ...] | None = None
    #: The dimensions, for a kernel that is not contiguous, and the elements that its grid is made for.
    dims: Dims | None = None
    grid: int | None = None
    #: The bytes of the argument `KernelSource.more`; `random`: its seed is unknown, its offset this one.
    more: bytes | None = None
    random: int | None = None

    def __str__(self) -> str:
        some = "" if self.threads is None else f", threads {', '.join(map(str, self.threads))}"
        some += "" if self.dims is None else f", {self.dims}"
        return f"n={self.n}, src+{self.src}.{self.src_bit}, dst+{self.dst}{some}"


@dataclass
class Outcome:
    """`elements`: the codes written, by index. `pads`: what the last byte holds above the last element. `table`: shared
    memory. `executed`: instructions, by number."""

    elements: dict[int, Term] = field(default_factory=dict)
    pads: list[Term] = field(default_factory=list)
    table: dict[int, Term] = field(default_factory=dict)
    executed: set[int] = field(default_factory=set)


def _bytes(term: Term) -> list[Term]:
    return [t.part(term, low, 8) for low in range(0, term.width, 8)]


def seed() -> Term:
    """The unknown seed of random rounding."""
    return var("seed", 64)


def element(index: int, width: int) -> Term:
    """The unknown source element of an index."""
    return var(f"x{index}", width)


def full_tile(source: KernelSource, threads: Iterable[int]) -> Launch:
    """Some threads of the second of three blocks, all of whose elements are in the arrays."""
    n = 3 * source.elements * source.threads
    return _with_random(source, Launch(n, threads=tuple((1, number) for number in threads)))


def edges(source: KernelSource) -> Iterator[Launch]:
    """Launches of a contiguous kernel that begin and end in the middle of tiles, with a source at every alignment and,
    if it is packed, every bit, a result at every alignment, and every count of elements in the last tile; and of so few
    elements that both ends are in one tile. Every alignment meets another one of the other side, and another end."""
    tile, src_bits = source.tile, source.src_bits
    bits = range(0, 8, 2 if src_bits < 8 else 8)
    # Loads that are not aligned keep this far from the ends of the array.
    margin = 2 * _VECTOR * 8 // src_bits + 2
    for number in range(max(_VECTOR * len(bits), tile)):
        src, bit, dst = (
            number % _VECTOR,
            bits[number // _VECTOR % len(bits)],
            (5 * number + number // _VECTOR) % _VECTOR,
        )
        yield _with_random(source, Launch(margin + 2 * tile + 3 * number % tile, src, bit, dst))
    for number in range(1, tile + 2):
        yield _with_random(source, Launch(number, 7 * number % _VECTOR, bits[number % len(bits)], 3 * number % _VECTOR))
    # Every tile of a thread, and several blocks; the last one ends early.
    block = source.elements * source.threads
    for src, dst in ((0, 0), (0, 3), (1, 0)):
        ends = tuple((number, thread) for number in range(3) for thread in (0, 1, source.threads - 1))
        yield _with_random(source, Launch(2 * block + block // 2 - 1, src, bits[-1], dst, ends))


def strided(source: KernelSource) -> Iterator[Launch]:
    """Launches of a strided or a transposed kernel at listed shapes: rows with gaps, a permutation, both sides
    backwards, elements that are not aligned, and squares that are not full. A packed side is a stream, at every bit."""
    src, dst = (max(bits // 8, 1) for bits in (source.src_bits, source.rule.dst.bits))
    if source.shape == "transposed":
        side = square_side(source.src_bits, source.rule.dst.bits)
        for rows, columns in ((side, side), (side // 4 + 1, side + side // 4)):
            count = rows * columns
            dims = Dims((2, rows, columns), (src * count, src, src * rows), (dst * count, dst * columns, dst))
            found = squares(dims, src, dst, side)
            assert found is not None
            yield Launch(2 * count, dims=found[0], grid=found[1], more=found[0].to_bytes())
        return
    shapes = [
        Dims((5, 7), (9 * src, src), (8 * dst, dst)),
        Dims((3, 4, 5), (src, 3 * src, 12 * src), (20 * dst, 5 * dst, dst)),
        Dims((4, 9), (-10 * src, -src), (-9 * dst, dst)),
        Dims((11,), (src + 1,), (dst + 1,)),
        Dims((1,), (src,), (dst,)),
    ]
    for number, dims in enumerate(shapes):
        bit = 2 * number % 8 if source.src_bits < 8 else 0
        launch = _with_random(source, Launch(math.prod(dims.lengths), number, bit, 3 * number % _VECTOR, dims=dims))
        given = FusedArguments(offset=RANDOM.offset, dims=dims) if launch.random is not None else dims
        yield replace(launch, more=given.to_bytes())


def _with_random(source: KernelSource, launch: Launch) -> Launch:
    if source.rule.rounding != STOCHASTIC:
        return launch
    return replace(launch, more=FusedArguments(offset=RANDOM.offset).to_bytes(), random=RANDOM.offset)


def run(source: KernelSource, kernel: Kernel, launch: Launch, table: Mapping[int, Term] | None = None) -> Outcome:
    """Execute a launch. `table`: what the threads of another launch have put in shared memory, so that here only those
       with elements run.
    Fault where it leaves its arrays, or writes a byte twice or, with all threads, not at all."""
    n, src_bits, dst = launch.n, source.src_bits, source.rule.dst
    src_base, dst_base = _SOURCE + launch.src, _RESULT + launch.dst
    memory = Memory(
        source=range(src_base, src_base + (launch.src_bit + n * src_bits + 7) // 8),
        element=lambda byte: _source_byte(byte, launch, src_bits),
        writable=range(dst_base, dst_base + dst.nbytes(n)),
    )
    places = None
    if launch.dims is not None and src_bits >= 8:
        memory.source = range(0)
        for index, at in enumerate(_offsets(launch.dims.lengths, launch.dims.src)):
            memory.known.update(enumerate(_bytes(element(index, src_bits)), src_base + at))
    if launch.dims is not None and dst.bits >= 8:
        places = [dst_base + at for at in _offsets(launch.dims.lengths, launch.dims.dst)]
        memory.writable = frozenset(at + byte for at in places for byte in range(dst.bits // 8))
    numbers = ((src_base, 64), (launch.src_bit, 32), (dst_base, 64), (n, 64))
    params = [_bytes(const(*number)) for number in numbers]
    if launch.more is not None:
        params.append([const(byte, 8) for byte in launch.more])
    if launch.random is not None:
        params[-1][_SEED : _SEED + 8] = _bytes(seed())
    machine = Machine(kernel, memory, params)
    memory.known.update(table or {})
    asked = launch.threads
    if asked is None and launch.grid is not None:
        blocks = range(source.blocks(launch.grid))
        asked = tuple((block, number) for block in blocks for number in range(source.threads))
    elif asked is None:
        busy = min(n // source.tile + 3, source.threads)
        asked = tuple((0, number) for number in (*range(busy), *range(busy, source.threads)[-1:]))
    for block in sorted({block for block, _ in asked}):
        chosen = {number for where, number in asked if where == block}
        if not table:
            memory.empty()
        _run_block(machine, block, chosen, chosen if table else set(range(source.threads)))
    if launch.threads is None and len(memory.written) != len(memory.writable):
        missing = next(byte for byte in memory.writable if byte not in memory.written)
        raise Fault(f"the byte {missing - dst_base} of the result is not written")
    if places is None:
        found = _outcome(memory, dst_base, dst.bits, n)
    else:
        size = dst.bits // 8
        found = Outcome({i: t.join(memory.written[at + byte] for byte in range(size)) for i, at in enumerate(places)})
    found.executed = machine.executed
    if launch.threads is not None and launch.dst == 0:
        block, width = source.elements * source.threads, source.tile * source.threads
        begins = (number * block + thread * source.tile for number, thread in asked)
        tiles = (begin + place for begin in begins for place in range(0, block, width))
        if set(found.elements) != {i for tile in tiles for i in range(tile, min(tile + source.tile, n))}:
            raise Fault("threads do not write their own elements")
    found.table = {byte: memory.known[byte] for byte in memory.shared if byte in memory.known}
    return found


def _offsets(lengths: Sequence[int], strides: Sequence[int]) -> Iterator[int]:
    """Where the elements lie, in row-major order."""
    for index in itertools.product(*map(range, lengths)):
        yield sum(place * stride for place, stride in zip(index, strides, strict=True))


def _run_block(machine: Machine, block: int, chosen: set[int], every: set[int]) -> None:
    """Run the chosen threads to their end, and where there is a barrier every one up to it."""
    if not machine.kernel.shared:
        for number in sorted(chosen):
            for _ in machine.thread(block, number):
                pass
        return
    threads = {number: machine.thread(block, number) for number in sorted(every)}
    ends = {number for number, thread in threads.items() if next(thread, thread) is thread}
    if ends and ends != every:
        raise Fault("a barrier that not all threads reach")
    # Before the barrier the table is filled; behind it only the chosen ones are needed, for there is no second one.
    for number in sorted(chosen - ends):
        if next(threads[number], threads[number]) is not threads[number]:
            raise Fault("a second barrier")


def _source_byte(byte: int, launch: Launch, bits: int) -> Term:
    parts, at, end = [], 8 * byte, 8 * byte + 8
    while at < end:
        index, low = divmod(at - launch.src_bit, bits)
        if 0 <= index < launch.n:
            size = min(bits - low, end - at)
            parts.append(t.part(element(index, bits), low, size))
        else:  # Bits of no element of the array.
            limit = launch.src_bit if at < launch.src_bit else end
            size = min(limit, end) - at
            parts.append(var(f"other{at}", size))
        at += size
    return t.join(parts)


def _outcome(memory: Memory, base: int, bits: int, n: int) -> Outcome:
    found = Outcome()
    unit = max(bits, 8) if bits in (2, 4) or bits >= 8 else 24
    for begin in sorted({(byte - base) * 8 // unit for byte in memory.written}):
        first = begin * unit // 8
        data = [memory.written.get(base + first + i) for i in range(unit // 8)]
        if all(byte is None for byte in data):
            continue
        word = t.join(const(0, 8) if byte is None else byte for byte in data)
        for place in range(unit // bits):
            index = begin * unit // bits + place
            touched = data[place * bits // 8 : (place * bits + bits + 7) // 8]
            if index < n:
                if None not in touched:
                    found.elements[index] = t.part(word, place * bits, bits)
            elif touched[0] is not None:
                found.pads.append(t.part(word, place * bits, bits))
    return found
