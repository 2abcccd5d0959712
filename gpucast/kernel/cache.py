# SPDX-License-Identifier: Apache-2.0
"""A cache of bytes by key, in memory and in a folder: it keeps compiled kernels between runs.

Many threads and processes may use one folder. A file is written atomically (temporary file, then rename) and ends in a
checksum, so that what a crash or a full disk left behind counts as absent and is written again. Entries are code, so a
folder or file that others could have written is not used (`gpucast.core.trusted_files` has the rule). A folder that
cannot be used or written is no failure: the entries are then kept in memory only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import time

from gpucast.core import trusted_files
from gpucast.core.places import TEMPORARY
from gpucast.core.trusted_files import Folder

#: What the folders hold.
KERNELS = "kernels"
#: The default limit of a folder's size in bytes.
LIMIT = 256 << 20
#: A folder is scanned for old files whenever 1/64 of its limit has been written.
_SCAN_SHARE = 64
#: The age in seconds from which a temporary file counts as abandoned by its process.
_ABANDONED = 3600.0
_SUFFIX = ".kernel"
_CHECKSUM = hashlib.sha256().digest_size


def cache_folder() -> str:
    """``GPUCAST_CACHE_DIR``, or `gpucast` in the user's cache folder. It need not exist.

    If the chosen folder is writable by all and sticky, as /tmp is, each user has a subfolder named by the user id.
    """
    chosen = os.environ.get("GPUCAST_CACHE_DIR")
    if chosen:
        chosen = os.path.abspath(chosen)
        return os.path.join(chosen, str(os.geteuid())) if _is_shared(chosen) else chosen
    home = os.path.expanduser("~")
    if sys.platform == "win32":
        return os.path.join(
            os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local"), "gpucast", "Cache"
        )
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "gpucast")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "gpucast")


def read_folder(kind: str) -> str:
    """The folder of `kind` in ``GPUCAST_CACHE_READ``, or "" without one. It need not exist."""
    chosen = os.environ.get("GPUCAST_CACHE_READ")
    return os.path.join(os.path.abspath(chosen), kind) if chosen else ""


def problem(folder: str) -> str:
    """Why some or all of the files in a cache folder are not used; "" where all are used."""
    path = os.path.join(folder, KERNELS)
    return (trusted_files.problem(folder) if _is_shared(os.path.dirname(folder)) else "") or trusted_files.problem(path)


def _is_shared(folder: str) -> bool:
    if trusted_files.OWNERS_ARE_KNOWN:
        # A folder that is missing or unreadable is reported by the code that opens it.
        with contextlib.suppress(OSError):
            mode = os.stat(folder).st_mode
            return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)
    return False


def writable(folder: str) -> bool:
    """Whether files can be written to the folder, or to a new folder of this path."""
    while not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        if os.path.lexists(folder) or parent == folder:
            return False
        folder = parent
    return os.access(folder, os.W_OK | os.X_OK)


def limit(caller: str) -> int:
    """The bytes that ``GPUCAST_CACHE_SIZE`` (in MiB) grants, or `LIMIT`. ValueError, which begins with `caller`."""
    chosen = os.environ.get("GPUCAST_CACHE_SIZE")
    if not chosen:
        return LIMIT
    with contextlib.suppress(ValueError):
        if int(chosen) >= 0:
            return int(chosen) << 20
    raise ValueError(f"{caller}: GPUCAST_CACHE_SIZE={chosen!r} is not a number of MiB; expected one such as 256, or 0")


def digest(*parts: str | bytes) -> str:
    """A key: the SHA-256 of the parts and their lengths, so that ("ab", "c") and ("a", "bc") have different keys."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return hashed.hexdigest()


class Cache:
    """Entries in `folder`, which is created when first needed and holds at most about `limit` bytes.

    `also`: a read-only folder that is searched after `folder`. There is no
    lock, so that a child forked while another thread is in a method cannot wait for it for ever.
    """

    def __init__(self, folder: str, limit: int = LIMIT, *, also: str = "") -> None:
        self.folder, self.also = folder, also
        self.limit = limit
        #: Why the last entry could not be kept on disk, or "".
        self.problem = ""
        self._memory: dict[str, bytes] = {}
        #: Bytes written since the last scan; it starts at the limit, so that the first write scans. Threads may lose
        #: some counts, which only delays a scan a little.
        self._written = limit

    def get(self, key: str) -> bytes | None:
        """The entry, or None if there is no intact one."""
        value = self._memory.get(key)
        if value is None:
            value = self._read(self.folder, key)
            if value is None and self.also:
                value = self._read(self.also, key)
            if value is not None:
                self._memory[key] = value
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep `value`. If it cannot be written to disk, `problem` says why."""
        self._memory[key] = value
        if self.limit <= 0:
            return
        try:
            folder = _opened(self.folder, 0o755)
            folder.write(key + _SUFFIX, value + _checksum(key, value), 0o644)
            self._make_room(folder, key + _SUFFIX, len(value))
        except OSError as error:
            self.problem = f"{self.folder}: {error.strerror or error}"
        else:
            self.problem = ""

    def usage(self) -> tuple[int, int]:
        """The number of entries in the folder, and their bytes."""
        try:
            files = _opened(self.folder).files()
        except OSError:
            return 0, 0
        sizes = [status.st_size for name, status in files.items() if name.endswith(_SUFFIX)]
        return len(sizes), sum(sizes)

    def _read(self, where: str, key: str) -> bytes | None:
        name = key + _SUFFIX
        try:
            folder = _opened(where)
            data = folder.read(name)
        except OSError:
            return None
        value, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
        if _checksum(key, value) != checksum:
            return None
        if where == self.folder:
            # The time of last use, for `_make_room`; the folder may be read-only.
            with contextlib.suppress(OSError):
                folder.touch(name)
        return value

    def _make_room(self, folder: Folder, newest: str, size: int) -> None:
        """Remove the least recently used entries until the folder keeps its limit; `newest` always stays."""
        self._written += size
        if self._written * _SCAN_SHARE < self.limit:
            return
        self._written = 0
        try:
            files = {name: status for name, status in folder.files().items() if _ours(name)}
        except OSError:
            return
        total = sum(status.st_size for status in files.values())
        now = time.time()
        for name, status in sorted(files.items(), key=lambda item: (item[1].st_mtime, item[1].st_size)):
            abandoned = name.endswith(TEMPORARY) and now - status.st_mtime > _ABANDONED
            if name != newest and (abandoned or (total > self.limit and name.endswith(_SUFFIX))):
                # Another process may have removed it already.
                with contextlib.suppress(OSError):
                    folder.remove(name)
                total -= status.st_size


def _opened(path: str, mode: int | None = None) -> Folder:
    """A folder of files. Its own folder is checked as well where that lies in one of all users: another user may have
    made it there, and then exchange what is in it."""
    user = os.path.dirname(path)
    if _is_shared(os.path.dirname(user)):
        Folder(user, mode)
    return Folder(path, mode)


def _ours(name: str) -> bool:
    return name.endswith((_SUFFIX, TEMPORARY))


def _checksum(key: str, value: bytes) -> bytes:
    # The key is part of the checksum, so that a file under a wrong name is rejected.
    return hashlib.sha256(key.encode() + value).digest()
