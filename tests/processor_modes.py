# SPDX-License-Identifier: Apache-2.0
"""The modes of this thread's processor, as others may have left them: FTZ, DAZ (one mode on ARM), rounding.

With GPUCAST_TEST_MODES=1 the fuzzers make their calls under modes at random (`sometimes`), in every thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import platform
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

#: Where the control word is in C's fenv_t, and the bits of FTZ, DAZ and of the rounding mode in it.
_WORDS = {"x86_64": (28, 1 << 15, 1 << 6, 13), "aarch64": (0, 1 << 24, 1 << 24, 22)}
_ROUNDINGS = {
    "x86_64": {"nearest": 0, "down": 1, "up": 2, "zero": 3},
    "aarch64": {"nearest": 0, "up": 1, "down": 2, "zero": 3},
}
_MACHINE = platform.machine()
KNOWN = sys.platform == "linux" and _MACHINE in _WORDS
needed = pytest.mark.skipif(not KNOWN, reason="how to set the modes of this processor is not known")

_LIBRARY = ctypes.PyDLL(None)
#: Larger than any fenv_t.
_SPACE = 256


class Modes(NamedTuple):
    ftz: bool = False
    daz: bool = False
    rounding: str = "nearest"

    def __str__(self) -> str:
        return "-".join([*["ftz"] * self.ftz, *["daz"] * self.daz, self.rounding])


DEFAULT = Modes()
#: Those that PyTorch and XLA set, each rounding mode, and all at once.
ALL = tuple(Modes(*one) for one in itertools.product((False, True), (False, True), ("nearest", "down", "up", "zero")))


def _word() -> tuple[Any, int]:
    space = ctypes.create_string_buffer(_SPACE)
    _LIBRARY.fegetenv(space)
    return space, int.from_bytes(space[_WORDS[_MACHINE][0] :][:4], "little")


def current() -> Modes:
    """Of this thread."""
    (_, ftz, daz, shift), (_, word) = _WORDS[_MACHINE], _word()
    found = next(name for name, bits in _ROUNDINGS[_MACHINE].items() if bits == word >> shift & 3)
    return Modes(bool(word & ftz), bool(word & daz), found)


def put(modes: Modes) -> None:
    """Set those of this thread."""
    place, ftz, daz, shift = _WORDS[_MACHINE]
    space, word = _word()
    word &= ~(ftz | daz | 3 << shift)
    word |= ftz * modes.ftz | daz * modes.daz | _ROUNDINGS[_MACHINE][modes.rounding] << shift
    space[place : place + 4] = word.to_bytes(4, "little")
    _LIBRARY.fesetenv(space)


@contextlib.contextmanager
def under(modes: Modes) -> Iterator[None]:
    """Within, this thread has these modes, and has them still at the end: whoever changes them gives them back."""
    before = current()
    put(modes)
    try:
        yield
        left = current()
    finally:
        put(before)
    assert left == Modes(modes.ftz, modes.daz or (modes.ftz and _MACHINE == "aarch64"), modes.rounding)


def in_thread(function: Callable[[], Any], modes: Modes) -> Any:
    """What it returns in a new thread with these modes."""
    found: list[Any] = []

    def work() -> None:
        try:
            with under(modes):
                found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def everywhere(function: Callable[[], Any], modes: Modes) -> list[Any]:
    """What it returns in this thread and in a new one, with these modes."""
    with under(modes):
        here = function()
    return [here, in_thread(function, modes)]


# ---- fuzzers ----

FUZZED = os.environ.get("GPUCAST_TEST_MODES", "") not in ("", "0") and KNOWN
_RANDOM = random.Random(int(os.environ.get("GPUCAST_TEST_MODES") or 0))


@contextlib.contextmanager
def sometimes() -> Iterator[None]:
    """With GPUCAST_TEST_MODES, modes at random and NumPy's errors raised; else nothing."""
    if not FUZZED:
        yield
        return
    with np.errstate(all="raise"), under(_RANDOM.choice(ALL)):
        yield
