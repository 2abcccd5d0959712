# SPDX-License-Identifier: Apache-2.0
"""The exceptions and warnings of gpucast, and safe printing of text from files.

Names of tensors, types and files come from the author of a file. Printed unchanged, they could move a terminal's
cursor, change its title or its keys, forge lines of a log, or hide the text beside them. So every character that is not
printable is shown as an escape.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Make text safe for one line of a terminal, a page or a log. Control characters, marks of text direction, unusual
    blanks and invalid characters become escapes such as \x1b. Text that is escaped already does not change."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """Do the same for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


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
