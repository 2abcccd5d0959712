# SPDX-License-Identifier: Apache-2.0
"""Bytes kept under a key, in memory and in a folder: the compiled kernels between runs.

Many threads and processes may use one folder. A file appears whole (temporary file, then rename) and ends in a
checksum, so that what a crash or a full disk left behind counts as absent and is written again. A folder that cannot be
written is no failure: the entries live in memory then.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import stat
import threading
import time

#: The bytes that a folder may hold.
LIMIT = 256 << 20
#: Folders are scanned for old files once for so much of the limit that was written.
_SCAN_SHARE = 64
#: Temporary files as old as this, in seconds, belong to nobody.
_ABANDONED = 3600.0
_SUFFIX, _TEMPORARY = ".kernel", ".tmp"
_CHECKSUM = hashlib.sha256().digest_size

_numbers = itertools.count()


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

    `private`: files that others could have written are no entries, as where entries are code of this process.
    """

    def __init__(self, folder: str, limit: int = LIMIT, *, private: bool = False) -> None:
        self.folder = folder
        self.limit = limit
        self.private = private
        #: Why the last entry could not be kept on disk, or "".
        self.problem = ""
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()
        #: Bytes written since the last scan; the first write scans.
        self._written = limit

    def get(self, key: str) -> bytes | None:
        """The entry, or None where there is no sound one."""
        value = self._memory.get(key)
        if value is None:
            value = self._read(key)
            if value is not None:
                self._memory[key] = value
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep `value`. A disk that refuses it is noted in `problem`."""
        self._memory[key] = value
        if self.limit <= 0:
            return
        try:
            os.makedirs(self.folder, 0o700 if self.private else 0o777, exist_ok=True)
            self._write(key, value)
        except OSError as error:
            self.problem = f"{self.folder}: {error.strerror or error}"
        else:
            self.problem = ""
            self._make_room(self._path(key), len(value))

    def usage(self) -> tuple[int, int]:
        """The number of entries in the folder, and their bytes."""
        sizes = [size for path, (_, size) in self._files().items() if path.endswith(_SUFFIX)]
        return len(sizes), sum(sizes)

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, key + _SUFFIX)

    def _read(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                if self.private and not _written_by_us(os.fstat(file.fileno())):
                    return None
                data = file.read()
        except OSError:
            return None
        value, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
        if _checksum(key, value) != checksum:
            return None
        # The time of last use, for `_make_room`; the folder may be read-only.
        with contextlib.suppress(OSError):
            os.utime(path)
        return value

    def _write(self, key: str, value: bytes) -> None:
        path = self._path(key)
        temporary = f"{path}.{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}{_TEMPORARY}"
        try:
            with open(temporary, "xb", buffering=0, opener=_opened_by_us if self.private else None) as file:
                data = value + _checksum(key, value)
                if file.write(data) != len(data):
                    raise OSError("the disk is full")
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _make_room(self, newest: str, size: int) -> None:
        """Remove the entries used longest ago until the folder keeps the limit; `newest` stays whatever its size."""
        with self._lock:
            self._written += size
            if self._written * _SCAN_SHARE < self.limit:
                return
            self._written = 0
        files = self._files()
        total = sum(size for _, size in files.values())
        now = time.time()
        for path, (used, size) in sorted(files.items(), key=lambda item: item[1]):
            abandoned = path.endswith(_TEMPORARY) and now - used > _ABANDONED
            if path != newest and (abandoned or (total > self.limit and path.endswith(_SUFFIX))):
                # Another process may have been quicker.
                with contextlib.suppress(OSError):
                    os.unlink(path)
                total -= size

    def _files(self) -> dict[str, tuple[float, int]]:
        """Our files in the folder: the time of last use and the size of each."""
        files = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    # Files come and go while we look.
                    with contextlib.suppress(OSError):
                        if _ours(entry.name) and entry.is_file(follow_symlinks=False):
                            status = entry.stat(follow_symlinks=False)
                            files[entry.path] = (status.st_mtime, status.st_size)
        except OSError:
            pass
        return files


def _written_by_us(status: os.stat_result) -> bool:
    """Whether a file belongs to us and nobody else may write it: False on Windows, which tells neither."""
    mine = hasattr(os, "geteuid") and status.st_uid == os.geteuid()
    return mine and stat.S_ISREG(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _opened_by_us(path: str, flags: int) -> int:
    # Whatever the umask.
    return os.open(path, flags, 0o600)


def _ours(name: str) -> bool:
    return name.endswith(_SUFFIX) or (f"{_SUFFIX}." in name and name.endswith(_TEMPORARY))


def _checksum(key: str, value: bytes) -> bytes:
    # The key is part of it, so that a file under a wrong name is no entry.
    return hashlib.sha256(key.encode() + value).digest()
