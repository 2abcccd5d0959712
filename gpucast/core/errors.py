# SPDX-License-Identifier: Apache-2.0
"""The exceptions and warnings of gpucast, and safe printing of text from files.

Names of tensors, types and files come from the author of a file. Printed unchanged, they could move a terminal's
cursor, change its title or its keys, forge lines of a log, or hide the text beside them. So every character that is not
printable is shown as an escape.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterable

#: The packages that stand between the line of a caller and a cast.
_BETWEEN = ("gpucast", "torch", "jax")
_is_said = False


def printable(text: str) -> str:
    r"""Make text safe for one line of a terminal, a page or a log. Control characters, marks of text direction, unusual
    blanks and invalid characters become escapes such as \x1b. Text that is escaped already does not change."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """Do the same for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def nearest(word: object, known: Iterable[str], most: int = 1) -> list[str]:
    """The `known` words that are spelt like another one, the nearest first."""
    import difflib

    return difflib.get_close_matches(str(word), list(known), most)


def meant(word: object, known: Iterable[str]) -> str:
    """The end of a message about a word that is not among the `known` ones: the nearest of these, if one is near."""
    near = nearest(word, known)
    return f"; did you mean {near[0]!r}?" if near else ""


def reason_of(error: OSError) -> str:
    """The system's words for an error; of a file in a missing folder, also the name of that folder."""
    said = error.strerror or str(error)
    folder = os.path.dirname(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else ""
    if error.errno == errno.ENOENT and folder and not os.path.isdir(folder):
        hint = f": there is no folder {folder}; make it first, or name another"
        # The writer of a file may have said so already.
        return said if said.endswith(hint) else said + hint
    return said


def no_attribute(x: object, name: str, instead: dict[str, str]) -> AttributeError:
    """The error for a missing attribute that arrays of other libraries have. It names the replacement, `instead`."""
    advice = f"; {instead[name]}" if name in instead else ""
    return AttributeError(f"{type(x).__name__!r} object has no attribute {name!r}{advice}", name=name, obj=x)


class PrintableError(Exception):
    """An error with a message of one line that may quote text from files."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class DeviceUnavailable(RuntimeError):
    """The error of a call for a GPU that this process cannot use. The message gives the reason and the command that
    helps."""


class SlowHostWarning(UserWarning):
    """The extension module is missing, so the slow reference casts on the host. The message gives the reason and the
    command that helps."""


class NarrowGradientWarning(UserWarning):
    """A gradient is going to pass through an array of 8 bits or fewer, where small ones become 0. The message names the
    call and what to use in its place."""


def say_gradient_is_narrow(caller: str, to: str) -> None:
    """Warn, once in a process, of a cast to such a type through which a library differentiates."""
    global _is_said  # noqa: PLW0603 (once in a process)
    if _is_said:
        return
    _is_said = True
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".", maxsplit=1)[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{caller}: the gradient of this cast arrives in {to}, where small gradients become 0 (said once); use "
        f"gpucast.mixed.fake_cast(x, {to!r}, scale=...), whose gradient has x's type, the layer "
        "gpucast.interop.torch.Linear8, or a backward pass of your own, and pass x without its gradient where none is "
        "needed",
        NarrowGradientWarning,
        stacklevel=level,
    )
