# SPDX-License-Identifier: Apache-2.0
"""Bytes kept under a key, in memory and in a folder: the compiled kernels between runs.

Many threads and processes may use one folder. A file appears whole (temporary file, then rename) and ends in a
checksum, so that what a crash or a full disk left behind counts as absent and is written again. Entries are code, so a
folder or file that others could have written is not used (`gpucast.core.trusted_files` has the rule). A folder that
cannot be used or written is no failure: the entries live in memory then.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time

from gpucast.core.trusted_files import TEMPORARY, Folder

#: The bytes that a folder may hold.
LIMIT = 256 << 20
#: Folders are scanned for old files once for so much of the limit that was written.
_SCAN_SHARE = 64
#: Temporary files as old as this, in seconds, belong to nobody.
_ABANDONED = 3600.0
_SUFFIX = ".kernel"
_CHECKSUM = hashlib.sha256().digest_size


def limit(who: str) -> int:
    """The bytes that ``GPUCAST_CACHE_SIZE`` (in MiB) grants, or `LIMIT`. ValueError, which begins with `who`."""
    chosen = os.environ.get("GPUCAST_CACHE_SIZE")
    if not chosen:
        return LIMIT
    with contextlib.suppress(ValueError):
        if int(chosen) >= 0:
            return int(chosen) << 20
    raise ValueError(f"{who}: GPUCAST_CACHE_SIZE={chosen!r} is not a number of MiB; expected one such as 256, or 0")


def digest(*parts: str | bytes) -> str:
    """A key: the SHA-256 of the parts. Parts that differ in any way, where one ends included, give another key."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return hashed.hexdigest()


class Cache:
    """Entries in `folder`, which is made when it is first needed and holds at most about `limit` bytes.

    `private`: nobody else may read them. `also`: a folder that is only read, for what `folder` does not have. A fork
    while another thread is in a method leaves the child nothing to wait for: there is no lock.
    """

    def __init__(self, folder: str, limit: int = LIMIT, *, private: bool = False, also: str = "") -> None:
        self.folder, self.also = folder, also
        self.limit = limit
        #: Of folders and of files.
        self._modes = (0o700, 0o600) if private else (0o755, 0o644)
        #: Why the last entry could not be kept on disk, or "".
        self.problem = ""
        self._memory: dict[str, bytes] = {}
        #: Bytes written since the last scan; the first write scans. Threads may lose some: a scan is a little later.
        self._written = limit

    def get(self, key: str) -> bytes | None:
        """The entry, or None where there is no sound one."""
        value = self._memory.get(key)
        if value is None:
            value = self._read(self.folder, key)
            if value is None and self.also:
                value = self._read(self.also, key)
            if value is not None:
                self._memory[key] = value
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep `value`. A disk that refuses it is noted in `problem`."""
        self._memory[key] = value
        if self.limit <= 0:
            return
        try:
            with Folder(self.folder, self._modes[0]) as folder:
                folder.write(key + _SUFFIX, value + _checksum(key, value), self._modes[1])
                self._make_room(folder, key + _SUFFIX, len(value))
        except OSError as error:
            self.problem = f"{self.folder}: {error.strerror or error}"
        else:
            self.problem = ""

    def drop(self, key: str) -> None:
        """Forget an entry that turned out to be of no use; one that cannot be removed stays on disk."""
        self._memory.pop(key, None)
        with contextlib.suppress(OSError), Folder(self.folder) as folder:
            folder.remove(key + _SUFFIX)

    def is_empty(self) -> bool:
        """Whether there is no folder that could have an entry, nor one in memory."""
        return not self._memory and all(map(_is_missing, (self.folder, self.also)))

    def is_writable(self) -> bool:
        """Whether entries can be kept in the folder, which is made for that."""
        try:
            with Folder(self.folder, self._modes[0]) as folder:
                return folder.is_writable()
        except OSError:
            return False

    def usage(self) -> tuple[int, int]:
        """The number of entries in the folder, and their bytes."""
        try:
            with Folder(self.folder) as folder:
                sizes = [status.st_size for name, status in folder.files().items() if name.endswith(_SUFFIX)]
        except OSError:
            return 0, 0
        return len(sizes), sum(sizes)

    def _read(self, where: str, key: str) -> bytes | None:
        name = key + _SUFFIX
        try:
            with Folder(where) as folder:
                data = folder.read(name)
                value, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
                if _checksum(key, value) != checksum:
                    return None
                if where == self.folder:
                    # The time of last use, for `_make_room`; the folder may be read-only.
                    with contextlib.suppress(OSError):
                        folder.touch(name)
        except OSError:
            return None
        return value

    def _make_room(self, folder: Folder, newest: str, size: int) -> None:
        """Remove the entries used longest ago until the folder keeps the limit; `newest` stays whatever its size."""
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
                # Another process may have been quicker.
                with contextlib.suppress(OSError):
                    folder.remove(name)
                total -= status.st_size


def _is_missing(path: str) -> bool:
    try:
        Folder(path).close()
    except OSError:
        return True
    return False


def _ours(name: str) -> bool:
    return name.endswith(_SUFFIX) or (f"{_SUFFIX}." in name and name.endswith(TEMPORARY))


def _checksum(key: str, value: bytes) -> bytes:
    # The key is part of it, so that a file under a wrong name is no entry.
    return hashlib.sha256(key.encode() + value).digest()
