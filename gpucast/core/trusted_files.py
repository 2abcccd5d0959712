# SPDX-License-Identifier: Apache-2.0
"""The one check of a folder before its files are trusted: only this user and root may write to it.

The rule, which SECURITY.md tells users: a folder that is not ours or root's, or that others can write, is refused;
inside one that passed, ordinary calls serve, for nobody else can exchange what is there. Its parents are not judged:
who can write them can put a folder of his own in its place, which is then refused. A link to it is ours or root's.

Not seen: access lists beyond the mode (NFSv4, macOS), and owners that the system does not tell, such as root in a
container that does not map it: its folders then count as a stranger's. Windows tells neither owner nor mode:
`OWNERS_ARE_KNOWN` is false there, and nothing is judged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from gpucast.core.places import replaced

#: Whether the rule can be kept on this system.
OWNERS_ARE_KNOWN = hasattr(os, "geteuid")

#: No link is followed, and a pipe's other end is not waited for.
_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Untrusted(PermissionError):
    """A folder or file that somebody else may have written. `why` names it and says why."""

    def __init__(self, path: str, why: str) -> None:
        self.why = f"{path} {why}"
        super().__init__(errno.EACCES, self.why)


class Folder:
    """A folder that keeps the rule, and the files in it.

    With `mode` the folder is made where it does not exist; missing parents get 0755. The umask applies to both.
    FileNotFoundError where it does not exist, `Untrusted` where the rule is not kept, OSError from the system.
    """

    def __init__(self, path: str, mode: int | None = None) -> None:
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.path = os.path.abspath(path)
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            if mode is None:
                raise
            os.makedirs(os.path.dirname(self.path), 0o755, exist_ok=True)
            # Another process may be quicker.
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, mode)
            status = os.stat(self.path)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
        why = _why_not_owned(os.lstat(self.path)) or why_not_ours(status)
        if why:
            raise Untrusted(self.path, why)

    def read(self, name: str) -> bytes:
        """The content of a file. `Untrusted` if another user may have written it, or if it is not a regular file."""
        path = self._where(name)
        with open(path, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | _FILE)) as file:
            status = os.fstat(file.fileno())
            why = why_not_ours(status) if stat.S_ISREG(status.st_mode) else "is no regular file"
            if why:
                raise Untrusted(path, why)
            return file.read()

    def write(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """Put a file there that appears whole (it is not made to last through a power cut); the umask applies."""
        with replaced(self._where(name), mode, is_durable=False) as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Remove a file, or a link."""
        os.unlink(self._where(name))

    def touch(self, name: str) -> None:
        """Make now the time when a file was last changed."""
        os.utime(self._where(name))

    def files(self) -> dict[str, os.stat_result]:
        """The regular files that are there now."""
        found = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                # Files come and go while we look.
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        found[entry.name] = entry.stat(follow_symlinks=False)
        return found

    def _where(self, name: str) -> str:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is not the name of a file in a folder")
        return os.path.join(self.path, name)


def problem(path: str) -> str:
    """Why a folder does not keep the rule; "" where it does, or does not exist."""
    try:
        Folder(path)
    except Untrusted as error:
        return error.why
    except OSError:
        # What does not exist or cannot be opened is no danger.
        pass
    return ""


def why_not_ours(status: os.stat_result) -> str:
    """Why a file or folder may have been written by somebody else; "" where it is ours or root's alone."""
    why = _why_not_owned(status)
    if not why and OWNERS_ARE_KNOWN and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by others"
    return why


def _why_not_owned(status: os.stat_result) -> str:
    if OWNERS_ARE_KNOWN and status.st_uid not in (0, os.geteuid()):
        return f"belongs to another user (uid {status.st_uid})"
    return ""
