# SPDX-License-Identifier: Apache-2.0
"""What a call on a device does, recorded so that a plan can repeat it: launches, and new memory.

A program is what was recorded, with the places of addresses in the arguments of its launches. It serves arrays that lie
as those of the call did, in other memory.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gpucast.kernel.fields import Fields
from gpucast.kernel.kernel import Kernel

#: Addresses that differ by a multiple of this are alike for kernels, whose widest accesses are half as wide.
ALIKE = 64
_ADDRESS = struct.Struct("<Q")
_FIRST = struct.Struct("<q")


@dataclass(slots=True)
class Recording:
    """A call so far."""

    launches: list[tuple[Kernel, Callable[..., None], int, bytes]] = field(default_factory=list)
    #: New arrays, in order.
    made: list[Any] = field(default_factory=list)
    #: False after a step that no program repeats, such as a copy to the host.
    is_whole: bool = True

    def launch(self, kernel: Kernel, loaded: Callable[..., None]) -> Callable[..., None]:
        """The launch of a kernel, which is recorded when it is called."""

        def run(blocks: int, arguments: bytes | np.ndarray[Any, Any]) -> None:
            loaded(blocks, arguments)
            given = arguments if isinstance(arguments, bytes) else arguments.tobytes()
            self.launches.append((kernel, loaded, blocks, given))

        return run


_local = threading.local()


def current() -> Recording | None:
    """That of this thread, if there is one."""
    return getattr(_local, "recording", None)


@contextlib.contextmanager
def recorded() -> Iterator[Recording]:
    """Record what is done within, in this thread."""
    before, _local.recording = current(), Recording()
    try:
        yield _local.recording
    finally:
        _local.recording = before


class _Step(NamedTuple):
    launch: Callable[..., None]
    blocks: int
    arguments: bytes
    #: Where addresses lie: the number of the array, and how far behind its first byte.
    addresses: tuple[tuple[int, int, int], ...]
    #: Where the seed, and where the offset, of random words lie.
    seeds: tuple[int, ...]
    offsets: tuple[int, ...]


class Memory(NamedTuple):
    """A new array."""

    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...]
    #: Its address, modulo `ALIKE`.
    alike: int


@dataclass(frozen=True, slots=True)
class Program:
    """Launches that can be repeated."""

    steps: tuple[_Step, ...]
    new: tuple[Memory, ...]

    def run(self, addresses: Sequence[int], seed: int = 0, offset: int = 0) -> None:
        """Launch for arrays at these addresses: the given ones, and then the new ones."""
        for launch, blocks, template, places, seeds, offsets in self.steps:
            arguments = bytearray(template)
            for at, number, behind in places:
                _ADDRESS.pack_into(arguments, at, addresses[number] + behind)
            for at in seeds:
                _ADDRESS.pack_into(arguments, at, seed)
            for at in offsets:
                _ADDRESS.pack_into(arguments, at, offset)
            launch(blocks, bytes(arguments))


def program(
    recording: Recording, given: Sequence[tuple[int, int]], seed: int | None = None, offset: int = 0
) -> Program | None:
    """The program of a call with arrays at these addresses, of so many bytes; None for one that cannot be repeated."""
    if not recording.is_whole:
        return None
    arrays = [*given, *((int(x.data.ptr), int(x.nbytes)) for x in recording.made)]
    steps = []
    for kernel, launch, blocks, arguments in recording.launches:
        places: list[tuple[int, int, int]] = []
        seeds: list[int] = []
        offsets: list[int] = []
        for name, kind, at in _places(kernel.arguments, 0):
            if kind.endswith("*"):
                (address,) = _ADDRESS.unpack_from(arguments, at)
                if not address:
                    continue
                found = [i for i, (begin, nbytes) in enumerate(arrays) if begin <= address < begin + max(nbytes, 1)]
                if len(found) != 1:
                    return None
                places.append((at, found[0], address - arrays[found[0]][0]))
            elif name in ("seed", "offset") and kind == "u64" and seed is not None:
                # Kernels that use no random words are given zeros.
                (value,) = _ADDRESS.unpack_from(arguments, at)
                if value == (seed if name == "seed" else offset):
                    (seeds if name == "seed" else offsets).append(at)
                elif value:
                    return None
            elif name == "first" and kind == "i64" and seed is not None and any(_FIRST.unpack_from(arguments, at)):
                return None
        steps.append(_Step(launch, blocks, arguments, tuple(places), tuple(seeds), tuple(offsets)))
    if seed is not None and not any(step.seeds for step in steps):
        return None
    new = tuple(Memory(x.shape, x.dtype, x.strides, int(x.data.ptr) % ALIKE) for x in recording.made)
    return Program(tuple(steps), new)


def _places(fields: Fields, begin: int) -> Iterator[tuple[str, str, int]]:
    """The name, type and place of each number in a struct."""
    for place in fields.places:
        for i in range(place.times):
            if isinstance(place.type, Fields):
                yield from _places(place.type, begin + place.offset + i * place.type.nbytes)
            else:
                width = (place.end - place.offset) // place.times
                yield place.name, place.type, begin + place.offset + i * width
