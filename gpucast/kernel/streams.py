# SPDX-License-Identifier: Apache-2.0
"""The one rule for streams: a call works, and leaves its results, on the current stream of its array's library.

The owner of another array of the call, such as its `out`, may have given work to another stream. The call waits for
that stream, and that stream waits for the call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpucast import kernel
from gpucast.arrays import libraries
from gpucast.arrays.libraries import Lent, Library
from gpucast.arrays.packed import device_index
from gpucast.kernel import devices


class Owned(NamedTuple):
    """A native array of a library: work on it is given to that library's streams."""

    array: Any
    library: str | None


@contextlib.contextmanager
def visit(x: Any, *others: Any, device: Any = None) -> Iterator[None]:
    """Work within runs on the current streams of x's library: on x's device, and on `device`, where results go.

    `others` are the other arrays of the call; numbers and None among them do not count. For an `x` of None, and for
    libraries without streams of their own, work runs on CuPy's current stream.
    """
    given = [x, *(one for one in others if one is not None)]
    of_given = list(map(_library, given))
    if not any(of_given):
        yield
        return
    own, *lent = map(_owner, given, of_given)
    places = {
        index
        for index in (None if own is None else own.device, None if device is None else _index(device))
        if index is not None
    }
    if not (places or any(lent)) or kernel.driver.unavailable() is not None:
        # The call itself says why it cannot go to a device.
        yield
        return
    streams: dict[int, int] = {}
    if of_given[0] is not None and places:
        streams = {index: stream for index in places if (stream := of_given[0].stream(index)) is not None}
    if own is not None and own.device not in streams:
        lent.append(own)
    with on(streams, lent):
        try:
            yield
        finally:
            if any(one is not None and one.settles for one in of_given):
                _settle({*places, *(one.device for one in lent if one is not None)})


def on(streams: Mapping[int, int], lent: Iterable[Lent | None]) -> contextlib.AbstractContextManager[None]:
    """Work within runs on these streams, by device, and on CuPy's current stream of other devices.

    It comes after the work of the streams of lent memory, and these go on after it.
    """
    owners = dict.fromkeys((one.device, one.stream) for one in lent if one is not None and one.stream is not None)
    if owners or streams:
        return _joined(streams, owners)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _joined(streams: Mapping[int, int], owners: Iterable[tuple[int, int]]) -> Iterator[None]:
    cuda = kernel.driver.driver()
    waiting: list[tuple[int, int, int]] = []
    with contextlib.ExitStack() as stack:
        current = cuda.current()
        for index, stream in streams.items():
            stack.enter_context(cuda.using(stream, index))
        # "cuda" names the device that was current before.
        stack.enter_context(cuda.on(current))
        for index, stream in owners:
            with cuda.on(index):
                here = cuda.stream()
                if here != stream:
                    cuda.follow(stream, index)
                    waiting.append((index, stream, here))
        try:
            yield
        finally:
            for index, stream, here in waiting:
                with cuda.using(stream, index):
                    cuda.follow(here, index)


def owner(x: Any) -> Lent | None:
    """The device of an array and the stream of its owner; None on the host, and for other objects."""
    return _owner(x, _library(x))


def _owner(x: Any, library: Library | None) -> Lent | None:
    if isinstance(x, Owned):
        x, index = x.array, device_index(x.array)
        stream = None if library is None or index is None else library.stream(index)
        if index is not None and stream is not None:
            return Lent(index, stream)
    elif library is not None:
        return library.lent(x)
    index = device_index(x)
    if index is None:
        return None
    with kernel.driver.driver().on(index):
        return Lent(index, kernel.driver.driver().stream())


def _library(x: Any) -> Library | None:
    if isinstance(x, Owned):
        # The host has no streams, and the library need not be there.
        return None if x.library is None or device_index(x.array) is None else libraries.of_library(x.library)
    return libraries.find(x)


def _index(device: Any) -> int | None:
    """The device that a keyword names; None for the host, and for one that the call itself refuses."""
    try:
        place = devices.parse(device, "")
        return None if place in (None, "cpu") else devices.index(place, "")
    except Exception:
        return None


def _settle(places: Iterable[int]) -> None:
    """Wait for devices."""
    for index in places:
        with kernel.driver.driver().on(index):
            kernel.driver.driver().synchronize()


libraries.register_visit(visit)
