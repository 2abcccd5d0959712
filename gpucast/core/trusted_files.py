# SPDX-License-Identifier: Apache-2.0
"""Folders that nobody but this user and root can write: the one check before what lies in them is believed.

The rule (SECURITY.md tells users). A folder that is not ours or root's, or that others can write, is refused; inside
one that passed, ordinary calls serve, for nobody else can exchange what is there. For code (`Folder`, `problem`) every
folder on the way counts too: who writes a parent could put another folder in its place. Two parents are excepted. One
is sticky, as /tmp is: there only the owner of an entry, the folder's owner and root exchange it. The other is written
by the user's private group, which bears his name and has no other member: so are home folders where the umask is 002.
The root of the file system is not judged: who writes it can replace Python. A symbolic link on the way counts if it is
ours or root's and lies in a folder that nobody else may write; the folders that it leads through are judged like all.

Not seen: access lists beyond the mode (NFSv4, macOS), and owners that the system does not tell, such as root in a
container that does not map it: its folders then count as a stranger's. Windows tells neither owner nor mode:
`OWNERS_ARE_KNOWN` is false there, and nothing is judged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections import deque
from types import TracebackType

from gpucast.core.whole_files import replaced

if sys.platform != "win32":
    import grp
    import pwd

#: Whether the rule can be kept on this system.
OWNERS_ARE_KNOWN = hasattr(os, "geteuid")

#: No link is followed, and a pipe's other end is not waited for.
_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
#: Links on the way to a folder, as Linux counts them.
_LINKS = 40


class Untrusted(PermissionError):
    """A folder or file that somebody else may have written. `why` names it and says why."""

    def __init__(self, path: str, why: str) -> None:
        self.why = f"{path} {why}"
        super().__init__(errno.EACCES, self.why)


class Folder:
    """A folder that keeps the rule, and the files in it. A context manager.

    With `mode` the folder is made where it does not exist; missing parents get 0755. The umask applies to both.
    FileNotFoundError where it does not exist, `Untrusted` where the rule is not kept, OSError from the system.
    """

    def __init__(self, path: str, mode: int | None = None) -> None:
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.path = os.path.abspath(path)
        try:
            _judge_way(self.path)
        except FileNotFoundError:
            if mode is None:
                raise
            os.makedirs(os.path.dirname(self.path), 0o755, exist_ok=True)
            # Another process may be quicker.
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, mode)
            _judge_way(self.path)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def read(self, name: str) -> bytes:
        """What a file holds. `Untrusted` where somebody else may have written it or it is no regular file."""
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

    def is_writable(self) -> bool:
        """Whether the system lets this user put files there."""
        return os.access(self.path, os.W_OK | os.X_OK)

    def _where(self, name: str) -> str:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is not the name of a file in a folder")
        return os.path.join(self.path, name)


def problem(path: str) -> str:
    """Why a folder does not keep the rule, or the part of its path that exists; "" where it does."""
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
    if not OWNERS_ARE_KNOWN:
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to another user (uid {status.st_uid})"
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def why_not_ours_alone(path: str) -> str:
    """`why_not_ours` of a folder, whatever its parents are; "" as well where its file system says the same of a file
    that we make: it knows no owners or modes (FAT, shares of Windows), or maps them (NFS: root to nobody)."""
    why = why_not_ours(os.lstat(path))
    if not why:
        return ""
    # Named before it is made, so that it is removed even if Ctrl-C comes as soon as it is there.
    new = os.path.join(os.path.dirname(path), f".gpucast-{secrets.token_hex(8)}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            return "" if why_not_ours(os.fstat(file.fileno())) == why else why
    except OSError:
        return why
    finally:
        with contextlib.suppress(OSError):
            os.unlink(new)


def _judge_way(path: str) -> None:
    """`Untrusted` where a folder at an absolute path, or one on the way to it, does not keep the rule."""
    if not OWNERS_ARE_KNOWN:
        os.listdir(path)
        return
    parts, links, at, is_private = deque(_parts(path)), 0, "/", True
    while parts:
        name = parts.popleft()
        below = os.path.dirname(at) if name == os.pardir else os.path.join(at, name)
        status = os.lstat(below)
        if stat.S_ISLNK(status.st_mode):
            if not is_private:
                raise Untrusted(below, "is a link in a folder that others can write")
            _judge_owner(below, status)
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), below)
            found = os.readlink(below)
            parts.extendleft(reversed(_parts(found)))
            if found.startswith("/"):
                at, is_private = "/", True
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), below)
        at = below
        is_private = at == "/" or _judge_folder(at, status, is_last=not parts)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _judge_owner(path: str, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise Untrusted(path, why_not_ours(status))


def _judge_folder(path: str, status: os.stat_result, is_last: bool) -> bool:
    """Whether nobody else may write a folder; `Untrusted` where the rule is not kept."""
    _judge_owner(path, status)
    why = why_not_ours(status)
    is_for_all = bool(status.st_mode & stat.S_IWOTH)
    if why and not is_last and not is_for_all and _is_private_group(status.st_gid):
        return True
    if why and (is_last or not status.st_mode & stat.S_ISVTX):
        raise Untrusted(path, why)
    return not why


def _is_private_group(group: int) -> bool:
    """Whether a group is this user's, bears his name and has no other member: as good as the user."""
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    if user.pw_gid != group or entry.gr_name != user.pw_name or not set(entry.gr_mem) <= {user.pw_name}:
        return False
    # It does not list those whose first group it is.
    return all(other.pw_uid == user.pw_uid for other in pwd.getpwall() if other.pw_gid == group)
