# SPDX-License-Identifier: Apache-2.0
"""Which way a thread goes through a kernel when it casts a full aligned tile, and how many instructions that takes.

All ways from the entry to an exit are looked at that enter no block twice. Of these, a way of a full aligned tile

* stores exactly the bytes of the tile;
* has no block with a marker, the instruction PMTRIG (``asm volatile("pmevent 1;")`` in the source: it counts an event
  for profilers and does nothing else). A kernel marks what it does for uncommon values only. Such a way is *rare*;
* has no loop, unless all have one;
* loads as many bytes, or as few more as any: those of a table;
* stores with the widest instructions that any such way has, then loads with the widest.

Ways of the same accesses differ where the code branches on data. The longest of them counts. Where a way through the
same blocks of accesses has a loop, the count is worthless, and that is told. What takes no effect, because its guard is
false, counts as well: it takes a place in the pipe all the same. Of accesses with opposite guards a way has one or the
other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bench.sass import Access, Block, Instruction, UnknownCode

WIDTHS = (1, 2, 4, 8, 16, 32)
#: The accesses of one way: how many of every width, for loads and for stores.
Accesses = tuple[tuple[int, ...], tuple[int, ...]]
_NONE: Accesses = ((0,) * len(WIDTHS), (0,) * len(WIDTHS))
#: More kinds of ways than any sound kernel has.
_LIMIT = 20_000


@dataclass(frozen=True)
class Path:
    """The way of a full aligned tile."""

    #: Places of its blocks, in order: of the longest way with these accesses.
    blocks: tuple[int, ...]
    #: Instructions of that way, and of the shortest with the same accesses.
    instructions: int
    shortest: int
    #: Global accesses per thread: width in bytes -> how many.
    loads: dict[int, int]
    stores: dict[int, int]
    #: Whether it has a loop, of which one turn counts, or may go by one on its way, which does not count.
    loop: bool
    #: Instructions of the longest way that leaves this one behind its first load and comes by a marker, with one turn
    #: of each loop; None where there is none.
    rare: int | None


class _Way(NamedTuple):
    length: int
    #: The next block, and under which key the rest of the way is found there.
    onward: tuple[int, _Key] | None


class _Key(NamedTuple):
    accesses: Accesses
    loop: bool = False
    marked: bool = False


@dataclass
class _Ways:
    shortest: _Way
    longest: _Way


def full_tile(blocks: list[Block], load_bytes: int | None = None, store_bytes: int | None = None) -> Path:
    """The way of a tile of so many bytes on either side; without these, the way of the most and widest accesses.

    Where no way has exactly so many, the next best is taken: compare them with the path's `loads` and `stores`.
    UnknownCode for a kernel that never ends, and for one with too many ways.
    """
    tables = _tables(blocks)
    keys = list(tables[0])
    if not keys:
        raise UnknownCode("sass: no way leads to an exit")
    if store_bytes is not None:
        keys = [key for key in keys if bytes_of(key.accesses[1]) == store_bytes] or keys
        keys = [key for key in keys if not key.marked] or keys
        keys = [key for key in keys if not key.loop] or keys
    if load_bytes is not None:
        gap = {key: abs(bytes_of(key.accesses[0]) - load_bytes) for key in keys}
        least = min(gap.values())
        keys = [key for key in keys if gap[key] == least]
    loads, stores = max((key.accesses for key in keys), key=_rank)
    keys = [key for key in keys if key.accesses == (loads, stores)]
    longest = max(keys, key=lambda key: tables[0][key].longest.length)
    way = list(_follow(tables, longest))
    return Path(
        blocks=tuple(way),
        instructions=tables[0][longest].longest.length,
        shortest=min(tables[0][key].shortest.length for key in keys),
        loads={width: count for width, count in zip(WIDTHS, loads, strict=True) if count},
        stores={width: count for width, count in zip(WIDTHS, stores, strict=True) if count},
        loop=longest.loop or _loop_beside(blocks, way),
        rare=None if longest.marked else _rare(blocks, tables, way),
    )


def bytes_of(counts: Iterable[int]) -> int:
    return sum(width * count for width, count in zip(WIDTHS, counts, strict=True))


def _loop_beside(blocks: list[Block], way: list[int]) -> bool:
    """Whether a loop that is not rare lies between two places of `way`: its entry, its accesses, its exit."""
    reach = _reach(blocks, {number for number in range(len(blocks)) if _marked(blocks[number]) and number not in way})
    places = [way[0], *(number for number in way if _accesses(blocks[number].instructions) != {_NONE})]
    loops = [number for number in range(len(blocks)) if number in reach[number]]
    return any(
        loop in reach[place] and (after is None or after in reach[loop])
        for place, after in zip(places, [*places[1:], None], strict=True)
        for loop in loops
    )


def _rare(blocks: list[Block], tables: list[dict[_Key, _Ways]], way: list[int]) -> int | None:
    """Instructions of the longest way that leaves `way` behind its first load and comes by a marker."""
    before = 0
    for number in way:
        accesses = [instruction.access for instruction in blocks[number].instructions]
        if any(access is not None and access.space == "global" and not access.store for access in accesses):
            lengths = [ways.longest.length for key, ways in tables[number].items() if key.marked]
            return before + max(lengths) if lengths else None
        before += len(blocks[number].instructions)
    return None


def _rank(accesses: Accesses) -> tuple[int, ...]:
    """Stores first, then loads: 16 bytes at once before twice 8."""
    loads, stores = (sum(w * w * n for w, n in zip(WIDTHS, counts, strict=True)) for counts in accesses)
    return stores, loads


def _follow(tables: list[dict[_Key, _Ways]], key: _Key) -> Iterable[int]:
    place: tuple[int, _Key] | None = (0, key)
    while place is not None:
        yield place[0]
        place = tables[place[0]][place[1]].longest.onward


def _tables(blocks: list[Block]) -> list[dict[_Key, _Ways]]:
    """For every block, the ways from its first instruction to an exit, by what they do."""
    order, reach = _order(blocks), _reach(blocks, set())
    rank = {number: place for place, number in enumerate(order)}
    tables: list[dict[_Key, _Ways]] = [{} for _ in blocks]
    for number in order:
        block, table = blocks[number], tables[number]
        rests: list[tuple[_Key, _Way, _Way]] = []
        if block.exits:
            end = _Way(0, None)
            rests.append((_Key(_NONE), end, end))
        for other in block.successors:
            # A successor that comes later in this order closes a loop.
            if rank[other] < rank[number]:
                rests += [
                    (key, _Way(ways.shortest.length, (other, key)), _Way(ways.longest.length, (other, key)))
                    for key, ways in tables[other].items()
                ]
        loop, marked = number in reach[number], _marked(block)
        for accesses in _accesses(block.instructions):
            for rest, shortest, longest in rests:
                key = _Key(_sum(accesses, rest.accesses), rest.loop or loop, rest.marked or marked)
                _keep(table, key, len(block.instructions), shortest, longest)
        if len(table) > _LIMIT:
            raise UnknownCode(f"sass: more than {_LIMIT} ways lead through the kernel")
    return tables


def _keep(table: dict[_Key, _Ways], key: _Key, length: int, shortest: _Way, longest: _Way) -> None:
    shortest = _Way(length + shortest.length, shortest.onward)
    longest = _Way(length + longest.length, longest.onward)
    ways = table.setdefault(key, _Ways(shortest, longest))
    if shortest.length < ways.shortest.length:
        ways.shortest = shortest
    if longest.length > ways.longest.length:
        ways.longest = longest


# The same few sums are asked for again and again.
@lru_cache(maxsize=1 << 16)
def _sum(one: Accesses, other: Accesses) -> Accesses:
    loads, stores = (tuple(a + b for a, b in zip(*sides, strict=True)) for sides in zip(one, other, strict=True))
    return loads, stores


def _accesses(instructions: list[Instruction]) -> set[Accesses]:
    """The global accesses of a block: a choice for each predicate that guards some of them."""
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
    found = {always}
    for sides in guarded.values():
        found = {_sum(some, side) for some in found for side in sides.values()}
    return found


def _one(access: Access) -> Accesses:
    counts = tuple(int(width == access.width) for width in WIDTHS)
    return (_NONE[0], counts) if access.store else (counts, _NONE[1])


def _marked(block: Block) -> bool:
    return any(instruction.base == "PMTRIG" for instruction in block.instructions)


def _order(blocks: list[Block]) -> list[int]:
    """The blocks in the order in which a search leaves them: what follows a block is before it, but for loops."""
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


def _reach(blocks: list[Block], without: set[int]) -> list[set[int]]:
    """For every block those that may come after it, in a kernel without some of its blocks."""
    found = []
    for block in blocks:
        seen, todo = set[int](), list(block.successors)
        while todo:
            number = todo.pop()
            if number not in seen and number not in without:
                seen.add(number)
                todo += blocks[number].successors
        found.append(seen)
    return found
