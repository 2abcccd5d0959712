# SPDX-License-Identifier: Apache-2.0
"""Folders and files that nobody but this user and root can have written: what code may be loaded from.

The rule. Every folder from the root of the file system down to the one that holds the files belongs to this user (the
effective uid) or to root, and nobody else may write it: he could rename what is in it, and put another folder of ours
in its place. There are two exceptions, for parents only. One is sticky, as /tmp is: there an entry is renamed or
removed only by its owner, the folder's owner and root, and the next folder on the way is ours or root's. The other is
written by the user's private group, which bears his name and has no other member: so are home folders where the umask
is 002. The root of the file system is not judged: who writes it can replace Python. A symbolic link on the way counts
if it is ours or root's and lies in a folder that nobody else may write; the folders that it leads through are judged
like all. A file is a regular one, no link, ours or root's, written by nobody else. For root only what is root's counts.

Nothing is looked at by name and then opened: each folder is opened relative to the descriptor of the one above it, and
a file relative to its folder's, without following a link and without waiting for the other end of a pipe; owner and
mode are those of what is open. (Python's descriptors are not inherited by other programs.) So a path whose every folder
keeps the rule stays what it is as far as others go, and may be handed to a program that takes names.

What is not seen: access lists beyond the mode (NFSv4, macOS), and owners that the system does not tell, such as root in
a container that does not map it: its folders then count as a stranger's. Windows tells neither owner nor mode, and has
no descriptors of folders: `OWNERS_ARE_KNOWN` is false there, and paths are used as they are, regular files only.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import sys
from collections import deque
from typing import Any

if sys.platform != "win32":
    import grp
    import pwd

#: Whether the rule can be kept on this system.
OWNERS_ARE_KNOWN = hasattr(os, "geteuid") and {os.open, os.mkdir, os.stat, os.unlink, os.readlink} <= os.supports_dir_fd
#: What the names of files end in that are not complete; after the name that they will have.
TEMPORARY = ".tmp"

_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_LIST = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
#: With O_PATH a folder need not be readable to be gone through.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
#: What Linux, macOS and FreeBSD say of a link where a folder is asked for.
_MAY_BE_A_LINK = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
#: Links on the way to a folder, as Linux counts them.
_LINKS = 40

_numbers = itertools.count()


class Untrusted(PermissionError):
    """A folder or file that somebody else may have written. `why` names it and says why."""

    def __init__(self, path: str, why: str) -> None:
        self.why = f"{path} {why}"
        super().__init__(errno.EACCES, self.why)


class Folder:
    """An open folder that keeps the rule, and the files in it. A context manager.

    With `mode` the folder is made where it does not exist; missing parents get 0755. The umask applies to both.
    FileNotFoundError where it does not exist, `Untrusted` where the rule is not kept, OSError from the system.
    """

    def __init__(self, path: str, mode: int | None = None) -> None:
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.path = os.path.abspath(path)
        self._at: int | None = None
        if OWNERS_ARE_KNOWN:
            self._at = _walk(self.path, mode)
        else:
            _find(self.path, mode)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; more than once is no error."""
        at, self._at = self._at, None
        if at is not None:
            os.close(at)

    def read(self, name: str) -> bytes:
        """What a file holds. `Untrusted` where somebody else may have written it or it is no regular file."""
        handle = os.open(self._where(name), os.O_RDONLY | _FILE | _BINARY, dir_fd=self._at)
        try:
            self._judge(name, os.fstat(handle))
            with open(handle, "rb", buffering=0, closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)

    def write(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """Put a file there that appears whole (it is not made to last through a power cut); the umask applies."""
        temporary = f"{name}.{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}{TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE | _BINARY
        handle = os.open(self._where(temporary), flags, mode, dir_fd=self._at)
        try:
            with open(handle, "wb", buffering=0) as file:
                if file.write(data) != len(data):
                    raise OSError("the disk is full")
            os.replace(self._where(temporary), self._where(name), src_dir_fd=self._at, dst_dir_fd=self._at)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise

    def remove(self, name: str) -> None:
        """Remove a file, or a link."""
        os.unlink(self._where(name), dir_fd=self._at)

    def touch(self, name: str) -> None:
        """Make now the time when a file was last changed."""
        if os.utime in os.supports_follow_symlinks:
            os.utime(self._where(name), dir_fd=self._at, follow_symlinks=False)
        else:
            os.utime(self._where(name))

    def files(self) -> dict[str, os.stat_result]:
        """The regular files that are there now."""
        found = {}
        where = self.path if self._at is None else os.open(".", _LIST, dir_fd=self._at)
        try:
            with os.scandir(where) as entries:
                for entry in entries:
                    # Files come and go while we look.
                    with contextlib.suppress(OSError):
                        if entry.is_file(follow_symlinks=False):
                            found[entry.name] = entry.stat(follow_symlinks=False)
        finally:
            if isinstance(where, int):
                os.close(where)
        return found

    def is_writable(self) -> bool:
        """Whether the system lets this user put files there."""
        if self._at is None:
            return os.access(self.path, os.W_OK | os.X_OK)
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self._at, effective_ids=os.access in os.supports_effective_ids)

    def _where(self, name: str) -> str:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is not the name of a file in a folder")
        return name if self._at is not None else os.path.join(self.path, name)

    def _judge(self, name: str, status: os.stat_result) -> None:
        path = os.path.join(self.path, name)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(path, "is no regular file")
        if OWNERS_ARE_KNOWN:
            _judge_owner(path, status)
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise Untrusted(path, "can be written by others")


def problem(path: str) -> str:
    """Why a folder does not keep the rule, or the part of its path that exists; "" where it does."""
    try:
        Folder(path).close()
    except Untrusted as error:
        return error.why
    except OSError:
        # What does not exist or cannot be opened is no danger.
        pass
    return ""


def _find(path: str, mode: int | None) -> None:
    if mode is not None:
        os.makedirs(path, mode, exist_ok=True)
    if not os.path.isdir(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _walk(path: str, mode: int | None) -> int:
    """A descriptor of the folder at an absolute path, after each on the way was judged."""
    parts, links = deque(_parts(path)), 0
    at, handle, is_private = "/", os.open("/", _FOLDER), True
    try:
        while parts:
            name = parts.popleft()
            below = os.path.join(at, name)
            found = _open(name, handle, mode if mode is None or not parts else 0o755)
            if isinstance(found, str):
                if not is_private:
                    raise Untrusted(below, "is a link in a folder that others can write")
                _judge_owner(below, os.stat(name, dir_fd=handle, follow_symlinks=False))
                links += 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), below)
                parts.extendleft(reversed(_parts(found)))
                if not found.startswith("/"):
                    continue
                found, below = os.open("/", _FOLDER), "/"
            os.close(handle)
            handle, at = found, below
            is_private = at == "/" or _judge_folder(at, os.fstat(handle), is_last=not parts)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _open(name: str, at: int, mode: int | None) -> int | str:
    """A descriptor of a folder, made where it is missing if `mode` says so; or where the link leads that is there."""
    try:
        return _open_existing(name, at)
    except FileNotFoundError:
        if mode is None:
            raise
    # Another process may be quicker.
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=at)
    return _open_existing(name, at)


def _open_existing(name: str, at: int) -> int | str:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except OSError as error:
        if error.errno in _MAY_BE_A_LINK:
            with contextlib.suppress(OSError):
                return os.readlink(name, dir_fd=at)
        raise


def _judge_owner(path: str, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise Untrusted(path, f"belongs to another user (uid {status.st_uid})")


def _judge_folder(path: str, status: os.stat_result, is_last: bool) -> bool:
    """Whether nobody else may write an open folder; `Untrusted` where the rule is not kept."""
    _judge_owner(path, status)
    for_all = bool(status.st_mode & stat.S_IWOTH)
    if not for_all and not status.st_mode & stat.S_IWGRP:
        return True
    if not is_last and not for_all and _is_private_group(status.st_gid):
        return True
    if is_last or not status.st_mode & stat.S_ISVTX:
        raise Untrusted(path, "can be written by others")
    return False


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
