# SPDX-License-Identifier: Apache-2.0
"""An open folder, and what is in it by names relative to it: who puts another folder in its place changes nothing.

No link is followed as the last part of a name. Where the system has no descriptors of folders (Windows), paths are
used as they are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import weakref
from collections.abc import Iterator

from gpucast.checkpoints.running.place import is_mount_point
from gpucast.core.places import close_quietly, status_of
from gpucast.core.trusted_files import OWNERS_ARE_KNOWN
from gpucast.files import FileError
from gpucast.files.atomic import sync_folder

#: With O_PATH a folder need not be readable to be gone through.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
#: A pipe's other end is not waited for; other files know no difference.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)


class Directory:
    """An open folder. The descriptor is given back when nobody has it any more."""

    def __init__(self, path: str, within: Directory | None = None) -> None:
        """Open the folder at `path`, in the open folder that it lies in if that is given (then it must be no link).

        FileNotFoundError, NotADirectoryError, OSError.
        """
        self.path = path
        self._at: int | None = None
        if OWNERS_ARE_KNOWN:
            if within is None:
                self._at = os.open(path, _FOLDER)
            else:
                self._at = os.open(os.path.basename(path), _FOLDER | _NO_LINK, dir_fd=within._at)
            weakref.finalize(self, close_quietly, self._at)
        elif not os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _where(self, name: str) -> str:
        return name if self._at is not None else os.path.join(self.path, name)

    @contextlib.contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Errors name the whole path."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.path.join(self.path, name)) from error

    def own_status(self) -> os.stat_result:
        return os.stat(self.path) if self._at is None else os.fstat(self._at)

    def bears_its_name(self, parent: Directory) -> bool:
        """Whether nobody has renamed or removed it since it was opened."""
        status = parent.status(os.path.basename(self.path))
        return status is not None and os.path.samestat(status, self.own_status())

    def status(self, name: str) -> os.stat_result | None:
        """None where nothing is there; OSError where that cannot be told."""
        with self._naming(name):
            return status_of(self._where(name), self._at)

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """A descriptor of a file."""
        with self._naming(name):
            return os.open(self._where(name), flags | _NO_LINK | _AT_ONCE | _BINARY, mode, dir_fd=self._at)

    def opener(self, name: str, flags: int) -> int:
        """For `open`."""
        return self.open(name, flags)

    def names(self, name: str = os.curdir) -> list[str]:
        """The names in a folder of it; none where it is not there."""
        with self._naming(name):
            try:
                if self._at is None:
                    return os.listdir(self._where(name))
                handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=self._at)
            except FileNotFoundError:
                return []
            try:
                return os.listdir(handle)
            finally:
                os.close(handle)

    def files(self, name: str) -> Iterator[str]:
        """The names of all that is no folder, in a folder of it and those below."""
        for entry in self.names(name):
            path = os.path.join(name, entry)
            status = self.status(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                yield from self.files(path)
            elif status is not None:
                yield path

    def make(self, name: str, mode: int = 0o777) -> None:
        """A folder, unless it is there."""
        with self._naming(name), contextlib.suppress(FileExistsError):
            os.mkdir(self._where(name), mode, dir_fd=self._at)

    def make_all(self, name: str) -> None:
        """A folder of it, which may lie in others."""
        if self.status(name) is None:
            parent = os.path.dirname(name)
            if parent:
                self.make_all(parent)
            self.make(name)
            self.sync(parent or os.curdir)

    def replace(self, name: str, to: Directory, to_name: str) -> None:
        """Rename; what is there is replaced: a file, or an empty folder by a folder."""
        with to._naming(to_name):
            if self._at is None and os.path.isdir(to._where(to_name)) and os.path.isdir(self._where(name)):
                # Windows replaces no folder.
                os.rmdir(to._where(to_name))
            os.replace(self._where(name), to._where(to_name), src_dir_fd=self._at, dst_dir_fd=to._at)

    def unlink(self, name: str) -> None:
        """Remove a file or link, if it is there."""
        with self._naming(name), contextlib.suppress(FileNotFoundError):
            os.unlink(self._where(name), dir_fd=self._at)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder, if it is there."""
        with self._naming(name), contextlib.suppress(FileNotFoundError):
            os.rmdir(self._where(name), dir_fd=self._at)

    def remove(self, name: str) -> None:
        """Remove whatever is there, and all that is in it; links are not followed."""
        status = self.status(name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            self.unlink(name)
            return
        for entry in self.names(name):
            self.remove(os.path.join(name, entry))
        self.remove_folder(name)

    def set_mode(self, name: str, mode: int) -> None:
        if self._at is None:
            os.chmod(self._where(name), mode)
            return
        handle = self.open(name, os.O_RDONLY)
        try:
            os.fchmod(handle, mode)
        finally:
            os.close(handle)

    def sync(self, name: str = os.curdir) -> None:
        """Make the names in a folder of it last through a power cut, where the system can."""
        if self._at is None:
            sync_folder(self._where(name))
            return
        with contextlib.suppress(OSError):
            handle = os.open(name, os.O_RDONLY | _NO_LINK, dir_fd=self._at)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def private(parent: Directory, name: str, make: bool) -> Directory | None:
    """The folder of that name that belongs to this user, or root, and that nobody else may write; None where there is
    none and `make` is false.

    FileError where it is another's, a link, or no folder, or lies on another file system than `parent`.
    """
    path = os.path.join(parent.path, name)
    if make:
        parent.make(name, 0o700)
    status = parent.status(name)
    if status is None:
        return None
    if not stat.S_ISDIR(status.st_mode):
        what = "is a link, which is not followed" if stat.S_ISLNK(status.st_mode) else "nothing that gpucast left"
        raise FileError(f"{path}: is in the way, and {what}; remove it")
    try:
        folder = Directory(path, parent)
    except FileNotFoundError:
        return None
    status = folder.own_status()
    if is_mount_point(path, status, parent.own_status()):
        raise FileError(f"{path}: is mounted on its own, so that no result can be moved from it; unmount it")
    why = _why_not_private(status)
    if why and not _is_as_new(parent, why):
        raise FileError(f"{path}: {why}; nothing in it is trusted: choose another name, or have it removed")
    return folder


def _why_not_private(status: os.stat_result) -> str:
    if not OWNERS_ARE_KNOWN:
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by others"
    return ""


def _is_as_new(parent: Directory, why: str) -> bool:
    """Whether the file system says the same of a file that we make: it knows no owners or modes (FAT, shares of
    Windows), or maps them (NFS: root to nobody), so that nothing can be told by them."""
    # A file is open as soon as it is made; in the place of a new folder others could put one of theirs before it is.
    # Named before it is made, so that it is removed even if Ctrl-C comes as soon as it is there.
    new = f".gpucast-{secrets.token_hex(8)}"
    try:
        handle = parent.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            return _why_not_private(os.fstat(handle)) == why
        finally:
            os.close(handle)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            parent.unlink(new)
