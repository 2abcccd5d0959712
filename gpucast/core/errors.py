# SPDX-License-Identifier: Apache-2.0
"""The exceptions and warnings that any part of gpucast may give; and texts of strangers, which every message may show.

Names of tensors, types and files come from whoever made the file. Printed as they are they could move a terminal's
cursor, change its title or its keys, forge lines of a log, and hide or reorder what stands beside them. So all that is
not printed is shown as an escape, here and nowhere else.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""One line for a terminal, a page or a log: control characters, marks of direction, blanks that are none, and what
    is no character become escapes such as \x1b. What is escaped already stays as it is."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """As `printable`, for several lines."""
    return "\n".join(map(printable, text.split("\n")))


class PrintableError(Exception):
    """An error with one line of message, which may show texts of strangers."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class DeviceUnavailable(RuntimeError):
    """A cast was asked for on a GPU that cannot do it here. The message says why and what mends it."""


class SlowHostWarning(UserWarning):
    """Casts on the host are done by the reference, because the extension module is missing. The message says why and
    what mends it."""
