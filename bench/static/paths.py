# SPDX-License-Identifier: Apache-2.0
"""Finds the path of a thread through a kernel when it casts a full aligned tile, and counts its instructions.

It considers all paths from the entry to an exit that enter no block twice. The path of a full aligned tile

* stores exactly the bytes of the tile;
* has no block with a marker, the instruction PMTRIG (``ptx::mark_rare`` in the source, where GPUCAST_MARK_RARE is set:
  it counts an event for profilers and does nothing else). A kernel marks what it does for uncommon values only;
* has no loop, unless all have one;
* loads as many bytes, or as few more as any: those of a table;
* stores with the widest instructions that any such path has, then loads with the widest.

Paths with the same accesses differ where the code branches on data. The longest of them counts. If a path through the
same blocks of accesses has a loop, the count is meaningless, and this is reported. Instructions whose guard is false
count too, because they take an issue slot all the same. Of accesses with opposite guards a path has only one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from bench.static.sass import Access, Block, Instruction, UnknownCode

WIDTHS = (1, 2, 4, 8, 16, 32)
#: The accesses of one path: how many of every width, for loads and for stores.
Accesses = tuple[tuple[int, ...], tuple[int, ...]]
_NONE: Accesses = ((0,) * len(WIDTHS), (0,) * len(WIDTHS))
#: The limit of distinct paths, more than any reasonable kernel has.
_LIMIT = 20_000


@dataclass(frozen=True)
class Path:
    """The path of a full aligned tile."""

    #: The indices of its blocks, in order, on the longest path with these accesses.
    blocks: tuple[int, ...]
    instructions: int
    #: Global accesses per thread: width in bytes -> how many.
    loads: dict[int, int]
    stores: dict[int, int]
    #: Whether it has a loop, of which one iteration counts, or may pass one on the side, which does not count.
    loop: bool


class _Key(NamedTuple):
    accesses: Accesses
    loop: bool = False
    marked: bool = False


class _Tail(NamedTuple):
    """The longest path from a block to an exit: its instructions, the next block, and the key of the rest there."""

    length: int
    onward: tuple[int, _Key] | None


def full_tile(
    blocks: list[Block],
    load_bytes: int | None = None,
    store_bytes: int | None = None,
    *,
    loop: bool = False,
    rare: bool = False,
    load_width: int | None = None,
    store_width: int | None = None,
) -> Path:
    """The path of a tile of so many bytes on either side; without these, the path with the most and widest accesses.

    If no path has exactly so many, the next best is returned: compare them with the path's `loads` and `stores`.
    `loop`: only paths with a loop, which are `rare` or are not; `load_width`, `store_width`: only those whose loads, or
    stores, all have so many bytes.
    UnknownCode for a kernel that never ends or has no such path, and for one with too many paths.
    """
    tables = _tables(blocks)
    keys = list(tables[0])
    if loop:
        keys = [key for key in keys if key.loop and key.marked == rare]
    for side, wanted in enumerate((load_width, store_width)):
        if wanted is not None:
            others = [place for place, width in enumerate(WIDTHS) if width != wanted]
            keys = [key for key in keys if not any(key.accesses[side][place] for place in others)]
    if not keys:
        raise UnknownCode("sass: no way leads to an exit, or none that is asked for")
    if store_bytes is not None:
        keys = [key for key in keys if bytes_of(key.accesses[1]) == store_bytes] or keys
        if not loop:
            keys = [key for key in keys if not key.marked] or keys
            keys = [key for key in keys if not key.loop] or keys
    if load_bytes is not None:
        gap = {key: abs(bytes_of(key.accesses[0]) - load_bytes) for key in keys}
        least = min(gap.values())
        keys = [key for key in keys if gap[key] == least]
    loads, stores = max((key.accesses for key in keys), key=_rank)
    keys = [key for key in keys if key.accesses == (loads, stores)]
    longest = max(keys, key=lambda key: tables[0][key].length)
    path = list(_follow(tables, longest))
    return Path(
        blocks=tuple(path),
        instructions=tables[0][longest].length,
        loads={width: count for width, count in zip(WIDTHS, loads, strict=True) if count},
        stores={width: count for width, count in zip(WIDTHS, stores, strict=True) if count},
        loop=longest.loop or _loop_on_side(blocks, path),
    )


def bytes_of(counts: Iterable[int]) -> int:
    return sum(width * count for width, count in zip(WIDTHS, counts, strict=True))


def _loop_on_side(blocks: list[Block], path: list[int]) -> bool:
    """Whether there is a loop, not a rare one, between two stops of `path`: its entry, its accesses, its exit."""
    onward = reach(blocks, {number for number in range(len(blocks)) if _marked(blocks[number]) and number not in path})
    stops = [path[0], *(number for number in path if _accesses(blocks[number].instructions) != {_NONE})]
    loops = [number for number in range(len(blocks)) if number in onward[number]]
    pairs: list[tuple[int, int | None]] = list(pairwise(stops))
    last = blocks[path[-1]]
    # Where all accesses of the last block have the condition of its exit, the thread leaves with them.
    if stops[-1] != path[-1] or not last.exits or _accesses(last.instructions, leaves=False) != {_NONE}:
        pairs.append((stops[-1], None))
    return any(
        loop in onward[place] and (after is None or after in onward[loop]) for place, after in pairs for loop in loops
    )


def _rank(accesses: Accesses) -> tuple[int, ...]:
    """Stores first, then loads: 16 bytes at once before twice 8."""
    loads, stores = (sum(w * w * n for w, n in zip(WIDTHS, counts, strict=True)) for counts in accesses)
    return stores, loads


def _follow(tables: list[dict[_Key, _Tail]], key: _Key) -> Iterable[int]:
    place: tuple[int, _Key] | None = (0, key)
    while place is not None:
        yield place[0]
        place = tables[place[0]][place[1]].onward


def _tables(blocks: list[Block]) -> list[dict[_Key, _Tail]]:
    """For every block the longest paths from its first instruction to an exit, by their accesses."""
    order, onward = _order(blocks), reach(blocks)
    rank = {number: place for place, number in enumerate(order)}
    tables: list[dict[_Key, _Tail]] = [{} for _ in blocks]
    for number in order:
        block, table = blocks[number], tables[number]
        # A successor that comes later in this order closes a loop.
        following = [other for other in block.successors if rank[other] < rank[number]]
        rests = [(key, _Tail(tail.length, (other, key))) for other in following for key, tail in tables[other].items()]
        loop, marked = number in onward[number], _marked(block)
        ends = [(_Key(_NONE), _Tail(0, None))] if block.exits else []
        for leaves, tails in ((True, ends), (False, rests)):
            for accesses in _accesses(block.instructions, leaves):
                for rest, tail in tails:
                    key = _Key(_sum(accesses, rest.accesses), rest.loop or loop, rest.marked or marked)
                    found = _Tail(len(block.instructions) + tail.length, tail.onward)
                    if key not in table or found.length > table[key].length:
                        table[key] = found
        if len(table) > _LIMIT:
            raise UnknownCode(f"sass: more than {_LIMIT} ways lead through the kernel")
    return tables


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


def _marked(block: Block) -> bool:
    return any(instruction.base == "PMTRIG" for instruction in block.instructions)


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


def reach(blocks: list[Block], without: Collection[int] = ()) -> list[set[int]]:
    """For every block those that are reachable from it, in a kernel without some of its blocks."""
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
