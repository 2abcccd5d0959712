# SPDX-License-Identifier: Apache-2.0
"""The memories that a running kernel can reach, and what a GPU forbids in each of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.proof.machine import Fault

NDArray = npt.NDArray[Any]

#: Where shared and local memory lie among generic addresses, and where parameters lie in their own space. No process
#: has memory there.
SHARED_WINDOW, LOCAL_WINDOW, PARAMS = 1 << 56, 1 << 57, 1 << 58
#: How far a window reaches.
WINDOW = 1 << 32
#: Where shared memory begins, so that 0 is no address of it.
SHARED = 0x400
#: In place of the number of a thread.
_NOBODY, _SEVERAL = -1, -2
#: In place of a byte that nobody has written.
_POISON = 0xA7


def space_of(address: int) -> str:
    """The memory that a generic address belongs to."""
    for name, begin in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAMS)):
        if begin <= address < begin + WINDOW:
            return f"{name} memory"
    return "shared memory, or null" if 0 <= address < 1 << 16 else "global memory"


class Bytes:
    """Memory of a kernel's own: reading what nobody has written is a fault. A row for each thread, or one for all."""

    def __init__(self, name: str, size: int, base: int, rows: int = 1) -> None:
        self.name, self.base, self.size = name, base, size
        self.data = np.zeros((rows, size), np.uint8)
        self.known = np.zeros((rows, size), bool)

    def places(self, address: NDArray, size: int) -> NDArray:
        """The bytes of each access, by their offsets."""
        offset = address.astype(np.int64) - self.base
        bad = (offset < 0) | (offset + size > self.size)
        if bad.any():
            at = int(address[bad.argmax()])
            raise Fault(f"{at:#x} is outside of {self.name} memory: an address of {space_of(at)}")
        return np.asarray(offset[:, None] + np.arange(size))

    def load(self, address: NDArray, size: int, rows: NDArray) -> NDArray:
        places = self.places(address, size)
        if not self.known[rows[:, None], places].all():
            raise Fault(f"a read of {self.name} memory that nobody has written")
        return np.asarray(self.data[rows[:, None], places])

    def store(self, address: NDArray, data: NDArray, rows: NDArray) -> None:
        places = self.places(address, data.shape[1])
        self.data[rows[:, None], places] = data
        self.known[rows[:, None], places] = True


class Shared(Bytes):
    """The shared memory of one block. Two threads that touch a byte between two barriers, one of which writes, race.

    What a thread has copied while it goes on (``cp.async``) is there when it has waited: before that nobody may read or
    write it. A copy is ordered behind what its own thread did before (PTX ISA 8.9.1.1), but not behind other threads.
    """

    def __init__(self, size: int) -> None:
        super().__init__("shared", size, SHARED)
        self.writer = np.full(size, _NOBODY)
        self.reader = np.full(size, _NOBODY)
        #: The thread whose copy to a byte is under way, and the group of its copies; 0 for one that is open.
        self.copier = np.full(size, _NOBODY)
        self.group = np.zeros(size, np.int64)

    def barrier(self) -> None:
        self.writer[:] = self.reader[:] = _NOBODY

    def begin_copy(self, threads: NDArray, address: NDArray, data: NDArray) -> None:
        """Copies that threads begin; `data` is a row of bytes for each."""
        places, me = self.places(address, data.shape[1]), threads[:, None]
        self._check_copies(places)
        self._check(self.writer[places], me, "copies to what another thread writes")
        self._check(self.reader[places], me, "copies to what another thread reads")
        self.copier[places] = me
        if (self.copier[places] != me).any():
            raise Fault("two copies to one place of shared memory")
        self.group[places] = 0
        self.data[0, places] = data
        self.known[0, places] = True

    def commit(self, threads: NDArray) -> None:
        """The copies that threads have begun since the last time are a group, behind those of before."""
        mine = np.isin(self.copier, threads)
        self.group[mine] += 1

    def finish(self, threads: NDArray, pending: int) -> None:
        """Threads wait until of their groups of copies no more than the last so many are under way."""
        done = np.isin(self.copier, threads) & (self.group > pending)
        self.writer[done] = self.copier[done]
        self.copier[done] = _NOBODY

    def end(self) -> None:
        """The block has ended."""
        if (self.copier != _NOBODY).any():
            raise Fault("a block ends whose copies to shared memory are under way")

    def _check_copies(self, places: NDArray) -> None:
        if (self.copier[places] != _NOBODY).any():
            raise Fault("shared memory to which a copy is under way: no thread has waited for it")

    def load_by(self, threads: NDArray, address: NDArray, size: int, partly: bool) -> NDArray:
        """What threads read. `partly`: what nobody has written is poison beside bytes of the same access that were
        written, because kernels discard the ends of vectors."""
        places, me = self.places(address, size), threads[:, None]
        known = self.known[0, places]
        if not (known.any(1) if partly else known.all(1)).all():
            raise Fault("a read of shared memory that nobody has written")
        self._check_copies(places)
        data = np.where(known, self.data[0, places], _POISON).astype(np.uint8)
        self._check(self.writer[places], me, "reads what another thread writes")
        before = self.reader[places]
        self.reader[places] = np.where((before == _NOBODY) | (before == me), me, _SEVERAL)
        self.reader[places[self.reader[places] != me]] = _SEVERAL
        return data

    def store_by(self, threads: NDArray, address: NDArray, data: NDArray) -> None:
        places, me = self.places(address, data.shape[1]), threads[:, None]
        self._check_copies(places)
        self._check(self.writer[places], me, "writes what another thread writes")
        self._check(self.reader[places], me, "writes what another thread reads")
        self.writer[places] = me
        self._check(self.writer[places], me, "writes what another thread writes")
        self.store(address, data, np.zeros_like(threads))

    @staticmethod
    def _check(by: NDArray, me: NDArray, what: str) -> None:
        race = (by != _NOBODY) & (by != me)
        if race.any():
            thread = me[race.any(1).argmax(), 0]
            raise Fault(f"a race on shared memory: thread {int(thread)} {what} without a barrier")


class Global:
    """The arrays on the device, which lie in this process, and the tables of constants of a kernel."""

    def __init__(self, arrays: Sequence[range], tables: Sequence[range]) -> None:
        every = sorted([(one, True) for one in arrays if len(one)] + [(one, False) for one in tables], key=_start)
        self._starts = np.array([one.start for one, _ in every], np.int64)
        self._ends = np.array([one.stop for one, _ in every], np.int64)
        self._writable = np.array([free for _, free in every], bool)
        #: From an address to its place in `_writer`, by array.
        self._moved = np.cumsum([0, *map(len, (one for one, _ in every))][:-1]) - self._starts
        self._writer = np.full(sum(len(one) for one, _ in every), _NOBODY)
        self._low = int(self._starts.min()) & -64
        length = (int(self._ends.max()) - self._low + 63) & -64
        # A view over all that lies between the arrays: only bytes of arrays are touched.
        everything = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(self._low))
        self._words = {size: everything.view(f"u{size}") for size in (1, 2, 4, 8)}

    def places(self, address: NDArray, size: int) -> NDArray:
        """The number of the array of each access."""
        at = address.view(np.int64)
        found = np.searchsorted(self._starts, at, "right") - 1
        bad = (found < 0) | (at + size > self._ends[found])
        if bad.any():
            wrong = int(address[bad.argmax()])
            space = space_of(wrong)
            if space != "global memory":
                raise Fault(f"{wrong:#x} is not in global memory: an address of {space}")
            raise Fault(f"{size} bytes at {wrong:#x} are outside of the arrays")
        return found

    def load(self, address: NDArray, size: int, count: int, constant: bool) -> list[NDArray]:
        arrays = self.places(address, size * count)
        if constant and (self._writer[self._bytes(address, arrays, size * count)] != _NOBODY).any():
            raise Fault("a read by ld.global.nc of what this launch writes")
        at = (address.view(np.int64) - self._low) // size
        return [self._words[size][at + number] for number in range(count)]

    def check_blocks(self, address: NDArray, size: int, first: int, count: int) -> None:
        """Fault for a read of what threads of another block have written; `first` and `count` are those of this one.
        Blocks run in any order."""
        if first == 0:
            return
        by = self._writer[self._bytes(address, self.places(address, size), size)]
        if ((by >= 0) & (by < first)).any():
            raise Fault("a read of what another block writes")

    def store(self, threads: NDArray, address: NDArray, values: Sequence[NDArray], size: int) -> None:
        arrays = self.places(address, size * len(values))
        if not self._writable[arrays].all():
            raise Fault("a store to a table of constants")
        at = (address.view(np.int64) - self._low) // size
        bytes_ = self._bytes(address, arrays, size * len(values))
        before = self._writer[bytes_]
        other = ((before != _NOBODY) & (before != threads[:, None])).any(1)
        words = self._words[size]
        for number, value in enumerate(values):
            value = value.astype(words.dtype)
            if (words[at + number][other] != value[other]).any():
                raise Fault("two threads write different numbers to one place")
            words[at + number] = value
            if (words[at + number] != value).any():
                raise Fault("two threads write different numbers to one place")
        self._writer[bytes_] = threads[:, None]

    def change(self, address: NDArray, function: Any, values: NDArray, size: int) -> NDArray:
        """An atomic operation; the numbers before it."""
        arrays = self.places(address, size)
        if not self._writable[arrays].all():
            raise Fault("an atomic operation on a table of constants")
        words, found = self._words[size], np.empty(len(values), np.uint64)
        for number, at in enumerate((address.view(np.int64) - self._low) // size):
            found[number] = words[at]
            words[at] = function(words[at], values[number])
        return found

    def _bytes(self, address: NDArray, arrays: NDArray, size: int) -> NDArray:
        return np.asarray((address.view(np.int64) + self._moved[arrays])[:, None] + np.arange(size))


def _start(one: tuple[range, bool]) -> int:
    return one[0].start
