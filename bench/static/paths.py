# SPDX-License-Identifier: Apache-2.0
"""Finds the path of a thread through a kernel when it casts a full aligned tile, and counts its instructions.

It considers all paths from the entry to an exit that enter no block twice. The path of a full aligned tile

* stores exactly the bytes of the tile;
* has no block with a marker, the instruction PMTRIG (``ptx::mark_rare`` in the source, where GPUCAST_MARK_RARE is set:
  it counts an event for profilers and does nothing else). A kernel marks what it does for uncommon values only;
* has no loop, unless all have one;
* loads as many bytes, or as few more as any: those of a table;
* stores with the widest instructions that any such path has, then loads with the widest.

Paths with the same accesses differ where the code branches on data. The longest of them counts. Of a loop the path has
one turn; `bench.static.kernels` says how many there are. Instructions whose guard is false count too, because they take
an issue slot all the same. Of accesses with opposite guards a path has only one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bench.static.sass import Access, Block, Instruction, UnknownCode

WIDTHS = (1, 2, 4, 8, 16, 32)
#: The accesses of one path: how many of every width, for loads and for stores.
Accesses = tuple[tuple[int, ...], tuple[int, ...]]
_NONE: Accesses = ((0,) * len(WIDTHS), (0,) * len(WIDTHS))
#: The limit of distinct paths, more than any reasonable kernel has.
_LIMIT = 20_000
#: The bytes that a thread may load beside its elements, such as a table.
_TABLES = 1024
#: The bytes of the accesses that are told apart where there are too many paths.
_WIDE = 16


@dataclass(frozen=True)
class Path:
    """The path of a full aligned tile."""

    #: The indices of its blocks, in order, on the longest path with these accesses.
    blocks: tuple[int, ...]
    instructions: int
    #: Global accesses per thread: width in bytes -> how many.
    loads: dict[int, int]
    stores: dict[int, int]


class _Tail(NamedTuple):
    """The longest path from a block to an exit: its instructions, and the next block with the accesses from there."""

    length: int
    onward: tuple[int, Accesses] | None


#: The longest path from a block, for all accesses that its paths have.
_Table = dict[Accesses, _Tail]


def full_tile(blocks: list[Block], load_bytes: int = 0, store_bytes: int | Sequence[int] = ()) -> Path:
    """The path of a tile of so many bytes on either side; without these, the path with the most and widest accesses.

    `store_bytes`: several numbers if any of these will do, the best one first. If no path has exactly so many, it is a
    loop's: the path with the most accesses of which a whole number makes the tile, or else the one with the most of
    all: compare them with its `loads` and `stores`.
    UnknownCode for a kernel that never ends, and for one with too many paths.
    """
    wanted = [store_bytes] if isinstance(store_bytes, int) else list(store_bytes)
    # What a path without loops loads is the tile, also where the compiler leaves out bytes that do not count.
    for without, loaded in (
        [(loops(blocks) | marked(blocks), min(load_bytes, 1)), (marked(blocks), load_bytes)] if wanted else []
    ):
        tables = _tables(blocks, without, most=(max(wanted), 4 * load_bytes + _TABLES))
        found = [one for one in tables[0] if bytes_of(one[0]) >= loaded]
        for total in wanted:
            exact = [one for one in found if bytes_of(one[1]) == total]
            if exact:
                least = min(abs(bytes_of(one[0]) - load_bytes) for one in exact)
                return _path(tables, [one for one in exact if abs(bytes_of(one[0]) - load_bytes) == least])
    tables = _tables(blocks, marked(blocks))
    if not tables[0]:
        tables = _tables(blocks, ())
    if not tables[0]:
        raise UnknownCode("sass: no way leads to an exit")
    sides = (load_bytes, 0), (wanted[0] if wanted else 0, 1)
    parts = [one for one in tables[0] if all(_divides(bytes_of(one[side]), total) for total, side in sides)]
    return _path(tables, parts or list(tables[0]))


def _divides(part: int, total: int) -> bool:
    return total == 0 or (part > 0 and total % part == 0)


def by_wide_accesses(blocks: list[Block], load_bytes: int, store_bytes: int) -> Path:
    """The path of a tile for a kernel with too many paths: only accesses of 16 bytes and more are told apart. The
    longest one, or where all have loops, the shortest one."""
    without = loops(blocks) | marked(blocks)
    tables = _tables(blocks, without, wide=True)
    if not any(map(any, tables[0])):
        without = marked(blocks)
        tables = _tables(blocks, without, wide=True, longest=False)
    wanted = load_bytes // _WIDE * _WIDE, store_bytes // _WIDE * _WIDE
    least = min(
        tables[0],
        key=lambda one: sum(abs(bytes_of(side) - total) for side, total in zip(one, wanted, strict=True)),
    )
    path = list(_follow(tables, least))
    total = _NONE
    for number in path:
        total = _sum(total, max(_accesses(blocks[number].instructions), key=_rank))
    loads, stores = map(_counts, total)
    return Path(tuple(path), tables[0][least].length, loads, stores)


def _path(tables: list[_Table], found: Sequence[Accesses]) -> Path:
    """The path with the widest accesses."""
    accesses = max(found, key=_rank)
    path = list(_follow(tables, accesses))
    loads, stores = map(_counts, accesses)
    return Path(tuple(path), tables[0][accesses].length, loads, stores)


def _counts(of: tuple[int, ...]) -> dict[int, int]:
    return {width: count for width, count in zip(WIDTHS, of, strict=True) if count}


def bytes_of(counts: Iterable[int]) -> int:
    """The bytes of accesses in the order of `WIDTHS`."""
    return sum(width * count for width, count in zip(WIDTHS, counts, strict=True))


def _rank(accesses: Accesses) -> tuple[int, ...]:
    """Stores first, then loads: 16 bytes at once before twice 8."""
    loads, stores = (sum(w * w * n for w, n in zip(WIDTHS, counts, strict=True)) for counts in accesses)
    return stores, loads


def _follow(tables: list[_Table], accesses: Accesses) -> Iterable[int]:
    place: tuple[int, Accesses] | None = (0, accesses)
    while place is not None:
        yield place[0]
        place = tables[place[0]][place[1]].onward


def _tables(
    blocks: list[Block],
    without: Collection[int],
    *,
    most: tuple[int, int] | None = None,
    wide: bool = False,
    longest: bool = True,
) -> list[_Table]:
    """For every block the longest (or shortest) paths from its first instruction to an exit, one for each sum of
    accesses. `most`: only those that store and load no more bytes. `wide`: narrow accesses do not count."""
    order = _order(blocks)
    rank = {number: place for place, number in enumerate(order)}
    tables: list[_Table] = [{} for _ in blocks]
    for number in order:
        if number in without:
            continue
        block, table = blocks[number], tables[number]
        # A successor that comes later in this order closes a loop.
        following = [other for other in block.successors if rank[other] < rank[number]]
        rests = [(of, _Tail(tail.length, (other, of))) for other in following for of, tail in tables[other].items()]
        for leaves, tails in ((True, [(_NONE, _Tail(0, None))] if block.exits else []), (False, rests)):
            own = _accesses(block.instructions, leaves)
            for accesses in set(map(_wide, own)) if wide else own:
                for rest, tail in tails:
                    both, length = _sum(accesses, rest), len(block.instructions) + tail.length
                    if most is not None and (bytes_of(both[1]) > most[0] or bytes_of(both[0]) > most[1]):
                        continue
                    if both not in table or (length > table[both].length) == longest:
                        table[both] = _Tail(length, tail.onward)
        if len(table) > _LIMIT:
            raise UnknownCode(f"sass: more than {_LIMIT} ways lead through the kernel")
    return tables


def _wide(accesses: Accesses) -> Accesses:
    loads, stores = (
        tuple(count if width >= _WIDE else 0 for width, count in zip(WIDTHS, side, strict=True)) for side in accesses
    )
    return loads, stores


# The same few sums are asked for again and again.
@lru_cache(maxsize=1 << 16)
def _sum(one: Accesses, other: Accesses) -> Accesses:
    loads, stores = (tuple(a + b for a, b in zip(*sides, strict=True)) for sides in zip(one, other, strict=True))
    return loads, stores


def _accesses(instructions: list[Instruction], leaves: bool | None = None) -> set[Accesses]:
    """The possible global accesses of a block, for each value of the predicates that guard some of them. `leaves`: only
    those with which a thread takes, or does not take, an exit under a condition at its end."""
    version: dict[str, int] = {}
    always = _NONE
    guarded: dict[tuple[str, int], dict[bool, Accesses]] = {}
    for instruction in instructions:
        access = instruction.access
        if access is not None and access.space == "global":
            guard = instruction.guard.lstrip("!")
            if guard in ("", "PT", "UPT"):
                always = _sum(always, _one(access))
            else:
                sides = guarded.setdefault((guard, version.get(guard, 0)), {True: _NONE, False: _NONE})
                side = not instruction.guard.startswith("!")
                sides[side] = _sum(sides[side], _one(access))
        for predicate in instruction.sets():
            version[predicate] = version.get(predicate, 0) + 1
    last, found = instructions[-1], {always}
    if leaves is not None and last.base == "EXIT":
        guard = last.guard.lstrip("!")
        sides = guarded.pop((guard, version.get(guard, 0)), {True: _NONE, False: _NONE})
        found = {_sum(always, sides[leaves != last.guard.startswith("!")])}
    for sides in guarded.values():
        found = {_sum(some, side) for some in found for side in sides.values()}
    return found


def _one(access: Access) -> Accesses:
    counts = tuple(int(width == access.width) for width in WIDTHS)
    return (_NONE[0], counts) if access.store else (counts, _NONE[1])


def marked(blocks: list[Block]) -> set[int]:
    """The blocks of rare values."""
    return {number for number, block in enumerate(blocks) if any(one.base == "PMTRIG" for one in block.instructions)}


def loops(blocks: list[Block]) -> set[int]:
    """The blocks that a thread may enter again."""
    return {number for number, reached in enumerate(reach(blocks)) if number in reached}


def _order(blocks: list[Block]) -> list[int]:
    """The blocks in depth-first post-order: successors come before a block, except in loops."""
    order: list[int] = []
    entered = {0}
    stack = [(0, iter(blocks[0].successors))]
    while stack:
        number, successors = stack[-1]
        for other in successors:
            if other not in entered:
                entered.add(other)
                stack.append((other, iter(blocks[other].successors)))
                break
        else:
            order.append(number)
            stack.pop()
    return order


def reach(blocks: list[Block]) -> list[set[int]]:
    """For every block those that are reachable from it."""
    found = []
    for block in blocks:
        seen, todo = set[int](), list(block.successors)
        while todo:
            number = todo.pop()
            if number not in seen:
                seen.add(number)
                todo += blocks[number].successors
        found.append(seen)
    return found
