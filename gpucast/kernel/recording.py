# SPDX-License-Identifier: Apache-2.0
"""The launches and new memory of a call on a device, recorded so that a plan can repeat them.

A program is what was recorded, with the places of addresses in the arguments of its launches. It serves arrays that lie
as those of the call did, in other memory. The extension module runs it (``kernels/host/programs.hpp``).
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.libraries import Library
from gpucast.core.extension import MODULE
from gpucast.core.fuse import Random
from gpucast.kernel.fields import Fields
from gpucast.kernel.kernel import Kernel

#: Addresses that differ by a multiple of this are alike for kernels, whose widest accesses are half as wide.
ALIKE = 64
_ADDRESS = struct.Struct("<Q")
_FIRST = struct.Struct("<q")
#: What stands for arrays where random words, or a number, are patched.
SEED, OFFSET, NUMBER = -1, -2, -3


@dataclass(slots=True)
class Recording:
    """A call so far."""

    launches: list[tuple[Kernel, Callable[..., None], int, bytes]] = field(default_factory=list)
    #: New arrays, in order.
    made: list[Any] = field(default_factory=list)
    #: The cell in which blocks meet, which calls of a stream share; none in most calls.
    cells: list[Any] = field(default_factory=list)
    #: Arrays of single numbers that no call writes, with these numbers: those of a stream.
    numbers: list[tuple[Any, float]] = field(default_factory=list)
    #: False after a step that no program repeats, such as a copy to the host.
    is_whole: bool = True

    def launch(self, kernel: Kernel, loaded: Callable[..., None]) -> Callable[..., None]:
        """The launch of a kernel, which is recorded when it is called."""

        def run(blocks: int, arguments: bytes | np.ndarray[Any, Any]) -> None:
            loaded(blocks, arguments)
            given = arguments if isinstance(arguments, bytes) else arguments.tobytes()
            self.launches.append((kernel, loaded, blocks, given))

        return run


class _OfThread(threading.local):
    """The recording of a thread."""

    recording: Recording | None = None


#: `THREAD.recording` is that of this thread, if there is one. (No function gives it: plans ask at every call.)
THREAD = _OfThread()


@contextlib.contextmanager
def recorded() -> Iterator[Recording]:
    """Record what is done within, in this thread, by the checked path alone: launches of plans are not seen."""
    before, made = THREAD.recording, Recording()
    was_paused = MODULE is not None and MODULE.pause(True)
    THREAD.recording = made
    try:
        yield made
    finally:
        THREAD.recording = before
        if MODULE is not None:
            MODULE.pause(was_paused)


class Given(NamedTuple):
    """An array that a call was given."""

    kind: Any
    shape: Any
    dtype: Any
    nbytes: int
    address: int


def placed(arrays: Sequence[Any], library: Library | None, reads: int) -> tuple[int, list[int]] | None:
    """The device and the addresses of row-major arrays of CuPy and of a library, of which the first are read and the
    others written; None for arrays of which one is another, or on another device. The library is asked once for all."""
    devices: set[int | None] = set()
    addresses = [0] * len(arrays)
    read: list[int] = []
    written: list[int] = []
    for i, x in enumerate(arrays):
        if not is_native(x):
            (read if i < reads else written).append(i)
        elif not x._c_contiguous:
            return None
        else:
            devices.add(int(x.data.device_id))
            addresses[i] = int(x.data.ptr)
    for places in filter(None, (read, written)):
        found = None if library is None else library.placed([arrays[i] for i in places], places is written)
        if found is None:
            return None
        devices.add(found[0])
        for i, address in zip(places, found[1], strict=True):
            addresses[i] = address
    device = devices.pop() if len(devices) == 1 else None
    return None if device is None else (device, addresses)


def is_native(x: Any) -> bool:
    """Whether x is an array of CuPy, and no other class of its library."""
    module = namespace(x)
    return module is not None and type(x) is module.ndarray and hasattr(x, "_c_contiguous")


class Memory(NamedTuple):
    """A new array."""

    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...]


#: A launch, its blocks and arguments, and where these have which addresses: their place, the array's number, how many
#: bytes behind its first one.
Step = tuple[Callable[..., None], int, bytes, tuple[tuple[int, int, int], ...]]


class Program(NamedTuple):
    """Launches that can be repeated."""

    #: For ``MODULE.repeat(launches, given, new, seed, offset, number)``: it launches for the given arrays, which may
    #: stand as their addresses, and for the others at these: those that are kept, the cells, the numbers, and the new
    #: ones. None, nothing done, for arrays that lie in another way.
    launches: Any
    new: tuple[Memory, ...]
    #: How many cells the launches share.
    cells: int
    numbers: tuple[float, ...]


def program(
    recording: Recording,
    given: Sequence[Given],
    reads: int,
    kept: Sequence[tuple[int, int]],
    device: int,
    random: Random | None = None,
) -> Program | None:
    """The program of a call with these arrays, of which the first are read and the others written, and with kept memory
    of these addresses and bytes; None for one that cannot be repeated."""
    made = [
        (int(x.data.ptr), int(x.nbytes))
        for x in (*recording.cells, *(one for one, _ in recording.numbers), *recording.made)
    ]
    others = [*kept, *made]
    arrays = [*((one.address, one.nbytes) for one in given), *others]
    if not recording.is_whole:
        return None
    steps: list[Step] = []
    is_random = False
    for kernel, launch, blocks, arguments in recording.launches:
        patches: list[tuple[int, int, int]] = []
        for name, kind, at in _places(kernel.arguments, 0):
            if kind.endswith("*"):
                (address,) = _ADDRESS.unpack_from(arguments, at)
                if not address:
                    continue
                found = [i for i, (begin, nbytes) in enumerate(arrays) if begin <= address < begin + max(nbytes, 1)]
                if len(found) != 1:
                    return None
                patches.append((at, found[0], address - arrays[found[0]][0]))
            elif name in ("seed", "offset") and kind == "u64" and random is not None:
                # Kernels that use no random words are given zeros.
                (value,) = _ADDRESS.unpack_from(arguments, at)
                if value == getattr(random, name):
                    patches.append((at, SEED if name == "seed" else OFFSET, 0))
                    is_random |= name == "seed"
                elif value:
                    return None
            elif name == "first" and kind == "i64" and random is not None and any(_FIRST.unpack_from(arguments, at)):
                return None
        steps.append((launch, blocks, arguments, tuple(patches)))
    if random is not None and not is_random:
        return None
    launches = repeated(steps, given, reads, [address for address, _ in others], device)
    new = tuple(Memory(x.shape, x.dtype, x.strides) for x in recording.made)
    return Program(launches, new, len(recording.cells), tuple(value for _, value in recording.numbers))


def repeated(steps: Sequence[Step], given: Sequence[Given], reads: int, others: Sequence[int], device: int) -> Any:
    """`Program.launches` for arrays that lie as these do, of which the first are read and the others written, and for
    other ones that begin as these addresses do."""
    found = tuple((x.kind, x.shape, x.dtype, x.nbytes, x.address % ALIKE) for x in given)
    return MODULE.program(tuple(steps), found, reads, tuple(address % ALIKE for address in others), device)


def _places(fields: Fields, begin: int) -> Iterator[tuple[str, str, int]]:
    """The name, type and place of each number in a struct."""
    for place in fields.places:
        for i in range(place.times):
            if isinstance(place.type, Fields):
                yield from _places(place.type, begin + place.offset + i * place.type.nbytes)
            else:
                width = (place.end - place.offset) // place.times
                yield place.name, place.type, begin + place.offset + i * width
