# SPDX-License-Identifier: Apache-2.0
"""A family of device calls against the host's bits, with its arrays at aligned and at odd addresses.

    python -m bench.gpu.families quantize

An error of a GPU stays with its process, so that each family has one of its own; each call is named before it runs.
compute-sanitizer can watch it: every array is an allocation of its own that ends with the array.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.gpu.device_calls import FAMILIES
from bench.gpu.places import DeviceCall, NDArray
from gpucast import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.quantization import Quantized

#: ``put(x, offset)`` copies a host array to a device, so many bytes behind an aligned address; ``get(x)`` copies back.
Put = Callable[[NDArray, int], Any]
Get = Callable[[Any], NDArray]
#: The bytes that arrays begin behind an aligned address.
OFFSETS = (1, 2, 4, 8)


@dataclass
class Placed:
    """A `Place` on the host, or on a device: `put` copies an array there, so many bytes behind an aligned address."""

    put: Put | None = None
    #: The offset of each array by name, or of all by None.
    offsets: dict[str | None, int] = field(default_factory=dict)
    #: The names of all arrays so far, and whether one was left at its place because of `whole`.
    names: dict[str, None] = field(default_factory=dict)
    moved: int = 0
    once: bool = False

    @property
    def on_device(self) -> bool:
        return self.put is not None

    def __call__(self, name: str, x: NDArray, *, whole: bool = False) -> Any:
        self.names[name] = None
        offset = self.offsets.get(name, self.offsets.get(None, 0))
        if whole and offset % x.itemsize:
            offset = 0
        self.moved += offset != 0
        return np.array(x) if self.put is None else self.put(np.ascontiguousarray(x).reshape(x.shape), offset)


@dataclass(frozen=True)
class Way:
    """A call with its arrays at some offsets."""

    call: DeviceCall
    offsets: dict[str | None, int]
    #: As of `Place`.
    once: bool = False

    def __str__(self) -> str:
        where = ", ".join(f"{name or 'all'} +{offset}" for name, offset in self.offsets.items())
        return f"{self.call.family}: {self.call.name}{', ' * bool(where)}{where}"


def ways(call: DeviceCall, offsets: Iterable[int] = OFFSETS) -> Iterator[Way]:
    """The call with all arrays aligned, with all at each offset, and with each alone at each offset."""
    place = Placed()
    call.run(place)
    yield Way(call, {})
    for name in (None, *place.names):
        for offset in offsets:
            yield Way(call, {name: offset})


def results_of(found: Any, get: Get) -> list[bytes | str]:
    """The bits of all results, packed; of what is no array its text. `get` copies an array from a device."""
    if isinstance(found, Quantized):
        return [one for part in found.parts().values() for one in results_of(part, get)]
    if isinstance(found, PackedArray):
        return results_of(found.data, get)
    if isinstance(found, (tuple, list)):
        return [one for part in found for one in results_of(part, get)]
    if not hasattr(found, "dtype"):
        return [repr(found)]
    array = found if isinstance(found, np.ndarray) else get(found)
    if dtype(array.dtype).packed:
        array = PackedArray.pack(array).data
    return [np.ascontiguousarray(array).tobytes()]


def check(chosen: Sequence[Way], put: Put, get: Get, tell: Callable[[str], Any]) -> tuple[int, list[str]]:
    """Run them on a device and compare with the host. How many differed from calls with all arrays aligned, and what
    was wrong, in words. `tell` takes the name of each before it runs."""
    wanted: dict[tuple[int, bool], list[bytes | str]] = {}
    odd, wrong = 0, list[str]()
    for way in chosen:
        known = id(way.call), way.once
        if known not in wanted:
            wanted[known] = results_of(way.call.run(Placed(once=way.once)), get)
        tell(str(way))
        place = Placed(put, way.offsets, once=way.once)
        try:
            found = results_of(way.call.run(place), get)
        except Exception as error:  # The others are tried too, as long as the device answers.
            wrong.append(f"{way}: {type(error).__name__}: {error}")
            continue
        finally:
            odd += place.moved != 0
        if found != wanted[known]:
            wrong.append(f"{way}: other bits than on the host")
    return odd, wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.families", description=__doc__.splitlines()[0])
    parser.add_argument("family", nargs="?", choices=FAMILIES)
    parser.add_argument("--aligned", action="store_true", help="all arrays at aligned addresses alone")
    parser.add_argument("--list", action="store_true", help="only name the calls, which needs no GPU")
    parser.add_argument("--names", action="store_true", help="only name the families, the most valuable first")
    arguments = parser.parse_args(argv)
    if arguments.names:
        print("\n".join(FAMILIES))
        return 0
    if arguments.family is None:
        parser.error(f"no family; expected one of {', '.join(FAMILIES)}")
    offsets = () if arguments.aligned else OFFSETS
    chosen = [way for call in FAMILIES[arguments.family]() for way in ways(call, offsets)]
    if arguments.list:
        print("\n".join(map(str, chosen)))
        return 0
    odd, wrong = check(chosen, *of_gpu(), lambda name: print(f"\r{name}\x1b[K", end="", file=sys.stderr, flush=True))
    print(
        "\n".join(
            [
                "",
                *wrong[:20],
                f"{arguments.family}: {len(chosen):,} calls, {odd:,} at odd addresses; {len(wrong)} wrong",
            ]
        )
    )
    return int(bool(wrong))


def of_gpu() -> tuple[Put, Get]:
    """How to copy arrays to the GPU and back."""
    import cupy

    # A pool would place arrays next to each other, so that accesses beyond their ends would not be detected.
    cupy.cuda.set_allocator(None)

    def put(x: NDArray, offset: int) -> Any:
        memory = cupy.cuda.alloc(x.nbytes + offset) + offset
        memory.copy_from_host(x.ctypes.data, x.nbytes)
        return cupy.ndarray(x.shape, x.dtype, memory)

    def get(x: Any) -> NDArray:
        kind = dtype(x.dtype)
        return np.asarray(x.view(kind.code_numpy).get()).view(kind.numpy)

    return put, get


if __name__ == "__main__":
    sys.exit(main())
